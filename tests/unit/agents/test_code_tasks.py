"""A task that cannot be played is refused by name, with what is wrong."""

import json

import pytest

from sonde.agents.code import judging, tasks

GOOD = {
    "task.json": json.dumps({"id": "one", "title": "t", "difficulty": "easy", "issue": "it is wrong"}),
    "repo/a.py": "x = 1\n",
    "repo/test_a.py": "import a\n",
    "hidden/test_hidden.py": "class T:\n    def test_x(self):\n        self.assertEqual(a.x, 2)\n",
    "reference/a.py": "x = 2\n",
}


def written(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def test_a_task_is_read_as_it_was_written(tmp_path):
    (task,) = tasks.load_tasks(written(tmp_path / "one", GOOD).parent)
    assert (task.id, task.difficulty, task.issue) == ("one", "easy", "it is wrong")
    assert task.repo == {"a.py": "x = 1\n", "test_a.py": "import a\n"}
    assert task.reference == {"a.py": "x = 2\n"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task.json": "{"}, "not JSON"),
        ({"task.json": "[]"}, "lacks a text for id, title, difficulty, issue"),
        ({"task.json": '{"id": "one", "title": "t", "difficulty": "easy"}'}, "lacks a text for issue"),
        ({"task.json": GOOD["task.json"].replace("easy", "nasty")}, "difficulty 'nasty'"),
        ({"task.json": GOOD["task.json"].replace("it is wrong", "")}, "nothing in issue"),
        ({"repo/test_a.py": None}, "no visible test"),
        ({"hidden/test_hidden.py": None}, "nothing in hidden"),
        ({"reference/a.py": None}, "nothing in reference"),
        ({"reference/b.py": "x = 3"}, "changes 'b.py'"),
    ],
)
def test_a_task_with_a_fault_is_refused_by_name(tmp_path, changes, said):
    files = {path: text for path, text in {**GOOD, **changes}.items() if text is not None}
    with pytest.raises(ValueError, match="task 'one'") as caught:
        tasks.load_task(written(tmp_path / "one", files))
    assert said in str(caught.value)


def test_a_path_that_leads_out_of_the_repository_is_refused():
    good = tasks.load_task("roman")
    with pytest.raises(ValueError, match="not a path inside"):
        tasks.CodeTask("x", "t", "easy", "i", {**good.repo, "../out.py": ""}, good.hidden, good.reference)


def test_a_file_that_is_not_text_is_named(tmp_path):
    folder = written(tmp_path / "one", GOOD)
    (folder / "repo" / "blob.py").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"blob\.py is not UTF-8"):
        tasks.load_task(folder)


def test_a_misspelt_name_is_put_right(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'roman'"):
        tasks.load_task("romann")
    with pytest.raises(ValueError, match="no tasks in"):
        tasks.load_tasks(tmp_path)


def hidden(text):
    return tasks.CodeTask("one", "t", "easy", "i", {"test_a.py": "x"}, {"h.py": text}, {"test_a.py": "y"})


@pytest.mark.parametrize(
    "check",
    [
        "self.assertEqual(f(1), g(2))",
        "self.assertEqual(f(1), 2, 'message')",
        "self.assertTrue(f(1))",
        "self.fail()",
        "for i in range(3): self.assertEqual(i, 1)",
        "[self.assertEqual(i, 1) for i in range(3)]",
        "with self.assertRaises(NotBuiltin): f()",
        "with self.assertRaises(ValueError) as error: f()",
    ],
)
def test_a_check_that_cannot_be_judged_is_refused_with_its_line(check):
    with pytest.raises(ValueError, match=r"task 'one': hidden/h\.py, line 3: cannot judge"):
        judging.withhold(hidden(f"class T:\n  def test_x(self):\n    {check}\n"))


@pytest.mark.parametrize(("text", "said"), [("def", "is not Python"), ("x = 1", "check nothing")])
def test_hidden_tests_that_test_nothing_are_refused(text, said):
    with pytest.raises(ValueError, match=said):
        judging.withhold(hidden(text))


def test_the_expected_values_stay_behind():
    text = "class T:\n  def test_x(self):\n    self.assertEqual(f(1), ['secret'])\n    with self.assertRaises(KeyError):\n      g()"
    (question,), answers = judging.withhold(hidden(text))
    assert answers == [{"list": ["secret"]}, {"raised": "KeyError"}]
    assert "secret" not in question
    assert "KeyError" not in question
    assert "f(1)" in question
