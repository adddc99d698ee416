"""Patch one run's activations into another: which layer, at which token, carries the difference?

    python examples/patch_success_into_failure.py --out out/patch

Two prompts that differ in one fact. The residual stream of the first is put into the run of the second, one layer and
position at a time; the measure is how far the log-odds of the two answers move from the second towards the first (0:
not at all, 1: all the way). The sham patch, a run's own activations put into itself, must do nothing.
"""

import argparse
from pathlib import Path

import torch

import sonde
from sonde.report import figures

PROMPTS = (
    "The test passed. The developer is happy because the test",
    "The test failed. The developer is angry because the test",
)
ANSWERS = (" passed", " failed")


def main(model_name: str | None, out: Path) -> None:
    model = sonde.load(model_name) if model_name else sonde.load()
    encode = model.tokenizer.encode
    length = min(len(encode(prompt)) for prompt in PROMPTS)
    success, failure = (torch.tensor(encode(prompt)[-length:])[None] for prompt in PROMPTS)
    yes, no = next((a, b) for a, b in zip(*map(encode, ANSWERS), strict=False) if a != b)
    layers = range(0, model.cfg.n_layers, max(1, model.cfg.n_layers // 10))
    sites = [f"blocks.{layer}.hook_resid_post" for layer in layers]

    def odds(logits: torch.Tensor) -> float:
        return float(logits[0, -1, yes] - logits[0, -1, no])

    good, good_cache = model.run_with_cache(success, sites)
    bad, bad_cache = model.run_with_cache(failure, sites)
    gap = odds(good) - odds(bad)
    print(f"log-odds of {ANSWERS[0]!r}: {odds(good):+.3f} after success, {odds(bad):+.3f} after failure\n")

    differ = (success != failure)[0].nonzero().flatten().tolist()
    positions = sorted({*differ, length - 1})[:12]
    effect = torch.zeros(len(sites), len(positions))
    for row, site in enumerate(sites):
        for column, position in enumerate(positions):
            hook = sonde.create_path_patching_hook(good_cache[site], positions=[position])
            effect[row, column] = (odds(model.run_with_hooks(failure, [hook.at(site)])) - odds(bad)) / gap
    sham = sonde.create_path_patching_hook(bad_cache[sites[0]]).at(sites[0])
    print(f"sham patch: {(odds(model.run_with_hooks(failure, [sham])) - odds(bad)) / gap:+.4f} of the gap")

    names = [model.tokenizer.decode(failure[0, position]) for position in positions]
    for column, name in enumerate(names):
        best = int(effect[:, column].argmax())
        print(
            f"position {positions[column]:3} {name!r:>10}: at most {effect[best, column]:+.3f} of the gap, layer {layers[best]}"
        )
    figures.heatmap(
        effect,
        x="patched token",
        y="layer",
        title="share of the gap that the patch restores",
        labels=(names, [str(layer) for layer in layers]),
        path=out / "patch.png",
    )
    print(f"\npicture in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a zoo name, a folder, or a Hugging Face id; the embedded model if left out")
    parser.add_argument("--out", type=Path, default=Path("out/patch_success_into_failure"))
    options = parser.parse_args()
    main(options.model, options.out)
