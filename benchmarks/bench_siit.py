"""Is it quicker to train eight seeds at once than one after another?

    OMP_NUM_THREADS=1 python benchmarks/bench_siit.py

Case 3, batches of 256. The peer is a plain loop over one seed: a `PlainForCausalLM` with hooks that swap outputs, and three
optimiser steps per batch (IIT, strict, behaviour), each with forward passes of its own in both models. Ours is one step
of `sonde.bench` with the three losses summed, for 1 and for 8 seeds. A step is one batch through all three losses; the rate is
the sum over seeds. Rounds of both alternate, one thread each, and CPU time counts, so that a busy machine does not; the
ratio is the median over rounds.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from sonde.bench import batched, cases, high, sizes, training

ROWS = 256


class Plain:
    """One seed, three optimiser steps per batch."""

    def __init__(self, task, shape, places):
        self.task, self.places = task, places
        self.low = batched.to_plain(shape, batched.draw(shape, [0])[0]).train()
        program = task.program
        self.high = batched.to_plain(program.shape, program.weights[0])
        self.free = [name for name in sources(self.low) if name not in places.values()]
        self.optimiser = torch.optim.Adam(self.low.parameters(), lr=1e-3, betas=(0.9, 0.9))

    def step(self, rng):
        base, other = self.task.inputs.pair(rng, ROWS)
        node = str(rng.choice(list(self.places)))
        with torch.no_grad():
            right = self.forward(self.high, base, other, [node])
        self.update(base, other, [self.places[node]], right)
        with torch.no_grad():
            right = self.high(base).logits
        self.update(base, other, [str(rng.choice(self.free))], right)
        with torch.no_grad():
            right = self.high(base).logits
        self.update(base, None, [], right)

    def update(self, base, other, nodes, right):
        self.optimiser.zero_grad()
        found = self.forward(self.low, base, other, nodes)
        (found[:, 1:] - right[:, 1:]).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(self.low.parameters(), 0.1)
        self.optimiser.step()

    def forward(self, model, base, other, nodes):
        if not nodes:
            return model(base, use_cache=False).logits
        with torch.no_grad(), keeping(model, nodes) as kept:
            model(other, use_cache=False)
        with swapping(model, nodes, kept):
            return model(base, use_cache=False).logits


def sources(model):
    layers = range(model.config.num_hidden_layers)
    heads = range(model.config.num_attention_heads)
    return [f"a{layer}.h{head}" for layer in layers for head in heads] + [f"m{layer}" for layer in layers]


def module_of(model, node):
    layer, _, head = node[1:].partition(".h")
    part = model.model.layers[int(layer)]
    if node[0] == "m":
        return part.mlp, slice(None)
    width = model.config.head_dim
    return part.self_attn.o_proj, slice(int(head) * width, (int(head) + 1) * width)


@contextlib.contextmanager
def keeping(model, nodes):
    kept, hooks = {}, []
    for node in nodes:
        module, columns = module_of(model, node)
        if node[0] == "m":
            hooks.append(module.register_forward_hook(lambda _, __, out, node=node: kept.update({node: out})))
        else:
            hooks.append(module.register_forward_pre_hook(
                lambda _, args, node=node, columns=columns: kept.update({node: args[0][..., columns]})))  # fmt: skip
    yield kept
    for hook in hooks:
        hook.remove()


@contextlib.contextmanager
def swapping(model, nodes, kept):
    hooks = []
    for node in nodes:
        module, columns = module_of(model, node)
        if node[0] == "m":
            hooks.append(module.register_forward_hook(lambda _, __, out, node=node: kept[node]))
            continue

        def swap(_, args, node=node, columns=columns):
            mixed = args[0].clone()
            mixed[..., columns] = kept[node]
            return (mixed,)

        hooks.append(module.register_forward_pre_hook(swap))
    yield
    for hook in hooks:
        hook.remove()


class Ours:
    """Some seeds, one summed step."""

    def __init__(self, task, shape, seeds, folder):
        recipe = training.Recipe(seeds=tuple(range(seeds)), batch=ROWS)
        self.run = training._Run(task, shape, recipe, Path(folder))

    def step(self, rng):
        self.run.learn()


def rate(one, steps, seed):
    start = time.process_time()
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        one.step(rng)
    return steps / (time.process_time() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    task = high.of_case(cases.get(3))
    shape = training.shape_of(task, sizes.of(3))
    pupils = training.pupils_of(task, shape, training.Recipe())
    with tempfile.TemporaryDirectory() as folder:
        plain = Plain(task, shape, pupils.places[0])
        ours = {n: Ours(task, shape, n, f"{folder}/{n}") for n in (1, 8)}
        for one in (plain, *ours.values()):
            rate(one, 2, 0)
        found = {"plain": [], 1: [], 8: []}
        for turn in range(asked.rounds):
            found["plain"].append(rate(plain, asked.steps, turn))
            for n, one in ours.items():
                found[n].append(n * rate(one, asked.steps, turn))
    print(f"plain loop, one seed: {statistics.median(found['plain']):.1f} steps per CPU-second")
    for n in ours:
        ratios = [mine / theirs for mine, theirs in zip(found[n], found["plain"], strict=True)]
        print(f"ours, {n} seed(s) batched: {statistics.median(found[n]):.1f} in all, {statistics.median(ratios):.2f} x plain "
              f"({min(ratios):.2f} to {max(ratios):.2f} over {asked.rounds} rounds)")  # fmt: skip


if __name__ == "__main__":
    main()
