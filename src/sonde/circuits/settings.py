"""What fixes the scores and curves of a search for circuits, with its checks, and which circuit is taken of them.

Methods and the circuit that is taken are not among the settings: another method, or another circuit of the same scores,
joins those that a run has. Costs nothing.
"""

import dataclasses
from typing import Any, Literal

import pydantic

from sonde.circuits import metrics, running, tasks
from sonde.core import errors
from sonde.core import settings as core_settings

PAIRS = 64


class CircuitsSettings(core_settings.Settings):
    """What is searched, and how it is judged."""

    model: str = core_settings.field(..., "The model's name.")
    task: str = core_settings.field("ioi", "The name of a task, or a .jsonl file of pairs.")
    pairs: int | None = core_settings.field(None, "Pairs: half score, half judge. 64, or all of a file.", ge=1)
    metric: str = core_settings.field("logit_diff", "What the behaviour is measured by.")
    ablation: str = core_settings.field("resample", "What a cut edge carries.")
    holdout: bool = core_settings.field(
        True, "Judge on other pairs than those that gave the scores.", option="--no-holdout"
    )
    absolute: bool = core_settings.field(True, "A large negative score counts as a positive one.", option="--signed")
    seed: int = core_settings.field(0, "Fixes pairs, halves and methods.", ge=0)
    batch_size: int | None = core_settings.field(None, "Pairs that go through the model together.", ge=1)
    method_options: dict[str, Any] = core_settings.field({}, "Of those methods that take them.", option="--option")
    sizes: Literal["round", "floor"] = core_settings.field(
        "round", "How a part of all edges becomes a number of them; floor as in MIB's evaluation."
    )

    @pydantic.model_validator(mode="after")
    def _names(self) -> "CircuitsSettings":
        tasks.get(self.task)
        metrics.get(self.metric)
        if self.ablation not in running.ABLATIONS:
            raise errors.RequestError(
                f"no ablation {self.ablation!r}; there are {', '.join(running.ABLATIONS)}"
                f"{errors.suggest(self.ablation, running.ABLATIONS)}"
            )
        return self

    def shown(self) -> dict[str, Any]:
        """The settings as results and report show them: without the model, and the rounding only if it is another."""
        left = {"model", "sizes"} if self.sizes == "round" else {"model"}
        told = self.model_dump(mode="json", exclude=left)
        return {"options" if name == "method_options" else name: value for name, value in told.items()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which circuit is taken of the first method's scores; of no number, share or threshold what the method kept, or 100 edges.

    Attributes:
        n_edges: How many edges.
        share: Part of all edges.
        threshold: The least score that is kept.
        view: How it is drawn: split or merged queries, keys, values.
        minimality: How many edges are taken out of it, one at a time.
        completeness: How many random halves are taken out of circuit and model.
    """

    n_edges: int | None = None
    share: float | None = None
    threshold: float | None = None
    view: Literal["split", "merged"] = "split"
    minimality: int = 0
    completeness: int = 0

    @property
    def how(self) -> dict[str, Any]:
        """The one of number, share and threshold that is given."""
        named = {name: getattr(self, name) for name in ("n_edges", "share", "threshold")}
        return {name: value for name, value in named.items() if value is not None}

    def options(self) -> list[str]:
        """The command-line options for it."""
        given = {"view": self.view, "minimality": self.minimality, "completeness": self.completeness, **self.how}
        default = {"view": "split", "minimality": 0, "completeness": 0}
        words = [
            (f"--{name.replace('n_edges', 'edges')}", str(one))
            for name, one in given.items()
            if one != default.get(name)
        ]
        return [word for pair in words for word in pair]
