"""The tools: one definition, checked arguments, hard budgets, rules that no planner gets around."""

import json
import threading

import pytest

from sonde.core import errors
from sonde.lab import budget, desk, experiments, inquiries, log, loop, planning, rules, schemas, tools, verdicts
from sonde.testing import layered


def test_every_tool_says_what_it_does_and_takes():
    assert list(tools.TOOLS) == [
        "run_experiment", "sweep", "patch_pairs", "probe", "compare", "aggregate", "note", "propose_hypothesis", "register_prediction", "conclude",
    ]  # fmt: skip
    for one in tools.listed():
        assert one["description"]
        for name, about in one["parameters"]["properties"].items():
            assert about["description"], name
        assert one["parameters"]["additionalProperties"] is False
        json.dumps(one)


def test_a_schema_says_types_limits_choices_and_what_is_required():
    schema = schemas.to_json(tools.RegisterPrediction)
    assert schema["required"] == ["hypothesis", "corruption", "relation", "value"]
    assert schema["properties"]["relation"]["enum"] == ["below", "above"]
    assert schema["properties"]["value"]["type"] == "number"
    assert schemas.to_json(tools.RunExperiment)["properties"]["corruption"]["type"] == ["string", "null"]


@pytest.mark.parametrize(
    ("tool", "given", "message"),
    [(tools.Note, {"txt": "x"}, "did you mean 'text'"), (tools.Note, {}, "'text' is missing"), (tools.Note, [], "JSON object"),
     (tools.Note, "not json", "not JSON"), (tools.Note, {"text": 3}, "expected a text"), (tools.Note, {"text": "  "}, "1 to 2000"),
     (tools.Note, {"text": "x" * 2001}, "1 to 2000"), (tools.Note, {"text": "x", "cites": "r1"}, "a list"),
     (tools.Note, {"text": "x", "cites": ["r1"] * 51}, "at most 50"), (tools.Note, "[" * 30_000, "at most 20000"),
     (tools.RunExperiment, {"corruption": "skip:1", "control": "yes"}, "true or false"),
     (tools.Compare, {"first": "r1", "second": "r2", "measure": "kepd"}, "did you mean 'kept'"),
     (tools.RegisterPrediction, {"hypothesis": "h1", "corruption": "skip:1", "relation": "below", "value": float("nan")}, "a number"),
     (tools.RegisterPrediction, {"hypothesis": "h1", "corruption": "skip:1", "relation": "below", "value": 1e9}, "from -1000"),
     (tools.RegisterPrediction, {"hypothesis": "h1", "corruption": "skip:1", "relation": "below", "value": True}, "a number")],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused_in_words(tool, given, message):
    with pytest.raises(errors.RequestError, match=message):
        schemas.read(tool, given)


def test_arguments_survive_being_written_down():
    asked = schemas.read(tools.Aggregate, '{"where": ["kept<0.5"], "by": ["corruption"]}')
    assert schemas.write(asked) == {"where": ["kept<0.5"], "by": ["corruption"]}
    assert schemas.read(tools.Aggregate, schemas.write(asked)) == asked


def test_an_inquiry_begins_with_the_intact_model_and_a_split_of_what_it_solves(begun):
    at = begun()
    settings = at.inquiry.settings
    (whole,) = at.inquiry.entries("run")
    assert (whole["corruption"], whole["split"], whole["kept"]) == ("none", "all", 1.0)
    assert len(settings.explore) == len(settings.held_out) == 8
    assert not set(settings.explore) & set(settings.held_out)
    assert at.inquiry.spent().experiments == 0


def test_an_experiment_is_measured_logged_and_counted(begun):
    at = begun()
    reply = at.call("run_experiment", {"corruption": "skip:2"})
    assert reply.outcome == "ok"
    assert reply.result["kept"] == 0.0
    run = at.inquiry.book.get(reply.result["run"])
    assert (run["corruption"], run["layers"], run["split"], run["n"]) == ("skip:2", [2], "explore", 8)
    rows = at.inquiry.book.examples(run.id)
    assert [row["example"] for row in rows] == list(at.inquiry.settings.explore)
    assert all(row["intact_correct"] and not row["correct"] for row in rows)
    assert at.inquiry.spent().experiments == 1
    assert at.call("run_experiment", {"corruption": "skip:3"}).result["kept"] == 1.0


def test_asking_for_the_same_experiment_again_costs_nothing(begun):
    at = begun()
    first = at.call("run_experiment", {"corruption": "skip:2"})
    again = at.call("run_experiment", {"corruption": "skip: 2"})
    assert again.result["run"] == first.result["run"]
    assert again.result["measured_before"]
    assert at.inquiry.spent().experiments == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [("run_experiment", {"corruption": "skip:8"}, "layers 0 to 7"), ("run_experiment", {"corruption": "skpi:1"}, "did you mean 'skip'"),
     ("run_experiment", {}, "say what to measure"), ("run_experiment", {"prediction": "p99"}, "no p99"),
     ("run_experiment", {"prediction": "h1"}, "id of a prediction"), ("run_everything", {}, "no tool"),
     ("compare", {"first": "r2", "second": "r9"}, "no r9"), ("aggregate", {"where": ["kept<<1"]}, "kept"),
     ("conclude", {"hypothesis": "h9", "claim": "x"}, "no h9"), ("note", {"text": "x", "cites": ["r77"]}, "no r77")],
)  # fmt: skip
def test_a_call_that_makes_no_sense_is_invalid_and_costs_no_experiment(begun, tool, arguments, message):
    at = begun()
    reply = at.call(tool, arguments)
    assert reply.outcome == "invalid"
    assert message in reply.result["error"]
    assert at.inquiry.spent().experiments == 0
    assert at.inquiry.entries("call")[-1]["outcome"] == "invalid"


def test_an_experiment_beyond_the_budget_is_refused_and_conclusions_are_not(begun):
    at = begun(1)
    assert at.call("run_experiment", {"corruption": "skip:2"}).outcome == "ok"
    reply = at.call("run_experiment", {"corruption": "skip:3"})
    assert reply.outcome == "refused"
    assert "1 of 1 experiments" in reply.result["error"]
    assert at.call("note", {"text": "so be it"}).outcome == "ok"


def test_a_planner_that_only_takes_notes_ends_too(begun):
    at = begun(1)
    outcomes = [at.call("note", {"text": f"note {number}"}).outcome for number in range(20)]
    assert outcomes.count("ok") == budget.Limits(1).calls
    assert outcomes[-1] == "refused"


def test_a_budget_of_zero_ends_at_once(begun):
    with pytest.raises(errors.BudgetError, match="the budget is zero"):
        begun(0)


def test_runs_are_compared_example_by_example(begun):
    at = begun()
    for corruption in ("skip:2", "skip:3"):
        at.call("run_experiment", {"corruption": corruption})
    first, second = (one.id for one in at.inquiry.entries("run")[1:])
    reply = at.call("compare", {"first": second, "second": first})
    assert (reply.result["difference"], reply.result["examples"]) == (1.0, 8)
    assert at.call("compare", {"first": first, "second": second, "measure": "loss_delta"}).result["difference"] > 0


def test_the_log_is_aggregated(begun):
    at = begun()
    for corruption in ("skip:2", "skip:3", "swap:3-4"):
        at.call("run_experiment", {"corruption": corruption})
    rows = at.call("aggregate", {"by": ["corruption_kind"], "of": ["kept"], "where": ["split=explore"]}).result["rows"]
    assert [(row["corruption_kind"], row["n"], row["kept.mean"]) for row in rows] == [
        ("skip", 2, 0.5),
        ("swap", 1, 1.0),
    ]
    assert len(at.call("aggregate", {"where": ["layers~2"]}).result["rows"]) == 1


def predicted(at, corruption="skip:2", relation="below", statement="layer 2 is needed"):
    guess = at.call("propose_hypothesis", {"statement": statement}).result["hypothesis"]
    asked = {"hypothesis": guess, "corruption": corruption, "relation": relation, "value": 0.5}
    return guess, at.call("register_prediction", asked).result["prediction"]


def put_to_test(at, prediction, *, controls=rules.CONTROLS):
    for control in [False] + [True] * controls:
        assert at.call("run_experiment", {"prediction": prediction, "control": control}).outcome == "ok"


def test_a_hypothesis_that_passes_is_supported_with_its_evidence(begun):
    at = begun()
    guess, prediction = predicted(at)
    put_to_test(at, prediction)
    reply = at.call("conclude", {"hypothesis": guess, "claim": "Layer 2 is needed."})
    assert (reply.outcome, reply.result["status"]) == ("ok", "supported")
    (finding,) = at.inquiry.entries("finding")
    runs = [at.inquiry.book.get(one) for one in finding["evidence"]]
    assert runs[0]["corruption"] == "skip:2"
    assert all(one["examples"] == list(at.inquiry.settings.held_out) for one in runs)
    assert all(log.number(prediction) < one.seq < finding.seq for one in runs)
    controls = {one["corruption"] for one in runs[1:]}
    assert len(controls) == 3
    assert "skip:2" not in controls
    assert at.inquiry.status(guess) == "supported"
    assert at.call("conclude", {"hypothesis": guess, "claim": "again"}).outcome == "refused"
    assert at.call("register_prediction", {"hypothesis": guess, "corruption": "skip:1", "relation": "above", "value": 0.5}).outcome == "refused"  # fmt: skip


def test_a_hypothesis_that_fails_is_refuted_whatever_the_planner_claims(begun):
    at = begun()
    guess, prediction = predicted(at, "skip:3", "below", "layer 3 is needed")
    put_to_test(at, prediction)
    reply = at.call("conclude", {"hypothesis": guess, "claim": "Layer 3 is needed."})
    assert (reply.result["status"], at.inquiry.status(guess)) == ("refuted", "refuted")


def test_what_random_layers_do_as_well_is_refuted(begun):
    at = begun()
    guess, prediction = predicted(at, "skip:3", "above", "layer 3 is special in not being needed")
    put_to_test(at, prediction)
    reply = at.call("conclude", {"hypothesis": guess, "claim": "It is special."})
    assert reply.result["status"] == "refuted"
    assert "not only there" in reply.result["why"]


def test_nothing_is_concluded_without_a_prediction(begun):
    at = begun()
    guess = at.call("propose_hypothesis", {"statement": "x"}).result["hypothesis"]
    reply = at.call("conclude", {"hypothesis": guess, "claim": "x"})
    assert reply.outcome == "refused"
    assert "no registered prediction" in reply.result["error"]


def test_nothing_is_concluded_without_a_held_out_check(begun):
    at = begun()
    at.call("run_experiment", {"corruption": "skip:2"})
    guess, _ = predicted(at)
    reply = at.call("conclude", {"hypothesis": guess, "claim": "x"})
    assert reply.outcome == "refused"
    assert "not tested on held-out" in reply.result["error"]


def test_nothing_is_concluded_without_controls(begun):
    at = begun()
    guess, prediction = predicted(at)
    put_to_test(at, prediction, controls=2)
    reply = at.call("conclude", {"hypothesis": guess, "claim": "x"})
    assert reply.outcome == "refused"
    assert "2 controls and needs 3" in reply.result["error"]
    assert at.inquiry.entries("finding") == []


def test_a_prediction_that_went_badly_cannot_be_left_out(begun):
    at = begun()
    guess, prediction = predicted(at)
    second = {"hypothesis": guess, "corruption": "skip:4", "relation": "below", "value": 0.5}
    at.call("register_prediction", second)
    put_to_test(at, prediction)
    reply = at.call("conclude", {"hypothesis": guess, "claim": "x"})
    assert reply.outcome == "refused"


def test_a_prediction_of_what_was_seen_is_refused(begun):
    at = begun()
    _, prediction = predicted(at)
    at.call("run_experiment", {"prediction": prediction})
    other = at.call("propose_hypothesis", {"statement": "afterwards one knows better"}).result["hypothesis"]
    reply = at.call(
        "register_prediction", {"hypothesis": other, "corruption": "skip:2", "relation": "below", "value": 0.1}
    )
    assert reply.outcome == "refused"
    assert "a prediction comes before its run" in reply.result["error"]


def test_held_out_examples_are_seen_by_predictions_only(begun):
    at = begun()
    _, prediction = predicted(at)
    assert at.call("run_experiment", {"corruption": "skip:3", "prediction": prediction}).outcome == "invalid"
    assert at.call("run_experiment", {"corruption": "skip:3", "control": True}).outcome == "invalid"
    at.call("run_experiment", {"corruption": "skip:3"})
    assert {one["split"] for one in at.inquiry.entries("run")} == {"all", "explore"}


def test_examples_that_cannot_tell_leave_a_hypothesis_open(begun):
    at = begun()
    guess = at.call("propose_hypothesis", {"statement": "x"}).result["hypothesis"]
    asked = {"hypothesis": guess, "corruption": "skip:3", "relation": "above", "value": 0.9}
    prediction = at.call("register_prediction", asked).result["prediction"]
    put_to_test(at, prediction)  # 8 of 8 kept: the interval begins at 0.63
    reply = at.call("conclude", {"hypothesis": guess, "claim": "x"})
    assert reply.outcome == "refused"
    assert "cannot tell" in reply.result["error"]
    assert at.inquiry.status(guess) == "open"


def test_a_rival_names_a_hypothesis_that_is_there(begun):
    at = begun()
    first = at.call("propose_hypothesis", {"statement": "a"}).result["hypothesis"]
    assert at.call("propose_hypothesis", {"statement": "b", "rival_of": first}).outcome == "ok"
    assert at.call("propose_hypothesis", {"statement": "c", "rival_of": "h999"}).outcome == "invalid"


def test_with_approval_an_experiment_waits_for_a_yes_to_exactly_that(begun, book):
    at = begun(approve=True)
    waiting = at.call("run_experiment", {"corruption": "skip:2"})
    assert waiting.outcome == "pending"
    assert at.call("run_experiment", {"corruption": "skip:2"}).result["request"] == waiting.result["request"]
    assert at.inquiry.spent().experiments == 0
    with log.Log(book.path) as elsewhere:
        desk.answer(elsewhere, waiting.result["request"], yes=True)
        with pytest.raises(errors.RequestError, match="answered already: yes"):
            desk.answer(elsewhere, waiting.result["request"], yes=False)
    assert at.call("run_experiment", {"corruption": "skip:2"}).outcome == "ok"
    assert at.call("run_experiment", {"corruption": "skip:3"}).outcome == "pending"


def test_what_was_not_approved_is_refused(begun, book):
    at = begun(approve=True)
    request = at.call("run_experiment", {"corruption": "skip:2"}).result["request"]
    desk.answer(book, request, yes=False)
    reply = at.call("run_experiment", {"corruption": "skip:2"})
    assert reply.outcome == "refused"
    assert "was not approved" in reply.result["error"]


class Scripted:
    """A planner that makes the calls it was given."""

    name, replays = "scripted", True

    def __init__(self, *calls):
        self.calls, self.replies = calls, []

    def steps(self, inquiry):
        for tool, arguments in self.calls:
            self.replies.append((yield planning.Call(tool, arguments)))
        return "That was all."


SKIPS = [("run_experiment", {"corruption": f"skip:{layer}"}) for layer in range(4)]


def test_the_loop_runs_a_planner_to_its_end_and_then_does_nothing_more(begun):
    at, planner = begun(), Scripted(*SKIPS)
    end = loop.conduct(at, planner)
    assert end["why"] == "That was all."
    assert loop.conduct(at, Scripted(*SKIPS)).id == end.id
    assert at.inquiry.spent().experiments == 4


def test_an_interrupted_inquiry_is_taken_up_without_measuring_anything_twice(begun):
    at = begun()

    def interrupt(call, reply, used):
        if used.experiments == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.conduct(at, Scripted(*SKIPS), on_call=interrupt)
    again = desk.Desk(at.bench, inquiries.opened(at.inquiry.book, at.inquiry.id))
    planner = Scripted(*SKIPS)
    assert loop.conduct(again, planner)["why"] == "That was all."
    assert [one["corruption"] for one in at.inquiry.entries("run")] == ["none", "skip:0", "skip:1", "skip:2", "skip:3"]
    assert [one.result["corruption"] for one in planner.replies] == ["skip:0", "skip:1", "skip:2", "skip:3"]
    assert len(at.inquiry.entries("call")) == 4


def test_a_kill_between_a_run_and_its_call_costs_nothing(begun):
    at = begun()
    found = at.bench.measure(at.bench.parse("skip:0"), at.inquiry.settings.explore)
    at.inquiry.append("run", found.body | {"split": "explore", "prediction": None, "control": None})
    loop.conduct(at, Scripted(*SKIPS))
    assert at.inquiry.spent().experiments == 4


def test_the_loop_waits_for_a_yes_from_elsewhere(begun, book):
    at = begun(approve=True)

    def say_yes():
        with log.Log(book.path) as elsewhere:
            while not (asked := elsewhere.entries("request")):
                pass
            desk.answer(elsewhere, asked[0].id, yes=True)

    other = threading.Thread(target=say_yes)
    other.start()
    end = loop.conduct(at, Scripted(SKIPS[0]), approver=loop.waiting(at.inquiry, seconds=30, every=0.01))
    other.join()
    assert end is not None
    assert at.inquiry.spent().experiments == 1


def test_the_loop_stops_where_nobody_answers_and_goes_on_later(begun, book):
    at = begun(approve=True)
    nobody = loop.waiting(at.inquiry, seconds=0, every=0.01)
    assert loop.conduct(at, Scripted(*SKIPS[:1]), approver=nobody) is None
    desk.answer(book, book.entries("request")[0].id, yes=True)
    assert loop.conduct(at, Scripted(*SKIPS[:1]), approver=nobody)["why"] == "That was all."


def test_a_replay_makes_the_same_calls_and_comes_out_the_same(begun, book):
    at = begun()
    guess, prediction = predicted(at)
    put_to_test(at, prediction)
    at.call("conclude", {"hypothesis": guess, "claim": "x"})
    at.call("note", {"text": "seen", "cites": [guess]})
    at.call("nonsense", {})
    fresh, rows = loop.replay(at.bench, at.inquiry)
    assert [row.tool for row in rows] == [one["tool"] for one in at.inquiry.entries("call")]
    assert all(row.same for row in rows)
    assert max(row.difference for row in rows if row.difference is not None) <= 1e-4
    assert fresh.settings.more["replay_of"] == at.inquiry.id
    assert [one["status"] for one in fresh.entries("finding")] == ["supported"]


def test_a_replay_says_what_comes_out_differently(begun):
    at = begun()
    at.call("run_experiment", {"corruption": "skip:2"})
    call = at.inquiry.entries("call")[0]
    forged = {**call.body, "result": {**call["result"], "kept": 0.7}}
    other = inquiries.begin(at.inquiry.book, at.inquiry.settings)
    other.append("call", forged)
    _, rows = loop.replay(at.bench, other)
    assert [(row.same, row.difference) for row in rows] == [(False, pytest.approx(0.7))]


def test_nothing_goes_on_with_another_model_of_the_same_name(begun, book):
    at = begun()
    at.call("run_experiment", {"corruption": "skip:2"})
    with layered.model((2, 5)) as other:
        desk.Desk(experiments.Experiments(other, at.bench.task), at.inquiry)
        other.hf.model.norm.weight.data += 1e-3
        bench = experiments.Experiments(other, at.bench.task)
        count = len(book.entries())
        with pytest.raises(errors.RequestError, match=rf"that {at.inquiry.id} has: its weights are others"):
            desk.Desk(bench, at.inquiry)
        with pytest.raises(errors.RequestError, match="its weights are others"):
            loop.replay(bench, at.inquiry)
        assert len(book.entries()) == count


def test_inquiries_about_other_weights_of_one_name_are_not_combined(book):
    many = [finding(book, "supported", held={"weights": weights}) for weights in ("a", "a", "b")]
    assert verdicts.combine(many[:2]).votes
    with pytest.raises(errors.RequestError, match="other weights"):
        verdicts.combine(many)


def test_a_fork_goes_on_from_a_call_of_another_inquiry(begun, book):
    at = begun()
    loop.conduct(at, Scripted(*SKIPS))
    fork = inquiries.begin(book, at.inquiry.settings, parent=at.inquiry.id, at=2)
    other = Scripted(*SKIPS[:2], ("run_experiment", {"corruption": "swap:3-4"}))
    loop.conduct(desk.Desk(at.bench, fork), other)
    assert [one.result["corruption"] for one in other.replies] == ["skip:0", "skip:1", "swap:3-4"]
    assert fork.spent().experiments == 1
    assert [one["corruption"] for one in fork.entries("run")] == ["none", "skip:0", "skip:1", "swap:3-4"]


def finding(book, status, corruption="skip:2", relation="below", held=None, **more):
    settings = inquiries.InquirySettings(model="m", task="t", n_layers=4, held=held or {})
    one = inquiries.begin(book, settings)
    guess = one.append("hypothesis", {"statement": "x"})
    body = {"hypothesis": guess.id, "corruption": corruption, "measure": "kept", "relation": relation, "value": 0.5}
    prediction = one.append("prediction", body | more)
    rows = [{"example": at, "correct": at == 0, "intact_correct": True} for at in range(4)]
    run = {"corruption": corruption, "corruption_kind": "skip", "layers": [2], "split": "held_out"}
    tested = one.append("run", run, examples=rows)
    tests = [{"prediction": prediction.id, "run": tested.id}]
    if status:
        one.append("finding", {"hypothesis": guess.id, "status": status, "tests": tests})
    one.append("end", {"why": "done"})
    return one


@pytest.mark.parametrize(
    ("said", "verdict", "needed"),
    [(["supported"] * 3, "stands", (2,)), (["supported", "supported", "refuted"], "stands", (2,)),
     (["supported", "", ""], "open", ()), (["refuted", "refuted", "supported"], "falls", ()),
     (["supported", "refuted"], "open", ())],
)  # fmt: skip
def test_a_claim_stands_if_more_than_half_of_the_inquiries_support_it(book, said, verdict, needed):
    found = verdicts.combine([finding(book, status) for status in said])
    assert [one.verdict for one in found.claims] == [verdict]
    assert found.needed == needed
    assert found.claims[0].expects == "kept below 0.5"


def test_that_a_layer_does_more_than_its_size_explains_is_one_claim_whatever_the_bound(book):
    odd = {"relation": "above", "measure": "loss_delta", "controls": "alike"}
    found = verdicts.combine([finding(book, "supported", **odd, value=bound) for bound in (0.7, 0.9)])
    assert [(one.verdict, one.expects) for one in found.claims] == [
        ("stands", "loss_delta above what its size explains")
    ]


def test_the_pooled_evidence_counts_an_example_once(book):
    found = verdicts.combine([finding(book, "supported") for _ in range(5)])
    mean, low, high, examples = found.claims[0].kept
    assert (mean, examples) == (0.25, 4)
    assert low < 0.05
    assert high > 0.75


def test_inquiries_about_different_things_are_not_combined(book):
    other = inquiries.begin(book, inquiries.InquirySettings(model="m", task="u", n_layers=4))
    with pytest.raises(errors.RequestError, match="one model and one task"):
        verdicts.combine([finding(book, "supported"), other])
    unfinished = inquiries.begin(book, inquiries.InquirySettings(model="m", task="t", n_layers=4))
    with pytest.raises(errors.RequestError, match="has not ended"):
        verdicts.combine([finding(book, "supported"), unfinished])
