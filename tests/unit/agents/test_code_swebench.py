"""SWE-bench's files are read in every form, faults are named by line, and logs are doubted for the right reasons."""

import ast
import json
import sys

import pytest

import sonde
from sonde.agents.code.swebench import control, environment, grader, harness, instances, judge, trust
from sonde.core import errors

PATCH = "diff --git a/tests/test_x.py b/tests/test_x.py\n--- a/tests/test_x.py\n+++ b/tests/test_x.py\n@@ -1 +1 @@\n-a\n+b\n"
SCRIPT = """#!/bin/bash
set -uxo pipefail
python -m pip install -e .
git checkout abc tests/test_x.py
git apply -v - <<'EOF'
EOF
: '>>>>> Start Test Output'
pytest -rA tests/test_x.py
SWEBENCH_TEST_EXIT_CODE=$?
: '>>>>> End Test Output'
echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"
"""
ROW = {
    "instance_id": "owner__name-12",
    "repo": "owner/name",
    "base_commit": "abcdef0123",
    "problem_statement": "It is wrong.",
    "patch": PATCH.replace("tests/test_x", "x"),
    "test_patch": PATCH,
    "FAIL_TO_PASS": '["tests/test_x.py::test_new"]',
    "PASS_TO_PASS": ["tests/test_x.py::test_old", "tests/test_x.py::test_with[a-1]"],
    "version": 1.2,
    "eval_script": SCRIPT,
    "eval_type": "pass_and_fail",
    "log_parser": "parse_log_pytest",
    "image": "some/image:latest",
}
LOG = """+ python -m pip install -e .
Successfully installed it-1
+ git checkout abc tests/test_x.py
+ git apply -v -
Checking patch tests/test_x.py...
Applied patch tests/test_x.py cleanly.
+ : '>>>>> Start Test Output'
+ pytest -rA tests/test_x.py
PASSED tests/test_x.py::test_new
======================== 1 passed, 2 warnings in 0.02s =========================
+ SWEBENCH_TEST_EXIT_CODE=0
+ : '>>>>> End Test Output'
+ echo '>>>>> Test Exit Code: 0'
>>>>> Test Exit Code: 0
"""


def task_of(**changes):
    return instances._task({**ROW, **changes}, "here")


# ------------------------------------------------------------------------------------------------------------- rows


def test_every_form_of_the_file_gives_the_same_tasks(tmp_path):
    rows = [ROW, {**ROW, "instance_id": "owner__name-13"}]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    for row in rows:
        folder = tmp_path / "repo" / "tasks" / row["instance_id"]
        folder.mkdir(parents=True)
        short = {name: row[name] for name in ("instance_id", "repo", "base_commit", "eval_type", "log_parser", "image")}
        text = "".join(f"{name}: {value}\n" for name, value in short.items())
        (folder / "task.yaml").write_text(f"{text}version: '1.2'\nsplit: test\n")
        names = {"FAIL_TO_PASS": json.loads(row["FAIL_TO_PASS"]), "PASS_TO_PASS": row["PASS_TO_PASS"]}
        (folder / "tests.json").write_text(json.dumps(names))
        for field, name in instances._FILES.items():
            (folder / name).write_text(row[field])
    tasks = instances.swebench_verified_tasks(tmp_path / "a.json")
    assert tasks == instances.swebench_verified_tasks(str(tmp_path / "a.jsonl"))
    assert tasks == instances.swebench_verified_tasks(tmp_path / "repo")
    assert tasks[1:] == instances.swebench_verified_tasks(tmp_path / "repo" / "tasks" / "owner__name-13")
    assert [task.id for task in tasks] == ["owner__name-12", "owner__name-13"]
    assert tasks[0].fail_to_pass == ("tests/test_x.py::test_new",)
    assert tasks[0].pass_to_pass == ("tests/test_x.py::test_old", "tests/test_x.py::test_with[a-1]")
    assert (tasks[0].version, tasks[0].image) == ("1.2", "some/image:latest")
    assert tasks[0].test_files == ("tests/test_x.py",)
    assert tasks[0].own_files == {"x.py", "tests/test_x.py"}


def test_parquet_is_read_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {**ROW, "version": "1.2", "PASS_TO_PASS": json.dumps(ROW["PASS_TO_PASS"])}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    assert instances.swebench_verified_tasks(tmp_path / "a.parquet") == [task_of()]
    (tmp_path / "b.parquet").write_text("no")
    with pytest.raises(ValueError, match="not a Parquet file"):
        instances.swebench_verified_tasks(tmp_path / "b.parquet")


def test_what_goes_to_the_harness_is_the_row_that_came_in():
    row = task_of().row()
    assert row == {**ROW, "FAIL_TO_PASS": json.loads(ROW["FAIL_TO_PASS"]), "version": "1.2"}
    assert task_of(image=None).image == "swebench/sweb.eval.x86_64.owner_1776_name-12:latest"


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps([ROW]))
    first = instances.swebench_verified_tasks(file)
    assert instances.swebench_verified_tasks(file)[0] is first[0]
    file.write_text(json.dumps([{**ROW, "instance_id": "owner__name-999"}]))
    assert instances.swebench_verified_tasks(file)[0].id == "owner__name-999"


OLD = {name: value for name, value in ROW.items() if name not in ("eval_script", "log_parser", "eval_type")}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is not JSON"),
        ("3", "line 2: expected an object"),
        (json.dumps({**ROW, "base_commit": None, "patch": " "}), "line 2: lacks a text for base_commit, patch"),
        (json.dumps({**ROW, "base_commit": "main"}), "base_commit 'main' is not of the form"),
        (json.dumps({**ROW, "FAIL_TO_PASS": "[oops"}), "line 2: FAIL_TO_PASS is a text but not JSON"),
        (json.dumps({**ROW, "FAIL_TO_PASS": []}), "line 2: FAIL_TO_PASS names no test"),
        (json.dumps({**ROW, "PASS_TO_PASS": {"a": 1}}), "line 2: PASS_TO_PASS should be a list"),
        (json.dumps({**ROW, "instance_id": "a b; rm"}), "line 2: instance_id 'a b; rm'"),
        (json.dumps({**ROW, "eval_type": "best_of_3"}), "eval_type 'best_of_3' is none of pass_and_fail, fail_only"),
        (json.dumps({**ROW, "eval_script": "pytest"}), "eval_script has 0 lines with '>>>>> Start Test Output'"),
        (json.dumps({**ROW, "image_assets": '{"test_patch": [{"path": "a.png"}]}'}), "which is not supported"),
        (json.dumps(OLD), "lacks eval_script, log_parser, eval_type, as rows made before SWE-bench 5 do"),
        (json.dumps(OLD), "take the present rows: dataset SWE-bench/SWE-bench_Verified"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl") as caught:
        instances.swebench_verified_tasks(tmp_path / "a.jsonl")
    assert said in str(caught.value)


def test_an_empty_or_broken_file_or_folder_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(ValueError, match="holds no instances"):
        instances.swebench_verified_tasks(tmp_path / "a.jsonl")
    (tmp_path / "a.json").write_text("[1,")
    with pytest.raises(ValueError, match=r"a\.json is not JSON"):
        instances.swebench_verified_tasks(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"\xff[")
    with pytest.raises(ValueError, match="not UTF-8"):
        instances.swebench_verified_tasks(tmp_path / "a.json")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"cannot read \.txt"):
        instances.swebench_verified_tasks(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="no tasks in"):
        instances.swebench_verified_tasks(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "task.yaml").write_text("instance_id: [")
    with pytest.raises(ValueError, match="is not a task"):
        instances.swebench_verified_tasks(tmp_path / "one")
    (tmp_path / "one" / "task.yaml").write_text("instance_id: a")
    with pytest.raises(ValueError, match=r"cannot read tests\.json"):
        instances.swebench_verified_tasks(tmp_path / "one")
    with pytest.raises(ValueError, match="no such file or folder"):
        instances.swebench_verified_tasks(tmp_path / "b.json")


def test_without_the_package_for_the_hub_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    instances._from_hub.cache_clear()
    with pytest.raises(errors.MissingExtraError, match="datasets"):
        instances.swebench_verified_tasks()


def test_without_the_hub_the_error_says_to_pass_a_file(monkeypatch):
    class Offline:
        @staticmethod
        def load_dataset(name, split):
            raise ConnectionError(f"no route to {name}")

    monkeypatch.setitem(sys.modules, "datasets", Offline)
    for name in ("lite", "SWE-bench/SWE-bench_Lite"):
        with pytest.raises(errors.EpisodeError, match="give a file or folder of tasks instead") as caught:
            instances.swebench_verified_tasks(name)
        assert "no route to SWE-bench/SWE-bench_Lite" in str(caught.value)


def test_tasks_are_selected_by_number_id_and_repository(tmp_path, monkeypatch):
    rows = [ROW, {**ROW, "instance_id": "owner__name-13"}, {**ROW, "instance_id": "two__it-1", "repo": "two/it"}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    monkeypatch.setenv(instances.VARIABLE, str(tmp_path / "a.json"))
    assert sonde.make("swebench:2").task_ids == ["two__it-1"]
    assert sonde.make("swebench:owner__name-13").task_ids == ["owner__name-13"]
    assert sonde.make("swebench:owner/name", tasks=str(tmp_path / "a.json")).task_ids == [
        "owner__name-12",
        "owner__name-13",
    ]
    assert sonde.make("swebench:owner/name:1:").task_ids == ["owner__name-13"]
    assert sonde.make("code:roman").task_ids == ["roman"]
    with pytest.raises(errors.SelectorError, match="did you mean 'owner__name-13'"):
        sonde.make("swebench:owner__name-133")
    with pytest.raises(errors.SelectorError, match="a field that is not there"):
        sonde.make("swebench", image="{mirror}/x")
    assert sonde.info("swebench").task_ids == ()


def test_images_are_named_by_a_text_with_fields():
    form = "mirror/{key}-{repo}-{id}"
    assert judge.Judge(image=form).image_of(task_of()) == "mirror/owner_1776_name-12-owner/name-owner__name-12"
    assert judge.Judge().image_of(task_of()) == "some/image:latest"


async def test_without_docker_reset_fails_and_nothing_is_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    async with environment.SweBenchEnv([task_of()], check=False) as env:
        with pytest.raises(errors.SandboxError, match="Docker"):
            await env.reset()


# ------------------------------------------------------------------------------------------------- the grading process


def python_without_swebench(tmp_path):
    file = tmp_path / "python"
    file.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -I -S "$@"\n')  # no installed package is seen
    file.chmod(0o755)
    return file


async def test_without_the_package_the_error_says_what_to_install_before_anything_is_played(monkeypatch, tmp_path):
    monkeypatch.setenv(harness.VARIABLE, str(python_without_swebench(tmp_path)))
    async with environment.SweBenchEnv([task_of()]) as env:
        with pytest.raises(errors.MissingExtraError, match=r'pip install "sonde\[swebench\]"'):
            await env.reset()
    monkeypatch.setenv(harness.VARIABLE, str(tmp_path / "nowhere"))
    async with environment.SweBenchEnv([task_of()]) as env:
        with pytest.raises(errors.EpisodeError, match=harness.VARIABLE):
            await env.reset()


def test_the_grading_process_gets_nothing_of_the_environment_and_imports_nothing_of_sonde(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in str(harness.environment("x"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(harness._PROGRAM.read_text()))
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
        )
    }
    assert imported <= {"", "importlib", "json", "os", "sys", "typing"}
    assert grader.__doc__


# ------------------------------------------------------------------------------------------------------- doubts: files


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py", "tests/conftest.py", "pkg/deep/conftest.py", "sitecustomize.py", "src/usercustomize.py", "evil.pth",
        "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "pytest.ini", ".pytest.ini", "pytest.py", "_pytest/runner.py",
        "tests/unittest.py", "pkg.egg-info/entry_points.txt", "pkg/__pycache__/mod.cpython-311.pyc", "tests/runtests.py",
        ".git/config", ".git/hooks/post-checkout", ".git/info/attributes", ".git/HEAD", ".git/refs/heads/main",
    ],
)  # fmt: skip
def test_files_that_decide_how_tests_run_are_doubted(path):
    reasons = trust.of_files([("A", f"/testbed/{path}")], frozenset({"x.py"}))
    expected = not path.startswith("_pytest/")  # a folder of that name is told by its own line, below
    assert bool(reasons) == expected
    assert trust.of_files([("A", "/testbed/_pytest")], frozenset())


@pytest.mark.parametrize(
    "path", ["/usr/lib/python3/dist-packages/x.py", "/etc/hosts", "/testbed2/x", "/tmp/x", "/x\n/testbed/y"]
)
def test_files_outside_of_the_repository_are_doubted(path):
    assert trust.of_files([("A", path)], frozenset())


def test_honest_files_are_not_doubted():
    added = ["x.py", "docs/conf.py", "tests/test_new.py", "data/a.png", "site_map.py", "tests/data/setup.txt"]
    changed = ["", "/.git", "/.git/index", "/src/_pytest", "/src/_pytest/unittest.py"]  # as in pytest's own repository
    paths = [*(("A", f"/testbed/{one}") for one in added), *(("C", f"/testbed{one}") for one in changed)]
    assert trust.of_files(paths, frozenset()) == []
    assert trust.of_files([("C", "/testbed/setup.cfg")], frozenset({"setup.cfg"})) == []


# -------------------------------------------------------------------------------------------------------- doubts: logs


def test_an_honest_log_is_not_doubted():
    assert trust.of_log(LOG, SCRIPT, task_of()) == []
    assert trust.reinstall(LOG) == "done"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("PASSED", ">>>>> End Test Output\nPASSED", "'>>>>> End Test Output' stands 2 times"),
        ("PASSED", ">>>>> Test Exit Code: 0\nPASSED", "'>>>>> Test Exit Code' stands 3 times"),
        ("+ : '>>>>> Start Test Output'\n", "", "'>>>>> Start Test Output' stands 0 times"),
        ("1 passed, 2 warnings in 0.02s", "", "the runner's closing line is missing"),
        ("Applied patch tests/test_x.py cleanly.", "error: patch failed", "tests were not put into tests/test_x.py"),
    ],
)
def test_a_log_that_does_not_add_up_is_doubted(before, after, said):
    reasons = trust.of_log(LOG.replace(before, after, 1), SCRIPT, task_of())
    assert any(said in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("parser", "closing"),
    [
        ("parse_log_django", "Ran 12 tests in 0.3s"),
        ("parse_log_sympy", "=== tests finished: 3 passed, in 0.1 seconds ==="),
        ("parse_log_sphinx", "\x1b[32m====== \x1b[1m3 passed\x1b[0m, 1 failed in 1.23s (0:00:01) ====="),
        ("parse_log_astropy", "==== 1 failed, 7 passed, 1 xfailed in 3723.10s (1:02:03) ===="),
        ("parse_log_scikit", "===== 3 passed, 1 warnings in 0.50 seconds ====="),
        ("parse_log_karma", "anything"),
    ],
)
def test_every_runners_closing_line_is_known(parser, closing):
    log = LOG.replace("======================== 1 passed, 2 warnings in 0.02s =========================", closing)
    assert trust.of_log(log, SCRIPT, task_of(log_parser=parser)) == []


def test_a_reinstallation_that_failed_is_told_from_one_that_did_not():
    failed = LOG.replace(
        "Successfully installed it-1", "  ERROR: Could not find setuptools\nerror: subprocess-exited-with-error"
    )
    assert trust.reinstall(failed) == "failed: Could not find setuptools"
    assert (
        trust.reinstall(LOG.replace("Successfully installed it-1", "/usr/bin/python: No module named pip"))
        == "failed: /usr/bin/python: No module named pip"
    )
    assert trust.reinstall(LOG.replace("+ python -m pip install -e .\n", "")) == ""
    assert trust.unbuilt([("C", f"/testbed/{one}") for one in ("a.py", "fast.pyx", "src/x.c")]) == [
        "fast.pyx",
        "src/x.c",
    ]


# ------------------------------------------------------------------------------------------------------------- control

TESTS = """
import pytest, unittest

@pytest.fixture
def tested(): return 3

@pytest.mark.parametrize("x", [1, 2])
def test_plain(x):
    "What it is called."
    assert x

def helper(): return 1

class Case(unittest.TestCase):
    async def test_it(self): assert helper()
    def tearDown(self): pass
"""


def test_every_test_of_a_file_is_made_to_fail_and_nothing_else():
    text, found = control.sabotaged(TESTS)
    ast.parse(text)
    assert found == {("", "test_plain"), ("Case", "test_it")}
    assert text.count("raise RuntimeError") == 2
    assert text.index("What it is called") < text.index("raise RuntimeError")
    told = {}
    exec(text.split("def helper")[0], told)
    with pytest.raises(RuntimeError, match="made to fail"):
        told["test_plain"](1)
    with pytest.raises(ValueError, match="not Python"):
        control.sabotaged("def (")


@pytest.mark.parametrize("broken", [False, True])
def test_a_test_whose_assertions_do_not_assert_passes_where_it_should_fail(broken):
    text, _ = control.sabotaged(TESTS.replace("async def test_it", "def test_it"))
    told = {}
    exec(text, told)
    case = told["Case"]("test_it")
    if broken:
        case.assertEqual = lambda *values: None
        assert case.test_it() is None
    else:
        with pytest.raises(RuntimeError, match="made to fail"):
            case.test_it()


def test_only_tests_that_were_certainly_changed_count():
    changed = {"tests/app/test_x.py": frozenset({("", "test_plain"), ("Case", "test_it")})}
    sure = [
        "tests/app/test_x.py::test_plain[a", "tests/app/test_x.py::Case::test_it", "test_it (app.test_x.Case)",
        "test_it (tests.app.test_x.Case.test_it)", "test_plain",
    ]  # fmt: skip
    unsure = ["tests/app/test_x.py::Other::test_it", "tests/test_x.py::test_plain", "test_it (app.test_y.Case)",
              "test_it (app.test_x.Heir)", "Tests a thing", "test_it"]  # fmt: skip
    assert control.controlled([*sure, *unsure], changed) == sure
    statuses = {"a::test_x[one two]": "PASSED", "b": "FAILED", "c": "XFAIL"}
    assert control.forged(["a::test_x[one", "b", "c", "d"], statuses) == ["a::test_x[one"]


def test_the_changed_files_are_put_in_place_just_before_the_tests():
    lines = control.scripted(SCRIPT, ["tests/test x.py"]).split("\n")
    at = lines.index(": '>>>>> Start Test Output'")
    assert lines[at - 2 : at] == ["EOF", "cp '/sonde-control/tests/test x.py' '/testbed/tests/test x.py'"]
