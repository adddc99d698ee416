"""SWE-bench instances to repair, each in its own container, judged by SWE-bench's own harness.

    tasks = swebench_verified_tasks("verified.jsonl")
    async with SweBenchEnv(tasks) as env: ...

1. An episode has a container of the instance's image; the agent works in it as root, in `/testbed` itself, where the
   repository and its environment are installed, without a network.
2. Its work is a patch (see `patches`), which is judged in another, fresh container (see `judge`).
3. The reward is 1 if SWE-bench's harness says resolved and its log can be believed. The verdict, with the patch, the
   harness's report and the reasons for doubts, is in `info["verdict"]` of the last step.

Needs a Docker engine, the package `swebench` (see `harness`) and for each instance its image of some gigabytes. Beside
what the commands take, an episode costs 1 s to start, 0.2 s for a command, and the judging: see `judge`.
"""

import asyncio
import contextlib
import dataclasses
import shutil
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sonde.agents.code import commands, environment
from sonde.agents.code.swebench import harness, instances, patches
from sonde.agents.code.swebench import judge as judges
from sonde.agents.sandbox import base, docker, docker_engine
from sonde.core import errors

SYSTEM_PROMPT = f"""You repair a repository with shell commands.

In every message write exactly one command in a block like this:

```bash
ls
```

You then see its output. Every command runs in a new shell in the folder of the repository, where its environment is \
installed; files stay, `cd` and running programs do not. There is no network. To write a file use `cat > file.py <<'EOF'`. \
When the issue is solved, write a block that says only `{commands.SUBMIT}`. What you changed in the repository is then \
taken as a patch, and tests that you cannot see decide."""
_CONDA = "/".join(("", "opt", "miniconda3", "bin", "activate"))
_ENTER = f"[ ! -f {_CONDA} ] || . {_CONDA} testbed 2>/dev/null"
_INDEX = "sonde-state.index"


class SweBenchEnv(environment.ShellEnvironment[instances.SweBenchTask]):
    """SWE-bench instances to repair, each in its own container."""

    def __init__(
        self,
        tasks: Sequence[instances.SweBenchTask] | None = None,
        *,
        step_limit: int = 50,
        limits: base.Limits | None = None,
        judge: judges.Judge | None = None,
        **options: Any,
    ) -> None:
        """Takes the tasks.

        Args:
            tasks: Those of `swebench_verified_tasks()` if left out.
            step_limit: After so many messages the work is judged as it is.
            limits: For each command.
            judge: Judges the work, and knows the images; one with a judge's defaults if left out.
            **options: See `CodeEnvironment`.

        Raises:
            ValueError: There are no tasks, or the step limit is below 1.
        """
        options = {"system_prompt": SYSTEM_PROMPT, **options}
        chosen = instances.swebench_verified_tasks() if tasks is None else tasks
        super().__init__(chosen, step_limit=step_limit, limits=limits or judges.LIMITS, **options)
        self.judge = judge or judges.Judge(limits=self.limits)
        self._proven: set[str] = set()

    def _fresh(self) -> None:
        super()._fresh()
        self._found = ""

    async def _prove(self, task: instances.SweBenchTask) -> None:
        """Sees that the task can be judged, before an episode of it is played.

        Raises:
            MissingExtraError: The package `swebench` is missing.
            EpisodeError: The installed one is too old for this instance.
        """
        if self.check and task.id not in self._proven:
            async with harness.Harness() as official:
                await official.script(task)
            self._proven.add(task.id)

    @contextlib.asynccontextmanager
    async def _opened(self, task: instances.SweBenchTask) -> AsyncIterator[base.Sandbox]:
        image = self.judge.image_of(task)
        async with await docker.DockerSandbox.open(limits=self.limits, image=image, layout=docker.INSTANCE) as sandbox:
            try:
                self._found = await patches.tree(sandbox)
            except errors.SandboxError as error:
                raise errors.SandboxError(
                    f"task {task.id!r}: image {image} is not one of SWE-bench's: {error}"
                ) from error
            yield sandbox

    def _told(self, task: instances.SweBenchTask) -> str:
        return f"The repository {task.repo} is in the current folder. Solve this issue:\n\n{task.problem_statement}"

    def _entered(self, command: str) -> str:
        return f"{_ENTER}\n{command}"

    async def _tree(self, sandbox: base.Sandbox) -> str:
        try:
            return await patches.tree(sandbox, since=self._found, index=_INDEX)
        except errors.SandboxError:  # the agent may have broken the repository; its patch will say so
            return ""

    async def _judged(self, sandbox: base.Sandbox, task: instances.SweBenchTask) -> judges.Verdict:
        patch = await patches.made(sandbox, self._found)
        verdict = await self.judge.judge(task, patch.text)
        lost = f"changes within {', '.join(patch.submodules)} cannot be part of a patch" if patch.submodules else ""
        said = [part for part in (patch.problem or verdict.reason, lost) if part]
        return dataclasses.replace(verdict, reason="; ".join(said))

    def provisions(self, at_once: int) -> list[str]:
        """What playing will take, in sentences: containers, memory, images to be fetched, room on the disk.

        Raises:
            SandboxError: There is no Docker, or its engine does not answer.
            MissingExtraError: The package `swebench` is missing.
        """
        return asyncio.run(self._provisions(at_once))

    async def _provisions(self, at_once: int) -> list[str]:
        engine = docker_engine.Engine()
        await engine.platform()
        await self._prove(self.tasks[0])
        gigabytes = self.limits.memory / 2**30
        told = [
            f"{at_once} containers at once, each with at most {gigabytes:g} GiB of memory; judging takes one more each"
        ]
        images = dict.fromkeys(self.judge.image_of(task) for task in self.tasks)
        here, missing = 0, 0
        for image in images:
            found = await engine.call("image", "inspect", "--format", "{{.Size}}", image)
            here += int(found.output) if found.code == 0 else 0
            missing += found.code != 0
        told.append(
            f"{len(images) - missing} of {len(images)} images are here ({here / 1e9:.1f} GB as they are counted)"
        )
        if missing:
            told.append(f"{missing} will be fetched, SWE-bench's own take some 2 to 10 GB each on the disk")
        root = await engine.call("info", "--format", "{{.DockerRootDir}}")
        with contextlib.suppress(OSError):  # the engine is on another machine
            free = shutil.disk_usage(root.output.decode(errors="replace").strip()).free
            told.append(f"{free / 1e9:.0f} GB are free where the engine keeps them")
        return told
