"""What an inquiry supports survives Holm's correction over everything that it tested."""

import numpy as np
import pytest

from sonde.lab import correcting, experiments, results, rules, summaries, verdicts


def proposed(at, corruption, value):
    """A hypothesis and its prediction."""
    guess = at.call("propose_hypothesis", {"statement": f"{corruption} matters"}).result["hypothesis"]
    asked = {"hypothesis": guess, "corruption": corruption, "relation": "below", "value": value}
    return guess, at.call("register_prediction", asked).result["prediction"]


def run(at, prediction):
    for control in [False] + [True] * rules.CONTROLS:
        assert at.call("run_experiment", {"prediction": prediction, "control": control}).outcome == "ok"


def examined(at, corruption, value):
    """A hypothesis whose one prediction was put to the test."""
    guess, prediction = proposed(at, corruption, value)
    run(at, prediction)
    return guess


def concluded(at, guess):
    return at.call("conclude", {"hypothesis": guess, "claim": f"{guess} holds."})


@pytest.mark.parametrize("relation", ["below", "above"])
def test_a_p_value_is_below_five_percent_exactly_when_the_interval_lies_on_that_side(relation):
    def same(rows, measure, value):
        numbers = experiments.summary(rows)
        low, high = numbers[f"{measure}_low"], numbers[f"{measure}_high"]
        clears = high < value if relation == "below" else low > value
        assert (correcting.p_value(rows, measure, relation, value) < 0.05) == clears

    rng = np.random.default_rng(0)
    for count in (2, 6, 8, 12):
        for kept in range(count + 1):
            rows = [{"correct": at < kept, "intact_correct": True, "loss": float(at % 3), "intact_loss": 0.0}
                    for at in range(count)]  # fmt: skip
            for value in (0.1, 0.5, 0.73):
                same(rows, "kept", value)
        for _ in range(20):
            losses = rng.normal(size=(count, 2))
            rows = [{"correct": True, "intact_correct": True, "loss": after, "intact_loss": before}
                    for after, before in losses.tolist()]  # fmt: skip
            same(rows, "loss_delta", float(rng.normal()))


@pytest.mark.parametrize(
    ("rows", "measure", "value"),
    [([], "kept", 0.5), ([{"correct": False, "intact_correct": True}] * 9, "kept", 1.5),
     ([{"loss": None, "intact_loss": 1.0}] * 9, "loss_delta", 0.0)],
)  # fmt: skip
def test_what_cannot_be_tested_has_no_small_p_value(rows, measure, value):
    assert correcting.p_value(rows, measure, "below", value) == 1.0


def test_a_hypothesis_has_the_p_value_of_its_weakest_prediction(begun):
    at = begun()
    guess = at.call("propose_hypothesis", {"statement": "x"}).result["hypothesis"]
    for corruption, value in (("skip:2", 0.5), ("skip:5", 0.4)):
        asked = {"hypothesis": guess, "corruption": corruption, "relation": "below", "value": value}
        prediction = at.call("register_prediction", asked).result["prediction"]
        assert not correcting.over(at.inquiry) or correcting.over(at.inquiry)[guess].p == 1
        at.call("run_experiment", {"prediction": prediction})
    chance = correcting.over(at.inquiry)[guess]
    assert chance.p == pytest.approx(2 * 0.6**8)
    assert (chance.corrected, chance.tested) == (chance.p, 1)


def test_what_holds_by_itself_only_is_not_supported_among_many(begun):
    at = begun()
    guess = examined(at, "skip:2", 0.4)  # 0 of 8 kept: p = 0.034
    examined(at, "skip:3", 0.5)  # all kept: p = 1
    reply = concluded(at, guess)
    assert reply.outcome == "refused"
    assert "0.067 after Holm's correction over 2 tested hypotheses" in reply.result["error"]
    assert at.inquiry.status(guess) == "open"
    (row, other) = results.open_table(at.inquiry).rows
    assert "Holm" in str(row[2])
    assert other[2] == "nobody asked for the verdict"


def test_a_strong_result_carries_a_weaker_one_through_as_holm_allows(begun):
    at = begun()
    (weak, first), (strong, second) = proposed(at, "skip:2", 0.4), proposed(at, "skip:5", 0.5)
    run(at, first)
    run(at, second)
    chances = correcting.over(at.inquiry)
    assert chances[strong].corrected == pytest.approx(2 * chances[strong].p)
    assert chances[weak].corrected == pytest.approx(chances[weak].p)
    assert {concluded(at, one).result["status"] for one in (weak, strong)} == {"supported"}
    (found, _) = at.inquiry.findings()
    assert (found["p"], found["p_corrected"], found["hypotheses_tested"]) == (chances[weak].p, chances[weak].p, 2)


def test_what_was_supported_is_withdrawn_when_more_is_tested(begun):
    at = begun()
    guess = examined(at, "skip:2", 0.4)
    assert concluded(at, guess).result["status"] == "supported"
    examined(at, "skip:3", 0.5)
    assert at.inquiry.status(guess) == "open"
    assert [one["status"] for one in at.inquiry.entries("finding")] == ["supported", "open"]
    told = [one["result"].get("open_again") for one in at.inquiry.entries("call")]
    assert told.count([guess]) == 1
    page = results.report(at.inquiry)
    assert "Nothing is concluded" in page.summary[0]
    assert "before more was tested" in str(results.open_table(at.inquiry).rows[0][2])
    assert f"{guess} open" in summaries.of(at.inquiry, most=4000)
    at.inquiry.append("end", {"why": "enough"})
    assert verdicts.combine([at.inquiry]).claims == ()


def test_a_kill_before_the_withdrawal_does_not_spare_it(begun, monkeypatch):
    at = begun()
    guess = examined(at, "skip:2", 0.4)
    concluded(at, guess)
    _, prediction = proposed(at, "skip:3", 0.5)

    def killed(inquiry):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(correcting, "withdraw", killed)
        with pytest.raises(KeyboardInterrupt):
            at.call("run_experiment", {"prediction": prediction})
    assert at.inquiry.status(guess) == "supported"
    assert at.call("run_experiment", {"prediction": prediction}).result["measured_before"]
    assert at.inquiry.status(guess) == "open"


def test_the_page_says_how_it_was_corrected(begun):
    at = begun()
    concluded(at, examined(at, "skip:2", 0.5))
    page = results.report(at.inquiry)
    assert "Holm's correction over the 1 tested" in " ".join(page.summary)
    assert "Holm" in page.sections[0].text
    assert results.findings_table(at.inquiry, "supported").rows[0][3] == pytest.approx(2 * 0.5**8)
