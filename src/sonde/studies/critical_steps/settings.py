"""What fixes the study of critical steps: settings, and their checks. Costs nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic

from sonde.agents import plans, playing
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.models import config as model_config

PARTS: Mapping[str, tuple[str, ...]] = {
    "layer": ("hook_attn_out", "hook_mlp_out"),
    "attn": ("hook_attn_out",),
    "mlp": ("hook_mlp_out",),
}
field = core_settings.field


class CriticalStepsSettings(core_settings.Settings):
    """What is to be studied."""

    environment: str | None = field(None, "A preset with selectors; none for a function or played episodes.", option="")
    source: str | None = field(None, "The run whose episodes are studied; none if they are played first.", option="")
    model: str = field(..., "The model's name.")
    episodes: int = field(12, "How many episodes.", ge=2)
    layers: tuple[int, ...] = field(..., "The layers looked at.")
    steps: tuple[int, ...] | None = field(None, "The steps looked at; none: all that half of the episodes go on from.")
    part: Literal["layer", "attn", "mlp"] = field("layer", "What is ablated: all a layer adds, or its attn or mlp.")
    ablation: Literal["mean", "zero"] = field("mean", "Set it to its mean over all steps and episodes, or to zero.")
    horizon: int = field(1, "Responses after the step's own that the screening sees.", ge=0)
    cells: int | None = field(None, "Cells to roll out, and as many random ones; none: one for every step.", ge=1)
    rollouts: int = field(8, "Continuations per cell and episode, and as many under the sham.", ge=1)
    heads: int = field(2, "Cells whose heads are screened.", ge=0)
    alpha: float = field(0.05, "Chance of any false claim that is accepted.", gt=0, lt=1)
    seed: int = field(0, "Fixes tasks, sampling and the choice of random cells.", ge=0)
    max_steps: int | None = field(None, "Stop an episode after so many steps.", ge=2)
    wave: int = field(16, "Rows of a batch; part of what fixes the last bits.", ge=1)
    generation: plans.JsonDict = field({}, "Sampling settings of the client.", option="")
    options: plans.JsonDict = field({}, "Options of the environment.", option="--option")
    threads: int = plans.threads()

    @pydantic.field_validator("layers")
    @classmethod
    def _different(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if not layers or len(set(layers)) < len(layers):
            raise ValueError(f"they must be different ones, at least one, got {list(layers)}")
        return layers

    @pydantic.field_validator("steps")
    @classmethod
    def _from_zero(cls, steps: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if steps is not None and (not steps or min(steps) < 0):
            raise ValueError(f"steps count from 0, and at least one is needed, got {list(steps)}")
        return steps

    def sites(self, layer: int) -> tuple[str, ...]:
        """The Sites that are ablated together in a layer."""
        return tuple(f"blocks.{layer}.{kind}" for kind in PARTS[self.part])


def settings_of(source: Any, cfg: model_config.ModelConfig, **chosen: Any) -> CriticalStepsSettings:
    """The settings that a choice amounts to; see `study.CriticalSteps` for the source.

    Raises:
        RequestError: Impossible settings, or some that are given by the episodes.
        SiteError: A layer that does not exist.
    """
    chosen["layers"] = _layers(chosen.get("layers"), cfg)
    if chosen.get("steps") is not None:
        chosen["steps"] = tuple(sorted(set(chosen["steps"])))
    if isinstance(source, playing.Played):
        fixed = {"episodes", "generation", "options", "max_steps"} & chosen.keys()
        if fixed:
            raise errors.RequestError(
                f"{sorted(fixed)} are given by the episodes of run {source.run.id}: leave them out"
            )
        before = source[0].origin.settings
        chosen |= {name: getattr(before, name) for name in ("environment", "generation", "options", "max_steps")}
        chosen |= {"source": source.run.id, "episodes": len(untouched(source))}
    elif isinstance(source, str):
        chosen["environment"] = source
    return CriticalStepsSettings(model=cfg.model_name, **chosen)


def untouched(played: playing.Played) -> list[playing.Episode]:
    """The episodes that went well, without interventions.

    Raises:
        RequestError: There are fewer than two.
    """
    fine = [one for one in played if one.error is None and not one.origin.settings.conditions[one.plan.condition]]
    if len(fine) < 2:
        raise errors.RequestError(
            f"run {played.run.id} has {len(fine)} episodes without an error and without interventions, two are needed: "
            "play more"
        )
    return fine


def _layers(asked: Sequence[int] | None, cfg: model_config.ModelConfig) -> tuple[int, ...]:
    """The layers asked for, in order; all if none are named."""
    if asked is None:
        return tuple(range(cfg.n_layers))
    for layer in asked:
        if not 0 <= layer < cfg.n_layers:
            raise errors.SiteError(f"no layer {layer}: {cfg.model_name} has layers 0 to {cfg.n_layers - 1}")
    return tuple(sorted(asked))
