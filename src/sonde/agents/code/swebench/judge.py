"""The judgement of a patch: SWE-bench's own, in a fresh container, and whether it can be believed.

    verdict = await Judge().judge(task, patch)
    verdict.official["resolved"], verdict.trusted

1. A container is made from the instance's image. Of the agent's work only the patch comes into it, applied by the same
   commands as the harness uses, one after the other until one works.
2. What changed by that is asked of the engine; then the instance's `eval_script` runs, made by the harness.
3. The harness's own function reads the log: `official` is its report, unchanged.
4. `trusted` says whether that log can be believed: see `trust` for files and log, and `control` for a second run with
   tests that must fail. Tests skipped under the patch and not without it are not believed either.

Judging takes what the tests take, twice if they pass, and some 6 s more. An empty patch is not run, as in the harness.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.agents.code.swebench import container as containers
from sonde.agents.code.swebench import control, harness, instances, trust
from sonde.agents.sandbox import base
from sonde.core import errors

LIMITS = base.Limits(seconds=300.0, memory=4 * 2**30, processes=512, disk=8 * 2**30)
SECONDS = 1800.0
APPLY = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
APPLY_FAILED = ">>>>> Patch Apply Failed"
_PATCH = "/tmp/patch.diff"  # noqa: S108
_SCRIPT = "/eval.sh"
_TAIL = 4000
AT_ONCE = os.cpu_count() or 1
_TURNS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
#: Changed test files, and what was changed, by image, commit and test patch: every episode of an instance needs them.
_SABOTAGED: dict[tuple[str, str, str], tuple[dict[str, bytes], control.Names]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What came of judging.

    Attributes:
        passed: Official and trusted.
        official: The harness's report on the instance; empty if it could not read the log.
        trusted: Whether the log it was read from can be believed.
        doubts: Why not.
        reason: What went wrong first, for whoever reads the record.
        infrastructure: Whether that was the machinery and not the patch.
        reinstall: How the script's re-installation of the package went: `done`, `failed: why`, or empty if it makes none.
        control: How the control went; empty if there was no need of one.
        patch: What was judged.
        log: `sha256`, `bytes`, `seconds` and the end of what the script wrote.
    """

    passed: bool
    official: Mapping[str, Any]
    trusted: bool
    doubts: tuple[str, ...]
    reason: str
    infrastructure: bool
    reinstall: str
    control: str
    patch: str
    log: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """A patch, tried: the text of the log, the file it is in, what the patch changed, and how the script ended."""

    text: str
    file: Path
    changed: list[tuple[str, str]]
    ended: containers.Recorded
    applied: bool = True


class Judge:
    """Judges patches."""

    def __init__(
        self,
        *,
        image: str | None = None,
        network: bool = False,
        seconds: float = SECONDS,
        limits: base.Limits = LIMITS,
        logs: Path | str | None = None,
    ) -> None:
        """Takes the settings.

        Args:
            image: Names an instance's image: a text in which `{id}`, `{key}` (the id as image names have it), `{repo}` and
                `{image}` (the row's own) stand for the instance's; None: the row's own.
            network: Whether the judging container has a network, as in the harness; needed where the package must be
                built anew.
            seconds: For the script.
            limits: For the containers.
            logs: A folder in which every log is kept.

        Raises:
            ValueError: The image text names something else.
        """
        image_of("{image}" if image is None else image, None)
        self.image = image
        self.network = network
        self.seconds = seconds
        self.limits = limits
        self.logs = None if logs is None else Path(logs)

    def image_of(self, task: instances.SweBenchTask) -> str:
        """The image of an instance."""
        return task.image if self.image is None else image_of(self.image, task)

    async def judge(self, task: instances.SweBenchTask, patch: str) -> Verdict:
        """Judges a patch.

        Args:
            task: The instance.
            patch: In git's form; empty: nothing was changed.

        Raises:
            SandboxError: The container does not work.
            MissingExtraError: The package `swebench` is missing.
        """
        with tempfile.TemporaryDirectory(prefix="sonde-judge-") as folder:
            async with _turn(), harness.Harness() as official:
                if not patch.strip():
                    report = await official.report(task, None, None)
                    return Verdict(False, report, True, (), "the patch is empty", False, "", "", patch, {})
                script = await official.script(task)
                run = await self._tried(task, patch, script, Path(folder) / "judge.log")
                self._keep(task, run.file)
                return await self._verdict(official, task, patch, script, run)

    async def _verdict(
        self, official: harness.Harness, task: instances.SweBenchTask, patch: str, script: str, run: _Run
    ) -> Verdict:
        try:
            report, unread = await official.report(task, patch, run.file), ""
        except errors.EpisodeError as error:
            report, unread = {}, str(error)
        doubts, said = self._doubts(task, script, run), ""
        if report.get("resolved") and not doubts:
            said, doubts = await self._controlled(official, task, patch, script, report)
            doubts += await self._skipped(official, task, script, run)
        reinstalled = trust.reinstall(run.text)
        stale = trust.unbuilt(run.changed) if reinstalled.startswith("failed") else []
        resolved = bool(report.get("resolved"))
        machinery = not resolved and bool(unread or stale or _broken(report, reinstalled) or _killed(run))
        reason = "" if resolved else unread or _reason(report, run, reinstalled, stale)
        return Verdict(
            passed=resolved and not doubts,
            official=report,
            trusted=not doubts,
            doubts=tuple(doubts),
            reason=reason or (doubts[0] if doubts else ""),
            infrastructure=machinery,
            reinstall=reinstalled,
            control=said,
            patch=patch,
            log=_about(run),
        )

    def _doubts(self, task: instances.SweBenchTask, script: str, run: _Run) -> list[str]:
        doubts = trust.of_files(run.changed, task.own_files)
        if run.applied:
            stopped = [f"the tests were not run to their end: {run.ended.note}"] if run.ended.note else []
            doubts += stopped or trust.of_log(run.text, script, task)
        return doubts

    async def _controlled(
        self,
        official: harness.Harness,
        task: instances.SweBenchTask,
        patch: str,
        script: str,
        report: Mapping[str, Any],
    ) -> tuple[str, list[str]]:
        """How the control went, and why the first log is not to be believed after it."""
        files, changed = await self._sabotage(task)
        passed = [name for part in report.get("tests_status", {}).values() for name in part["success"]]
        watched = control.controlled(passed, changed)
        if not watched:
            return "not possible: none of the tests is a Python function of the instance's test files", []
        with tempfile.TemporaryDirectory(prefix="sonde-judge-") as folder:
            log = Path(folder) / "control.log"
            await self._tried(task, patch, control.scripted(script, files), log, files)
            forged = control.forged(watched, await official.statuses(task, log))
        if forged:
            return "failed", [f"{len(forged)} tests that were made to fail are said to have passed: {forged[0]}"]
        return f"made: {len(watched)} tests failed as they had to", []

    async def _skipped(
        self, official: harness.Harness, task: instances.SweBenchTask, script: str, run: _Run
    ) -> list[str]:
        """A doubt, if tests that must go on passing were skipped under the patch, and are not without it."""
        skipped = await self._skips(official, task, run.file)
        if not skipped:
            return []
        with tempfile.TemporaryDirectory(prefix="sonde-judge-") as folder:
            log = Path(folder) / "base.log"
            await self._tried(task, "", script, log)
            new = skipped - await self._skips(official, task, log)
        return (
            [f"{len(new)} tests that must go on passing are skipped under the patch alone: {min(new)}"] if new else []
        )

    async def _skips(self, official: harness.Harness, task: instances.SweBenchTask, log: Path) -> set[str]:
        statuses = await official.statuses(task, log)
        return {name for name in task.pass_to_pass if statuses.get(name) == "SKIPPED"}

    async def _tried(
        self,
        task: instances.SweBenchTask,
        patch: str,
        script: str,
        log: Path,
        files: Mapping[str, bytes] | None = None,
    ) -> _Run:
        """Applies a patch in a fresh container and runs a script there."""
        async with self._open(task) as box:
            before = set(await box.changed())
            problem = await _applied(box, patch)
            if problem:
                await asyncio.to_thread(log.write_text, f"{APPLY_FAILED}:\n{problem}\n", encoding="utf-8")
                changed, ended = [], containers.Recorded(0.0, "the patch does not apply")
            else:
                changed = [one for one in await box.changed() if one not in before and one[1] not in _OURS]
                for path, data in {_SCRIPT: script.encode(), **_controls(files or {})}.items():
                    await box.put(path, data)
                ended = await box.record(f"exec /bin/bash {_SCRIPT}", log, seconds=self.seconds)
                if ended.timed_out:  # in the harness's own words, which its grading looks for
                    with log.open("a", encoding="utf-8") as file:
                        file.write(f"\n\nTimeout error: {self.seconds:g} seconds exceeded.")
        text = await asyncio.to_thread(log.read_text, encoding="utf-8", errors="replace")
        return _Run(text, log, changed, ended, not problem)

    async def _sabotage(self, task: instances.SweBenchTask) -> tuple[dict[str, bytes], control.Names]:
        """The instance's own test files, changed so that they fail, and what was changed in each."""
        key = (self.image_of(task), task.base_commit, task.test_patch)
        if key not in _SABOTAGED:
            files: dict[str, bytes] = {}
            changed: dict[str, frozenset[tuple[str, str]]] = {}
            for file, text in (await self._test_files(task)).items():
                with contextlib.suppress(ValueError):
                    made, functions = control.sabotaged(text)
                    if functions:
                        files[file], changed[file] = made.encode(), functions
            _SABOTAGED[key] = files, changed
        return _SABOTAGED[key]

    async def _test_files(self, task: instances.SweBenchTask) -> dict[str, str]:
        """The Python test files of an instance as its test patch makes them."""
        found = {}
        async with self._open(task) as box:
            await box.put(_PATCH, task.test_patch.encode())
            at = f"cd {instances.REPOSITORY} && git -c safe.directory='*'"
            for number, file in enumerate(task.test_files):
                await box.put(f"/sonde-names/{number}", file.encode())
                await box.call(f'{at} checkout -q {task.base_commit} -- "$(cat /sonde-names/{number})"')
            await box.call(f"{at} apply {_PATCH}")
            for number, file in enumerate(task.test_files):
                code, data = await box.call(f'cd {instances.REPOSITORY} && cat -- "$(cat /sonde-names/{number})"')
                if code == 0 and file.endswith(".py"):
                    found[file] = data.decode(errors="replace")
        return found

    def _open(self, task: instances.SweBenchTask) -> contextlib.AbstractAsyncContextManager[containers.Container]:
        return containers.Container.open(self.image_of(task), limits=self.limits, network=self.network)

    def _keep(self, task: instances.SweBenchTask, log: Path) -> None:
        if self.logs is not None:
            self.logs.mkdir(parents=True, exist_ok=True)
            number = len(list(self.logs.glob(f"{task.id}.*.log")))
            (self.logs / f"{task.id}.{number}.log").write_bytes(log.read_bytes())


_OURS = frozenset(("/tmp", _PATCH, _SCRIPT))  # noqa: S108


def image_of(form: str, task: instances.SweBenchTask | None) -> str:
    """The image that a text with fields names for an instance; without one, the text is only checked.

    Raises:
        ValueError: The text has other fields.
    """
    told = dict.fromkeys(("id", "image", "repo"), "x")
    if task is not None:
        told = {"id": task.id, "image": task.image, "repo": task.repo}
    key = instances.key_of(told["id"])
    try:
        return form.format(id=told["id"], key=key, image=told["image"], repo=told["repo"])
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(
            f"the image {form!r} has a field that is not there ({error}); fields are {{id}}, {{key}}, {{repo}} and {{image}}"
        ) from None


def _turn() -> asyncio.Semaphore:
    """Lets as many judgements go on at once as there are processors, so that tests do not run out of time together."""
    return _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))


async def _applied(box: containers.Container, patch: str) -> str:
    """Applies a patch as the harness does; what the last command said if none did it."""
    if not patch:
        return ""
    await box.put(_PATCH, patch.encode("utf-8", errors="replace"))
    at, said = f"cd {instances.REPOSITORY}", b""
    for number, command in enumerate(APPLY):
        if number:
            await box.call(f"{at}; git checkout -- . ; git clean -fd")
        code, said = await box.call(f"{at} && {command} {_PATCH}")
        if code == 0:
            return ""
    code, _ = await box.call(f"{at} && git apply --check --reverse {_PATCH}")
    return "" if code == 0 else said.decode(errors="replace")[-_TAIL:]


def _controls(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{control.FOLDER}/{file}": data for file, data in files.items()}


def _broken(report: Mapping[str, Any], reinstalled: str) -> bool:
    """Whether the harness holds the environment at fault, and for more than a re-installation without a network."""
    offline = reinstalled.startswith("failed") and report.get("infra_failure_reason") == "network_unreachable"
    return bool(report.get("infra_failure")) and not offline


def _killed(run: _Run) -> bool:
    return run.applied and bool(run.ended.note) and not run.ended.timed_out


def _reason(report: Mapping[str, Any], run: _Run, reinstalled: str, stale: list[str]) -> str:
    """Why an instance is not resolved."""
    if not run.applied:
        return "the patch does not apply"
    if stale:
        return (
            f"{stale[0]} must be built, and the package could not be re-installed ({reinstalled}): judge with a network"
        )
    if run.ended.note:
        return f"the tests were stopped: {run.ended.note}"
    told = report.get("tests_status", {})
    failed = [name for part in told.values() for name in part["failure"]]
    if failed:
        return f"not passed: {failed[0]}" + (f" and {len(failed) - 1} more" if len(failed) > 1 else "")
    return str(report.get("infra_failure_reason") or "there is no sign in the log that the tests ran")


def _about(run: _Run) -> dict[str, Any]:
    data = run.text.encode()
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "seconds": round(run.ended.seconds, 3),
        "tail": base.harmless(data[-_TAIL:]),
    }
