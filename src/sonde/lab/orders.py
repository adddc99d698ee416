"""In which order do the layers run? Named layer corruptions as lists of stages.

    orders.stages("reverse", 6, (2, 3, 4))          # (0, 1, 4, 3, 2, 5)

A stage is a layer, or several that run side by side on the same input. Windows are those of "Transformer Layers as
Painters" (arXiv 2407.09298); the corruptions, for n layers of which some are named:

| name              | what runs instead |
|-------------------|-------------------|
| `skip`            | all layers but these |
| `keep`            | these layers only |
| `keep-first`      | the first so many only |
| `drop-first`      | all but the first so many |
| `repeat`          | each of these twice in a row (`times`) |
| `swap`            | two layers, each at the other's place |
| `permute`         | these layers, at the same places, in the order given |
| `reverse`         | these layers, at the same places, the last first |
| `random`          | these layers, at the same places, in an order drawn by `seed`, never their own |
| `parallel`        | a window side by side: all get the same input, their outputs are averaged |
| `looped-parallel` | that again and again on its own output, as often as the window is long (`times`) |
| `middle-repeat`   | the middle layer of a window, as often as the window is long |
| `order`           | exactly these, in the order given |

Costs nothing: this is arithmetic on a few integers.
"""

import random
from collections.abc import Callable, Sequence

from sonde.core import errors

Stage = int | tuple[int, ...]
WINDOWS = ("parallel", "looped-parallel", "middle-repeat")
COUNTS = ("keep-first", "drop-first")
TIMES = ("repeat", "looped-parallel")


def stages(kind: str, n_layers: int, layers: Sequence[int], *, times: int | None = None, seed: int = 0) -> list[Stage]:
    """The stages that run under a named corruption.

    Args:
        kind: Its name.
        n_layers: Layers of the model.
        layers: The layers it is about, in the order given; for `keep-first` and `drop-first` those kept and dropped.
        times: How often `repeat` and `looped-parallel` run them.
        seed: Draws the order of `random`.

    Raises:
        InterventionError: The layers make no sense for this corruption.
    """
    _check(kind, n_layers, layers)
    if kind == "order":
        return list(layers)
    if kind in WINDOWS:
        return _window(kind, n_layers, layers, times)
    if kind in ("skip", "drop-first"):
        return [layer for layer in range(n_layers) if layer not in layers]
    if kind in ("keep", "keep-first"):
        return sorted(layers)
    if kind == "repeat":
        return [layer for layer in range(n_layers) for _ in range((times or 2) if layer in layers else 1)]
    places = dict(zip(sorted(layers), _ARRANGED[kind](list(layers), seed), strict=True))
    return [places.get(layer, layer) for layer in range(n_layers)]


def _window(kind: str, n_layers: int, layers: Sequence[int], times: int | None) -> list[Stage]:
    first, last = min(layers), max(layers)
    window = tuple(range(first, last + 1))
    inside: list[Stage] = {
        "parallel": [window],
        "looped-parallel": [window] * (times or len(window)),
        "middle-repeat": [window[len(window) // 2]] * len(window),
    }[kind]
    return [*range(first), *inside, *range(last + 1, n_layers)]


def _shuffled(layers: list[int], seed: int) -> list[int]:
    drawn, own = sorted(layers), sorted(layers)
    generator = random.Random(seed)
    while drawn == own:
        generator.shuffle(drawn)
    return drawn


_ARRANGED: dict[str, Callable[[list[int], int], list[int]]] = {
    "swap": lambda layers, _: sorted(layers, reverse=True),
    "reverse": lambda layers, _: sorted(layers, reverse=True),
    "permute": lambda layers, _: layers,
    "random": _shuffled,
}
KINDS = ("skip", "keep", *COUNTS, "repeat", *_ARRANGED, *WINDOWS, "order")


def _check(kind: str, n_layers: int, layers: Sequence[int]) -> None:
    wrong = [layer for layer in layers if not 0 <= layer < n_layers]
    if wrong:
        raise errors.InterventionError(f"{kind}: no layer {wrong[0]}: this model has layers 0 to {n_layers - 1}")
    if not layers:
        raise errors.InterventionError(f"{kind}: name at least one layer, such as {kind}:{min(1, n_layers - 1)}")
    if kind != "order" and len(set(layers)) < len(layers):
        raise errors.InterventionError(f"{kind}: a layer is named twice in {list(layers)}; name each once")
    if kind == "swap" and len(layers) != 2:
        raise errors.InterventionError(f"swap: name two layers, such as swap:3-4 or swap:3,9; got {list(layers)}")
    if kind in ("permute", "reverse", "random") and len(layers) < 2:
        raise errors.InterventionError(f"{kind}: name at least two layers, such as {kind}:1-3; got {list(layers)}")
    if kind in WINDOWS and (len(layers) < 2 or max(layers) - min(layers) + 1 != len(layers)):
        raise errors.InterventionError(
            f"{kind}: name a window of at least two neighbouring layers, such as {kind}:1-3; got {list(layers)}"
        )
    if kind in ("skip", "drop-first") and len(layers) == n_layers:
        raise errors.InterventionError(f"{kind}: at least one of the {n_layers} layers must stay")
