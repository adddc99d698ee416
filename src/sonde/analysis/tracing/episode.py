"""The trace of an episode as an experiment: which earlier step each later one rests on, with its page.

    with playing.model_of(played) as model:
        traced = episode.EpisodeTrace(model, played)
        result = experiments.run(traced, traced.settings("00000", layers=[10]), run="trace")

Costs what `temporal` says.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from sonde import experiments, store
from sonde.agents import plans
from sonde.analysis.tracing import stretches, temporal
from sonde.capture import trajectory
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.models import model as models_model
from sonde.report import charts, page, wording
from sonde.store import schemas

KIND = schemas.register("influence of steps", temporal.Told)
RESULTS = schemas.register("results of a trace of an episode", schemas.Data)


class EpisodeTraceSettings(core_settings.Settings):
    """What is traced."""

    played: str = core_settings.field(..., "The id of the run that has the episode.", option="")
    episode: str = core_settings.field(..., "Which of its episodes.", option="")
    layers: tuple[int, ...] = core_settings.field(..., "Layers whose input is replaced.", min_length=1)
    replacement: Literal["mean", "zero"] = core_settings.field("mean", "By what: the mean over the episode, or zero.")
    controls: int = core_settings.field(5, "Stretches of each step's length to replace elsewhere.", ge=0)


class EpisodeTrace(experiments.Experiment[EpisodeTraceSettings]):
    """The experiment: one episode of a run that was played by this model."""

    kind, verb, results_kind = "trace episode", ("trace", "episode"), RESULTS
    settings_type = EpisodeTraceSettings
    model: models_model.Model

    def __init__(self, model: models_model.Model, played: store.Run) -> None:
        """Takes the model and the run."""
        super().__init__(model)
        self.played, self._name = played, played.id
        self.stages = (experiments.Stage("influence", self._influence, KIND),)

    def settings(self, episode: str, *, layers: Sequence[int] | None = None, **chosen: Any) -> EpisodeTraceSettings:
        """Settings for an episode of the run; the middle layer if none is given."""
        at = tuple(layers) if layers is not None else (self.model.cfg.n_layers // 2,)
        return EpisodeTraceSettings(played=self.played.id, episode=id_of(self.played, episode), layers=at, **chosen)

    def check(self, settings: EpisodeTraceSettings) -> None:
        """Refuses layers that do not exist."""
        temporal.check_layers(self.model, settings.layers)

    def headline(self, settings: EpisodeTraceSettings) -> str:
        """Which episode, and where."""
        layers = ", ".join(map(str, settings.layers))
        return f"episode {settings.episode} of {settings.played}, stream into layer {layers}"

    def results(self, context: experiments.Context[EpisodeTraceSettings]) -> dict[str, Any]:
        """The map."""
        self._name = f"{context.settings.played}/{context.settings.episode}"
        return context.found("influence")

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """Both maps and the strongest cells."""
        found = temporal.InfluenceMap.from_json(results)
        return page.Report(
            title=f"Steps of {self._name} that later ones rest on",
            summary=(*sentences(found), "One episode: this describes it, and is no finding about others."),
            sections=(
                page.Section(
                    "Influence",
                    "The stream into the layer is replaced at all positions of the patched step, prompt and reply; the words "
                    "stay those that were said.",
                    charts=tuple(heatmap(found, key) for key in ("values", "drop")),
                    tables=(table(found),),
                ),
            ),
            settings={"episode": self._name, "layers": list(found.layers), "replacement": found.replacement},
        )

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The ten strongest."""
        whole = table(temporal.InfluenceMap.from_json(results))
        return (page.Table(whole.columns, whole.rows[:10], "The ten strongest; nats per token.", decimals=3),)

    def command(self, settings: EpisodeTraceSettings) -> str:
        """With run and episode."""
        return shlex.join(["sonde", *self.verb, settings.played, settings.episode, *settings.typed()])

    def _influence(self, context: experiments.Context[EpisodeTraceSettings]) -> dict[str, Any]:
        settings = context.settings
        record = trajectory.TrajectoryActivations.load(self.played.episodes_dir / settings.episode)
        return temporal.influence_of_trajectory(
            self.model,
            record,
            layer=settings.layers,
            replacement=settings.replacement,
            controls=settings.controls,
            on_progress=context.tell,
        ).to_json()


def id_of(run: store.Run, number: str) -> str:
    """The id of an episode that was played without interventions.

    Raises:
        RequestError: There is no such episode, or it was played with them.
    """
    ids = run.episode_ids()
    id = f"{int(number):05d}" if number.isdecimal() else number
    if id not in ids:
        known = f"{ids[0]} to {ids[-1]}" if ids else "none"
        raise errors.RequestError(f"run {run.id} has no episode {number!r}: it has {known}")
    settings = plans.PlaySettings.from_json(run.manifest["settings"])
    under = next((settings.conditions[plan.condition] for plan in settings.plans() if plan.id == id), ())
    if under:
        raise errors.RequestError(
            f"episode {id} of run {run.id} was played under {len(under)} interventions, which a trace would not apply: "
            "trace an episode that was played without"
        )
    return id


def heatmap(found: temporal.InfluenceMap, key: str) -> charts.Heatmap:
    """Patched steps down, measured steps across."""
    cells, steps = getattr(found, key), tuple(str(at) for at in range(len(found.steps)))
    titles = {"values": "How far the words of a step move", "drop": "How much less likely the words of a step become"}
    values = {"values": "KL(clean || patched), nats per token", "drop": "drop of log-probability, nats per token"}
    return charts.Heatmap(
        key=f"influence-{key}",
        title=f"{titles[key]} if an earlier step is replaced",
        cells=cells,
        rows=steps,
        columns=steps,
        x_name="measured step",
        y_name="replaced step",
        value_name=values[key],
        caption=f"Stream into layer {', '.join(map(str, found.layers))} replaced by its {found.replacement}. Only later "
        "steps are measured.",
        centred=key == "drop",
    )


def table(found: temporal.InfluenceMap) -> page.Table:
    """The pairs of steps, the strongest first."""
    known = [(int(i), int(j)) for i, j in np.argwhere(np.isfinite(found.values))]
    known.sort(key=lambda at: -found.values[at])
    names = ("replaced step", "measured step", "KL", "drop")
    rows = [(*at, float(found.values[at]), float(found.drop[at])) for at in known]
    if found.control is None:
        return page.Table(names, tuple(rows), "Nats per token.", decimals=3)
    rows = [(*row, *_elsewhere(found.control, at)) for row, at in zip(rows, known, strict=True)]
    caption = (
        "Nats per token. Elsewhere: the mean KL if as many tokens in a row are replaced elsewhere in what was said before the "
        "reply after the step, with its 95 % interval over such stretches of this episode; none where none fits."
    )
    return page.Table((*names, "KL elsewhere", "stretches", "of them below"), tuple(rows), caption, decimals=3)


def sentences(found: temporal.InfluenceMap) -> tuple[str, ...]:
    """What may be said of the map: its strongest cell, and what the controls say to it."""
    if not np.isfinite(found.values).any():
        return ("No step has a later one to be measured in.",)
    i, j = np.unravel_index(int(np.nanargmax(found.values)), found.values.shape)
    told = [
        f"Step {j} rests most on step {i}: replacing it moves its words by {found.values[i, j]:.3f} nats per token."
    ]
    if found.control is not None and found.control.n[i, j]:
        told.append(
            f"As many tokens in a row elsewhere: {found.control.mean[i, j]:.3f} on average over {found.control.n[i, j]} "
            f"stretches, {found.control.below[i, j]:.0%} of them below the step."
        )
    elif found.control is not None:
        told.append(f"Step {i} has no control: nothing else as long was said before the reply after it.")
    if found.sham is not None:
        told.append(f"Putting a step's own values back moves words by at most {found.sham:.1g} nats per token.")
    return tuple(told)


def _elsewhere(control: stretches.Stretches, at: tuple[int, int]) -> tuple[Any, ...]:
    """What the stretches did, for a row of the table."""
    if not control.n[at]:
        return None, 0, None
    known = bool(control.n[at] > 1)
    mean = float(control.mean[at])
    shown = wording.Interval(mean, float(control.low[at]), float(control.high[at])) if known else mean
    return shown, int(control.n[at]), float(control.below[at])
