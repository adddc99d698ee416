"""The settings of a causal trace, with what must hold before anything is traced. Costs nothing."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import pydantic

from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.programs import prompts

Component = Literal["residual_stream", "attention_heads", "attention", "mlp", "knockout"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
TEMPLATES = ("minimal", "variable_binding", "entity_tracking")
PARTS: tuple[Component, ...] = ("residual_stream", "attention_heads", "mlp")
KNOCKOUT: Component = "knockout"
WITHOUT_EXAMPLE: tuple[Component, ...] = ("attention_heads", KNOCKOUT)


class TraceSettings(core_settings.Settings):
    """What to trace, and how; a `CausalTracer` has neither programs nor components."""

    model: str = core_settings.field("", "The model's name.")
    components: tuple[Component, ...] = core_settings.field((), "What to patch.", option="--component")
    programs: tuple[str, ...] = core_settings.field((), "The texts of all programs.", option="")
    template: str = core_settings.field(
        prompts.MINIMAL, "The prompt, with {code}; the answer must be what comes next.", option=""
    )
    systematic: bool = core_settings.field(
        True, "Leave out programs whose root stands on line 1 or 2, where a heuristic answers.", option="--any-root"
    )
    min_pairs: int = core_settings.field(8, "Pairs that the model must answer right both ways.", ge=1)
    only_right: bool = core_settings.field(
        True, "Trace only pairs that the model answers right; otherwise nothing is found, only tried.", option=""
    )
    controls: bool = core_settings.field(
        True, "Also trace pairs in which a constant off the chain differs.", option="--no-controls"
    )
    seed: int = core_settings.field(0, "Fixes the counterfactuals.", ge=0)
    positions: Literal["roles", "all"] = core_settings.field("roles", "The last token of each role, or all.", option="")
    roles: tuple[str, ...] | None = core_settings.field(None, "Only these roles.", min_length=1)
    together: tuple[str, ...] | None = core_settings.field(
        None, "Roles that are also patched in one run; rhs stands for all right-hand sides of the chain.", min_length=1
    )
    layers: tuple[int, ...] | None = core_settings.field(None, "Only these layers.", min_length=1)
    window: int = core_settings.field(1, "In knockouts, how many layers from each on are cut together.", ge=1)
    backend: Literal["sonde", "nnsight"] = core_settings.field(
        "sonde", "sonde, which is fast, or nnsight, to check it."
    )

    @pydantic.field_validator("roles", "together", mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @pydantic.field_validator("template")
    @classmethod
    def _with_a_place(cls, template: str) -> str:
        prompts.check(template)
        return template

    def shown(self) -> dict[str, Any]:
        """How it is traced, as the report shows it."""
        return self.model_dump(mode="json", exclude={"model", "components", "programs"})

    def typed(self) -> list[str]:
        """The command-line options for it, but for the programs."""
        named = [name for name in TEMPLATES if getattr(prompts, name.upper()) == self.template]
        words = ["--template", named[0]] if named else []
        return [*super().typed(), *words, *(["--all-tokens"] if self.positions == "all" else [])]


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
