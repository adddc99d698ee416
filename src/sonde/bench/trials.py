"""Runs over models whose circuit is known: a circuit finder on each, or an evaluation of each.

    chosen = trials.BenchRunSettings(method="eap", indices="3", tracr=True)
    found = experiments.run(trials.BenchRun(*roster.models_of(chosen)), chosen, run="it")
    found.results["models"]["case-3-compiled"]["node_auroc"]

Each model is an item. What is found in one lies in the run's folder as METHOD/MODEL/scores.json, circuit.json and result.json, and in the
same way in another folder, if one is given. A finder that cannot run on one of many models leaves it out, with the reason.
Costs what the method, or the evaluation (see `evaluating`), costs on every model.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic

from sonde import experiments
from sonde.bench import evaluating, finding, roster
from sonde.circuits import graph as circuits_graph
from sonde.circuits import mib
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.report import page
from sonde.store import disk, schemas

TAU = 0.01
MODELS = "models"
Found = dict[str, dict[str, Any]]


class BenchRunSettings(roster.ModelsSettings):
    """What fixes a run of a circuit finder, in the words of its command."""

    method: Literal["acdc", "sp", "eap"] = core_settings.field(..., "The circuit finder.", option="")
    threshold: float | None = core_settings.field(None, "ACDC's, or what an edge must score to be kept.")
    edgewise: bool = core_settings.field(False, "SP: a mask for every edge, not every node.")
    lambda_reg: float = core_settings.field(1.0, "SP: how much a kept part costs.", ge=0)
    epochs: int = core_settings.field(200, "SP: steps of learning the masks.", ge=1)
    integrated_grad_steps: int = core_settings.field(0, "EAP: inputs to average over; 0 for plain EAP.", ge=0)
    steps_from: int = core_settings.field(1, "EAP: 1 for steps 1/m … m/m, 0 for 0 … (m-1)/m.", ge=0, le=1)
    metric: str | None = core_settings.field(None, "The metric; by default one that fits the method and the task.")
    pairs: int = core_settings.field(200, "Pairs of inputs.", ge=2)

    @pydantic.model_validator(mode="after")
    def _of_eap(self) -> "BenchRunSettings":
        if self.steps_from == 0 and not self.integrated_grad_steps:
            raise ValueError("plain EAP has no steps: give --integrated-grad-steps")
        return self

    @property
    def finder(self) -> str:
        """The method's name in `sonde.circuits`."""
        if self.method == "sp":
            return "sp-edges" if self.edgewise else "sp"
        return "eap-ig" if self.method == "eap" and self.integrated_grad_steps else self.method

    def how(self) -> dict[str, Any]:
        """What the method is run with."""
        common: dict[str, Any] = {"metric": self.metric, "seed": self.seed or 0}
        if self.method == "acdc":
            return {"tau": TAU if self.threshold is None else self.threshold, **common}
        if self.method == "sp":
            return {"penalty": self.lambda_reg, "steps": self.epochs, **common}
        if self.integrated_grad_steps:
            own = {"steps": self.integrated_grad_steps, "steps_from": self.steps_from}
            return {"threshold": self.threshold, **common, **own}
        return {"threshold": self.threshold, **common, "metric": self.metric or "answer_diff"}  # kl has no slope there


class BenchEvalSettings(roster.ModelsSettings):
    """What fixes an evaluation, in the words of its command."""

    what: Literal["iit", "iit_acdc", "node_realism", "gt_node_realism", "ioi", "ioi_acdc"] = core_settings.field(
        ..., "The evaluation.", option=""
    )
    threshold: float = core_settings.field(TAU, "ACDC's, for iit_acdc and ioi_acdc.")
    circuit: str | None = core_settings.field(None, "For node_realism: the file of a circuit.")
    circuit_digest: str | None = core_settings.field(None, "Of that file.", option="")
    ablation: str = core_settings.field("mean", "What stands for nodes outside: mean, zero.")
    rows: int = core_settings.field(1000, "Inputs.", ge=2)
    pairs: int = core_settings.field(200, "Pairs of inputs.", ge=2)

    @pydantic.model_validator(mode="after")
    def _of_realism(self) -> "BenchEvalSettings":
        if self.what == "node_realism" and self.circuit is None:
            raise ValueError(
                "node_realism needs a circuit that was found: --circuit FILE, a circuit.json of sonde bench run or sonde circuits "
                "find, or a file of MIB; for the true circuit use gt_node_realism"
            )
        if self.what != "node_realism" and self.circuit is not None:
            raise ValueError(f"only node_realism takes a --circuit, {self.what} does not")
        return self


class _Tried(pydantic.BaseModel):
    """What came of one model: files by name, or why there are none."""

    name: schemas.Text
    files: dict[str, schemas.Data] = {}
    failed: schemas.Text | None = None


TRIED = schemas.register("result on one model", _Tried)
ALL = schemas.register("results on models", schemas.Data)
SettingsT = TypeVar("SettingsT", bound=roster.ModelsSettings)


def _items(context: experiments.Context[Any]) -> list[dict[str, Any]]:
    asked: _OverModels[Any] = context.experiment
    return [entry.to_json() for entry in asked.entries]


def _tried(context: experiments.Context[Any], item: Mapping[str, Any]) -> dict[str, Any]:
    """What an experiment finds in one model; a finder may fail on one and not on others."""
    asked: _OverModels[Any] = context.experiment
    subject = roster.Entry(**item).subject()
    try:
        return {"name": subject.name, "files": asked.examine(context, subject)}
    except errors.AnalysisError as error:
        return {"name": subject.name, "failed": str(error)}


def _joined(context: experiments.Context[Any], made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failed = {one["name"]: one["failed"] for one in made if one.get("failed")}
    found = {one["name"]: one["files"] for one in made if one["name"] not in failed}
    if failed and not found:
        raise errors.AnalysisError(next(iter(failed.values())))
    return {"found": found, "failed": failed}


class _OverModels(experiments.Experiment[SettingsT]):
    """One question about each of some models."""

    stages = (experiments.Items(MODELS, ALL, _items, _tried, TRIED, _joined),)
    results_kind = schemas.register("results of a bench run", schemas.Data)

    def __init__(
        self, entries: Sequence[roster.Entry], left_out: Mapping[str, str] | None = None, *, out: Path | None = None
    ) -> None:
        """Takes the models, those that cannot be loaded, with why, and a folder for a second copy of what is found."""
        super().__init__()
        self.entries, self.left_out, self._out = tuple(entries), dict(left_out or {}), out

    def record(self) -> dict[str, Any]:
        """See `roster`."""
        return roster.record(self.entries)

    def headline(self, settings: SettingsT) -> str:
        """The question, and of how many models."""
        count = len(self.entries)
        return f"{self.question(settings)} on {count} model{'s' * (count != 1)}"

    def question(self, settings: SettingsT) -> str:
        """What is asked of each model, also the name of the folder of what is found."""
        raise NotImplementedError

    def examine(self, context: experiments.Context[SettingsT], subject: Any) -> Found:
        """What is found in one model: contents of files by name, `result` among them."""
        raise NotImplementedError

    def results(self, context: experiments.Context[SettingsT]) -> dict[str, Any]:
        """Each model's result; all files are written again from what was kept."""
        kept = context.found(MODELS)
        for place in [one for one in (context.folder, self._out) if one is not None]:
            for name, files in kept["found"].items():
                _write(place / self.question(context.settings) / name, files)
        models = {name: files["result"] for name, files in kept["found"].items()}
        told = context.settings.to_json()
        return {"settings": told, MODELS: models, "failed": kept["failed"], "left_out": self.left_out}

    def lacking(self, results: Mapping[str, Any]) -> list[str]:
        """A sentence for each model that is left out."""
        return [f"Warning: {name} is left out: {why}" for part in ("left_out", "failed") for name, why in results[part].items()]  # fmt: skip


class BenchRun(_OverModels[BenchRunSettings]):
    """A circuit finder on models."""

    kind, settings_type, verb = "bench-run", BenchRunSettings, ("bench", "run")

    def question(self, settings: BenchRunSettings) -> str:
        """The finder."""
        return settings.finder

    def examine(self, context: experiments.Context[BenchRunSettings], subject: Any) -> Found:
        """Scores, circuit and how they are judged."""
        settings = context.settings
        found = finding.run(
            subject,
            settings.finder,
            pairs=settings.pairs,
            tell=lambda doing, done, of: context.tell(settings.finder, done, of),
            **settings.how(),
        )
        return found.files()

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """A row for each model, and warnings."""
        models, finder = results[MODELS], BenchRunSettings.from_json(results["settings"]).finder
        told = [f"{finder} ran on {len(models)} of {len(models) + len(results['failed'])} models."]
        told += [
            f"Warning: the circuit of {name} is empty; thresholds {_range(*one['usable'])} keep some edges."
            for name, one in models.items()
            if one.get("edges") == 0
        ]
        for note in dict.fromkeys(one["note"] for one in models.values() if "note" in one):
            told.append(
                f"Warning: {', '.join(name for name, one in models.items() if one.get('note') == note)}: {note}."
            )
        section = page.Section("Models", "", (), (_rates(models),))
        return page.Report(
            f"{finder} on models whose circuit is known",
            (*told, *self.lacking(results)),
            (section,),
            results["settings"],
        )

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """A row for each model."""
        return (_rates(results[MODELS]),)

    def command(self, settings: BenchRunSettings) -> str:
        """With the method."""
        return super().command(settings).replace("bench run", f"bench run {settings.method}", 1)


class BenchEval(_OverModels[BenchEvalSettings]):
    """An evaluation of models."""

    kind, settings_type, verb = "bench-eval", BenchEvalSettings, ("bench", "eval")

    def question(self, settings: BenchEvalSettings) -> str:
        """The evaluation."""
        return settings.what

    def examine(self, context: experiments.Context[BenchEvalSettings], subject: Any) -> Found:
        """Figures of one model."""
        settings = context.settings
        what, seed = settings.what, settings.seed or 0
        if what.endswith("acdc"):
            return finding.run(subject, "acdc", pairs=settings.pairs, tau=settings.threshold, seed=seed).files()
        if what.endswith("realism"):
            given = None if settings.circuit is None else circuit_of(Path(settings.circuit), subject.truth.graph)
            return {"result": evaluating.realism(subject, given, ablation=settings.ablation, rows=settings.rows, seed=seed)}  # fmt: skip
        return {"result": evaluating.iit(subject, rows=settings.rows, seed=seed)}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """Figures of all models, and the nodes of each."""
        models, what = results[MODELS], results["settings"]["what"]
        effects = tuple(_effects(name, one["effects"]) for name, one in models.items() if one.get("effects"))
        sections = [page.Section("Models", "", (), (_figures(models),))]
        sections += [page.Section("Nodes", "", (), effects)] if effects else []
        told = (f"{what} of {len(models)} models.", *self.lacking(results))
        return page.Report(f"Evaluation {what}", told, tuple(sections), results["settings"])

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The figures, and the nodes of a single model."""
        models = results[MODELS]
        single = [_effects(name, one["effects"]) for name, one in models.items() if one.get("effects")]
        return (_figures(models), *(single if len(models) == 1 else ()))

    def command(self, settings: BenchEvalSettings) -> str:
        """With the evaluation."""
        return super().command(settings).replace("bench eval", f"bench eval {settings.what}", 1)


def circuit_of(path: Path, whole: circuits_graph.Graph) -> circuits_graph.Circuit:
    """The circuit in a file: one of Sonde's, or one of MIB.

    Raises:
        RequestError: It holds none.
    """
    try:
        data = json.loads(path.read_text())
        if isinstance(data, dict) and "cfg" in data:
            return mib.read(path, whole)[1]
        return circuits_graph.Circuit.from_json(data)
    except (OSError, ValueError) as error:
        raise errors.RequestError(f"{path} is no circuit that can be read: {error}") from error


def digest_of(path: Path) -> str:
    """Changes when a file does.

    Raises:
        StoreError: It cannot be read.
    """
    with disk.explained(path, doing="read"):
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _write(folder: Path, files: Mapping[str, Any]) -> None:
    with disk.explained(folder):
        disk.make_dirs(folder)
        for name, data in files.items():
            disk.write_atomic(folder / f"{name}.json", json.dumps(data).encode())


def _range(low: float, high: float) -> str:
    return f"from {low:.4g} to {high:.4g}" if low < high else f"above 0 and up to {high:.4g}"


def _rates(models: Mapping[str, Mapping[str, Any]]) -> page.Table:
    names = ("node_auroc", "edge_auroc", "edges", "node_tpr", "node_fpr", "edge_tpr", "edge_fpr", "seconds")
    rows = tuple((name, *(one.get(key) for key in names)) for name, one in models.items())
    shown = ("model", "nodes", "edges", "kept", "ntpr", "nfpr", "etpr", "efpr", "s")
    about = "nodes, edges: AUROC; kept: edges of the circuit; its true and false positive rates of nodes and edges; s: seconds."
    return page.Table(shown, rows, about, decimals=3)


def _figures(models: Mapping[str, Mapping[str, Any]]) -> page.Table:
    """Single numbers of each model."""
    single = [name for one in models.values() for name, value in one.items() if isinstance(value, int | float)]
    names = tuple(dict.fromkeys(single))
    rows = tuple((model, *(one.get(name) for name in names)) for model, one in models.items())
    return page.Table(("model", *names), rows, decimals=3)


def _effects(model: str, effects: Sequence[Mapping[str, Any]]) -> page.Table:
    """What each node does."""
    columns = ("node", "program", "resample", "kl", "mean", "zero")
    columns = tuple(name for name in columns if any(row[name] is not None for row in effects))  # numbers have no kl
    rows = tuple(tuple(row[name] for name in columns) for row in effects)
    return page.Table(columns, rows, f"{model}: shares of answers that change; kl in nats.", decimals=3)
