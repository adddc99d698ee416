"""Which programs do all models get right? The search for robust seeds, to have something to trace.

For each case (hops and length; 17 lines with 3 hops first) seeds are tried in their order until one gives a program that
every model answers correctly. Finding one says little by itself: at 10 % by luck, one model needs about ten tries. So
the case tells how many were tried, and tracing must still show its effects on other programs. Costs generation: models
are opened one after the other and stay for all cases; the first model rules most seeds out for the others.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sonde.core import errors
from sonde.programs import answering, experiments, generators, prompts, runner

CASES = ((3, 17), (2, 17), (1, 17), (3, 5), (2, 5), (1, 5))


@dataclasses.dataclass(frozen=True, slots=True)
class RobustSeed:
    """What the search found for one case.

    Attributes:
        hops: Assignments from the query's down to the constant.
        seq_len: Assignments in all.
        tried: How many seeds were tried.
        seed: The first that all models answer correctly; None if there was none.
        program: Its program.
        answer: Its answer.
        root_line: The line of its constant.
    """

    hops: int
    seq_len: int
    tried: int
    seed: int | None = None
    program: str | None = None
    answer: int | None = None
    root_line: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How to search.

    Attributes:
        models: All must be right.
        cases: Hops and length of each.
        max_seeds: Give a case up after so many seeds.
        template: The prompt, with `{code}`.
        max_new_tokens: Tokens of an answer.
        batch_size: Seeds that are tried together.
    """

    models: Sequence[str]
    cases: Sequence[tuple[int, int]] = CASES
    max_seeds: int = 100
    template: str = prompts.VARIABLE_BINDING
    max_new_tokens: int = 6
    batch_size: int = 16


def find_robust_seeds(
    search: Search,
    *,
    opener: answering.Opener = answering.open_model,
    tell: Callable[[str, int, int], Any] = lambda doing, done, of: None,
) -> list[RobustSeed]:
    """Searches each case in its order.

    Args:
        search: What to search with.
        opener: Gives something to ask for a model's name.
        tell: Told what is being done, how much, and of how much.

    Raises:
        RequestError: There are no models, or a case is impossible.
    """
    if not search.models or search.max_seeds < 1:
        raise errors.RequestError("give at least one model and at least one seed to try")
    opened: list[answering.Answerer] = []
    try:
        for name in search.models:
            opened.append(opener(name))
            tell("loading models", len(opened), len(search.models))
        return [_case(search, opened, case, tell) for case in search.cases]
    finally:
        for one in opened:
            one.close()


def _case(
    search: Search, opened: Sequence[answering.Answerer], case: tuple[int, int], tell: Callable[[str, int, int], Any]
) -> RobustSeed:
    hops, seq_len = case
    doing = f"{hops} hops, {seq_len} lines"
    for first in range(0, search.max_seeds, search.batch_size):
        batch = [_item(seed, hops, seq_len) for seed in range(first, min(first + search.batch_size, search.max_seeds))]
        right = batch
        for name, answerer in zip(search.models, opened, strict=True):
            rows = runner.ask(_config(search, name), name, answerer, right) if right else []
            right = [item for item, row in zip(right, rows, strict=True) if row["correct"]]
        tell(doing, first + len(batch), search.max_seeds)
        if right:
            item = right[0]
            line = item.metadata["root_line"]
            tell(doing, search.max_seeds, search.max_seeds)
            return RobustSeed(hops, seq_len, item.seq_id + 1, item.seq_id, item.program, int(item.answer), line)
    return RobustSeed(hops, seq_len, search.max_seeds)


def _item(seed: int, hops: int, seq_len: int) -> experiments.Item:
    made = generators.make_variable_binding_program_with_metadata(seq_len, np.random.default_rng(seed), hops=hops)
    return experiments.Item(seq_len, seed, *made)


def _config(search: Search, name: str) -> experiments.ExperimentConfig:
    return experiments.ExperimentConfig(
        name="seeds",
        prompt_template=search.template,
        program_generator=generators.make_variable_binding_program,
        models=[name],
        max_new_tokens=search.max_new_tokens,
        batch_size=search.batch_size,
    )
