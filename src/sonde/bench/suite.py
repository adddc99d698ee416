"""How are many cases trained, over days if need be?

    suite.train(cases.ids("core"), training.Recipe(seeds=(0, 1)), folder)      # again: goes on where it was stopped

1. Cases are taken from small to large models.
2. Every case has up to three tries, each slower and longer than the one before, and begun with the best weights so far; seeds
   that reached the threshold in one are left out of the next. All cases have their first try before any has its second.
3. Whatever is finished is on disk: DIR/case-3/try-0/seed-0/model.safetensors and log.json.

Costs from half a minute to days of one core, by case: a step of one seed takes 15 ms to 2.5 s.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from sonde.bench import cases, high, sizes, training

TRIES = ((1.0, 1), (0.5, 3), (0.2, 10))  # rate and epochs, as multiples of the recipe's
Report = Callable[[int, int, training.Trained], None]


def train(
    ids: Iterable[int],
    recipe: training.Recipe,
    folder: Path,
    *,
    report: Report | None = None,
    tell: training.Tell | None = None,
) -> dict[int, list[training.Trained]]:
    """Trains the cases and returns the best of each case's seeds; `report` hears of each one that ends.

    Raises:
        RequestError: A try of a case in the folder is one of another recipe.
        StoreError: It cannot be written, or another training is in it.
    """
    ordered = by_size(ids)
    with training.alone(folder):
        for number in range(len(TRIES)):
            for case in ordered:
                for one in _try(case, number, recipe, folder, tell):
                    if report is not None:
                        report(case, number, one)
    return {case: best(folder, case, recipe.seeds) for case in ordered}


def place(folder: Path, case: int, number: int = 0) -> Path:
    """Where a try of a case is."""
    return folder / f"case-{case}" / f"try-{number}"


def best(folder: Path, case: int, seeds: tuple[int, ...]) -> list[training.Trained]:
    """The best try of each seed that has ended: the one with the highest lowest of accuracy, IIA and strict accuracy."""
    found: dict[int, training.Trained] = {}
    for number in range(len(TRIES)):
        for one in training.finished(place(folder, case, number), seeds):
            if one.seed not in found or score(one) > score(found[one.seed]):
                found[one.seed] = one
    return [found[seed] for seed in seeds if seed in found]


def score(one: training.Trained) -> float:
    """The lowest of accuracy, IIA and strict accuracy."""
    return min(one.measured[name] for name in ("accuracy", "iia", "strict"))


def by_size(ids: Iterable[int]) -> list[int]:
    """Cases from small to large: by layers, width and length, which decide what a step costs."""

    def cost(case: int) -> tuple[int, int]:
        size, length = sizes.of(case), cases.get(case).max_length
        return size.n_layers * size.d_model * (size.d_model + length) * length, case

    return sorted(ids, key=cost)


def _try(
    case: int, number: int, recipe: training.Recipe, folder: Path, tell: training.Tell | None
) -> list[training.Trained]:
    """The seeds that end in this try: those that reached the threshold in none before."""
    reached = {
        one.seed
        for before in range(number)
        for one in training.finished(place(folder, case, before), recipe.seeds)
        if one.status == "reached"
    }
    target, seeds = place(folder, case, number), tuple(seed for seed in recipe.seeds if seed not in reached)
    done = {one.seed for one in training.finished(target, seeds)}
    if done >= set(seeds):
        return []
    rate, epochs = TRIES[number]
    slower = dataclasses.replace(recipe, seeds=seeds, rate=recipe.rate * rate, epochs=recipe.epochs * epochs)
    task = high.of_case(cases.get(case))
    start = best(folder, case, seeds) if number else []
    found = training.train(task, training.shape_of(task, sizes.of(case)), slower, target, start=start, tell=tell)
    return [one for one in found if one.seed not in done]
