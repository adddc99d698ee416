"""The search for circuits from beginning to end: task, scores, faithfulness, and a circuit that is taken.

    search = experiment.Circuits(model, ["eap", "eap-ig", "random"], choice=experiment.Choice(n_edges=100))
    result = experiments.run(search, experiment.CircuitsSettings(model="tiny-llama", task="ioi"), run="mine")
    search.found.curves["eap-ig"].cpr, search.found.chosen("eap-ig", n_edges=50).f, result.html

1. The task makes pairs that fit the model's tokenizer. Half of them, drawn within each cluster (template), give the scores;
   the others judge: the two halves share templates, and no pair (`holdout=False`: all do both, and f is too high).
2. `ends`: the whole model, and the model with every edge cut, on the judging pairs.
3. `scores-METHOD`: each method scores the edges.
4. `curve-METHOD`: the best edges run alone, from few to all; each size is an item (`faithfulness`).
5. `circuit-…`: with a `Choice`, a circuit of the first method's scores, run alone and cut out of the whole model.

Costs the methods, and a pass over the judging pairs for each size.
"""

import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pydantic

from sonde import experiments
from sonde.circuits import faithfulness, graph, registry, scores
from sonde.circuits import search as circuits_search
from sonde.circuits import settings as circuits_settings
from sonde.core import errors
from sonde.models import model as models_model
from sonde.report import page
from sonde.store import disk, schemas

CircuitsSettings, Choice = circuits_settings.CircuitsSettings, circuits_settings.Choice
BACKWARD = 3.0  # a forward and a backward pass, in forward passes
CUT = 0.35  # cutting one edge, in forward passes under a mask: only what is above it runs; measured 0.3 to 0.5
ACDC = 0.15  # the same where what was cut before need not run either; measured 0.03 to 0.26, by how much is kept
_ODD = re.compile(r"[^\w.-]", re.ASCII)
_Context = experiments.Context[Any]
_Values = Annotated[list[schemas.Number], pydantic.Field(fail_fast=True)]


class _Ends(pydantic.BaseModel):
    tokens: schemas.Text
    whole: _Values
    empty: _Values


class _Point(pydantic.BaseModel):
    n_edges: schemas.Count
    values: _Values


class _Curve(pydantic.BaseModel):
    points: list[_Point]


class _Circuit(pydantic.BaseModel):
    alone: _Values
    without: _Values
    checks: schemas.Data


def _readable(told: dict[str, Any]) -> dict[str, Any]:
    try:
        scores.Scores.from_json(told["scores"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"no scores: {error}") from error
    return told


ENDS_KIND = schemas.register("ends of a search", _Ends)
SCORES_KIND = schemas.register("file of scores", Annotated[schemas.Data, pydantic.AfterValidator(_readable)])
POINT_KIND = schemas.register("point of a curve", _Point)
CURVE_KIND = schemas.register("curve of a method", _Curve)
CIRCUIT_KIND = schemas.register("circuit that was taken", _Circuit)
RESULTS = schemas.register("results of a search", schemas.Data)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """A finished search.

    Attributes:
        model_id: The model's name.
        search: What was searched, and by what.
        scores: What each method found.
        curves: How its best edges do alone.
        taken: The circuit that was taken, if any.
        checks: Its minimality and completeness, as far as they were asked for.
    """

    model_id: str
    search: circuits_search.Search
    scores: dict[str, scores.Scores]
    curves: dict[str, faithfulness.Curve]
    taken: circuits_search.Chosen | None = None
    checks: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def chosen(self, method: str, **how: Any) -> circuits_search.Chosen:
        """A circuit of one method, chosen by `n_edges`, `share` or `threshold`, and run alone."""
        found = self.scores[method]
        circuit = self.search.circuit(found, how)
        return self.search.judged(found, circuit, *self.search.alone(circuit))


class Circuits(experiments.Experiment[circuits_settings.CircuitsSettings]):
    """The experiment: some methods on one task, and a circuit of the first one's scores if there is a choice."""

    kind, settings_type, results_kind = "circuits", circuits_settings.CircuitsSettings, RESULTS
    model: models_model.Model

    def __init__(
        self,
        model: models_model.Model,
        methods: Sequence[str] = (registry.DEFAULT,),
        *,
        choice: circuits_settings.Choice | None = None,
    ) -> None:
        """Takes the model, the names of circuit finders, and which circuit to take.

        Raises:
            RequestError: There is no such method.
        """
        super().__init__(model)
        self.methods, self.choice = {name: registry.get(name) for name in methods}, choice
        self.verb = ("circuits", "compare" if choice is None else "find")
        self.found: SearchResult
        self._search: circuits_search.Search | None = None
        stages: list[experiments.Stage | experiments.Items] = [experiments.Stage("ends", _ends, ENDS_KIND)]
        for name in self.methods:
            scored, points = functools.partial(_scored, name), functools.partial(_point, name)
            stages.append(experiments.Stage(_stage("scores", name), scored, SCORES_KIND))
            stages.append(experiments.Items(_stage("curve", name), CURVE_KIND, _sizes, points, POINT_KIND, _joined))
        if choice is not None:
            stages.append(experiments.Stage(self.taken, _taken, CIRCUIT_KIND))
        self.stages = tuple(stages)

    @property
    def taken(self) -> str:
        """The name of the stage of the circuit that is taken."""
        assert self.choice is not None
        given = {**self.choice.how, "minimality": self.choice.minimality, "completeness": self.choice.completeness}
        words = [f"{name}-{value}" for name, value in given.items() if value]
        return _stage("circuit", "-".join([next(iter(self.methods)), *words]))

    def search(
        self, settings: circuits_settings.CircuitsSettings, context: _Context | None = None
    ) -> circuits_search.Search:
        """Pairs, graph and, once a run has its ends, the judge; made once."""
        if self._search is None or self._search.settings != settings:
            self._search = circuits_search.Search(self.model, settings)
        if context is not None:
            self._search.begin(context.found("ends"))
        return self._search

    def check(self, settings: circuits_settings.CircuitsSettings) -> None:
        """Refuses options that no method has, a task that does not fit, and more edges than there are."""
        known = sorted({name for finder in self.methods.values() for name in circuits_search.own_options(finder)})
        for name in settings.method_options:
            if name not in known:
                there = f"there are {', '.join(known)}" if known else "they have none of their own"
                raise errors.RequestError(
                    f"no option {name!r} of {', '.join(self.methods)}{errors.suggest(name, known)}; {there}"
                )
        wanted, there = self.choice.n_edges if self.choice else None, self.search(settings).graph.n_edges
        if wanted is not None and wanted > there:
            raise errors.RequestError(f"the model has {there:,} edges; asked for {wanted:,}")

    def headline(self, settings: circuits_settings.CircuitsSettings) -> str:
        """Pairs and edges."""
        search = self.search(settings)
        numbers = f"{len(search.scoring)} pairs score, {len(search.judging)} judge"
        return f"{str(search.report).rstrip('.')}. {search.graph.n_edges:,} edges; {numbers}"

    def estimate(self, settings: circuits_settings.CircuitsSettings) -> dict[str, float]:
        """Judged by one circuit run alone; nobody knows how long a method of one's own takes."""
        search = self.search(settings)
        each, told = search.seconds(), {}
        for name in self.methods:
            passes = forward_passes(name, search.graph, settings.method_options)
            if passes is not None:
                told[_stage("scores", name)] = passes * each * len(search.scoring) / len(search.judging)
            told[_stage("curve", name)] = each * len(search.sizes())
        return told

    def results(self, context: _Context) -> dict[str, Any]:
        """Curves with intervals."""
        self.found = found = self._read(context)
        search, ends = found.search, found.search.judge.ends
        return {
            "model": found.model_id,
            "settings": context.settings.shown(),
            "pairs": {
                "scoring": len(search.scoring),
                "judging": len(search.judging),
                "enough": ends.enough,
                "report": search.report.to_json(),
            },
            "graph": {**search.graph.to_json(), "n_edges": search.graph.n_edges},
            "metric": {"whole": float(ends.whole.mean()), "empty": float(ends.empty.mean())},
            "methods": {
                name: {"level": one.level, "cost": dataclasses.asdict(one.cost), **found.curves[name].to_json()}
                for name, one in found.scores.items()
            },
        }

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Each method's CPR."""
        return {"cpr": {name: one["cpr"]["value"] for name, one in results["methods"].items()}}

    def save(self, context: _Context, results: Mapping[str, Any]) -> None:
        """The circuit, for other programs and as a picture."""
        from sonde.circuits import report

        if self.choice is not None and self.found.taken is not None and len(self.found.taken.circuit):
            report.save_circuit(self.found, context.folder, view=self.choice.view)
            if self.found.checks:
                text = json.dumps(self.found.checks, indent=1)
                disk.write_atomic(context.folder / "checks.json", text.encode())

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `report`."""
        from sonde.circuits import report

        return report.report(self.found, view=self.choice.view if self.choice is not None else "split")

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The methods, if the pairs are enough."""
        from sonde.circuits import report

        return (report.table(self.found),) if self.found.search.judge.ends.enough else ()

    def command(self, settings: circuits_settings.CircuitsSettings) -> str:
        """With methods and choice."""
        names = ",".join(self.methods)
        words = ["--methods", names] if self.choice is None else ["--method", names, *self.choice.options()]
        return f"{super().command(settings)} {shlex.join(words)}"

    def _read(self, context: _Context) -> SearchResult:
        """Everything that was found, from the stages."""
        search = self.search(context.settings, context)
        found, curves = {}, {}
        for name in self.methods:
            found[name] = _scores(name, context)
            known = {
                point["n_edges"]: np.array(point["values"], dtype=np.float64)
                for point in context.found(_stage("curve", name))["points"]
            }
            curves[name] = search.judge.curve(found[name], absolute=context.settings.absolute, known=known)
        taken, checks = None, {}
        if self.choice is not None:
            one, kept = next(iter(found.values())), context.found(self.taken)
            values = [np.array(kept[name], dtype=np.float64) for name in ("alone", "without") if kept[name]]
            taken, checks = search.judged(one, search.circuit(one, self.choice.how), *values), kept["checks"]
        return SearchResult(self.model.cfg.model_name, search, found, curves, taken, checks)


def _stage(what: str, name: str) -> str:
    """The name of a stage, which is also a file's."""
    return f"{what}-{_ODD.sub('_', name)}"


def _ends(context: _Context) -> dict[str, Any]:
    return context.experiment.search(context.settings).measured()


def _scored(method: str, context: _Context) -> dict[str, Any]:
    search = context.experiment.search(context.settings, context)
    return {"scores": search.scored(method, context.tell).to_json()}


def _scores(method: str, context: _Context) -> scores.Scores:
    return scores.Scores.from_json(context.found(_stage("scores", method))["scores"])


def _sizes(context: _Context) -> list[dict[str, Any]]:
    return [{"n_edges": count} for count in context.experiment.search(context.settings).sizes()]


def _point(method: str, context: _Context, item: Mapping[str, Any]) -> dict[str, Any]:
    search = context.experiment.search(context.settings, context)
    return {**item, "values": search.best(_scores(method, context), item["n_edges"]).tolist()}


def _joined(context: _Context, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"points": list(points)}


def _taken(context: _Context) -> dict[str, Any]:
    """The first method's circuit: what it does alone, and its checks."""
    experiment = context.experiment
    search = experiment.search(context.settings, context)
    circuit = search.circuit(_scores(next(iter(experiment.methods)), context), experiment.choice.how)
    alone, without = ([one.tolist() for one in search.alone(circuit)] + [[], []])[:2]
    return {"alone": alone, "without": without, "checks": search.checks(circuit, experiment.choice, context.tell)}


def forward_passes(method: str, whole: graph.Graph, options: Mapping[str, Any]) -> float | None:
    """About how many forward passes over its pairs a method takes; None where nobody knows."""
    steps = int(options.get("steps", 5))
    known: dict[str, float] = {
        "random": 0.0,
        "eap": BACKWARD,
        "hisp": BACKWARD,
        "eap-ig": BACKWARD * steps,
        "mask-ig": BACKWARD * steps,
        "eap-ig-activations": BACKWARD * steps * (2 * whole.n_layers + 1) / 2,
        "exact-node": float(len(whole.sources)),
        "exact": CUT * whole.n_edges,
        "acdc": (ACDC if options.get("fast", True) else 1.0) * whole.n_edges,
        "sp": BACKWARD * int(options.get("steps", 200)),
        "sp-edges": BACKWARD * int(options.get("steps", 200)),
    }
    return known.get(method)
