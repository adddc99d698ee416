"""Ablations of a layer or a head at one step of an episode, and the sham they are compared with.

A step is made at its last prompt token, where the response begins, and at the tokens of the response. There, and only
there, what a layer (or a head) adds is replaced by its mean, over all steps and episodes and for the two kinds of
position apart: not a mean per step, which would leave in place what the step has in common in all episodes. The
replacement stays for later steps, which find it in the cache when they look back. The sham multiplies by one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.core import interventions
from sonde.models import model as models_model
from sonde.studies.critical_steps import contexts, forcing
from sonde.studies.critical_steps import settings as study_settings

#: By Site: the mean at last prompt tokens, and the mean at generated ones.
Means = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What is ablated together.

    Attributes:
        sites: The Sites.
        heads: Heads, at Sites that have them.
    """

    sites: tuple[str, ...]
    heads: tuple[int, ...] | None = None


def recorded(target: Target, kind: str, means: Means, context: contexts.Context) -> list[interventions.Intervention]:
    """The ablation for teacher forcing: at the positions of a recorded step."""
    own = tuple(context.positions[slot] for slot in context.generated)
    last = (context.positions[context.prompt_length - 1],)
    return _specs(target, kind, means, ({"positions": last}, {"positions": own}))


def played(target: Target, kind: str, means: Means, step: int) -> list[interventions.Intervention]:
    """The same for playing on: at one step of the episode, whatever will be said in it."""
    when: dict[str, Any] = {"steps": (step,), "after": "persist"}
    places = ({"positions": (-1,), "phase": "prefill", **when}, {"phase": "decode", **when})
    return _specs(target, kind, means, places)


def _specs(
    target: Target, kind: str, means: Means, places: Sequence[Mapping[str, Any]]
) -> list[interventions.Intervention]:
    found: list[interventions.Intervention] = []
    for site in target.sites:
        for index, place in enumerate(places):
            fields: dict[str, Any] = {"site": site, "heads": target.heads, **place}
            if kind == "sham":
                found.append(interventions.Scale(factor=1.0, **fields))
            elif kind == "zero":
                found.append(interventions.Zero(**fields))
            else:
                found.append(interventions.Mean(values=means[site][index], **fields))
    return found


def means_of(
    model: models_model.Model, episodes: Sequence[Sequence[contexts.Context]], sites: Sequence[str]
) -> dict[str, np.ndarray]:
    """Means at last prompt tokens and at generated tokens, over all steps of all episodes.

    Costs one forward pass over every conversation.
    """
    sums: dict[str, list[np.ndarray]] = {}
    counts = np.zeros(2)
    for steps in episodes:
        forcing.forget(model)
        last = contexts.ends(steps)
        for end in sorted(set(last)):
            (run,) = forcing.forced(model, steps[end], [()], sites=tuple(sites))
            own = [step for index, step in enumerate(steps) if last[index] == end]
            room = len(steps[end].tokens) - 1
            slots = (
                [step.prompt_length - 1 for step in own],
                [slot for step in own for slot in step.generated if slot < room],
            )
            counts += [len(chosen) for chosen in slots]
            for site in sites:
                added = [run.at(site, chosen).double().sum(dim=0).cpu().numpy() for chosen in slots]
                sums[site] = [old + new for old, new in zip(sums.get(site, [0.0, 0.0]), added, strict=True)]
    forcing.forget(model)
    return {
        site: np.stack([total / max(count, 1) for total, count in zip(both, counts, strict=True)]).astype(np.float32)
        for site, both in sums.items()
    }


def layer_target(settings: study_settings.CriticalStepsSettings, layer: int) -> Target:
    """Everything that is ablated of a layer."""
    return Target(settings.sites(layer))


def head_target(layer: int, head: int) -> Target:
    """One head: what it has gathered, before the projection."""
    return Target((f"blocks.{layer}.attn.hook_z",), (head,))
