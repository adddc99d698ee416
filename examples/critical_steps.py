"""At which step, and in which layer, is it decided how the rest of an episode goes?

    python examples/critical_steps.py --out out/critical

Plays a scripted task with a model and runs the critical-steps study on it: ablations at every step and layer, then
continuations with and without them. The reward of the scripted task is the share of vowels in the answers: any text has
one. A handful of episodes is a picture, not evidence: the study says so itself.
"""

import argparse
from pathlib import Path

import sonde
from sonde import experiments, testing
from sonde.report import drawing
from sonde.studies.critical_steps import pages, settings, study


def make() -> testing.ScriptedEnvironment:
    return testing.ScriptedEnvironment(testing.scripted_tasks()[:1], max_output_tokens=12)


def main(model_name: str | None, out: Path, episodes: int, rollouts: int) -> None:
    with sonde.load(model_name) if model_name else sonde.load() as model:
        layers = sorted({0, model.cfg.n_layers // 3, 2 * model.cfg.n_layers // 3})
        asked = {"episodes": episodes, "rollouts": rollouts, "layers": layers, "heads": 1}
        chosen = settings.settings_of(make, model.cfg, **asked)
        found = experiments.run(study.CriticalSteps(model, make), chosen, runs_dir=out, run="critical_steps")
    matrix = found.results["matrix"]
    for layer, row in zip(matrix["layers"], matrix["value"], strict=True):
        print(f"layer {layer:2}, impact of step 0, 1, … in nats per token: {'  '.join(f'{one:.3f}' for one in row)}")
    print()
    for line in pages.summary(found.results):
        print(line)
    drawing.save_png(pages.impact(found.results), out / "critical_steps.png")
    print(f"\npicture in {out}, page: {found.html}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a zoo name, a folder, or a Hugging Face id; the embedded model if left out")
    parser.add_argument("--out", type=Path, default=Path("out/critical_steps"))
    parser.add_argument("--episodes", type=int, default=6)
    parser.add_argument("--rollouts", type=int, default=2)
    options = parser.parse_args()
    main(options.model, options.out, options.episodes, options.rollouts)
