"""What recording costs: resid_post of all layers while generating, batch 1, against bare `generate`.

Peers in the same run: transformers' generate, TransformerBridge's, nnsight's. Run: python benchmarks/bench_recording.py
"""

import statistics

import nnsight
import shared
import torch
import transformers
from transformer_lens.model_bridge import TransformerBridge

import sonde
from sonde.models import zoo

PROMPT, NEW, REPEATS = 64, 64, 5


def main() -> None:
    model, peer = shared.load(), shared.bare()
    folder = zoo.local_folder(shared.MODEL)
    prompt = shared.tokens(PROMPT, seed=0)
    ids = torch.tensor([prompt])

    def bare() -> int:
        with torch.no_grad():
            out = peer.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=2)
        return out.shape[1]

    def recorded() -> int:
        model.pool.entries.clear()
        with sonde.automatic_activation_capture(model, "blocks.*.hook_resid_post") as capture:
            model.generate(list(prompt), max_new_tokens=NEW, min_new_tokens=NEW)
        return capture.get_trajectory().records.count

    def unrecorded() -> int:
        model.pool.entries.clear()
        return len(model.generate(list(prompt), max_new_tokens=NEW, min_new_tokens=NEW).tokens)

    assert bare() == PROMPT + NEW
    assert recorded() == PROMPT + NEW - 1
    times = shared.alternate({"bare": bare, "recording": recorded, "sonde": unrecorded}, REPEATS)
    shared.report(f"{PROMPT} prompt + {NEW} generated tokens, median seconds: " + _medians(times))
    worst = shared.ratio(times, "recording", "bare")
    shared.verdict("recording 30 layers against bare transformers generate", worst, "at most 1.10x", worst <= 1.10)
    _beside(ids, folder)


def _beside(ids: torch.Tensor, folder: object) -> None:
    """The same prompt through the other toolkits, without recording."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=shared.bare(), tokenizer=tokenizer, device="cpu")
    traced = nnsight.TransformersModel(shared.bare(), tokenizer=tokenizer)

    def with_bridge() -> object:
        return bridge.generate(ids, max_new_tokens=NEW, do_sample=False, stop_at_eos=False, verbose=False)

    def with_nnsight() -> object:
        with traced.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False) as tracer:
            result = tracer.result.save()
        return result

    times = shared.alternate({"TransformerBridge generate": with_bridge, "nnsight generate": with_nnsight}, 3)
    shared.report("beside it, without recording, median seconds: " + _medians(times))


def _medians(times: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(values):.2f}" for name, values in times.items())


if __name__ == "__main__":
    main()
