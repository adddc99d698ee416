"""What a game of Twenty Questions came to."""

import dataclasses
import json
import math

import pytest

import sonde
from sonde import testing
from sonde.agents import episodes, history
from sonde.agents.twenty_questions import environment as game
from sonde.agents.twenty_questions import objects, rules
from sonde.core import errors
from sonde.studies.twenty_questions import outcomes

ALL = len(objects.things())


def played(secret, *said, **options):
    env = game.TwentyQuestionsEnvironment([secret], step_limit=len(said), **options)
    return episodes.run_episode(env, testing.ScriptedClient(list(said)))


def outcome(secret, *said, **options):
    return outcomes.of_episode(played(secret, *said, **options))


def left(*answers):
    """How many objects agree with questions and answers, or may."""
    oracle = rules.RulesOracle()
    return sum(
        all(oracle.judge(question, thing).answer in (answer, rules.UNKNOWN) for question, answer in answers)
        for thing in objects.things()
    )


def test_every_message_has_its_verdict_question_and_answer():
    found = outcome("dog", "Is it alive?", "What is it?", "It is small.", "Is it a cat?", "Is it a dog?")
    assert [step.valid for step in found.steps] == [True, False, False, True, True]
    assert [step.kind for step in found.steps] == ["valid", "open", "statement", "guess", "guess"]
    assert [step.asks for step in found.steps] == [True, True, False, True, True]
    assert [step.guess for step in found.steps] == [False, False, False, True, True]
    assert [step.won for step in found.steps] == [False] * 4 + [True]
    assert [step.answer for step in found.steps] == ["yes", None, None, "no", "yes"]
    assert [step.question for step in found.steps] == ["is it alive", None, None, "is it cat", "is it dog"]
    assert found.steps[0].reason == "alive of dog: true"
    assert found.won


def test_rates_are_of_all_steps_and_of_groups_that_were_reached():
    said = ["Is it alive?"] * 4 + ["Nonsense."] * 3
    found = outcome("sofa", *said)
    values = found.values()
    assert values["invalid_rate"] == pytest.approx(3 / 7)
    assert values["invalid_rate_0_4"] == pytest.approx(1 / 5)
    assert values["invalid_rate_5_9"] == 1.0
    assert values["invalid_rate_10_14"] is None
    assert values["question_share"] == pytest.approx(4 / 7)
    assert (values["win"], values["steps"]) == (0.0, 7.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Is it an animal?", "is it animal"),
        ("IS IT ALIVE??", "Is it alive?"),
        ("Is the thing, a tool?", "is thing tool"),
        ("Is it  *alive* ?", "is it alive"),
    ],
)
def test_case_punctuation_and_articles_make_no_new_question(one, other):
    assert outcomes.normalised(one) == outcomes.normalised(other)
    assert outcomes.normalised(one) != outcomes.normalised("Is it dead?")


def test_a_question_asked_before_is_repeated_and_gains_nothing():
    found = outcome("dog", "Is it an animal?", "is it animal?", "So, is it AN animal?", "Is it big?")
    assert [step.repeated for step in found.steps] == [False, True, True, False]
    assert found.steps[0].gain > 0
    assert [step.gain for step in found.steps[1:3]] == [0.0, 0.0]
    values = found.values()
    assert values["distinct_questions"] == 2.0
    assert values["repeated_share"] == 0.5


def test_a_game_without_valid_questions_has_no_share_of_repeated_ones():
    values = outcome("dog", "Hello.", "Hello.").values()
    assert (values["distinct_questions"], values["repeated_share"], values["information"]) == (0.0, None, 0.0)


# --- information ---


def test_the_gain_is_how_far_an_answer_narrows_the_objects_down():
    found = outcome("dog", "Is it alive?", "Is it furniture?", "Can it fly?")
    asked = [("Is it alive?", "Yes"), ("Is it furniture?", "No"), ("Can it fly?", "No")]
    counts = [ALL, *(left(*asked[: number + 1]) for number in range(3))]
    assert [step.candidates for step in found.steps] == counts[1:]
    for step, before, after in zip(found.steps, counts, counts[1:], strict=False):
        assert step.gain == pytest.approx(math.log2(before / after))
    assert found.values()["information"] == pytest.approx(math.log2(ALL / counts[-1]) / 3)
    assert ALL > counts[1] > counts[3] > 1


def test_what_is_invalid_or_not_known_gains_nothing_and_rules_nothing_out():
    found = outcome("dog", "Does it bark loudly at postmen?", "What is it?", "Is it alive?")
    assert [step.answer for step in found.steps] == ["unknown", None, "yes"]
    assert [step.gain for step in found.steps[:2]] == [0.0, 0.0]
    assert [step.candidates for step in found.steps] == [ALL, ALL, left(("Is it alive?", "Yes"))]


def test_a_wrong_guess_rules_out_one_object_and_a_right_one_all_others():
    found = outcome("dog", "Is it a cat?", "Is it a dog?")
    assert [step.candidates for step in found.steps] == [ALL - 1, 1]
    assert [step.gain for step in found.steps] == pytest.approx([math.log2(ALL / (ALL - 1)), math.log2(ALL - 1)])


@pytest.mark.parametrize("secret", ["dog", "sofa", "banana", "train", "umbrella"])
def test_the_secret_is_never_ruled_out_so_no_answer_contradicts(secret):
    said = ["Is it alive?", "Is it made of metal?", "Is it bigger than a car?", "Can you eat it?", "Is it red?"]
    found = outcome(secret, *said)
    assert not any(step.contradictory for step in found.steps)
    assert found.steps[-1].candidates >= 1


class Liar:
    """An oracle that says yes to everything."""

    def judge(self, message, thing):
        return dataclasses.replace(rules.RulesOracle().judge(message, thing), answer=rules.YES, won=False)


def test_an_answer_that_no_object_agrees_with_is_marked_and_leaves_the_objects_as_they_were():
    found = outcome("dog", "Is it a dog?", "Is it a sofa?", "Is it an animal?", oracle=Liar())
    assert [step.contradictory for step in found.steps] == [False, True, False]
    assert found.steps[1].gain == 0.0
    assert found.steps[1].candidates == found.steps[0].candidates > 0


class Lenient:
    """An oracle that, as a model might, takes for a question what the rules cannot read."""

    def judge(self, message, thing):
        return rules.Verdict(True, "valid", rules.YES, False, "the model's judgement", None)


def test_a_question_that_the_table_cannot_read_gains_nothing():
    found = outcome("dog", "Well?", "A living being, I'd say", oracle=Lenient())
    assert [step.question for step in found.steps] == ["well", "living being i'd say"]
    assert [step.gain for step in found.steps] == [0.0, 0.0]
    assert not any(step.contradictory for step in found.steps)


# --- whole records ---


def test_every_outcome_has_a_value_a_description_and_a_direction():
    assert set(outcome("dog", "Is it alive?").values()) == set(outcomes.NAMES)
    assert all(measure.description for measure in outcomes.NAMES.values())
    better = {name: measure.better for name, measure in outcomes.NAMES.items()}
    assert (better["invalid_rate"], better["win"], better["length"]) == ("lower", "higher", None)


def test_a_game_that_a_model_played_has_its_tokens_counted_and_is_the_same_when_read_again(llama, tmp_path):
    episode = sonde.play("20q:0:3", llama, episodes=1, max_steps=3, runs_dir=tmp_path)[0]
    found = outcomes.of_episode(episode.trajectory, fluency=-2.5)
    generated = [len(episode.trajectory.generated(step)) for step in range(3)]
    assert [step.tokens for step in found.steps] == generated
    assert found.values()["length"] == pytest.approx(sum(generated) / 3)
    assert found.values()["fluency"] == -2.5
    assert found.task_id == episode.task_id
    written = json.dumps(found.to_json(), allow_nan=False)
    assert json.dumps(outcomes.of_episode(episode.trajectory, fluency=-2.5).to_json()) == written


def test_a_fork_counts_its_steps_from_the_start_of_the_game(llama, tmp_path):
    trajectory = sonde.play("20q:0:3", llama, episodes=1, max_steps=4, runs_dir=tmp_path)[0].trajectory
    fork = trajectory.fork(2)[0]
    assert [step.step for step in outcomes.of_episode(fork).steps] == [2, 3]
    whole = outcomes.of_moments([*trajectory.moments[:2], *history.moments(fork)])
    assert [step.step for step in whole.steps] == [0, 1, 2, 3]


def test_a_record_of_something_else_is_refused():
    other = episodes.run_episode(testing.ScriptedEnvironment(), testing.ScriptedClient(["Hello."], loop=True))
    with pytest.raises(errors.AnalysisError, match=r"step 0 has no verdict.*'valid'.*TwentyQuestionsEnvironment"):
        outcomes.of_episode(other)
    with pytest.raises(errors.AnalysisError, match="without steps"):
        outcomes.of_moments([])
