"""SWE-bench's files are read as they are, faults are named by line, and without Docker nothing is run."""

import json
import sys

import pytest

from sonde.agents.code import swebench
from sonde.core import errors

PATCH = "diff --git a/tests/test_x.py b/tests/test_x.py\n--- a/tests/test_x.py\n+++ b/tests/test_x.py\n@@ -1 +1 @@\n-a\n+b\n"
ROW = {
    "instance_id": "owner__name-12",
    "repo": "owner/name",
    "base_commit": "abc",
    "problem_statement": "It is wrong.",
    "patch": PATCH.replace("tests/test_x", "x"),
    "test_patch": PATCH,
    "FAIL_TO_PASS": '["tests/test_x.py::test_new"]',
    "PASS_TO_PASS": ["tests/test_x.py::test_old", "tests/test_x.py::test_with[a-1]"],
    "version": 1.2,
    "environment_setup_commit": "def",
}


def task_of(**changes):
    return swebench._task({**ROW, **changes}, "here")


def test_both_forms_of_the_file_give_the_same_tasks(tmp_path):
    rows = [ROW, {**ROW, "instance_id": "owner__name-13"}]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    tasks = swebench.swebench_verified_tasks(tmp_path / "a.json")
    assert tasks == swebench.swebench_verified_tasks(str(tmp_path / "a.jsonl"))
    assert [task.id for task in tasks] == ["owner__name-12", "owner__name-13"]
    assert tasks[0].fail_to_pass == ("tests/test_x.py::test_new",)
    assert tasks[0].pass_to_pass == ("tests/test_x.py::test_old", "tests/test_x.py::test_with[a-1]")
    assert (tasks[0].version, tasks[0].environment_setup_commit) == ("1.2", "def")
    assert tasks[0].test_files == ("tests/test_x.py",)
    assert tasks[0].image == "swebench/sweb.eval.x86_64.owner_1776_name-12:latest"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is not JSON"),
        ("3", "line 2: expected an object"),
        (json.dumps({**ROW, "base_commit": None, "patch": " "}), "line 2: lacks a text for base_commit, patch"),
        (json.dumps({**ROW, "FAIL_TO_PASS": "[oops"}), "line 2: FAIL_TO_PASS is a text but not JSON"),
        (json.dumps({**ROW, "FAIL_TO_PASS": []}), "line 2: FAIL_TO_PASS names no test"),
        (json.dumps({**ROW, "PASS_TO_PASS": {"a": 1}}), "line 2: PASS_TO_PASS should be a list"),
        (json.dumps({**ROW, "instance_id": "a b; rm"}), "line 2: instance_id 'a b; rm'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl") as caught:
        swebench.swebench_verified_tasks(tmp_path / "a.jsonl")
    assert said in str(caught.value)


def test_an_empty_or_broken_file_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(ValueError, match="holds no instances"):
        swebench.swebench_verified_tasks(tmp_path / "a.jsonl")
    (tmp_path / "a.json").write_text("[1,")
    with pytest.raises(ValueError, match=r"a\.json is not JSON"):
        swebench.swebench_verified_tasks(tmp_path / "a.json")


def test_without_the_package_for_the_hub_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(errors.MissingExtraError, match="datasets"):
        swebench.swebench_verified_tasks()


def test_without_the_hub_the_error_says_to_pass_a_file(monkeypatch):
    class Offline:
        @staticmethod
        def load_dataset(name, split):
            raise ConnectionError(f"no route to {name}")

    monkeypatch.setitem(sys.modules, "datasets", Offline)
    with pytest.raises(errors.EpisodeError, match="pass a file instead") as caught:
        swebench.swebench_verified_tasks()
    assert "no route" in str(caught.value)


async def test_without_docker_reset_fails_and_nothing_is_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    async with swebench.SweBenchEnv([task_of()]) as env:
        with pytest.raises(errors.SandboxError, match="Docker"):
            await env.reset()


@pytest.mark.parametrize(
    ("repo", "command"),
    [
        ("owner/name", "python -m pytest -rA --no-header -p no:cacheprovider tests/test_x.py"),
        ("sympy/sympy", "bin/test -C --verbose tests/test_x.py"),
        (
            "django/django",
            "python tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 test_x",
        ),
    ],
)
def test_each_project_is_tested_in_its_own_way(repo, command):
    assert swebench.command_of(task_of(repo=repo)) == command


LOG = "x\nPASSED tests/test_x.py::test_new\nPASSED tests/test_x.py::test_old\nPASSED tests/test_x.py::test_with[a-1]\n"


def test_all_named_tests_must_pass():
    verdict = swebench.verdict_of(task_of(), LOG)
    assert (verdict.passed, verdict.right, verdict.checks, verdict.loaded) == (True, 3, 3, True)


@pytest.mark.parametrize("name", ["test_new", "test_old", "test_with[a-1]"])
def test_one_test_that_does_not_pass_is_enough_to_fail(name):
    verdict = swebench.verdict_of(task_of(), LOG.replace(f"PASSED tests/test_x.py::{name}", f"FAILED tests/x::{name}"))
    assert (verdict.passed, verdict.right) == (False, 2)
    assert name in verdict.reason


@pytest.mark.parametrize(
    ("repo", "name", "log"),
    [
        ("django/django", "test_a (app.tests.T)", "test_a (app.tests.T) ... ok\ntest_b (app.tests.T) ... FAIL\n"),
        ("sympy/sympy", "test_a", "sympy/x.py[2]\ntest_a ok\ntest_b F\n"),
    ],
)
def test_the_logs_of_other_runners_are_read(repo, name, log):
    assert swebench.verdict_of(task_of(repo=repo, FAIL_TO_PASS=[name], PASS_TO_PASS=[]), log).passed
    other = name.replace("test_a", "test_b")
    assert not swebench.verdict_of(task_of(repo=repo, FAIL_TO_PASS=[other], PASS_TO_PASS=[]), log).passed


def test_tests_that_never_ran_are_no_success():
    verdict = swebench.verdict_of(task_of(), "", note="it ran longer than 1800 s")
    assert (verdict.passed, verdict.loaded, verdict.reason) == (False, False, "it ran longer than 1800 s")
