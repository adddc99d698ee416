"""At which step, and in which layer, does a perturbation change the outcome of the episode most?

    python examples/critical_steps.py --out out/critical

Adds the same small noise at one layer during one step, plays the episode again, and compares rewards. The reward of the
scripted task is the share of vowels in the answers: any text has one. One episode per cell is a picture, not evidence:
for that, repeat over tasks and seeds.
"""

import argparse
from pathlib import Path

import torch

import sonde
from sonde import testing
from sonde.report import figures


def main(model_name: str | None, out: Path, strength: float) -> None:
    model = sonde.load(model_name) if model_name else sonde.load()
    client = sonde.HookedTransformerLLMClient(model)
    env = testing.ScriptedEnvironment(testing.scripted_tasks()[:1], max_output_tokens=12)
    layers = sorted({0, model.cfg.n_layers // 3, 2 * model.cfg.n_layers // 3})
    sites = [f"blocks.{layer}.hook_resid_post" for layer in layers]

    capture = sonde.ActivationCapture(model, sites)
    baseline = sonde.run_episode(env, client, capture)
    print(f"baseline reward {baseline.reward:.3f} over {len(baseline)} steps\n")

    effects = torch.zeros(len(layers), len(baseline))
    for row, site in enumerate(sites):
        spread = float(baseline.get_activation(0, site)[:, 1:].std())
        for step in range(len(baseline)):
            manager = sonde.InterventionManager(model)
            manager.add_intervention(site, sonde.Noise(std=strength * spread, phase="prefill"), apply_at_steps=[step])
            effects[row, step] = sonde.run_episode_with_intervention(env, client, manager) - baseline
        shown = "  ".join(f"{effect:+.3f}" for effect in effects[row])
        print(f"layer {layers[row]:2}, noise at step 0, 1, …: {shown}")

    row, step = divmod(int(effects.abs().argmax()), len(baseline))
    print(f"\nlargest change: layer {layers[row]}, step {step} ({effects[row, step]:+.3f})")
    figures.heatmap(
        effects,
        x="step with noise",
        y="layer",
        title="change of the episode's reward",
        labels=([str(step) for step in range(len(baseline))], [str(layer) for layer in layers]),
        path=out / "critical_steps.png",
    )
    print(f"picture in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a zoo name, a folder, or a Hugging Face id; the embedded model if left out")
    parser.add_argument("--out", type=Path, default=Path("out/critical_steps"))
    parser.add_argument("--strength", type=float, default=0.5, help="noise, relative to the spread of the stream")
    options = parser.parse_args()
    main(options.model, options.out, options.strength)
