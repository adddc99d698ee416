"""Would any corruption of this size have done the same? Controls for a corruption.

    controls.draw(corruption, seed=0, count=3)                  # the same thing done to random other layers
    controls.matched(model, corruption, prompts, seed=0)        # noise as large as the change at the Site

1. What changes the order of layers is done to other layers, as many: windows to windows, sets to sets; to layers that it
   leaves alone where there are enough of them. `keep-first` is held against keeping as many random layers, `drop-first`
   against skipping as many.
2. Noise is put into other layers, at the same kind of Site.
3. Heads, attentions and MLPs that are named (`zero:a5.h3`) are held against others of their kind; a direction against random
   directions, as long or moved along as far.
4. What else is done at a Site is held against Gaussian noise there whose size is that of the change, measured on prompts.
5. What is joined is controlled part by part, each by the rule for its kind. A part without a control stays as it is, so
   that the control says what the others do beside it.

An explicit `order` has no control of its own kind: none is drawn. Costs nothing, except `matched`: a forward pass a prompt.
"""

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from sonde.core import interventions, sites
from sonde.lab import corruptions, orders
from sonde.models import model as models_model

#: Texts, or their token ids.
Prompts = Sequence[str] | Sequence[Tensor]
TRIES = 200
#: What is held against noise of the same size.
MATCHED = ("zero", "mean", "patch")
#: Prompts that the size of a change is measured on, at most.
PROMPTS = 8


def draw(
    corruption: corruptions.Corruption, *, seed: int = 0, count: int = 1, heads: int = 0
) -> list[corruptions.Corruption]:
    """Other layers for the same treatment, all different; fewer than asked for if there are no more.

    Args:
        corruption: What is controlled for.
        seed: Fixes the draws.
        count: How many.
        heads: How many heads a layer has; if left out, heads are held against those of the same number elsewhere.
    """
    generator = random.Random(f"{seed}:{corruption.spec}")
    found: dict[str, corruptions.Corruption] = {}
    for _ in range(TRIES * count):
        one = _drawn(corruption, generator, heads) if len(found) < count else None
        if one is None:
            break
        if one.spec != corruption.spec:
            found[one.spec] = one
    return list(found.values())


def for_task(
    model: models_model.Model, corruption: corruptions.Corruption, prompts: Prompts, *, seed: int, count: int
) -> list[corruptions.Corruption]:
    """The controls that fit a corruption: other layers, or noise of the size of the change; part by part if it is joined."""
    heads = int(model.cfg.n_heads)
    if not any(_is_matched(part) for part in corruption.parts or (corruption,)):
        return draw(corruption, seed=seed, count=count, heads=heads)
    columns = []
    for part in corruption.parts or (corruption,):
        if _is_matched(part):
            sizes = _sizes(model, part, prompts)
            ones = [_noise(part, sizes, seed=seed + 1 + at) for at in range(count)]
        else:
            drawn = draw(part, seed=seed, count=count, heads=heads)
            ones = [drawn[at % len(drawn)] if drawn else part for at in range(count)]
        columns.append(ones)
    return [corruptions.joined(parts) for parts in zip(*columns, strict=True)]


def matched(
    model: models_model.Model, corruption: corruptions.Corruption, prompts: Prompts, *, seed: int = 0
) -> corruptions.Corruption:
    """Noise at the same Site and positions, as large as what the corruption changes there on these prompts."""
    return _noise(corruption, _sizes(model, corruption, prompts), seed=seed)


def _sizes(model: models_model.Model, corruption: corruptions.Corruption, prompts: Prompts) -> dict[str, float]:
    """How much a corruption changes each of its Sites: root mean square over prompts."""
    (spec,) = corruption.bound(model)
    names = sites.select(corruption.site, model.site_names)
    squares: dict[str, list[float]] = {name: [] for name in names}
    for prompt in list(prompts)[:PROMPTS]:
        _, cache = model.run_with_cache(prompt, names)
        for name in names:
            value = cache[name][0].float().cpu().numpy()
            changed = _changed(spec, value)
            rows = [at for at in corruption.positions or () if -len(value) <= at < len(value)]
            if rows or corruption.positions is None:
                squares[name].append(float(np.mean((changed - value)[rows or slice(None)] ** 2)))
    return {name: float(f"{max(np.sqrt(np.mean(squares[name] or [0.0])), 1e-12):.4g}") for name in names}


def _noise(corruption: corruptions.Corruption, sizes: dict[str, float], *, seed: int) -> corruptions.Corruption:
    """Noise of these sizes."""
    fixed = {"seed": seed, "positions": corruption.positions}
    parts = [corruptions.make("noise", corruption.n_layers, site=name, std=std, **fixed) for name, std in sizes.items()]
    return corruptions.joined(parts)


def _changed(spec: interventions.Intervention, value: np.ndarray) -> np.ndarray:
    if isinstance(spec, interventions.Mean):
        return np.broadcast_to(value.mean(axis=0), value.shape)
    if isinstance(spec, interventions.Patch):
        stored = np.asarray(spec.values, dtype=value.dtype)
        new = value.copy()
        new[: len(stored)] = stored[: len(value)] if stored.ndim == value.ndim else stored
        return new if stored.ndim == value.ndim else np.broadcast_to(stored, value.shape)
    return np.zeros_like(value)


def _is_matched(part: corruptions.Corruption) -> bool:
    return part.kind in MATCHED and not part.components


def _drawn(one: corruptions.Corruption, generator: random.Random, heads: int) -> corruptions.Corruption | None:
    if one.kind == "joined":
        parts = [_drawn(part, generator, heads) or part for part in one.parts]
        return corruptions.joined(parts)
    if one.kind in corruptions.DIRECTED:
        return dataclasses.replace(one, seed=generator.randrange(1, 2**31))
    if one.components:
        return _others(one, generator, heads)
    if one.kind == "noise" and one.site is not None and "*" not in one.site:
        site = sites.Site.parse(one.site)
        if site.layer is None:
            return None
        others = [layer for layer in range(one.n_layers) if layer != site.layer]
        if not others:
            return None
        return dataclasses.replace(one, site=str(sites.Site(site.kind, generator.choice(others))))
    if one.kind not in orders.KINDS or one.kind == "order":
        return None
    layers = _layers(one, generator)
    kind = {"keep-first": "keep", "drop-first": "skip"}.get(one.kind, one.kind)
    if one.kind == "permute":
        ranks = [sorted(one.layers).index(layer) for layer in one.layers]
        layers = [sorted(layers)[rank] for rank in ranks]
    return dataclasses.replace(one, kind=kind, layers=tuple(layers))


def _layers(one: corruptions.Corruption, generator: random.Random) -> list[int]:
    """As many other layers, side by side if these are."""
    size, count = len(one.layers), one.n_layers
    together = size > 1 and max(one.layers) - min(one.layers) + 1 == size and not one.kind.startswith("keep")
    if together:
        starts = range(count - size + 1)
        free = [at for at in starts if not set(range(at, at + size)) & set(one.layers)]
        start = generator.choice(free or list(starts))
        return list(range(start, start + size))
    others = [layer for layer in range(count) if layer not in one.layers]
    if one.kind.startswith("keep") or len(others) < size:
        others = list(range(count))
    return generator.sample(others, size)


def _others(one: corruptions.Corruption, generator: random.Random, heads: int) -> corruptions.Corruption | None:
    """As many other components, each of the kind of one of these."""
    taken, drawn = set(one.components), list[str]()
    for name in one.components:
        place, dot, head = name.partition(".h")
        numbers = [str(at) for at in range(heads)] if heads and dot else [head]
        free = [f"{place[0]}{layer}{dot and '.h'}{number}" for layer in range(one.n_layers) for number in numbers]
        free = [other for other in free if other not in taken]
        if not free:
            return None
        drawn.append(generator.choice(free))
        taken.add(drawn[-1])
    return dataclasses.replace(one, components=tuple(drawn))
