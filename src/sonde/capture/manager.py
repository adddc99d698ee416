"""Interventions in force over an episode, at the steps they are meant for.

    manager = InterventionManager(model)
    manager.add_intervention("blocks.0.attn.hook_result", create_zero_ablation_hook(heads=[0, 1]), apply_at_steps=[5])
    with manager:
        ...

Steps are counted per episode. The engine counts requests; `increment_step` counts for agents that make several
requests in a step. Once it has been called in an episode its count is the one that holds, so calling it after every
request counts each step once, not twice.
"""

import dataclasses
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from sonde.core import interventions
from sonde.models import adapters, riders
from sonde.models import model as models_model
from sonde.models import wiring as model_wiring


@dataclasses.dataclass(frozen=True, slots=True)
class Added:
    """One intervention of a manager."""

    spec: interventions.Intervention
    description: str


class InterventionManager:
    """Applies interventions to a model while its block is open."""

    def __init__(self, model: Any) -> None:
        """Manages interventions on a Sonde model, `TransformerBridge` or nnsight model."""
        self.model = adapters.as_model(model)
        self.added: list[Added] = []
        self._counted: dict[int | None, int] = {}
        self._seen: dict[int | None, int] = {}
        self._conversation: int | None = None

    def add_intervention(
        self,
        hook_name: str | None = None,
        hook_fn: Any = None,
        description: str = "",
        apply_at_steps: Sequence[int] | None = None,
    ) -> Self:
        """Adds an intervention.

        Args:
            hook_name: Site name or wildcard; may be left out if the intervention names its own.
            hook_fn: An intervention, or a plain `fn(activation, hook) -> activation`.
            description: For people.
            apply_at_steps: Steps of the episode, from 0; all if left out.

        Raises:
            SiteError: The model has no such Site.
            InterventionError: It does not fit the Site.
        """
        spec = models_model.as_intervention(hook_fn)
        if hook_name is not None:
            spec = spec.at(hook_name)
        if apply_at_steps is not None:
            spec = dataclasses.replace(spec, steps=tuple(int(step) for step in apply_at_steps))
        model_wiring.check(spec, self.model.parts)
        self.added.append(Added(spec, description or spec.describe()))
        return self

    def clear(self) -> None:
        """Removes all interventions and counts."""
        self.added.clear()
        self._counted.clear()
        self._seen.clear()

    def increment_step(self) -> None:
        """Says that a step of the current episode is over."""
        self._counted[self._conversation] = self._counted.get(self._conversation, 0) + 1

    @property
    def current_step(self) -> int:
        """The step of the current episode."""
        counted = self._counted.get(self._conversation)
        return counted if counted is not None else self._seen.get(self._conversation, 0)

    def board(self, call: riders.Call) -> riders.InForce:
        """What holds for a call."""
        if call.conversation is not None or self._conversation is None:
            self._conversation = call.conversation
        counted = self._counted.get(call.conversation)
        step = counted if counted is not None else call.step or 0
        self._seen[call.conversation] = step
        return riders.InForce(tuple(one.spec for one in self.added), step=step)

    def __enter__(self) -> Self:
        """Puts the interventions in force, here and in tasks started from here; counting starts at 0."""
        self._counted.clear()
        self._seen.clear()
        self._conversation = None
        riders.mount(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes them out of force."""
        riders.unmount(self)

    def summary(self) -> str:
        """What is managed, one line each."""
        if not self.added:
            return "no interventions"
        return "\n".join(f"{i}. {one.description}: {one.spec.describe()}" for i, one in enumerate(self.added))

    def to_json(self) -> list[dict[str, Any]]:
        """The interventions as data, to be stored or replayed.

        Raises:
            OpaqueError: One of them is a plain function.
        """
        return [{"description": one.description, **one.spec.to_json()} for one in self.added]
