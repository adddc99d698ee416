"""What is done to the model? Corruptions by name, as data, and spelled in one word.

    corruption = corruptions.make("skip", 30, layers=[11])
    corruption = corruptions.parse("reverse:13-16", 30)
    model.generate("The capital of France is", interventions=corruption.bound(model))

A spelling is `name:what@option=value`. Layers are numbers, lists and ranges with both ends: `3`, `3,9`, `3-6,11`.

    skip:11   keep:0-3,29   keep-first:8   drop-first:2   repeat:5@times=3   swap:3-4   permute:3,5,4   reverse:13-16
    parallel:13-16   looped-parallel:13-16@times=4   middle-repeat:13-16   random:13-16@seed=3   order:0,1,1,3   none
    zero:blocks.5.hook_mlp_out   mean:blocks.5.hook_mlp_out@at=-1   noise:blocks.5.hook_resid_post@0.5@seed=1
    patch:blocks.5.hook_resid_post@at=-1@from=The capital of Italy is
    zero:a5.h3,m7   mean:a5   add:blocks.5.hook_resid_post@2@from=It is cold|Ice@to=It is hot|Fire   remove:…

Components are spelled as in a circuit: `a5.h3` is head 3 of layer 5, `a5` its whole attention, `m5` its MLP. `add` and `remove` are
about a direction: from the mean of the stream at the last token of some texts to that of others, parted by `|`. `add` adds it
so many times; `remove` sets what the value has along it to the middle of both. With a seed it is a random direction instead, as
long for `add`, and moved along as far for `remove`: their control.

`@at` limits what is done at a Site to positions (`0`, `0,5`, `1-63`), negative ones from the end of the prompt. `patch` takes the values of
another text: at the same absolute positions, or with one negative position, those that far from that text's end. Several
corruptions are joined by ` + `; at most one of them may change the order of layers. `orders` says what each name means.

Costs nothing, except for `patch`, `add` and `remove`, which run their texts once when they are bound to a model.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde.analysis import directions
from sonde.core import errors, interventions, sites
from sonde.lab import orders

if TYPE_CHECKING:
    from sonde.models import model as models_model

DIRECTED = ("add", "remove")
SITE_KINDS = ("zero", "mean", "noise", "patch", *DIRECTED)
KINDS = ("none", *orders.KINDS, *SITE_KINDS)
JOIN = " + "
MOST_TIMES = 100
MOST_PLACES = 1_000_000
_COMPONENT = re.compile(r"(?:a(\d+)(?:\.h(\d+))?|m(\d+))")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Something done to a model.

    Attributes:
        kind: Its name; `none` for nothing, `joined` for several.
        n_layers: Layers of the models it is for.
        layers: The layers it is about, in the order given.
        site: The Site, or wildcard, it acts at.
        times: How often, where that can be chosen.
        seed: Draws what is random.
        std: Of the noise; of `add`, how many times the direction is added.
        positions: Where at the Site; None for everywhere.
        source: The text that a patch is taken from; the texts that a direction leads from.
        target: The texts that a direction leads to.
        components: Heads, attentions and MLPs by name, instead of a Site.
        parts: What is joined.
    """

    kind: str
    n_layers: int
    layers: tuple[int, ...] = ()
    site: str | None = None
    times: int | None = None
    seed: int = 0
    std: float | None = None
    positions: tuple[int, ...] | None = None
    source: str | None = None
    target: str | None = None
    components: tuple[str, ...] = ()
    parts: "tuple[Corruption, ...]" = ()

    def __post_init__(self) -> None:
        """Sorts the layers where their order says nothing, and checks all that can be checked without a model."""
        if self.kind not in ("permute", "order"):
            object.__setattr__(self, "layers", tuple(sorted(self.layers)))
        if self.components:
            object.__setattr__(self, "components", tuple(sorted(set(self.components), key=_place)))
            object.__setattr__(self, "layers", tuple(sorted({_place(one)[0] for one in self.components})))
        _check(self)

    @property
    def spec(self) -> str:
        """How it is spelled; `parse` reads it back."""
        if self.kind == "joined":
            return JOIN.join(part.spec for part in self.parts)
        if self.kind == "none":
            return "none"
        what = ",".join(self.components) or self.site or _spelled(self)
        options = [f"@{self.std!r}"] if self.std is not None else []
        options += [f"@times={self.times}"] if self.times is not None else []
        options += [f"@seed={self.seed}"] if self.seed else []
        options += [f"@at={_ranges(self.positions, 3)}"] if self.positions is not None else []
        options += [f"@from={self.source}"] if self.source is not None else []
        options += [f"@to={self.target}"] if self.target is not None else []
        return f"{self.kind}:{what}{''.join(options)}"

    @property
    def order(self) -> interventions.LayerOrder | None:
        """The order of layers, if that is what it changes."""
        if self.kind == "joined":
            return next((part.order for part in self.parts if part.order), None)
        if self.kind not in orders.KINDS:
            return None
        found = orders.stages(self.kind, self.n_layers, self.layers, times=self.times, seed=self.seed)
        return interventions.LayerOrder(order=found, combine="mean")

    def bound(self, model: "models_model.Model") -> tuple[interventions.Intervention, ...]:
        """The interventions on a model.

        Raises:
            InterventionError: The model has another number of layers.
            SiteError: The model has no such Site.
        """
        if self.n_layers != model.cfg.n_layers:
            raise errors.InterventionError(
                f"{self.spec} is for {self.n_layers} layers and {model.cfg.model_name} has {model.cfg.n_layers}: parse it "
                "with the model's number of layers"
            )
        if self.kind == "joined":
            return tuple(one for part in self.parts for one in part.bound(model))
        order = self.order
        if order is not None:
            return (order,)
        if self.components:
            return _at_components(self, model)
        return () if self.kind == "none" else (_at_site(self, model),)


def make(kind: str, n_layers: int, **fields: Any) -> Corruption:
    """A corruption by name.

    Args:
        kind: One of `KINDS`.
        n_layers: Layers of the model.
        **fields: `layers`, `site`, `components`, `times`, `seed`, `std`, `positions`, `source`, `target`: see `Corruption`. `keep-first` and
            `drop-first` take the layers that they keep or drop.

    Raises:
        InterventionError: No such corruption, or it makes no sense.
    """
    for name in ("layers", "positions"):
        if isinstance(fields.get(name), Sequence):
            fields[name] = tuple(int(one) for one in fields[name])
    return Corruption(kind=kind, n_layers=n_layers, **fields)


def joined(parts: Sequence[Corruption]) -> Corruption:
    """Several corruptions at once; one is itself, none at all is `none`."""
    real = [one for part in parts for one in (part.parts or (part,)) if one.kind != "none"]
    if len(real) == 1:
        return real[0]
    if not real:
        return parts[0]
    return Corruption(kind="joined", n_layers=real[0].n_layers, parts=tuple(real))


def parse(text: str, n_layers: int) -> Corruption:
    """Reads a spelling.

    Raises:
        InterventionError: It cannot be read, or names layers that are not there; the message says what to write.
    """
    head, found, source = text.partition("@from=")
    words = head.split(JOIN)
    if found:
        words[-1] += found + source
    return joined([_parse_one(word.strip(), n_layers) for word in words])


def _parse_one(text: str, n_layers: int) -> Corruption:
    kind, colon, rest = text.partition(":")
    if kind == "none" and not rest:
        return Corruption(kind="none", n_layers=n_layers)
    if kind not in KINDS:
        raise errors.InterventionError(
            f"no corruption {kind!r}{errors.suggest(kind, KINDS)} Known: {', '.join(KINDS)}. Example: skip:{n_layers // 2}"
        )
    rest, has_source, source = rest.partition("@from=")
    what, *options = rest.split("@")
    if not colon or not what:
        example = "blocks.0.hook_mlp_out" if kind in SITE_KINDS else "1-3"
        raise errors.InterventionError(f"{text!r} does not say what to {kind}; write {kind}:{example}")
    fields: dict[str, Any] = dict(_option(one, text) for one in options)
    if has_source and kind in DIRECTED:
        fields["source"], _, fields["target"] = source.partition("@to=")
    elif has_source:
        fields["source"] = source
    if kind in ("zero", "mean") and _COMPONENT.fullmatch(what.split(",")[0].strip()):
        return make(kind, n_layers, components=tuple(one.strip() for one in what.split(",")), **fields)
    if kind in SITE_KINDS:
        return make(kind, n_layers, site=what, **fields)
    if kind in orders.COUNTS:
        count = _number(what, text, int)
        if not 1 <= count <= n_layers:
            raise errors.InterventionError(f"{text}: write a number of layers from 1 to {n_layers}")
        return make(kind, n_layers, layers=range(count), **fields)
    return make(kind, n_layers, layers=_layers(what, text, n_layers), **fields)


def _layers(what: str, text: str, n_layers: int) -> list[int]:
    found: list[int] = []
    for part in what.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise errors.InterventionError(
                f"{text}: {part!r} is no layer; write numbers and ranges such as 3,9 or 13-16"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if max(first, last) >= n_layers:
            raise errors.InterventionError(
                f"{text}: no layer {max(first, last)}: this model has layers 0 to {n_layers - 1}"
            )
        found += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return found


def _option(option: str, text: str) -> tuple[str, Any]:
    name, equals, value = option.partition("=")
    if not equals:
        return "std", _number(option, text, float)
    if name == "at":
        return "positions", tuple(place for one in value.split(",") for place in _places(one.strip(), text))
    if name in ("seed", "times"):
        return name, _number(value, text, int)
    known = ("seed", "times", "at", "from")
    raise errors.InterventionError(f"{text}: no option {name!r}{errors.suggest(name, known)} Known: {', '.join(known)}")


def _places(part: str, text: str) -> Sequence[int]:
    """A position, or a range of them with both ends."""
    match = _RANGE.fullmatch(part)
    if match is None or match[2] is None:
        return (_number(part, text, int),)
    first, last = int(match[1]), int(match[2])
    if not first <= last < MOST_PLACES:
        raise errors.InterventionError(f"{text}: {part!r} is no range of positions; write such as 1-63")
    return range(first, last + 1)


def _number(value: str, text: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise errors.InterventionError(f"{text}: expected a number, got {value!r}") from None


def _check(one: Corruption) -> None:
    if one.kind == "joined":
        if sum(part.order is not None for part in one.parts) > 1:
            raise errors.InterventionError(
                f"{one.spec}: only one part may change the order of layers; name all layers in one, such as skip:3,11"
            )
        return
    if one.kind not in KINDS:
        raise errors.InterventionError(f"no corruption {one.kind!r}{errors.suggest(one.kind, KINDS)}")
    if one.kind in orders.KINDS:
        _only(one, "times" if one.kind in orders.TIMES else "", "seed" if one.kind == "random" else "")
        if one.times is not None and not 1 <= one.times <= MOST_TIMES:
            raise errors.InterventionError(f"{one.spec}: times must be 1 to {MOST_TIMES}, got {one.times}")
        orders.stages(one.kind, one.n_layers, one.layers, times=one.times, seed=one.seed)
    elif one.kind in SITE_KINDS:
        _check_site(one)


def _check_site(one: Corruption) -> None:
    allowed = {
        "noise": ("std", "seed"),
        "patch": ("source",),
        "add": ("std", "seed", "source", "target"),
        "remove": ("seed", "source", "target"),
    }.get(one.kind, ())
    _only(one, "positions", *allowed)
    if one.components:
        _check_components(one)
        return
    if one.kind in DIRECTED:
        _check_direction(one)
    if one.kind == "noise" and not (one.std is not None and 0 < one.std < math.inf):
        raise errors.InterventionError(f"noise:{one.site}: say how much, such as noise:{one.site}@0.5")
    if one.kind == "patch" and not one.source:
        raise errors.InterventionError(
            f"patch:{one.site}: say from which text, such as patch:{one.site}@from=Some text"
        )
    assert one.site is not None
    if one.kind == "patch" and ("*" in one.site or (min(one.positions or (0,)) < 0 and len(one.positions or ()) > 1)):
        raise errors.InterventionError(f"{one.spec}: a patch is for one Site, and for one position if that is negative")
    if "*" not in one.site:
        layer = sites.Site.parse(one.site).layer
        if layer is not None:
            _check_layers(one, layer)


def _check_components(one: Corruption) -> None:
    wrong = [name for name in one.components if not _COMPONENT.fullmatch(name)]
    if wrong:
        raise errors.InterventionError(
            f"{one.kind}: {wrong[0]!r} is no component; write a5.h3 (a head), a5 (attention) or m5 (MLP)"
        )
    _check_layers(one, max(one.layers))


def _check_direction(one: Corruption) -> None:
    if not _texts(one.source) or not _texts(one.target):
        raise errors.InterventionError(
            f"{one.kind}:{one.site}: say between which texts, such as @from=It is cold|Ice@to=It is hot|Fire"
        )
    if one.kind == "add" and (one.std is None or not math.isfinite(one.std)):
        raise errors.InterventionError(f"add:{one.site}: say how many times, such as add:{one.site}@2")
    if "*" in str(one.site):
        raise errors.InterventionError(f"{one.spec}: a direction is at one Site")


def _check_layers(one: Corruption, layer: int) -> None:
    if layer >= one.n_layers:
        raise errors.InterventionError(f"{one.spec}: no layer {layer}: this model has layers 0 to {one.n_layers - 1}")


def _texts(text: str | None) -> list[str]:
    """The texts of one side of a direction."""
    return [one for one in (text or "").split("|") if one.strip()]


def _place(component: str) -> tuple[int, str, int]:
    """Layer, letter and head of a component, to sort by; one that cannot be read comes first."""
    match = _COMPONENT.fullmatch(component)
    if match is None:
        return 0, "", -1
    return (int(match[3]), "m", -1) if match[3] else (int(match[1]), "a", int(match[2] or -1))


def _only(one: Corruption, *allowed: str) -> None:
    given = {"times": one.times, "seed": one.seed or None, "std": one.std, "source": one.source}
    given |= {"positions": one.positions, "target": one.target}
    wrong = [name for name, value in given.items() if value is not None and name not in allowed]
    if wrong:
        raise errors.InterventionError(f"{one.spec}: {one.kind} takes no {wrong[0]}")


def _spelled(one: Corruption) -> str:
    """Layers as a list with ranges."""
    if one.kind in orders.COUNTS:
        return str(len(one.layers))
    if one.kind in ("permute", "order"):
        return ",".join(map(str, one.layers))
    return _ranges(sorted(one.layers))


def _ranges(numbers: Sequence[int], least: int = 2) -> str:
    """Numbers, with so many neighbours or more as ranges: 3,9-12; those below zero one by one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1 and runs[-1][-1] >= 0:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) >= least else ",".join(map(str, run)) for run in runs)


def _at_site(one: Corruption, model: "models_model.Model") -> interventions.Intervention:
    where: dict[str, Any] = {"site": one.site, "positions": one.positions}
    if one.kind == "zero":
        return interventions.Zero(**where)
    if one.kind == "mean":
        return interventions.Mean(**where)
    if one.kind == "noise":
        return interventions.Noise(std=one.std or 0.0, seed=one.seed, **where)
    if one.kind in DIRECTED:
        return _along(one, model)
    (name,) = sites.select(one.site, model.site_names)
    _, cache = model.run_with_cache(one.source or "", name)
    values = cache[name][0]
    if one.positions is not None and len(one.positions) == 1 and one.positions[0] < 0:
        values = values[one.positions[0]]
    return interventions.Patch(values=values.float().cpu().numpy(), **where)


def _at_components(one: Corruption, model: "models_model.Model") -> tuple[interventions.Intervention, ...]:
    """One intervention per whole attention or MLP, and one for the heads of each layer."""
    kind = interventions.Zero if one.kind == "zero" else interventions.Mean
    made: list[interventions.Intervention] = []
    heads: dict[int, list[int]] = {}
    for name in one.components:
        layer, letter, head = _place(name)
        if head >= int(model.cfg.n_heads):
            raise errors.InterventionError(
                f"{one.spec}: no head {head}: this model has heads 0 to {model.cfg.n_heads - 1}"
            )
        if head >= 0:
            heads.setdefault(layer, []).append(head)
        else:
            site = f"blocks.{layer}.{'hook_mlp_out' if letter == 'm' else 'hook_attn_out'}"
            made.append(kind(site=site, positions=one.positions))
    made += [kind(site=f"blocks.{at}.attn.hook_z", heads=some, positions=one.positions) for at, some in heads.items()]
    return tuple(made)


def _along(one: Corruption, model: "models_model.Model") -> interventions.Intervention:
    """A direction between texts added, or what the value has along it set to the middle."""
    import torch

    (name,) = sites.select(one.site, model.site_names)
    texts = (_texts(one.source), _texts(one.target))
    rows = [model.run_with_cache(text, name)[1][name][0, -1].float().cpu().numpy() for side in texts for text in side]
    labels = np.arange(len(rows)) >= len(texts[0])
    direction = directions.contrastive(np.stack(rows), labels, site=name, least=1)
    if not direction.norm > 0:
        raise errors.InterventionError(
            f"{one.spec}: both sides are the same at {name}: there is no direction between them"
        )
    if one.kind == "add":
        if one.seed:
            (direction,) = directions.random_directions(direction, 1, np.random.default_rng(one.seed))
        return direction.steer(one.std or 0.0, positions=one.positions)
    unit = torch.as_tensor(direction.vector / direction.norm)
    ends = np.stack(rows) @ unit.numpy()
    middle = float(ends[labels].mean() + ends[~labels].mean()) / 2
    drawn = directions.random_directions(direction, 1, np.random.default_rng(one.seed))[0] if one.seed else direction
    along = torch.as_tensor(drawn.vector / drawn.norm)

    def removed(value: Any, hook: Any) -> Any:
        missing = middle - value @ unit.to(value)
        return value + missing[..., None] * along.to(value)

    return interventions.Opaque(site=name, fn=removed, positions=one.positions)
