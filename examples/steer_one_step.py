"""Steer a single step of an episode, and see what it leaves behind in the steps after it.

    python examples/steer_one_step.py --out out/steer

The direction is the difference between two prompts. At step 1 it is added to the residual stream of the new tokens, once
so that nothing of it stays in the cache (`after="clean"`), once so that later steps read it there (`after="persist"`).
A random direction of the same length is the control. Under `clean` later steps still differ, by what was said at step 1.
"""

import argparse
from pathlib import Path

import torch

import sonde
from sonde import testing
from sonde.report import figures

PROMPTS = ("I am very happy. What a wonderful day!", "I am very sad. What a terrible day!!")


def main(model_name: str | None, out: Path, strength: float) -> None:
    model = sonde.load(model_name) if model_name else sonde.load()
    client = sonde.HookedTransformerLLMClient(model)
    env = testing.ScriptedEnvironment(testing.scripted_tasks()[2:], max_output_tokens=12)
    site = f"blocks.{model.cfg.n_layers // 2}.hook_resid_post"

    happy, sad = (model.run_with_cache(prompt, site)[1][site][0, -1] for prompt in PROMPTS)
    direction = happy - sad
    chance = torch.randn(direction.shape, generator=torch.Generator().manual_seed(0))
    control = chance * direction.norm() / chance.norm()

    conditions = {
        "clean": (direction, "clean"),
        "persist": (direction, "persist"),
        "random, persist": (control, "persist"),
    }
    base = play(model, client, env, [])
    print(f"unsteered:       {base[0]}")
    distance = {}
    for name, (vector, after) in conditions.items():
        steer = sonde.Steer(site=site, direction=vector, strength=strength, steps=(1,), scope="new", after=after)
        texts, states = play(model, client, env, [steer])
        distance[name] = [float((a - b).norm() / b.norm()) for a, b in zip(states, base[1], strict=True)]
        print(f"{name + ':':<16} {texts}")
        print(f"{'':16} moved at each step by " + ", ".join(f"{value:.3f}" for value in distance[name]))
    figures.lines(
        distance,
        x="step (steered at step 1)",
        y="relative change",
        title=f"{site} at the last prompt token",
        path=out / "steering.png",
    )
    print(f"\npicture in {out}")


def play(model, client, env, hooks):
    """The answers, and the state before each."""
    last = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    manager = sonde.InterventionManager(model)
    for hook in hooks:
        manager.add_intervention(hook_fn=hook)
    capture = sonde.ActivationCapture(model, last, positions="last_prompt")
    trajectory = sonde.run_episode_with_intervention(env, client, manager, capture=capture)
    texts = [note["text"].strip() for note in trajectory.step_metadata]
    return texts, [value[0, -1] for value in trajectory.get_activation_across_trajectory(last)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a zoo name, a folder, or a Hugging Face id; the embedded model if left out")
    parser.add_argument("--out", type=Path, default=Path("out/steer_one_step"))
    parser.add_argument("--strength", type=float, default=2.0)
    options = parser.parse_args()
    main(options.model, options.out, options.strength)
