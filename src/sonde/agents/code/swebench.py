"""Can an agent repair real software? SWE-bench's tasks, from its own files, in its own Docker images.

    tasks = swebench_verified_tasks("verified.jsonl")
    async with SweBenchEnv(tasks) as env: ...

An instance's image holds the repository under /testbed. Its files are copied into the working folder of a sandbox made
from that image; the agent works there as in `CodeEnvironment`. To judge, the tests of the instance are put in their
published state and run; all of FAIL_TO_PASS and PASS_TO_PASS must pass. Unlike for the embedded tasks this verdict is
read off the output of the tests, so code that sets out to forge that output can. Needs a Docker engine; an image takes
some gigabytes. Where Sonde is developed no engine runs: reading, command lines and logs are tested, an episode is not.
"""

import contextlib
import dataclasses
import importlib
import json
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sonde.agents.code import environment, judging
from sonde.agents.sandbox import base, docker
from sonde.core import errors

HUB_NAME = "princeton-nlp/SWE-bench_Verified"
LIMITS = base.Limits(seconds=300.0, memory=4 * 2**30, processes=512, disk=8 * 2**30)
JUDGING_SECONDS = 1800.0
_TEXTS = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_ENTER = 'source activate testbed 2>/dev/null; export PYTHONPATH="$PWD:$PWD/src:$PWD/lib"'


@dataclasses.dataclass(frozen=True, slots=True)
class SweBenchTask:
    """One instance; the names are SWE-bench's own, but `id` for `instance_id` and small letters.

    Attributes:
        id: Such as `owner__name-123`.
        repo: Such as `owner/name`.
        base_commit: What the issue was about.
        problem_statement: The issue.
        patch: The repair as it was made.
        test_patch: The tests that came with it.
        fail_to_pass: Tests that the repair makes pass.
        pass_to_pass: Tests that must go on passing.
        version: Of the software.
        environment_setup_commit: What the image was built from.
    """

    id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    version: str = ""
    environment_setup_commit: str = ""

    @property
    def image(self) -> str:
        """The Docker image of the instance."""
        return f"swebench/sweb.eval.x86_64.{self.id.lower().replace('__', '_1776_')}:latest"

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files that the test patch touches."""
        return tuple(dict.fromkeys(re.findall(r"^diff --git a/\S+ b/(\S+)$", self.test_patch, re.MULTILINE)))


def swebench_verified_tasks(path: Path | str | None = None) -> list[SweBenchTask]:
    """Reads SWE-bench instances.

    Args:
        path: A JSON file (a list) or JSONL file in SWE-bench's form; if left out, SWE-bench Verified from the hub.

    Raises:
        ValueError: Names the file, the line or entry, and what is wrong with it.
        MissingExtraError: The hub is wanted, and the package `datasets` is missing.
        EpisodeError: The hub cannot be reached.
    """
    if path is None:
        return [_task(row, f"{HUB_NAME}, row {number}") for number, row in enumerate(_hub())]
    text = Path(path).read_text(encoding="utf-8")
    rows = _json_rows(text, str(path)) if text.lstrip().startswith("[") else _json_lines(text, str(path))
    found = [_task(row, where) for where, row in rows]
    if not found:
        raise ValueError(f"{path} holds no instances")
    return found


class SweBenchEnv(environment.ShellEnvironment[SweBenchTask]):
    """SWE-bench instances to repair, each in its own Docker image."""

    def __init__(
        self,
        tasks: Sequence[SweBenchTask],
        *,
        step_limit: int = 50,
        limits: base.Limits | None = None,
        **options: Any,
    ) -> None:
        """Takes the tasks; see `CodeEnvironment` for the rest."""
        super().__init__(tasks, step_limit=step_limit, limits=limits or LIMITS, **options)

    @contextlib.asynccontextmanager
    async def _opened(self, task: SweBenchTask) -> AsyncIterator[base.Sandbox]:
        sandbox = await docker.DockerSandbox.open(limits=self.limits, image=task.image, python_packages=())
        async with sandbox:
            copied = await sandbox.run("cp -a /testbed/. . && git status --short | head -3")
            if copied.exit_code != 0:
                raise errors.SandboxError(
                    f"task {task.id!r}: image {task.image} has no usable /testbed: {copied.output}"
                )
            yield _Entered(sandbox)

    def _told(self, task: SweBenchTask) -> str:
        return f"The repository {task.repo} is in the current folder. Solve this issue:\n\n{task.problem_statement}"

    async def _judged(self, sandbox: base.Sandbox, task: SweBenchTask) -> judging.Verdict:
        name = f".judge-{secrets.token_hex(8)}.patch"
        await sandbox.put({name: task.test_patch})
        files = " ".join(map(shlex.quote, task.test_files))
        prepare = f"git checkout -q {shlex.quote(task.base_commit)} -- {files} 2>/dev/null; git apply {name}"
        limits = dataclasses.replace(self.limits, seconds=JUDGING_SECONDS, output=base.FLOOD)
        result = await sandbox.run(f"{prepare} && {command_of(task)}", limits=limits)
        return verdict_of(task, result.output, note=result.note)


class _Entered:
    """A sandbox whose commands run in the Python environment of the instance."""

    def __init__(self, inner: base.Sandbox) -> None:
        self.put, self.get, self.close = inner.put, inner.get, inner.close
        self.memory_kept_by = inner.memory_kept_by
        self._inner = inner

    async def run(self, command: str, *, limits: base.Limits | None = None) -> base.Result:
        return await self._inner.run(f"{_ENTER}\n{command}", limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def command_of(task: SweBenchTask) -> str:
    """The shell command that runs the tests which the test patch touches."""
    python = [file for file in task.test_files if file.endswith(".py")]
    if task.repo == "django/django":
        labels = [file.removeprefix("tests/").removesuffix(".py").replace("/", ".") for file in python]
        return f"python tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 {shlex.join(labels)}"
    if task.repo == "sympy/sympy":
        return f"bin/test -C --verbose {shlex.join(python)}"
    return f"python -m pytest -rA --no-header -p no:cacheprovider {shlex.join(python)}"


def verdict_of(task: SweBenchTask, log: str, *, note: str = "") -> judging.Verdict:
    """The verdict from what the tests printed.

    Args:
        task: The instance.
        log: The output of `command_of`.
        note: Why the tests were stopped, if they were.
    """
    wanted = dict.fromkeys((*task.fail_to_pass, *task.pass_to_pass))
    passed = _passed(task.repo, log)
    missing = [name for name in wanted if name not in passed]
    reason = note or (f"not passed: {missing[0]}" if missing else "")
    return judging.Verdict(not missing, len(wanted) - len(missing), len(wanted), bool(passed), reason)


def _passed(repo: str, log: str) -> set[str]:
    if repo == "django/django":
        return set(re.findall(r"^(.+?) \.\.\. ok$", log, re.MULTILINE))
    if repo == "sympy/sympy":
        return set(re.findall(r"^(test_\S+) ok", log, re.MULTILINE))
    return set(re.findall(r"^(?:PASSED|XFAIL) (\S+)", log, re.MULTILINE))


def _hub() -> Sequence[Any]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise errors.MissingExtraError("datasets", extra="swebench", feature="reading SWE-bench from the hub") from None
    try:
        return datasets.load_dataset(HUB_NAME, split="test")
    except Exception as error:
        raise errors.EpisodeError(
            f"cannot get {HUB_NAME} from the hub ({type(error).__name__}: {error}); pass a file instead: "
            "swebench_verified_tasks('verified.jsonl')"
        ) from error


def _json_rows(text: str, name: str) -> list[tuple[str, Any]]:
    try:
        return [(f"{name}, entry {number}", row) for number, row in enumerate(json.loads(text))]
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from None


def _json_lines(text: str, name: str) -> list[tuple[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append((f"{name}, line {number}", json.loads(line)))
            except ValueError as error:
                raise ValueError(f"{name}, line {number} is not JSON: {error}") from None
    return rows


def _task(row: Any, where: str) -> SweBenchTask:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object, got {type(row).__name__}")
    lacking = [name for name in _TEXTS if not isinstance(row.get(name), str) or not row[name].strip()]
    if lacking:
        raise ValueError(f"{where}: lacks a text for {', '.join(lacking)}")
    fails, passes = (_names(row.get(name), f"{where}: {name}") for name in _LISTS)
    if not fails:
        raise ValueError(f"{where}: FAIL_TO_PASS names no test")
    if not re.fullmatch(r"[\w.-]+", row["instance_id"]) or not re.fullmatch(r"[\w.-]+/[\w.-]+", row["repo"]):
        raise ValueError(f"{where}: instance_id {row['instance_id']!r} or repo {row['repo']!r} is not a name")
    texts = {name: row[name] for name in _TEXTS[1:]}
    extra = {name: str(row.get(name) or "") for name in ("version", "environment_setup_commit")}
    return SweBenchTask(id=row["instance_id"], **texts, fail_to_pass=fails, pass_to_pass=passes, **extra)


def _names(value: Any, where: str) -> tuple[str, ...]:
    """A list of test names, given itself or as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"{where} is a text but not JSON: {value[:60]!r}") from None
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{where} should be a list of test names, got {type(value).__name__}")
    return tuple(value)
