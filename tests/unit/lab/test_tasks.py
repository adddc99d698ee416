"""Task files: the one that comes with Sonde, files of one's own, and bad ones."""

import json

import pytest

from sonde.core import errors
from sonde.lab import checking, tasks, texts

GOOD = {
    "name": "sums",
    "description": "Adds.",
    "questions": ["Why?"],
    "examples": [{"prompt": "1 + 1 =", "answers": [" 2"]}],
}


def _file(tmp_path, *entries, **changes):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps({"format": 1, "tasks": list(entries), **changes}))
    return path


def test_the_tasks_that_come_with_sonde_are_complete():
    found = tasks.load()
    assert len(found) >= 12
    assert {
        "arithmetic",
        "json-closing",
        "capitals",
        "agreement",
        "copying",
        "induction",
        "translation",
        "rhyme",
    } <= set(found)
    for task in found.values():
        assert len(task.examples) >= 30, task.name
        assert len(task.questions) >= 3, task.name
        assert len({tasks.sameness(one.prompt) for one in task.examples}) == len(task.examples)
        assert len({one.answers[0] for one in task.examples}) > 1


def test_answers_of_the_shipped_tasks_are_right_where_that_can_be_computed():
    found = tasks.load()
    for example in found["arithmetic"].examples:
        left, right = example.prompt.splitlines()[-1].removesuffix(" =").split(" + ")
        assert example.answers == (f" {int(left) + int(right)}",)
    for example in found["json-closing"].examples:
        json.loads(example.prompt.splitlines()[-1] + example.answers[0])
    for example in found["copying"].examples:
        assert example.prompt.splitlines()[-1] == f"copy:{example.answers[0]} ->"
    for example in found["induction"].examples:
        first, second, third = (line.removeprefix("words: ").split(", ") for line in example.prompt.splitlines())
        assert first == second
        assert third[-1] == f"{first[len(third) - 1]},"
        assert example.answers == (f" {first[len(third)]}",)


def test_the_texts_that_come_with_sonde_are_ten_and_not_short():
    found = texts.load()
    assert len(found) == 10
    assert min(len(text) for text in found.values()) > 500


def test_a_completion_is_right_if_it_begins_with_an_answer_and_the_word_ends_there():
    example = tasks.Example("2 + 5 =", (" 7", " seven"))
    assert [example.is_right(text) for text in (" 7", " 7\n", " 7.", " seven.", " 70", " sevenths", "7", "")] == [
        True, True, True, True, False, False, False, False,
    ]  # fmt: skip
    assert tasks.Example("{", ("}",)).is_right("}\n{")


def test_a_file_is_read_back_as_it_was_written(tmp_path):
    some = list(tasks.load().values())[:3]
    tasks.write(some, tmp_path / "new" / "mine.json")
    assert list(tasks.load(tmp_path / "new" / "mine.json").values()) == some


def test_examples_that_ask_the_same_are_one(tmp_path):
    twice = [{"prompt": prompt, "answers": [" 2"]} for prompt in ("1 + 1 =", " 1  + 1 =", "1 + 2 =")]
    assert len(tasks.load(_file(tmp_path, {**GOOD, "examples": twice}))["sums"].examples) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"examples": []}, "'sums' has no examples"),
        ({"name": "No Name"}, "lower-case letters"),
        ({"description": " "}, "the description must be a text"),
        ({"examples": [{"prompt": "", "answers": ["x"]}]}, "example 1: the prompt must be a text"),
        ({"examples": [{"prompt": "a", "answers": []}]}, "a prompt and a list of answers"),
        ({"examples": [{"prompt": "a", "answers": [""]}]}, "an answer must be a text"),
        ({"examples": [{"prompt": "a ", "answers": ["b"]}]}, "ends in a space"),
        ({"examples": ["a"]}, "a prompt and a list of answers"),
        ({"questions": "why"}, "questions must be a list"),
    ],
)
def test_a_bad_task_is_refused_with_its_place(tmp_path, change, told):
    path = _file(tmp_path, {**GOOD, **change})
    with pytest.raises(errors.RequestError, match=told):
        tasks.load(path)
    found, problems = tasks.read(path)
    assert (found, len(problems)) == ({}, 1)


def test_files_that_are_no_task_files_are_refused(tmp_path):
    for content, told in (("{", "not JSON"), ("[]", "no task file"), ('{"tasks": []}', "no task file")):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(errors.RequestError, match=told):
            tasks.load(tmp_path / "bad.json")
    with pytest.raises(errors.RequestError, match="format 9"):
        tasks.load(_file(tmp_path, GOOD, format=9))
    with pytest.raises(errors.RequestError, match="two tasks"):
        tasks.load(_file(tmp_path, GOOD, GOOD))
    with pytest.raises(errors.StoreError, match="missing"):
        tasks.load(tmp_path / "missing.json")


def test_an_unknown_task_is_answered_with_the_nearest_one():
    with pytest.raises(errors.RequestError, match="did you mean 'arithmetic'"):
        tasks.get(tasks.load(), "aritmetic")


def test_a_check_says_what_to_look_at(tmp_path, llama):
    found = tasks.load(_file(tmp_path, {**GOOD, "questions": []}))
    (bare,) = checking.check(found)
    assert bare.remarks == ("fewer than 20 examples", "no evaluation questions")
    many = [{"prompt": f"{at} + 1 =", "answers": [f" {at + 1}"]} for at in range(3)]
    (line,) = checking.check(tasks.load(_file(tmp_path, {**GOOD, "examples": many})), llama)
    assert line.able is False
    assert "the model cannot do it" in line.remarks
    assert line.logprob.value != line.control.value
