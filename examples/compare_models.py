"""The same task in different models: steps, rewards, and the residual stream through the layers.

python examples/compare_models.py --model smollm2-135m-instruct tiny-llama --out out/compare
"""

import argparse
from pathlib import Path

import sonde
from sonde import testing
from sonde.models import zoo
from sonde.report import figures


def main(names: list[str], out: Path) -> None:
    task = testing.scripted_tasks()[2]
    trajectories = []
    for name in names:
        with sonde.load(name) as model:
            client = sonde.HookedTransformerLLMClient(model, model_name=model.cfg.model_name)
            env = testing.ScriptedEnvironment([task], max_output_tokens=12)
            trajectories.append(sonde.run_and_cache_episode(env, client, hook_filter="blocks.*.hook_resid_post"))

    comparison = sonde.compare_trajectories(trajectories)
    print(comparison)
    figures.lines(
        {row["label"]: row["norms"] for row in comparison.rows},
        x="layer",
        y="mean norm",
        title=f"residual stream over the task '{task.id}'",
        log=True,
        path=out / "norms.png",
    )
    print(f"\npicture in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=[zoo.DEFAULT, "tiny-gpt2", "tiny-llama"], help="two or more")
    parser.add_argument("--out", type=Path, default=Path("out/compare_models"))
    options = parser.parse_args()
    main(options.model, options.out)
