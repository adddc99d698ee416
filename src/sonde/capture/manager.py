"""Interventions in force over an episode, at the steps they are meant for.

    manager = InterventionManager(model)
    manager.add_intervention("blocks.0.attn.hook_result", create_zero_ablation_hook(heads=[0, 1]), apply_at_steps=[5])
    with manager:
        ...

Steps are counted per episode. The engine counts requests; `increment_step` counts for agents that make several
requests in a step. Once it has been called in an episode its count is the one that holds, so calling it after every
request counts each step once, not twice. An agent that makes several requests already in its first step says so
beforehand: `InterventionManager(model, count_requests=False)`.
"""

import asyncio
import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from sonde.core import errors, interventions
from sonde.models import adapters, riders
from sonde.models import model as models_model
from sonde.models import wiring as model_wiring


@dataclasses.dataclass(frozen=True, slots=True)
class Added:
    """One intervention of a manager."""

    spec: interventions.Intervention
    description: str = ""

    def line(self) -> str:
        """One line for people."""
        return f"{self.description}: {self.spec.describe()}" if self.description else self.spec.describe()


class InterventionManager:
    """Applies interventions to a model while its block is open."""

    def __init__(self, model: Any, *, count_requests: bool = True) -> None:
        """Manages interventions on a model.

        Args:
            model: A Sonde model, `TransformerBridge` or nnsight model.
            count_requests: Whether each request of an episode is a step until `increment_step` says otherwise. If not,
                `increment_step` alone counts.
        """
        self.model = adapters.as_model(model)
        self.added: list[Added] = []
        self._count_requests = count_requests
        self._entered = 0
        self._forget()

    def _forget(self) -> None:
        self._counted: dict[int | None, int] = {}
        self._seen: dict[int | None, int] = {}
        self._current: int | None = None
        self._since: dict[int, set[int | None]] = {}

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
        self.added.append(Added(spec, description))
        return self

    def clear(self) -> None:
        """Removes all interventions and counts."""
        self.added.clear()
        self._forget()

    def increment_step(self) -> None:
        """Says that a step is over, in the episodes that this task made requests in since it last said so."""
        over = self._since.pop(_caller(), None) or {self._current}
        for episode in over:
            self._counted[episode] = self._counted.get(episode, 0) + 1

    @property
    def current_step(self) -> int:
        """The step of the episode of the last request."""
        counted = self._counted.get(self._current)
        return counted if counted is not None else self._seen.get(self._current, 0)

    def board(self, call: riders.Call) -> riders.InForce:
        """What holds for a call."""
        episode = call.conversation
        if episode is not None or self._current is None:
            self._current = episode
        self._since.setdefault(_caller(), set()).add(episode)
        own = (call.step or 0) if self._count_requests else 0
        step = self._seen[episode] = self._counted.get(episode, own)
        return riders.InForce(tuple(one.spec for one in self.added), step=step)

    def __enter__(self) -> Self:
        """Puts the interventions in force, here and in tasks started from here; counting starts at 0."""
        if not self._entered:
            self._forget()
        riders.mount(self)
        self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes them out of force."""
        self._entered -= 1
        riders.unmount(self)

    def summary(self) -> str:
        """What is managed, one line each."""
        if not self.added:
            return "no interventions"
        return "\n".join(f"{i}. {one.line()}" for i, one in enumerate(self.added))

    def to_json(self) -> list[dict[str, Any]]:
        """The interventions as data, to be stored or replayed; `add_json` reads them back.

        Raises:
            OpaqueError: One of them is a plain function.
        """
        return [{"description": one.description, "intervention": one.spec.to_json()} for one in self.added]

    def add_json(self, data: Any) -> Self:
        """Adds what `to_json` wrote, of this manager or another.

        Raises:
            InterventionError: It is something else; then nothing is added.
        """
        entries = list(data) if isinstance(data, Iterable) and not isinstance(data, Mapping) else [data]
        if not all(isinstance(entry, Mapping) and "intervention" in entry for entry in entries):
            raise errors.InterventionError(
                f"expected a list of objects with 'intervention' and 'description', as to_json writes, got {data!r:.80}"
            )
        for spec, entry in [(interventions.from_json(entry["intervention"]), entry) for entry in entries]:
            self.add_intervention(hook_fn=spec, description=entry.get("description", ""))
        return self


def _caller() -> int:
    """Who is asking: the asyncio task, or the thread outside of one."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return id(task) if task is not None else -threading.get_ident()
