"""What a command costs in each kind of sandbox, beside a bare `docker exec … true` and a container of its own, in one run.

DOCKER_HOST=unix:///run/other.sock python benchmarks/bench_sandbox.py [image] [commands]
"""

import asyncio
import statistics
import subprocess
import sys
import time

from sonde.agents.sandbox import bubblewrap, docker
from sonde.core import errors


def timed(*line):
    """Milliseconds of a program."""
    began = time.perf_counter()
    subprocess.run(line, check=True, capture_output=True)
    return 1000 * (time.perf_counter() - began)


async def clocked(work):
    """Milliseconds of something awaited, and its result."""
    began = time.perf_counter()
    result = await work
    return 1000 * (time.perf_counter() - began), result


def shown(name, values):
    low, middle, high = (
        statistics.quantiles(values, n=10)[0],
        statistics.median(values),
        statistics.quantiles(values, n=10)[-1],
    )
    print(f"{name:52} {middle:7.1f} ms  (tenth to ninetieth percent: {low:.1f} to {high:.1f})")
    return middle


async def in_docker(image, count):
    opening, sandbox = await clocked(docker.DockerSandbox.open(image=image, python_packages=()))
    bare, own, new, left = [], [], [], []
    for _ in range(count):  # in turn, so that all meet the same machine
        bare.append(timed("docker", "exec", sandbox.name, "true"))
        own.append((await clocked(sandbox.run("true")))[0])
        left.append((await clocked(sandbox.run("sleep 1000 & true")))[0])
        new.append(timed("docker", "run", "--rm", "--network", "none", image, "true"))
    putting, _ = await clocked(sandbox.put({str(number): b"x" * 1000 for number in range(100)}))
    getting, _ = await clocked(sandbox.get("7"))
    closing, _ = await clocked(sandbox.close())
    base = shown("docker exec … true", bare)
    ours = shown("DockerSandbox.run('true')", own)
    shown("DockerSandbox.run('sleep 1000 & true')", left)
    container = shown("docker run --rm … true", new)
    print(
        f"Docker: open {opening:.0f} ms, put 100 files {putting:.0f} ms, get one {getting:.0f} ms, close {closing:.0f} ms"
    )
    print(
        f"A command costs {ours / base:.2f} times a bare docker exec, {ours / container:.2f} times a container of its own."
    )


async def in_bubblewrap(count):
    async with await bubblewrap.BubblewrapSandbox.open() as sandbox:
        shown("BubblewrapSandbox.run('true')", [(await clocked(sandbox.run("true")))[0] for _ in range(count)])


async def main(image=docker.IMAGE, count="30"):
    for work in (in_docker(image, int(count)), in_bubblewrap(int(count))):
        try:
            await work
        except errors.SandboxError as error:
            print(f"left out: {error}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
