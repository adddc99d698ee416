"""Record one episode: play it, keep the residual stream of every step, save it, load it again.

python examples/record_episode.py --out out/record
"""

import argparse
import asyncio
from pathlib import Path

import sonde
from sonde import testing


async def main(model_name: str | None, out: Path) -> None:
    model = sonde.load(model_name) if model_name else sonde.load()
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=24)
    capture = sonde.ActivationCapture(model, "blocks.*.hook_resid_post")

    async with testing.ScriptedEnvironment(testing.scripted_tasks()[:1], max_output_tokens=24) as env:
        with capture:
            ts = await env.reset()
            while not ts.last():
                capture.start_step()
                action = await client(ts.observation)
                capture.end_step()
                ts = await env.step(action)
                capture.record_step_metadata({"text": action.text, "reward": ts.reward})
                print(
                    f"step {action.step}: {action.usage.prompt_tokens:4} prompt tokens, "
                    f"{action.usage.encoded_tokens:4} encoded: {action.text.strip()!r}"
                )

    trajectory = capture.get_trajectory()
    folder = trajectory.save(out / "episode")
    loaded = sonde.TrajectoryActivations.load(folder)
    prompts = sum(len(loaded.tokens(step)) for step in range(len(loaded)))
    print(f"\nsaved to {folder}: {len(loaded)} steps")
    print(f"{prompts} positions in all contexts together, {loaded.records.count} tokens stored: each one once")
    last = loaded.get_activation(len(loaded) - 1, loaded.site_names[-1])
    print(f"{loaded.site_names[-1]} over the context of the last step: {tuple(last.shape)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a zoo name, a folder, or a Hugging Face id; the embedded model if left out")
    parser.add_argument("--out", type=Path, default=Path("out/record_episode"))
    options = parser.parse_args()
    asyncio.run(main(options.model, options.out))
