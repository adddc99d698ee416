"""What to change: interventions as data.

An intervention names a Site, the positions, heads, steps and phase it holds for, and what it does there. It is data,
not a closure: it can be stored, shown, compared, replayed and sent to another machine. Arrays in it are private
read-only copies, so nothing that happens to the caller's tensor later can change it. A plain function is wrapped in
`Opaque`, which runs in process and refuses the rest.

Over time (see `docs/interventions.md`): the reference is re-encoding the whole conversation at every step.
`scope="context"` selects among all positions of the conversation, `scope="new"` only among those that are new in the
step. `after="clean"` leaves nothing behind for later steps, `after="persist"` keeps the changed encoding.

    Intervention
    ├── Zero          set to zero
    ├── Mean          set to a stored mean, or to the mean over the prompt of that step
    ├── Patch         set to stored values, indexed by absolute position
    ├── Steer         add strength x direction
    ├── Scale         multiply
    ├── Noise         add Gaussian noise, fixed by seed and position
    ├── Knockout      forbid attention from positions to keys
    ├── PathPatch     patch what a sender writes, as seen by the receivers alone
    ├── LayerOrder    run the layers in another order: skip, repeat, permute, parallel
    └── Opaque        a plain `fn(activation, hook) -> activation`
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from sonde.core import arrays as arrays_of
from sonde.core import errors, sites, spans

Phase = Literal["both", "prefill", "decode"]
Scope = Literal["context", "new"]
After = Literal["clean", "persist"]
Combine = Literal["sum", "mean"]
_OPAQUE_IDS = itertools.count()
#: A position no episode reaches: the end of a selection that grows with the context.
FOREVER = 2**40
WHERE_AND_WHEN = frozenset({"positions", "steps", "phase", "scope", "after"})


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Intervention:
    """What every intervention says: where and when.

    Attributes:
        site: Site name or wildcard. May be left out until the intervention is added to a manager.
        positions: Absolute positions; negative ones count back from the end of the step's prompt (-1 is the last
            prompt token). None means all.
        heads: Head indices, at Sites that have heads. None means all.
        steps: Steps of the episode, from 0. None means all.
        phase: `prefill` for the prompt of the step, `decode` for tokens generated in the step.
        scope: See the module docstring.
        after: See the module docstring.
    """

    site: str | None = None
    positions: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    steps: Sequence[int] | None = None
    phase: Phase = "both"
    scope: Scope = "context"
    after: After = "clean"

    #: Whether the value at a position depends on the whole prompt, so that no cached prefix can be shared.
    needs_whole_prompt: ClassVar[bool] = False
    #: Fields that hold arrays.
    arrays: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Normalises and checks the fields."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name in ("positions", "heads", "steps"):
                value = _integers(value, field.name)
            elif field.name in self.arrays:
                value = arrays_of.frozen(value)
            elif field.type is float:  # of any library: digests and files want plain ones
                value = _finite(value, field.name)
            object.__setattr__(self, field.name, value)
        for name, allowed in (("phase", get_args(Phase)), ("scope", get_args(Scope)), ("after", get_args(After))):
            if getattr(self, name) not in allowed:
                raise errors.InterventionError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        if self.heads is not None and min(self.heads, default=0) < 0:
            raise errors.InterventionError(f"heads count from 0, got {self.heads}")
        if self.site is not None and "*" not in self.site:
            self._check_site(sites.Site.parse(self.site))

    def _check_site(self, site: sites.Site) -> None:
        if self.heads is not None and not site.has_heads:
            raise errors.InterventionError(
                f"{site} has no head axis, so heads={self.heads} cannot be chosen there; use a site such as "
                f"'blocks.{site.layer or 0}.attn.hook_z'"
            )

    def at(self, site: str, **changes: Any) -> "Intervention":
        """The same intervention at a Site, with other fields changed too if named."""
        return dataclasses.replace(self, site=site, **changes)

    @property
    def name(self) -> str:
        """What it is called in summaries and files."""
        return type(self).__name__

    @functools.cached_property
    def digest(self) -> str:
        """Identifies the intervention: equal digests, equal intervention."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @functools.cached_property
    def effect(self) -> str:
        """Identifies what it does to a value, wherever and whenever: equal effects share cached prefixes."""
        fields = {name: value for name, value in self.to_json().items() if name not in WHERE_AND_WHEN}
        if self.needs_whole_prompt:
            fields["scope"] = self.scope
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The intervention as JSON data, arrays included; `from_json` reads it back."""
        fields: dict[str, Any] = {"kind": self.name}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None or value == field.default if field.name not in self.arrays else value is None:
                continue
            fields[field.name] = arrays_of.to_json(value) if field.name in self.arrays else value
        return fields

    def describe(self) -> str:
        """One line for people."""
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in self.arrays and value is not None:
                parts.append(f"{field.name}=array{tuple(value.shape)}")
            elif field.name != "site" and value is not None and value != field.default:
                parts.append(f"{field.name}={value!r}")
        return f"{self.name} at {self.site or 'any site'}" + (f" ({', '.join(parts)})" if parts else "")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Zero(Intervention):
    """Sets the value to zero."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mean(Intervention):
    """Sets the value to a mean.

    Without `values` it is the mean over the prompt positions of the step (over its new ones if `scope="new"`), held
    for the tokens generated in that step; with them, a stored mean: one vector, or one per absolute position.
    """

    values: Any = None
    arrays: ClassVar[tuple[str, ...]] = ("values",)

    @property
    def needs_whole_prompt(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A mean over the prompt is not known before the whole prompt is."""
        return self.values is None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Patch(Intervention):
    """Sets the value to stored values.

    Attributes:
        values: One vector for every position; or one per position, the first belonging to absolute position `start`.
            A leading batch axis of 1 is accepted. Positions outside of what is stored are left alone.
        start: Absolute position of the first stored value.
    """

    values: Any
    start: int = 0
    arrays: ClassVar[tuple[str, ...]] = ("values",)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Steer(Intervention):
    """Adds `strength * direction`."""

    direction: Any
    strength: float = 1.0
    arrays: ClassVar[tuple[str, ...]] = ("direction",)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scale(Intervention):
    """Multiplies by `factor`."""

    factor: float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Noise(Intervention):
    """Adds Gaussian noise of standard deviation `std`; the noise at a position depends on seed, Site and position only."""

    std: float
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Knockout(Intervention):
    """Forbids attention from `positions` (the queries) to `keys`.

    At `attn.hook_attn_scores` the forbidden cells are removed before the softmax and the rest renormalises (a row with
    nothing left attends to nothing); at `attn.hook_pattern` they are set to zero and the rest stays.
    """

    keys: Sequence[int]

    def __post_init__(self) -> None:
        """Checks the keys too."""
        object.__setattr__(self, "keys", _integers(self.keys, "keys"))
        if min(self.keys, default=0) < 0:
            raise errors.InterventionError(f"keys are absolute positions, from 0, got {self.keys}")
        super().__post_init__()

    def _check_site(self, site: sites.Site) -> None:
        if not site.is_query_key:
            raise errors.InterventionError(
                f"attention knockout acts at 'attn.hook_attn_scores' or 'attn.hook_pattern', got {site}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PathPatch(Intervention):
    """Patches a path: the sender's value becomes `values`, but only as the receivers read it.

    The sender (`site`: `attn.hook_z`, `attn.hook_result`, `hook_attn_out`, `hook_mlp_out` or `hook_embed`) writes to
    the residual stream; each receiver reads the stream. The change of what the sender wrote is added to the input of the
    receivers alone: direct paths, everything else unchanged.

    Attributes:
        values: As for `Patch`.
        receivers: Sites that read the stream in later places: `blocks.L.attn.hook_q` / `k` / `v` (whole layer or
            `receiver_heads`), `blocks.L.mlp.hook_pre`, `blocks.L.hook_resid_pre` (from there on), `ln_final.hook_out`.
        receiver_heads: Which heads of the `q`, `k`, `v` receivers.
        start: As for `Patch`.
    """

    values: Any
    receivers: tuple[str, ...]
    receiver_heads: Sequence[int] | None = None
    start: int = 0
    arrays: ClassVar[tuple[str, ...]] = ("values",)

    def __post_init__(self) -> None:
        """Normalises the receivers too."""
        receivers = (self.receivers,) if isinstance(self.receivers, str) else tuple(self.receivers)
        object.__setattr__(self, "receivers", receivers)
        if self.receiver_heads is not None:
            object.__setattr__(self, "receiver_heads", _integers(self.receiver_heads, "receiver_heads"))
        super().__post_init__()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LayerOrder(Intervention):
    """Runs the layers in another order.

    Attributes:
        order: One entry per stage: a layer index, or a tuple of layers that run side by side on the same input, their
            changes added. `(0, 1, 1, 3)` repeats layer 1 and skips layer 2; `(0, (1, 2), 3)` runs 1 and 2 in parallel.
            Holds for whole steps: `steps` may be given, positions and heads may not.
        combine: What is made of the changes of layers that run side by side: their `sum`, or their `mean`, which is the
            mean of the layers' outputs.
    """

    order: Sequence[int | Sequence[int]]
    combine: Combine = "sum"

    def __post_init__(self) -> None:
        """Checks that it is not limited to positions or heads."""
        order = tuple(tuple(stage) if isinstance(stage, Sequence) else int(stage) for stage in self.order)
        object.__setattr__(self, "order", order)
        super().__post_init__()
        if self.combine not in get_args(Combine):
            raise errors.InterventionError(f"combine must be one of {get_args(Combine)}, got {self.combine!r}")
        if self.site or self.positions is not None or self.heads is not None or self.phase != "both":
            raise errors.InterventionError("LayerOrder holds for whole steps: no site, positions, heads or phase")
        if (self.scope, self.after) != ("context", "clean"):
            raise errors.InterventionError("LayerOrder re-encodes everything: scope='context', after='clean' only")

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each stage."""
        return tuple((stage,) if isinstance(stage, int) else tuple(stage) for stage in self.order)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Opaque(Intervention):
    """A plain function `fn(activation, hook) -> activation | None`, run in process.

    It gets a private copy of the whole activation of each forward pass, batch axis kept, and returns the new one (None
    keeps the copy, edits in place included). `hook` has `name`, `layer`, `step` and `positions` (batch pos). What it
    returns is taken only at the rows and positions the intervention holds for.
    """

    fn: Callable[..., Any]
    token: int = dataclasses.field(default_factory=lambda: next(_OPAQUE_IDS))

    @property
    def name(self) -> str:
        """The function's own name."""
        return f"Opaque[{getattr(self.fn, '__qualname__', repr(self.fn))}]"

    @functools.cached_property
    def digest(self) -> str:
        """Unique to this object: nobody can tell what a function does."""
        where = (self.positions, self.steps, self.phase, self.scope, self.after)
        return f"{self.effect}:{where}"

    @functools.cached_property
    def effect(self) -> str:
        """Unique to the function at its Site."""
        return f"opaque:{self.token}:{self.site}:{self.heads}"

    def to_json(self) -> dict[str, Any]:
        """Refuses.

        Raises:
            OpaqueError: Always.
        """
        raise errors.OpaqueError(
            f"{self.name} at {self.site} is a plain function: it runs in process but cannot be stored, replayed or sent "
            "to another machine; use the data interventions (Zero, Patch, Steer, …) where replay is needed"
        )


KINDS: Mapping[str, type[Intervention]] = {
    kind.__name__: kind for kind in (Zero, Mean, Patch, Steer, Scale, Noise, Knockout, PathPatch, LayerOrder)
}


def from_json(data: Any) -> Intervention:
    """Reads what `Intervention.to_json` wrote.

    Raises:
        InterventionError: It is something else.
    """
    if not isinstance(data, Mapping):
        raise errors.InterventionError(f"expected an intervention as a JSON object, got {data!r:.80}")
    fields = dict(data)
    kind = KINDS.get(str(fields.pop("kind", None)))
    if kind is None:
        raise errors.InterventionError(f"unknown intervention kind {data.get('kind')!r}; known: {sorted(KINDS)}")
    try:
        for name in kind.arrays:
            if name in fields:
                fields[name] = arrays_of.from_json(fields[name])
        return kind(**{name: _tuples(value) for name, value in fields.items()})
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, errors.SondeError):
            raise
        raise errors.InterventionError(f"this is not what {kind.__name__}.to_json writes: {error}") from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


def selected(spec: Intervention, *, prompt_length: int, new_start: int, length: int = FOREVER) -> spans.Spans:
    """The positions an intervention holds for in a step in which it is active.

    Args:
        spec: The intervention.
        prompt_length: Length of the step's prompt: positions before it are prefill, from it on decode.
        new_start: First position that is new in this step.
        length: Length of the context; without it the selection grows with the context.
    """
    low, high = {"both": (0, length), "prefill": (0, prompt_length), "decode": (prompt_length, length)}[spec.phase]
    low = max(low, new_start) if spec.scope == "new" else low
    if spec.positions is None:
        return spans.clip((spans.Span(0, length),), low, min(high, length))
    absolute = (p if p >= 0 else prompt_length + p for p in spec.positions)
    return spans.clip(spans.of_positions(p for p in absolute if p >= 0), low, min(high, length))


def _finite(value: Any, what: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise errors.InterventionError(f"{what} must be a finite number, got {number}")
    return number


def _integers(values: Iterable[Any] | int, what: str) -> tuple[int, ...]:
    if isinstance(values, int):
        values = (values,)
    try:
        return tuple(v for item in values for v in (item if isinstance(item, spans.Span) else (operator.index(item),)))
    except (TypeError, ValueError) as error:
        raise errors.InterventionError(f"{what} must be integers or Spans, got {values!r}") from error
