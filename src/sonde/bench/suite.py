"""Many cases, trained in a folder over days if need be.

    for case, number in suite.tries(cases.ids("core")):
        suite.attempt(case, number, training.Recipe(seeds=(0, 1)), folder)      # again: goes on where it was stopped

1. Every case has up to three tries, each slower and longer than the one before, and begun with the best weights so far; seeds
   that reached the threshold in one are left out of the next.
2. Tries are taken from short to long: small models first, and their second tries before the first of models that are much larger.
3. Several processes may work in one folder: each takes the next try that nobody is at.
4. Whatever is finished is on disk: DIR/case-3/try-0/seed-0/model.safetensors and log.json. Seeds may be added later.

Costs from some seconds to days of one core, by case: a step of one seed takes 5 ms to 2.5 s.
"""

from collections.abc import Iterable
from pathlib import Path

from sonde.bench import cases, high, recipes, sizes, training
from sonde.core import errors, progress

TRIES = ((1.0, 1), (0.5, 3), (0.2, 10))  # rate and epochs, as multiples of the recipe's


def attempt(
    case: int, number: int, recipe: recipes.Recipe, folder: Path, *, tell: progress.Tell = progress.silent
) -> list[training.Trained]:
    """Trains the seeds of a try for which it is time; returns those that ended, none if another process is at it.

    Raises:
        RequestError: The try in the folder is one of another recipe, or of an older program.
        StoreError: It cannot be written.
    """
    found: list[training.Trained] = []
    for seeds in _asked(place(folder, case, number), due(folder, case, number, recipe.seeds)):
        found += _try(case, number, recipe.model_copy(update={"seeds": seeds}), folder, tell)
    return found


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


def tries(ids: Iterable[int]) -> list[tuple[int, int]]:
    """All tries of cases, from short to long."""
    every = [(case, number) for case in ids for number in range(len(TRIES))]
    return sorted(every, key=lambda one: _cost(one[0]) * TRIES[one[1]][1])


def by_size(ids: Iterable[int]) -> list[int]:
    """Cases from small to large."""
    return sorted(ids, key=lambda case: (_cost(case), case))


def _cost(case: int) -> int:
    """What a step costs, but for a factor: layers, width and length decide."""
    size, length = sizes.of(case), cases.get(case).max_length
    return size.n_layers * size.d_model * (size.d_model + length) * length


def due(folder: Path, case: int, number: int, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds for which it is time to try: their earlier tries have ended without reaching the threshold, and this one has not."""
    for before in range(number):
        ended = training.finished(place(folder, case, before), seeds)
        seeds = tuple(one.seed for one in ended if one.status != "reached")
    done = {one.seed for one in training.finished(place(folder, case, number), seeds)}
    return tuple(seed for seed in seeds if seed not in done)


def _asked(target: Path, seeds: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The seeds whose training was stopped half-way, and the others; each is trained at once."""
    half = set(training.under_way(target))
    parts = (tuple(seed for seed in seeds if (seed in half) == there) for there in (True, False))
    return [part for part in parts if part]


def _try(case: int, number: int, recipe: recipes.Recipe, folder: Path, tell: progress.Tell) -> list[training.Trained]:
    """The seeds that end in this try; none if another process is at it."""
    target, (rate, epochs) = place(folder, case, number), TRIES[number]
    slower = recipe.model_copy(update={"rate": recipe.rate * rate, "epochs": recipe.epochs * epochs})
    task = high.of_case(cases.get(case))
    start = best(folder, case, recipe.seeds) if number else []
    try:
        return training.train(task, training.shape_of(task, sizes.of(case)), slower, target, start=start, tell=tell)
    except errors.StoreError:
        if not training.is_busy(target):
            raise
        return []
