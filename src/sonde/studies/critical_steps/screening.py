"""The screening: how far the next responses move, in nats, without one layer or head at one step. Nothing is generated.

1. Run the recorded conversation once, as it was.
2. For every step run it again, from that step on, with one target ablated at the step's positions: one row per target,
   and one under the sham.
3. At the tokens of the step's own response and of the next ones (`horizon`, as far as the conversation goes on without
   a break) take the KL of the changed distribution from the clean one, in nats per token. The step's own response and
   the next ones together count alike.

Costs, per episode and step, a batch of as many rows as there are targets, over the tokens of a few responses.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from sonde.models import model as models_model
from sonde.studies.critical_steps import ablations, contexts, forcing


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What to screen in an episode.

    Attributes:
        targets: By step, what is ablated, one at a time.
        kind: `mean` or `zero`.
        horizon: Responses to look at after the step's own.
        wave: Rows of a batch.
    """

    targets: Mapping[int, Sequence[ablations.Target]]
    kind: str
    horizon: int
    wave: int


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """What one ablation did to the recorded responses.

    Attributes:
        own: KL at the step's own response, nats per token.
        later: At the next ones; None if there are none.
    """

    own: float
    later: float | None

    @property
    def score(self) -> float:
        """Own and later responses count alike."""
        return self.own if self.later is None else (self.own + self.later) / 2


def screen(
    model: models_model.Model, steps: Sequence[contexts.Context], means: ablations.Means, plan: Plan
) -> dict[int, list[Moved]]:
    """Screens an episode: for each step of the plan that it has, the sham first, then every target."""
    last = contexts.ends(steps)
    read = forcing.reader(model)
    found: dict[int, list[Moved]] = {}
    run = -1
    clean = forcing.Forced((), ())
    for step in sorted(step for step in plan.targets if step < len(steps)):
        if last[step] != run:
            run = last[step]
            forcing.forget(model)
            (clean,) = forcing.forced(model, steps[run], [()])
        end = min(step + plan.horizon, last[step])
        here = steps[step]
        rows = [ablations.recorded(plan.targets[step][0], "sham", means, here)]
        rows += [ablations.recorded(target, plan.kind, means, here) for target in plan.targets[step]]
        expected = [read(clean.at(forcing.FINAL, one.predicting)) for one in steps[step : end + 1]]
        found[step] = []
        for start in range(0, len(rows), plan.wave):
            for changed in forcing.forced(model, steps[end], rows[start : start + plan.wave]):
                got = [read(changed.at(forcing.FINAL, one.predicting)) for one in steps[step : end + 1]]
                moved = [forcing.divergence(a, b) for a, b in zip(expected, got, strict=True)]
                found[step].append(Moved(moved[0], float(np.mean(moved[1:])) if moved[1:] else None))
            forcing.forget(model, changed_only=True)
    forcing.forget(model)
    return found
