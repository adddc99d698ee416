"""What is traced, and what must hold before anything is? The settings of a causal trace.

Costs nothing. Everything that fixes a result is in `to_json`, which an output folder remembers.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from sonde.core import errors
from sonde.programs import prompts

Component = Literal["residual_stream", "attention_heads", "attention", "mlp"]
COMPONENTS: tuple[Component, ...] = ("residual_stream", "attention_heads", "attention", "mlp")
BACKENDS = ("sonde", "nnsight")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """How to trace.

    Attributes:
        template: The prompt, with `{code}`; the answer must be what comes next.
        systematic: Leave out programs whose root stands on line 1 or 2, where a heuristic answers.
        min_pairs: Refuse to trace if the model answers fewer pairs right, both ways.
        only_right: Trace only pairs that the model answers right, both ways. False is for trying the machinery on
            models that cannot do the task, and makes no finding.
        controls: Also trace pairs in which a constant off the chain differs.
        seed: Fixes the counterfactuals.
        positions: Trace the last token of each role, or all tokens.
        roles: Only these roles; None for all.
        layers: Only these layers; None for all.
        backend: What runs the model: `sonde`, which is fast, or `nnsight`, to check it.
    """

    template: str = prompts.MINIMAL
    systematic: bool = True
    min_pairs: int = 8
    only_right: bool = True
    controls: bool = True
    seed: int = 0
    positions: str = "roles"
    roles: Sequence[str] | None = None
    layers: Sequence[int] | None = None
    backend: str = "sonde"

    def __post_init__(self) -> None:
        """Refuses what cannot run."""
        prompts.check(self.template)
        for name in ("roles", "layers"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(given))
        checks = (
            ("min_pairs", self.min_pairs >= 1, "at least 1"),
            ("seed", self.seed >= 0, "0 or more"),
            ("positions", self.positions in ("roles", "all"), "'roles' or 'all'"),
            ("backend", self.backend in BACKENDS, " or ".join(map(repr, BACKENDS))),
            ("roles", self.roles is None or len(self.roles) > 0, "one or more roles"),
            ("layers", self.layers is None or len(self.layers) > 0, "one or more layers"),
        )
        for name, good, expected in checks:
            if not good:
                raise errors.RequestError(f"{name} must be {expected}, got {getattr(self, name)!r}")

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON data."""
        told = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def of_options(options: dict[str, Any]) -> TraceSettings:
    """Settings from keyword arguments.

    Raises:
        RequestError: There is no such setting.
    """
    known = [field.name for field in dataclasses.fields(TraceSettings)]
    for name in options:
        if name not in known:
            raise errors.RequestError(
                f"a causal trace has no setting {name!r}{errors.suggest(name, known)} Settings: {', '.join(known)}"
            )
    return TraceSettings(**options)


def components(given: str | Sequence[str]) -> tuple[Component, ...]:
    """Checks names of components.

    Raises:
        RequestError: One is unknown, or there are none.
    """
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in COMPONENTS:
            raise errors.RequestError(
                f"no component {name!r}{errors.suggest(name, COMPONENTS)} Components: {', '.join(COMPONENTS)}"
            )
    if not names or len(set(names)) < len(names):
        raise errors.RequestError(f"give one or more different components of {', '.join(COMPONENTS)}, got {names}")
    return tuple(one for one in COMPONENTS if one in names)


def check_layers(layers: Sequence[int] | None, component: Component, n_layers: int) -> None:
    """Refuses layers that the model does not have; the residual stream has one more, after the last layer."""
    last = n_layers if component == "residual_stream" else n_layers - 1
    wrong = [layer for layer in layers or () if not 0 <= layer <= last]
    if wrong:
        raise errors.RequestError(f"no layer {wrong[0]} to trace {component} at: this model has layers 0 to {last}")
