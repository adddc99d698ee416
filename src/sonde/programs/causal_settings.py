"""What is traced, and what must hold before anything is? The settings of a causal trace.

Costs nothing. Everything that fixes a result is in `to_json`, which an output folder remembers.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

from sonde.core import errors
from sonde.programs import prompts

Component = Literal["residual_stream", "attention_heads", "attention", "mlp", "knockout"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
KNOCKOUT: Component = "knockout"
WITHOUT_EXAMPLE: tuple[Component, ...] = ("attention_heads", KNOCKOUT)
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
        together: Roles whose tokens are also patched in one run; `rhs` stands for all right-hand sides of the chain.
        layers: Only these layers; None for all.
        window: In knockouts, how many layers from each on are cut together.
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
    together: Sequence[str] | None = None
    layers: Sequence[int] | None = None
    window: int = 1
    backend: str = "sonde"

    def __post_init__(self) -> None:
        """Refuses what cannot run."""
        prompts.check(self.template)
        for name in ("roles", "together", "layers"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        checks = (
            ("min_pairs", self.min_pairs >= 1, "at least 1"),
            ("seed", self.seed >= 0, "0 or more"),
            ("positions", self.positions in ("roles", "all"), "'roles' or 'all'"),
            ("backend", self.backend in BACKENDS, " or ".join(map(repr, BACKENDS))),
            ("roles", self.roles is None or len(self.roles) > 0, "one or more roles"),
            ("together", self.together is None or len(self.together) > 0, "one or more roles"),
            ("window", self.window >= 1, "at least 1"),
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


def layers_of(component: Component, n_layers: int) -> int:
    """How many layers a component can be traced at; the residual stream has one more, after the last layer."""
    return n_layers + (component == "residual_stream")


def check_layers(layers: Sequence[int] | None, chosen: Sequence[Component], n_layers: int) -> None:
    """Refuses layers that none of the components has, and a component that has none of the layers.

    Raises:
        RequestError: There is such a layer or component.
    """
    if layers is None:
        return
    widest: Component = max(chosen, key=lambda one: layers_of(one, n_layers))
    wrong = [layer for layer in layers if not 0 <= layer < layers_of(widest, n_layers)]
    empty: list[Component] = [
        one for one in chosen if not any(0 <= layer < layers_of(one, n_layers) for layer in layers)
    ]
    if wrong or empty:
        component = widest if wrong else empty[0]
        raise errors.RequestError(
            f"no layer {(wrong or layers)[0]} to trace {component} at: this model has layers 0 to "
            f"{layers_of(component, n_layers) - 1} there (only residual_stream has {n_layers}, the stream after the last layer)"
        )
