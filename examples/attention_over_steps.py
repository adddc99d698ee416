"""How much of each head's attention goes to the system prompt, step after step?

    python examples/attention_over_steps.py --out out/attention

Asks at the last prompt token, where the model is about to speak. Draws heads by steps, and one whole pattern.
"""

import argparse
from pathlib import Path

import torch

import sonde
from sonde import testing
from sonde.report import figures


def main(model_name: str | None, out: Path) -> None:
    model = sonde.load(model_name) if model_name else sonde.load()
    task = testing.scripted_tasks()[0]
    env = testing.ScriptedEnvironment([task], max_output_tokens=16)
    layer = model.cfg.n_layers // 2
    site = f"blocks.{layer}.attn.hook_pattern"
    trajectory = sonde.run_and_cache_episode(env, sonde.HookedTransformerLLMClient(model), hook_filter=site)

    rules = len(model.tokenizer.encode(task.system_prompt))
    shares = []
    for step in range(len(trajectory)):
        pattern = trajectory.get_activation(step, site)  # batch head query key
        about_to_speak = trajectory.prompt_length(step) - 1
        shares.append(pattern[0, :, about_to_speak, 1 : rules + 1].sum(-1))
    share = torch.stack(shares, dim=1)  # head step

    for step in range(len(trajectory)):
        strongest = int(share[:, step].argmax())
        print(
            f"step {step}: {len(trajectory.tokens(step)):4} tokens, mean share on the rules {share[:, step].mean():.3f}, "
            f"head {strongest} most with {share[strongest, step]:.3f}"
        )
    figures.heatmap(
        share, x="step", y="head", title=f"layer {layer}: attention to the rules", path=out / "heads_by_step.png"
    )
    window = slice(-32, None)
    head = int(share.mean(1).argmax())
    pattern = trajectory.get_activation(len(trajectory) - 1, site)[0, head, window, window]
    tokens = [model.tokenizer.decode(token) for token in trajectory.tokens(len(trajectory) - 1)[window]]
    title = f"layer {layer} head {head}: the last {len(tokens)} tokens of the episode"
    figures.visualize_attention(pattern, tokens, title=title, path=out / "pattern.png")
    print(f"\npictures in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a zoo name, a folder, or a Hugging Face id; the embedded model if left out")
    parser.add_argument("--out", type=Path, default=Path("out/attention_over_steps"))
    options = parser.parse_args()
    main(options.model, options.out)
