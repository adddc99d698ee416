"""How many of the embedded repair tasks does the embedded model solve as it is?

    python benchmarks/measure_code.py [--model smollm2-135m-instruct] [--steps 8] [--tokens 200] [--at-once 9]

Plays every task once and prints how many were solved, with a 95 % Wilson interval, and how many messages held a command
that could be run. Takes about half an hour on two cores that others use too.
"""

import argparse
import asyncio
import math
import time

import sonde
from sonde.agents import client as agents_client
from sonde.agents.code import commands, environment, tasks


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share."""
    middle = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


async def play(env, client):
    """One episode: solved, messages, messages with a command to run, submitted."""
    async with env:
        now = await env.reset()
        runnable = submitted = 0
        while not now.last():
            action = await client(now.observation)
            command = commands.read(action.text)
            runnable += bool(command.text)
            submitted += command.submits
            now = await env.step(action)
        return now.reward == 1.0, env.step_count, runnable, submitted


async def main(options):
    found = tasks.load_tasks()
    model = sonde.load(options.model)
    client = agents_client.HookedTransformerLLMClient(
        model,
        max_new_tokens=options.tokens,
        generation_kwargs={"temperature": options.temperature, "seed": options.seed},
        context_policy="drop_oldest_turns",
    )
    env = environment.CodeEnvironment(found, step_limit=options.steps)
    gate = asyncio.Semaphore(options.at_once)
    start = time.perf_counter()

    async def one(task):
        async with gate:
            result = await play(env.with_task(task), client)
        print(f"{task.id:20} solved {result[0]!s:5} messages {result[1]} runnable {result[2]}", flush=True)
        return result

    results = await asyncio.gather(*map(one, found))
    model.close()
    solved, n = sum(result[0] for result in results), len(results)
    messages, runnable = sum(result[1] for result in results), sum(result[2] for result in results)
    for name, hits, total in (("solved", solved, n), ("runnable messages", runnable, messages)):
        low, high = wilson(hits, total)
        print(f"{name}: {hits}/{total} = {hits / total:.1%}, 95 % interval {low:.1%} to {high:.1%}")
    print(f"submitted: {sum(result[3] for result in results)}/{n}; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=9)
    asyncio.run(main(parser.parse_args()))
