"""Does the state from which the model speaks drift over an episode, and does it know of an error on the screen?

    python examples/temporal_flow.py --out out/flow

Keeps the last prompt token of every step, with notes of what the agent saw and did, and compares the steps.
"""

import argparse
import asyncio
from pathlib import Path

import torch

import sonde
from sonde import testing
from sonde.report import figures


async def record(model: sonde.Model) -> sonde.TrajectoryActivations:
    client = sonde.HookedTransformerLLMClient(model)
    with sonde.ActivationCapture(model, "blocks.*.hook_resid_post", positions="last_prompt") as capture:
        async with testing.ScriptedEnvironment(testing.scripted_tasks()[:1], max_output_tokens=16) as env:
            ts = await env.reset()
            while not ts.last():
                capture.start_step()
                action = await client(ts.observation)
                capture.end_step()
                capture.record_step_metadata(
                    {
                        "action_type": sonde.classify_action(action),
                        "error_present": sonde.check_for_errors(ts.observation),
                        "file_context": sonde.extract_file_context(ts.observation),
                    }
                )
                ts = await env.step(action)
    return capture.get_trajectory()


def main(model_name: str | None, out: Path) -> None:
    model = sonde.load(model_name) if model_name else sonde.load()
    trajectory = asyncio.run(record(model))
    for step, note in enumerate(trajectory.step_metadata):
        sign = "error" if note["error_present"] else "     "
        print(f"step {step}: {sign} {note['action_type']:8} {', '.join(note['file_context'])}")

    layers = range(model.cfg.n_layers)
    states = torch.stack(
        [
            torch.cat(trajectory.get_activation_across_trajectory(f"blocks.{layer}.hook_resid_post"))[:, 0]
            for layer in layers
        ]
    )  # layer step d_model
    unit = states / states.norm(dim=-1, keepdim=True)
    drift = (unit[:, 1:] * unit[:, :-1]).sum(-1)  # layer step
    middle = len(layers) // 2
    print(
        f"\ncosine between neighbouring steps, layer {middle}: " + " ".join(f"{value:.3f}" for value in drift[middle])
    )
    figures.heatmap(
        unit[middle] @ unit[middle].T,
        x="step",
        y="step",
        title=f"layer {middle}: cosine between the steps' last prompt tokens",
        path=out / "steps.png",
    )
    figures.lines(
        {f"step {step} to {step + 1}": drift[:, step] for step in range(drift.shape[1])},
        x="layer",
        y="cosine",
        title="how much of the state stays from step to step",
        path=out / "drift.png",
    )
    print(f"pictures in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a zoo name, a folder, or a Hugging Face id; the embedded model if left out")
    parser.add_argument("--out", type=Path, default=Path("out/temporal_flow"))
    options = parser.parse_args()
    main(options.model, options.out)
