"""The way to SWE-bench's own grading: a process that knows nothing of Sonde, and of which Sonde knows only the answers.

    async with Harness() as harness:
        script = await harness.script(task)
        report = await harness.report(task, patch, log_file)

The package `swebench` loads some fifty others, reads `.env` files and settings of the user. So it is imported in a process
of its own, isolated from the user's Python settings, in an empty folder that is its home, with an environment that holds
nothing else. Starting it takes about 2 s, an answer some milliseconds. It may be installed beside Sonde (extra `swebench`)
or elsewhere: the variable `SONDE_SWEBENCH_PYTHON` names a Python that has it.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sonde.agents.code.swebench import instances
from sonde.core import errors

#: Names a Python that has the package `swebench`, where that which runs Sonde has not.
VARIABLE = "SONDE_SWEBENCH_PYTHON"
SECONDS = 300.0
"""After which an answer is not waited for any longer: a log is made by whoever is judged."""

_LINE = 256 * 2**20
_PROGRAM = Path(__file__).with_name("grader.py")


class Harness:
    """A grading process, for the length of a block."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._process: asyncio.subprocess.Process | None = None
        self._held = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        """Starts the process; it is not waited for."""
        home = self._held.enter_context(tempfile.TemporaryDirectory(prefix="sonde-grading-"))
        self._said = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # nobody reads along: no pipe
        python = os.environ.get(VARIABLE) or sys.executable
        try:
            self._process = await asyncio.create_subprocess_exec(
                python, "-I", str(_PROGRAM),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=self._said,
                cwd=home, env=environment(home), limit=_LINE,
            )  # fmt: skip
        except OSError as error:
            self._held.close()
            raise errors.EpisodeError(f"cannot start {python} (from {VARIABLE}): {error.strerror}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the process."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self._held.close()

    async def script(self, task: instances.SweBenchTask) -> str:
        """The script that judges an instance, as the harness runs it."""
        return (await self._ask({"do": "script", "row": task.row()}))["script"]

    async def report(self, task: instances.SweBenchTask, patch: str | None, log: Path | None) -> dict[str, Any]:
        """The harness's report on a log, for this instance.

        Args:
            task: The instance.
            patch: What was judged; None: there was nothing to judge.
            log: What the script wrote; None if there was nothing to judge.
        """
        return (await self._ask({"do": "report", "row": task.row(), "patch": patch, "log": str(log)}))["report"]

    async def statuses(self, task: instances.SweBenchTask, log: Path) -> dict[str, str]:
        """The verdict on each test, as the harness reads it from a log; empty if it finds no run there."""
        return (await self._ask({"do": "statuses", "row": task.row(), "log": str(log)}))["statuses"]

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One answer.

        Raises:
            MissingExtraError: The package `swebench` is not installed there.
            EpisodeError: The process failed, or did not answer in time.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SECONDS):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                with contextlib.suppress(ConnectionError):  # it has ended, and says why below
                    await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise errors.EpisodeError(f"SWE-bench's grading did not answer within {SECONDS:g} s") from None
        if not line:
            await self._explain(process)
        told = json.loads(line)
        if "error" in told:
            raise errors.EpisodeError(f"SWE-bench's grading failed: {told['error']}")
        return told

    async def _explain(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        if "No module named 'swebench" in said:
            raise errors.MissingExtraError("swebench", extra="swebench", feature="judging SWE-bench")
        raise errors.EpisodeError(f"SWE-bench's grading ended with {code}: {said[-500:]}")


def environment(home: str) -> dict[str, str]:
    """All that the grading process finds in its environment."""
    return {
        "PATH": os.defpath,
        "HOME": home,
        "TMPDIR": home,
        "LC_ALL": "C.UTF-8",
        "PYTHON_DOTENV_DISABLED": "1",
        "HF_HUB_OFFLINE": "1",
    }
