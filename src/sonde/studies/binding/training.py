"""Training of a small binding model: reproducible, resumable, watched closely from its first steps.

    settings = training.BindingTrainingSettings(seed=0)
    experiments.run(study.BindingTraining(), settings, run="mine")      # the same again goes on where it was stopped

1. Batches come from the seed and the step alone, so a run that was stopped sees what it would have seen.
2. AdamW with a warm-up and a linear decay; the loss is on the answers, and with `told` on the right-hand sides.
3. Every 25 steps at first, then every 100 and 250, the held-out programs are answered: overall, by hops, by root line.
4. Weights and moments are written as a whole every 250 steps: Ctrl-C, or worse, loses at most those.

The held-out programs are balanced over hops and root line, so no heuristic scores there; a second set is as the training
programs fall. Costs about 0.1 s a step on one core at the default size.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pydantic
import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int
from torch.nn import functional as F

from sonde import store
from sonde.core import errors, progress
from sonde.core import settings as core_settings
from sonde.models import zoo
from sonde.store import disk, rows, schemas
from sonde.studies.binding import language, network

RECIPE, LOG, STATE, MODEL = "recipe.json", "log.json", "state.safetensors", "model"
#: Without the helps; expect the plateau.
PLAIN = {"easy": 0.0, "every": False, "batch": 128}
SAVE_EVERY = 250
TESTED = 1050


class _Row(pydantic.BaseModel):
    """What was measured at a step."""

    step: schemas.Count
    seconds: schemas.Number
    loss: schemas.Number | None
    natural: schemas.Number
    root: dict[str, schemas.Number]


ROW = schemas.register("row of a training log", _Row)


class BindingTrainingSettings(core_settings.Settings):
    """What a model is trained by; `easy`, `every` and `told` are helps."""

    threads: ClassVar[int] = 1
    seed: int = core_settings.field(0, "Of the weights and of the programs.", ge=0)
    grammar: language.Grammar = core_settings.field(language.Grammar(), "How large programs are.", option="")
    shape: network.Shape = core_settings.field(network.Shape(), "How large the model is.", option="")
    steps: int = core_settings.field(5000, "Training steps.", ge=1)
    batch: int = core_settings.field(64, "Programs per step.", option="", ge=1)
    rate: float = core_settings.field(2e-3, "The learning rate at its highest.", option="", ge=0)
    easy: float = core_settings.field(
        0.25, "Share of the training programs that are only constants.", option="", ge=0, le=1
    )
    every: bool = core_settings.field(
        True,
        "Whether every line of a training program is asked for, as far as it has no more hops than are allowed. Otherwise "
        "one query a program, hops equally frequent, easy ones with one hop.",
        option="",
    )
    told: int = core_settings.field(
        0,
        "After how many layers each line's right-hand side is asked for that line's value too; 0: not at all. It goes with "
        "`every`. It teaches that values are there, not that an answer is read from there.",
    )
    start: str = core_settings.field(
        "",
        "The weights to begin with: a model that comes with the package and one of its steps, such as `seed-0@1500`; new "
        "ones with nothing. Moments, rate and steps begin anew.",
    )

    @pydantic.model_validator(mode="after")
    def _helps_fit(self) -> "BindingTrainingSettings":
        if not 0 <= self.told <= self.shape.layers or (self.told and not self.every):
            raise ValueError(
                f"right-hand sides can be asked after 1 to {self.shape.layers} layers (0: not at all), and only where every "
                f"line is asked; got told {self.told}, every {self.every}"
            )
        return self

    @property
    def is_typed(self) -> bool:
        """Whether there are command-line options for all that is not at its default."""
        free = {name: getattr(self, name) for name in ("seed", "steps", "told", "start")}
        plain = {} if self.every else PLAIN
        return self == BindingTrainingSettings(**free, **plain, shape=network.Shape(layers=self.shape.layers))

    def typed(self) -> list[str]:
        """The command-line options."""
        layers = ["--layers", str(self.shape.layers)] if self.shape.layers != network.Shape().layers else []
        return [*super().typed(), *layers, *([] if self.every else ["--plain"])]

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: 200 steps up, then down to nothing."""
        return self.rate * min((step + 1) / 200, (self.steps - step) / max(self.steps - 200, 1), 1.0)


def train(
    settings: BindingTrainingSettings, run: store.Run, tell: progress.Tell = progress.silent
) -> list[dict[str, Any]]:
    """Trains to the end, or goes on with what is in the run's folder; returns the log. The model is in `model`.

    Raises:
        RequestError: There are no weights to begin with.
        StoreError: It cannot be written.
    """
    course, sets = Course(settings), tests(settings.grammar)
    if (run.folder / STATE).exists():
        course.restore(run.folder)
    with run.table("log", ROW) as log:
        while course.step < settings.steps:
            if is_watched(course.step):
                course.watch(sets, log)
            course.learn()
            if course.step % SAVE_EVERY == 0:
                course.save(run.folder)
            tell("training", course.step, settings.steps)
        course.watch(sets, log)
        course.save(run.folder)
        course.finish(run.folder / MODEL, log.rows)
        return log.rows


def is_watched(step: int) -> bool:
    """Whether the held-out programs are answered before this step."""
    return step % (25 if step < 300 else 100 if step < 4000 else 250) == 0


def tests(grammar: language.Grammar) -> dict[str, language.Programs]:
    """The held-out programs: `balanced`, and `natural` as training programs without the easy ones fall."""
    rng = np.random.default_rng([2, 2505])
    return {
        "balanced": language.balanced(grammar, TESTED, rng),
        "natural": language.draw(grammar, 512, rng, held_out=True),
    }


def batch_at(recipe: BindingTrainingSettings, step: int) -> language.Programs:
    """The training programs of a step."""
    rng = np.random.default_rng([1, recipe.seed, step])
    return language.draw(recipe.grammar, recipe.batch, rng, easy=recipe.easy)


def loss_of(recipe: BindingTrainingSettings, model: Any, programs: language.Programs) -> Float[torch.Tensor, ""]:
    """The loss of the answers."""
    tokens = torch.from_numpy(programs.tokens)
    if not recipe.every:
        return F.cross_entropy(network.answer_logits(model, tokens), torch.from_numpy(programs.answers))
    digits, hops = programs.every_line()
    asked = torch.from_numpy(hops <= recipe.grammar.max_hops)
    wanted = torch.from_numpy(digits)[asked]
    if not recipe.told:
        return F.cross_entropy(network.every_answer(model, tokens)[asked], wanted)
    answers, sides = network.every_answer_and_side(model, tokens, recipe.told)
    return F.cross_entropy(answers[asked], wanted) + F.cross_entropy(sides[asked], wanted)


def measured(network_: Any, sets: Mapping[str, language.Programs]) -> dict[str, Any]:
    """Accuracies on the held-out programs."""
    programs = sets["balanced"]
    said = answers(network_, programs)
    right, roots, hops = said == programs.answers, programs.roots, programs.hops
    later = roots > 1
    natural = answers(network_, sets["natural"]) == sets["natural"].answers
    every = range(1, programs.grammar.max_hops + 1)
    return {
        "balanced": _share(right),
        "natural": _share(natural),
        "digits": _share(said < 10),
        "says_line_1": _share(said == programs.tokens[:, 1]),
        "root": {"1": _share(right[roots == 0]), "2": _share(right[roots == 1]), "later": _share(right[later])},
        "hops": {str(depth): _share(right[hops == depth]) for depth in every},
        "later_hops": {str(depth): _share(right[later & (hops == depth)]) for depth in every},
    }


def answers(network_: Any, programs: language.Programs) -> Int[np.ndarray, "program"]:
    """The token that the model finds likeliest after each program."""
    with torch.no_grad():
        parts = torch.from_numpy(programs.tokens).to(network_.lm_head.weight.device).split(256)
        return torch.cat([network.answer_logits(network_, part).argmax(dim=-1) for part in parts]).cpu().numpy()


class Course:
    """Training under way: weights, moments, and the step it is at."""

    def __init__(self, settings: BindingTrainingSettings) -> None:
        """Begins."""
        self.settings, self.step, self.seconds, self.loss = settings, 0, 0.0, float("nan")
        self.model = beginning(settings)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )

    def learn(self) -> None:
        """One step."""
        start, settings = time.monotonic(), self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate_at(self.step)
        self.optimizer.zero_grad()
        loss = loss_of(settings, self.model, batch_at(settings, self.step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step, self.loss = self.step + 1, float(loss.detach())
        self.seconds += time.monotonic() - start

    def watch(self, sets: Mapping[str, language.Programs], log: rows.Table) -> None:
        """Measures, once per step; rows that a killed process left beyond its last save are what this one would find."""
        if log.rows and log.rows[-1]["step"] >= self.step:
            return
        loss = None if np.isnan(self.loss) else self.loss
        found = measured(self.model, sets)
        log.append({"step": self.step, "seconds": round(self.seconds, 1), "loss": loss, **found})

    def save(self, folder: Path) -> None:
        """Writes weights and moments; the weights alone every 500 steps too, to look at phases later."""
        named = dict(self.model.named_parameters())
        weights = {name: value.detach() for name, value in named.items()}
        moments = {
            f"{kind}/{name}": self.optimizer.state[value][kind]
            for name, value in named.items()
            for kind in ("exp_avg", "exp_avg_sq")
        }
        where = {"step": str(self.step), "loss": str(self.loss)}
        _write(folder / STATE, safetensors.torch.save({**weights, **moments}, where | {"seconds": str(self.seconds)}))
        if self.step % 500 == 0:
            _write(
                folder / f"snapshots/step-{self.step:06d}.safetensors", safetensors.torch.save(weights, metadata=where)
            )

    def finish(self, folder: Path, log: Sequence[Mapping[str, Any]]) -> None:
        """Writes the model as transformers keeps it, with what it was trained by and its log."""
        with disk.explained(folder), zoo.quiet():
            self.model.eval().save_pretrained(folder)
            language.tokenizer(self.settings.grammar).save_pretrained(folder)
        _write(folder / RECIPE, json.dumps(self.settings.to_json(), indent=1).encode())
        _write(folder / LOG, json.dumps(log).encode())

    def restore(self, folder: Path) -> None:
        """Goes on with what `save` wrote."""
        with safetensors.safe_open(folder / STATE, framework="pt") as stored:
            where = stored.metadata()
            values = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # it is no mapping
        self.step, self.seconds, self.loss = int(where["step"]), float(where["seconds"]), float(where["loss"])
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(values[name])
                moments = {kind: values[f"{kind}/{name}"] for kind in ("exp_avg", "exp_avg_sq")}
                self.optimizer.state[value] = {"step": torch.tensor(float(self.step)), **moments}


def beginning(settings: BindingTrainingSettings) -> Any:
    """The network before the first step.

    Raises:
        RequestError: The weights to begin with are not there, or of another shape.
    """
    if not settings.start:
        return network.make(settings.shape, settings.grammar, settings.seed)
    from sonde.studies.binding import shipped  # it builds on this module

    name, _, step = settings.start.partition("@")
    if not step.isdecimal():
        raise errors.RequestError(f"begin with a model and a step of it, such as seed-0@1500, not {settings.start!r}")
    there = shipped.recipe(name)
    if (there.shape, there.grammar) != (settings.shape, settings.grammar):
        raise errors.RequestError(f"{name} has another shape or grammar than this run: {there.shape}, {there.grammar}")
    return shipped.at_step(name, int(step)).train()


def _write(path: Path, data: bytes) -> None:
    with disk.explained(path):
        disk.make_dirs(path.parent)
        disk.write_atomic(path, data)


def _share(right: Bool[np.ndarray, "program"]) -> float:
    return round(float(right.mean()), 4)
