"""A first look: what happens inside a model over a short conversation?

1. Play a five-turn conversation, recording the residual stream after every layer at every token.
2. Lens: at each step, which rank does the token have that the model is about to say, read off after each layer?
3. Drift: how similar is the model's state just before it speaks, from step to step? (Cosine, after the mean state of
   all tokens is taken off: it is large and says nothing about the step.)
4. Ablation: whose attention matters? Silence one layer's attention at the last prompt token of the last step, measure
   how far the next-token distribution moves (KL, in nats), beside a sham that multiplies by one.

One conversation shows how the tools work; it is no evidence about the model. Costs about a minute on two cores.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sonde import store, testing
from sonde.agents import client as agents_client
from sonde.agents import episodes
from sonde.capture import capture as capture_capture
from sonde.capture import trajectory as capture_trajectory
from sonde.core import interventions
from sonde.models import model as models_model
from sonde.report import figures

SYSTEM = "You are a helpful assistant. Answer in one short sentence."
TURNS = (
    "Name an animal that can fly.",
    "What does it eat?",
    "Is it bigger than a cat? Answer yes or no and say why.",
    "Name an animal that cannot fly.",
    "Which of the two animals would you rather be?",
)


@dataclasses.dataclass(frozen=True, slots=True)
class StepSeen:
    """What was seen of one step."""

    question: str
    answer: str
    prompt_tokens: int
    encoded_tokens: int
    settles_at: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class FirstLook:
    """What the first look found.

    Attributes:
        steps: One entry per step; `settles_at` is the first layer from which on the spoken token stays on top.
        lens: Rank of the spoken token after each layer, 1 is on top, `step layer`.
        drift: Cosine between the states before speaking, at the middle layer, `step step`.
        effects: KL of silencing each layer's attention, and `sham` the largest KL of doing nothing.
        run: The run's folder.
        pictures: The figures.
    """

    steps: tuple[StepSeen, ...]
    lens: Tensor
    drift: Tensor
    effects: Tensor
    sham: float
    run: Path
    pictures: tuple[Path, ...]


def take(
    model: models_model.Model,
    runs_dir: Path | None = None,
    *,
    progress: Callable[[str, int], Any] = lambda doing, done: None,
) -> FirstLook:
    """Takes the first look.

    Args:
        model: The model.
        runs_dir: Where runs are kept.
        progress: Called with what is being done, and how many of `5 + n_layers` units are finished.
    """
    run = store.Run.create(runs_dir, kind="demo", model=model.cfg.model_name, settings={"turns": list(TURNS)}, seed=0)
    with run:
        trajectory, actions = _record(model, run, progress)
        lens = torch.stack([_lens(model, trajectory, step) for step in range(len(trajectory))])
        middle = f"blocks.{model.cfg.n_layers // 2}.hook_resid_post"
        states = torch.stack([_before_speaking(trajectory, step, middle) for step in range(len(trajectory))])
        unit = torch.nn.functional.normalize(states - trajectory.records.whole(middle).mean(dim=0), dim=-1)
        effects, sham = _ablate(model, trajectory, progress)
        drift = unit @ unit.T
        pictures = _draw(run.folder / "figures", lens, drift, effects)
        steps = tuple(
            StepSeen(turn, act.text.strip(), act.usage.prompt_tokens, act.usage.encoded_tokens or 0, _settles(ranks))
            for turn, act, ranks in zip(TURNS, actions, lens, strict=True)
        )
    return FirstLook(steps, lens, drift, effects, sham, run.folder, pictures)


def _record(
    model: models_model.Model, run: store.Run, progress: Callable[[str, int], Any]
) -> tuple[capture_trajectory.TrajectoryActivations, list[Any]]:
    task = testing.ScriptedTask("first-look", TURNS, SYSTEM)
    env = testing.ScriptedEnvironment([task], max_output_tokens=24)
    folder = run.folder / "episodes" / task.id
    capture = capture_capture.ActivationCapture(model, "blocks.*.hook_resid_post", folder=folder)
    actions: list[Any] = []

    def seen(step: int, action: Any, now: Any) -> None:
        actions.append(action)
        progress("recording a conversation", step + 1)

    progress("recording a conversation", 0)
    player = agents_client.HookedTransformerLLMClient(model)
    asyncio.run(_played(env, player, capture, seen))
    return capture.get_trajectory(), actions


async def _played(env: Any, player: Any, capture: Any, seen: Callable[[int, Any, Any], None]) -> None:
    await episodes.run_episode(env, player, capture, on_step=seen)


def _before_speaking(trajectory: capture_trajectory.TrajectoryActivations, step: int, site: str) -> Tensor:
    return trajectory.get_activation(step, site)[0, trajectory.prompt_length(step) - 1]


def _lens_logits(model: models_model.Model, trajectory: capture_trajectory.TrajectoryActivations, step: int) -> Tensor:
    sites = [f"blocks.{layer}.hook_resid_post" for layer in range(model.cfg.n_layers)]
    states = torch.stack([_before_speaking(trajectory, step, site) for site in sites]).to(model.device)
    norm, unembed = (model.parts.taps[name].module for name in ("ln_final.hook_out", "unembed.hook_out"))
    with torch.no_grad():
        return unembed(norm(states)).float().cpu()


def _lens(model: models_model.Model, trajectory: capture_trajectory.TrajectoryActivations, step: int) -> Tensor:
    logits = _lens_logits(model, trajectory, step)
    return (logits > logits[:, trajectory.generated(step)[0], None]).sum(dim=-1) + 1


def _settles(ranks: Tensor) -> int | None:
    """The first layer from which on the token stays on top."""
    below = (ranks > 1).nonzero().flatten().tolist()
    first = below[-1] + 1 if below else 0
    return first if first < len(ranks) else None


def _ablate(
    model: models_model.Model,
    trajectory: capture_trajectory.TrajectoryActivations,
    progress: Callable[[str, int], Any],
) -> tuple[Tensor, float]:
    last = len(trajectory) - 1
    tokens = trajectory.tokens(last)[: trajectory.prompt_length(last)]
    clean = model.run_with_hooks(tokens)[0, -1].float().log_softmax(dim=-1)
    effects, shams = [], []
    for layer in range(model.cfg.n_layers):
        site = f"blocks.{layer}.hook_attn_out"
        for spec, into in (
            (interventions.Zero(site=site, positions=(-1,)), effects),
            (interventions.Scale(site=site, positions=(-1,), factor=1.0), shams),
        ):
            changed = model.run_with_hooks(tokens, [spec])[0, -1].float().log_softmax(dim=-1)
            into.append(float((clean.exp() * (clean - changed)).sum()))
        progress("silencing each layer's attention", len(trajectory) + layer + 1)
    return torch.tensor(effects), max(shams)


def _draw(folder: Path, lens: Tensor, drift: Tensor, effects: Tensor) -> tuple[Path, ...]:
    names = [f"step {step}" for step in range(len(lens))]
    paths = tuple(folder / f"{name}.png" for name in ("lens", "drift", "ablation"))
    figures.lines(
        dict(zip(names, lens.numpy(), strict=True)),
        x="layer",
        y="rank of the token it says (1 = on top)",
        title="When does the model know what it is about to say?",
        log=True,
        path=paths[0],
    )
    figures.heatmap(
        drift.numpy(),
        x="step",
        y="step",
        title="State before speaking: cosine between steps, middle layer",
        labels=(names, names),
        path=paths[1],
    )
    figures.lines(
        {"attention silenced at the last prompt token": effects.numpy()},
        x="layer",
        y="KL from the clean prediction (nats)",
        title="Attention silenced at the last prompt token, one layer at a time",
        log=True,
        path=paths[2],
    )
    return paths
