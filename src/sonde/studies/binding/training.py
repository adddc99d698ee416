"""How does it learn? One training run: reproducible, resumable, watched closely from its first steps.

    training.train(training.Recipe(seed=0), folder)        # again with the same folder: goes on where it was stopped

1. Batches come from the seed and the step alone, so a run that was stopped sees what it would have seen.
2. AdamW with a warm-up and a linear decay; the loss is on the answers, and with `told` on the right-hand sides.
3. Every 25 steps at first, then every 100 and 250, the held-out programs are answered: overall, by hops, by root line.
4. Weights and moments are written as a whole every 250 steps: Ctrl-C, or worse, loses at most those.

The held-out programs are balanced over hops and root line, so no heuristic scores there; a second set is as the training
programs fall. Costs about 0.1 s a step on one core at the default size.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int
from torch.nn import functional as F

from sonde import experiments
from sonde.core import errors
from sonde.models import zoo
from sonde.store import disk
from sonde.studies.binding import language, network

RECIPE, LOG, STATE, MODEL = "recipe.json", "log.json", "state.safetensors", "model"
SAVE_EVERY = 250
TESTED = 1050
Tell = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """What fixes a run.

    Attributes:
        seed: Of the weights and of the programs.
        grammar: How large programs are.
        shape: How large the model is.
        steps: How many.
        batch: Programs per step.
        rate: The learning rate at its highest.
        easy: Share of the training programs that are only constants: a help, none with 0.
        every: Whether every line of a training program is asked for, as far as it has no more hops than are allowed: a
            help. Otherwise one query a program, hops equally frequent, easy ones with one hop.
        told: After how many layers each line's right-hand side is asked for that line's value too: a help, none with 0.
            It goes with `every`. It teaches that values are there, not that an answer is read from there.
        start: The weights to begin with: a model that comes with the package and one of its steps, such as
            `seed-0@1500`; new ones with nothing. Moments, rate and steps begin anew.
    """

    seed: int = 0
    grammar: language.Grammar = dataclasses.field(default_factory=language.Grammar)
    shape: network.Shape = dataclasses.field(default_factory=network.Shape)
    steps: int = 5000
    batch: int = 64
    rate: float = 2e-3
    easy: float = 0.25
    every: bool = True
    told: int = 0
    start: str = ""

    def __post_init__(self) -> None:
        """Checks that the helps fit the model and each other."""
        if not 0 <= self.told <= self.shape.layers or (self.told and not self.every):
            raise errors.RequestError(
                f"right-hand sides can be asked after 1 to {self.shape.layers} layers (0: not at all), and only where every "
                f"line is asked; got told {self.told}, every {self.every}"
            )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Recipe":
        """The recipe that `dataclasses.asdict` made."""
        parts = {"grammar": language.Grammar(**fields["grammar"]), "shape": network.Shape(**fields["shape"])}
        return cls(**{**fields, **parts})

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: 200 steps up, then down to nothing."""
        return self.rate * min((step + 1) / 200, (self.steps - step) / max(self.steps - 200, 1), 1.0)


def train(recipe: Recipe, folder: Path, *, tell: Tell | None = None) -> Path:
    """Trains to the end, or goes on with what is in the folder, and returns the folder of the model.

    Raises:
        RequestError: The folder holds a run of another recipe.
        StoreError: It cannot be written.
    """
    run = _Run(recipe, folder)
    with experiments.pinned(1):
        while run.step < recipe.steps:
            if is_watched(run.step):
                run.watch()
            run.learn()
            if run.step % SAVE_EVERY == 0:
                run.save()
            if tell is not None:
                tell("training", run.step, recipe.steps)
        run.watch()
        run.save()
    return run.finish()


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


def batch_at(recipe: Recipe, step: int) -> language.Programs:
    """The training programs of a step."""
    rng = np.random.default_rng([1, recipe.seed, step])
    return language.draw(recipe.grammar, recipe.batch, rng, easy=recipe.easy)


def loss_of(recipe: Recipe, model: Any, programs: language.Programs) -> Float[torch.Tensor, ""]:
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
        parts = torch.from_numpy(programs.tokens).split(256)
        return torch.cat([network.answer_logits(network_, part).argmax(dim=-1) for part in parts]).numpy()


class _Run:
    """A run under way: weights, moments, the step it is at, and what was measured so far."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.step, self.rows, self.seconds, self.loss = 0, [], 0.0, float("nan")
        self.model = _beginning(recipe)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        self.tests = tests(recipe.grammar)
        self._claim()
        if (folder / STATE).exists():
            self._restore()

    def learn(self) -> None:
        """One step."""
        start, recipe = time.monotonic(), self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate_at(self.step)
        self.optimizer.zero_grad()
        loss = loss_of(recipe, self.model, batch_at(recipe, self.step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step, self.loss = self.step + 1, float(loss.detach())
        self.seconds += time.monotonic() - start

    def watch(self) -> None:
        """Measures, once per step."""
        if self.rows and self.rows[-1]["step"] >= self.step:
            return
        loss = None if np.isnan(self.loss) else self.loss
        found = measured(self.model, self.tests)
        self.rows.append({"step": self.step, "seconds": round(self.seconds, 1), "loss": loss, **found})
        self._write(LOG, json.dumps(self.rows).encode())

    def save(self) -> None:
        """Writes weights and moments; the weights alone every 500 steps too, to look at phases later."""
        named = dict(self.model.named_parameters())
        weights = {name: value.detach() for name, value in named.items()}
        moments = {
            f"{kind}/{name}": self.optimizer.state[value][kind]
            for name, value in named.items()
            for kind in ("exp_avg", "exp_avg_sq")
        }
        where = {"step": str(self.step), "seconds": str(self.seconds)}
        self._write(STATE, safetensors.torch.save({**weights, **moments}, metadata=where))
        if self.step % 500 == 0:
            self._write(f"snapshots/step-{self.step:06d}.safetensors", safetensors.torch.save(weights, metadata=where))

    def finish(self) -> Path:
        """Writes the model as transformers keeps it."""
        target = self.folder / MODEL
        with disk.explained(target), zoo.quiet():
            self.model.eval().save_pretrained(target)
            language.tokenizer(self.recipe.grammar).save_pretrained(target)
        return target

    def _restore(self) -> None:
        with safetensors.safe_open(self.folder / STATE, framework="pt") as stored:
            where = stored.metadata()
            values = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # it is no mapping
        self.step, self.seconds = int(where["step"]), float(where["seconds"])
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(values[name])
                moments = {kind: values[f"{kind}/{name}"] for kind in ("exp_avg", "exp_avg_sq")}
                self.optimizer.state[value] = {"step": torch.tensor(float(self.step)), **moments}
        self.rows = [row for row in json.loads((self.folder / LOG).read_text()) if row["step"] <= self.step]

    def _claim(self) -> None:
        """Writes the recipe, or checks it against the one that is there."""
        path, mine = self.folder / RECIPE, dataclasses.asdict(self.recipe)
        if not path.exists():
            self._write(RECIPE, json.dumps(mine, indent=1).encode())
        elif (there := dataclasses.asdict(Recipe.from_json(json.loads(path.read_text())))) != mine:
            different = [name for name in mine if there.get(name) != mine[name]]
            raise errors.RequestError(
                f"{self.folder} holds a run of another recipe: {', '.join(different)} differ; choose another folder"
            )

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        with disk.explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            disk.write_atomic(path, data)


def _beginning(recipe: Recipe) -> Any:
    """The network before the first step."""
    if not recipe.start:
        return network.make(recipe.shape, recipe.grammar, recipe.seed)
    from sonde.studies.binding import shipped  # it builds on this module

    name, _, step = recipe.start.partition("@")
    if not step.isdecimal():
        raise errors.RequestError(f"begin with a model and a step of it, such as seed-0@1500, not {recipe.start!r}")
    there = shipped.recipe(name)
    if (there.shape, there.grammar) != (recipe.shape, recipe.grammar):
        raise errors.RequestError(f"{name} has another shape or grammar than this run: {there.shape}, {there.grammar}")
    return shipped.at_step(name, int(step)).train()


def _share(right: Bool[np.ndarray, "program"]) -> float:
    return round(float(right.mean()), 4)
