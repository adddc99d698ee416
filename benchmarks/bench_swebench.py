"""What an episode of SWE-bench costs beside its commands, and its judging against the official harness's own run.

The same instance and the same patches, in turn: `run_evaluation` as SWE-bench gives it out (with the Python client of
Docker), and `Judge`. The instance is made from an embedded task, so its tests take milliseconds and what is measured is
machinery. A wrong patch is run once by both; the repair twice by Sonde, which makes a control. Of the harness's time, stopping its
container is up to 15 s, and pip's waiting for a network some 7 s where there is none; Sonde tells pip not to wait.
Then the parts of an episode, against a bare `docker run` and `docker exec`. Needs a Docker engine that has the base image of the
tests (see tests/docker_engine.py) and the extra `swebench`.
Run: python benchmarks/bench_swebench.py, 6 minutes on two busy cores.
"""

import asyncio
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shared

from sonde.agents.code import bash_agent, commands
from sonde.agents.code.swebench import environment, harness, instances, judge
from sonde.core import errors

BASE = "sonde-test-base"
REPEATS = 2
WRONG = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+nothing\n"


def rows():
    """The tests' own instance."""
    place = Path(__file__).parents[1] / "tests" / "swebench" / "repositories.py"
    spec = importlib.util.spec_from_file_location("repositories", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.made(BASE, names=("roman",))


def official(task, patch):
    """Whether the harness, as it is given out, holds a patch to resolve an instance."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rows.json").write_text(json.dumps([task.row()]))
        prediction = {"instance_id": task.id, "model_name_or_path": "one", "model_patch": patch}
        (Path(folder) / "predictions.json").write_text(json.dumps([prediction]))
        line = [os.environ.get(harness.VARIABLE) or sys.executable, "-m", "swebench.harness.run_evaluation"]
        line += ["-d", "rows.json", "-p", "predictions.json", "--run_id", "one", "--max_workers", "1"]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        found = list(Path(folder).glob("logs/**/report.json"))
        if not found:
            raise SystemExit(f"the official harness does not run here: {(done.stdout + done.stderr)[-1000:]}")
        return json.loads(found[0].read_text())[task.id]["resolved"]


def own(task, patch):
    """Whether Sonde's judge does."""
    return asyncio.run(judge.Judge().judge(task, patch)).passed


def agreed(judged, task, patch):
    """Judges, and sees that it comes to what is known."""
    assert judged(task, patch) == (patch == task.patch)


def parts(task):
    """Seconds of starting, of a command that does nothing, and of judging that there is no patch."""

    async def play():
        times = {}
        async with environment.SweBenchEnv([task]) as env:
            await env.reset()  # which proves the instance first
            times["start"] = await timed(env.reset())
            times["command"] = await timed(env.step(bash_agent.answer(commands.fenced("true"))))
            times["patch, nothing to judge"] = await timed(
                env.step(bash_agent.answer(commands.fenced(commands.SUBMIT)))
            )
        return times

    async def timed(work):
        start = time.perf_counter()
        await work
        return time.perf_counter() - start

    return asyncio.run(play())


def bare(image):
    """Seconds of a container that is started, and of a command in it, by `docker` alone."""
    start = time.perf_counter()
    name = subprocess.run(
        ["docker", "run", "--detach", "--network", "none", image, "sleep", "60"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    ran = time.perf_counter()
    subprocess.run(["docker", "exec", name, "true"], check=True)
    done = time.perf_counter()
    subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=True)
    return {"start": ran - start, "command": done - ran}


def main():
    try:
        asyncio.run(environment.SweBenchEnv([instances._task(rows()[0], "here")])._provisions(1))
    except (errors.SondeError, RuntimeError, OSError) as error:
        raise SystemExit(f"left out: {error}") from None
    task = instances._task(rows()[0], "the tests' own")
    for name, patch in (("a wrong patch", WRONG), ("the repair", task.patch)):
        jobs = {
            "official": functools.partial(agreed, official, task, patch),
            "own": functools.partial(agreed, own, task, patch),
        }
        times = shared.alternate(jobs, REPEATS)
        told = ", ".join(f"{who} {statistics.median(seconds):.1f} s" for who, seconds in times.items())
        shared.report(f"judging {name}: {told}; ratio {shared.ratio(times, 'own', 'official'):.2f}")
    found, peers = [parts(task) for _ in range(REPEATS)], [bare(task.image) for _ in range(REPEATS)]
    for name in found[0]:
        line = f"episode, {name}: {statistics.median(one[name] for one in found):.2f} s"
        if name in peers[0]:
            line += f"; docker alone {statistics.median(one[name] for one in peers):.2f} s"
        shared.report(line)


if __name__ == "__main__":
    main()
