"""ACDC and EAP on two small graphs, against PyPI's auto-circuit and against our own masked forward pass per edge.

Plain models of 2 layers (4 heads, d_model 12, 110 edges, 1000 pairs of 5 tokens) and 6 layers (4 heads, d_model 64, 1,108
edges, 100 pairs of 16), random weights, the same on both sides (logits are compared), logits read at every position for
ACDC (KL) and at the last one for EAP (logit difference; its peer is auto-circuit's mask gradient at mask 0). One thread
each, in turn. ACDC must keep exactly the edges of the reference at thresholds that keep 10 to 50 % of the edges.

auto-circuit needs HookedTransformer, which current TransformerLens no longer has, so it lives in an environment of its
own (.cache/auto-circuit in the project), made on the first run; this file, started there with --peer, is its side. Run:
python benchmarks/bench_circuits.py [--quick] [--two | --six], about ten minutes; quick leaves out the reference on the
6-layer graph.
"""

import contextlib
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).parents[1]
PLACE = ROOT / ".cache" / "auto-circuit"
NEEDS = ["auto-circuit==1.0.1", "transformer-lens<3", "pyarrow>=21,<23"]  # newer pyarrow wants another numpy
CASES = {
    "2 layers": {"layers": 2, "d_model": 12, "d_head": 3, "vocab": 16, "pairs": 1000, "width": 5, "scale": 0.3},
    "6 layers": {"layers": 6, "d_model": 64, "d_head": 16, "vocab": 64, "pairs": 100, "width": 16, "scale": 0.1},
}
TAUS = {"2 layers": (0.003, 0.01), "6 layers": (0.0003, 0.001, 0.0015)}
N_HEADS, ROUNDS, SHARES = 4, 3, (0.1, 0.5)


# ---------------------------------------------------------------------- the other environment


def peer(folder: pathlib.Path) -> None:
    """Answers `acdc TAU` and `eap` on standard input with seconds, and writes the scores into the folder."""
    import transformer_lens
    from auto_circuit import data
    from auto_circuit.prune_algos import ACDC, mask_gradient
    from auto_circuit.utils import graph_utils

    torch.set_num_threads(1)
    case = json.loads((folder / "case.json").read_text())
    tensors = load_file(folder / "tensors.safetensors")
    config = transformer_lens.HookedTransformerConfig(
        n_layers=case["layers"], n_heads=N_HEADS, d_model=case["d_model"], d_head=case["d_head"],
        d_mlp=4 * case["d_model"], n_ctx=case["width"], d_vocab=case["vocab"], act_fn="gelu", normalization_type=None,
        device="cpu",
    )  # fmt: skip
    pairs = {name: tensors.pop(f"pairs.{name}") for name in ("clean", "corrupt", "answers", "wrongs")}

    def wrapped(places: str | None):
        network = transformer_lens.HookedTransformer(config)
        network.load_state_dict(tensors, strict=False)
        for flag in ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in"):
            getattr(network, f"set_{flag}")(True)
        network.requires_grad_(False)
        return graph_utils.patchable_model(network, factorized=True, slice_output=places, separate_qkv=True)

    every, last = wrapped(None), wrapped("last_seq")
    rows = data.PromptDataset(pairs["clean"], pairs["corrupt"], pairs["answers"], pairs["wrongs"])
    loader = data.PromptDataLoader(rows, seq_len=None, diverge_idx=0, batch_size=len(rows), shuffle=False)
    with torch.no_grad():
        save_file({"logits": every(pairs["clean"]).contiguous()}, folder / "peer-logits.safetensors")
    say({"edges": every.n_edges})
    for line in sys.stdin:
        what, *tau = line.split()
        start = time.perf_counter()
        if what == "acdc":
            exponent = 0  # it takes a base and a power of ten
            found = ACDC.acdc_prune_scores(every, loader, None, tao_exps=[exponent], tao_bases=[float(tau[0])])
            seconds, model = time.perf_counter() - start, every
        else:
            found = mask_gradient.mask_gradient_prune_scores(last, loader, None, "logit", "avg_diff", mask_val=0.0)
            seconds, model = time.perf_counter() - start, last
        by_name = {edge.name: float(edge.prune_score(found)) for edge in model.edges}
        (folder / f"peer-{what}.json").write_text(json.dumps({name: by_name[name] for name in sorted(by_name)}))
        say({"seconds": seconds})


def say(answer: dict) -> None:
    print("answer " + json.dumps(answer), flush=True)


# ---------------------------------------------------------------------- our side


def environment() -> pathlib.Path:
    """The other environment's Python; made if it is not there."""
    import shared

    python, done = PLACE / "bin" / "python", PLACE / "made"
    if not done.exists():
        shared.report(f"making an environment for {NEEDS[0]}; this takes some minutes, once")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PLACE)], check=True)
        pinned = [f"torch=={torch.__version__}", *NEEDS]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *pinned], check=True)
        done.write_text("\n".join(pinned))
    return python


class Peer:
    """auto-circuit in its own process."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self._log = folder, (folder / "peer.log").open("w")
        command = [str(environment()), __file__, "--peer", str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.edges = self._answer()["edges"]

    def ask(self, what: str) -> float:
        """Seconds of a job."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()["seconds"]

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line[7:])
        raise RuntimeError("auto-circuit stopped:\n" + (self.folder / "peer.log").read_text()[-2000:])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # something it imports keeps a thread alive
            self._process.kill()
            self._process.wait()
        self._log.close()


def make(case: dict):
    """Our model, and its pairs read everywhere and read at the end."""
    from sonde.circuits import pairs as circuits_pairs
    from sonde.models import model as models_model
    from sonde.models import plain, tiny

    torch.manual_seed(0)
    config = plain.PlainConfig(
        vocab_size=case["vocab"], hidden_size=case["d_model"], num_hidden_layers=case["layers"],
        num_attention_heads=N_HEADS, head_dim=case["d_head"], max_position_embeddings=case["width"], hidden_act="gelu",
        initializer_range=case["scale"],
    )  # fmt: skip
    hf = plain.PlainForCausalLM(config)
    for parameter in hf.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=case["scale"] / 2)
    model = models_model.Model(hf, tiny.tokenizer(), name="plain")
    shape = (case["pairs"], case["width"])
    clean, corrupt = (torch.randint(0, case["vocab"], shape) for _ in range(2))
    answers, wrongs = (torch.randint(0, case["vocab"], (shape[0], 1)) for _ in range(2))
    everywhere = torch.ones(shape, dtype=torch.bool)
    of = circuits_pairs.Pairs.of_tensors
    return (
        model,
        of(clean, corrupt, answers=answers, wrongs=wrongs, read=everywhere),
        of(clean, corrupt, answers=answers, wrongs=wrongs),
    )


def exported(model, pairs) -> dict[str, torch.Tensor]:
    """Weights under TransformerLens names, and the pairs."""
    hf, cfg = model.hf, model.cfg
    found = {
        "embed.W_E": hf.model.embed_tokens.weight,
        "pos_embed.W_pos": hf.model.embed_positions.weight,
        "unembed.W_U": hf.lm_head.weight.T,
        "unembed.b_U": hf.lm_head.bias,
    }
    for index, layer in enumerate(hf.model.layers):
        at, attn = f"blocks.{index}", layer.self_attn
        for letter, one in (("Q", attn.q_proj), ("K", attn.k_proj), ("V", attn.v_proj)):
            found[f"{at}.attn.W_{letter}"] = one.weight.view(cfg.n_heads, cfg.d_head, -1).transpose(1, 2)
            found[f"{at}.attn.b_{letter}"] = one.bias.view(cfg.n_heads, cfg.d_head)
        found[f"{at}.attn.W_O"] = attn.o_proj.weight.T.reshape(cfg.n_heads, cfg.d_head, -1)
        found[f"{at}.attn.b_O"] = attn.o_proj.bias
        for side, one in (("in", layer.mlp.fc_in), ("out", layer.mlp.fc_out)):
            found[f"{at}.mlp.W_{side}"], found[f"{at}.mlp.b_{side}"] = one.weight.T, one.bias
    found |= {f"pairs.{name}": getattr(pairs, name) for name in ("clean", "corrupt", "answers", "wrongs")}
    return {name: value.detach().clone().contiguous() for name, value in found.items()}


def theirs(name: str) -> str:
    """An edge of ours as auto-circuit spells it: Resid Start->A0.1.Q, A0.1->MLP 1, MLP 1->Resid End."""
    words = {"input": "Resid Start", "logits": "Resid End"}

    def spelled(place: str) -> str:
        if place.startswith("m"):
            return f"MLP {place[1:]}"
        if not place.startswith("a"):
            return words[place]
        head, _, letter = place[1:].replace(".h", ".").partition("<")
        return f"A{head}" + (f".{letter[0].upper()}" if letter else "")

    source, _, destination = name.partition("->")
    return f"{spelled(source)}->{spelled(destination)}"


def timed(job):
    start = time.perf_counter()
    found = job()
    return time.perf_counter() - start, found


def compare(name: str, peer: Peer, model, everywhere, last) -> None:
    """All figures of one graph."""
    import shared
    from scipy import stats

    from sonde.circuits import registry

    acdc, eap = registry.get("acdc"), registry.get("eap")
    logits = load_file(peer.folder / "peer-logits.safetensors")["logits"]
    with torch.no_grad():
        worst = float((model.hf(input_ids=everywhere.clean).logits - logits).abs().max())
    assert worst < 1e-4, f"the two models differ by {worst}"

    ratios = []
    for _ in range(ROUNDS + 1):
        seconds, scores = timed(lambda: eap(model, last, "logit_diff"))
        ratios.append((peer.ask("eap") / seconds, seconds))
    peers = json.loads((peer.folder / "peer-eap.json").read_text())
    assert scores.graph.n_edges == len(peers) == peer.edges
    mine = [scores.values[scores.graph.edge(edge)] for edge in scores.graph.edges]
    other = [peers[theirs(edge)] for edge in scores.graph.edges]
    gain = float(np.median([ratio for ratio, _ in ratios[1:]]))
    shared.verdict(
        f"{name}, {peer.edges} edges, EAP ({ratios[-1][1] * 1e3:.0f} ms)", gain, "at least 1.3x", gain >= 1.3
    )
    rank = float(stats.spearmanr(np.abs(mine), np.abs(other)).statistic)
    shared.report(f"{name}, EAP: Spearman {rank:.6f} (bar: at least 0.999) {'ok' if rank >= 0.999 else 'MISSED'}")

    quick = "--quick" in sys.argv and model.cfg.n_layers > 2
    for tau in TAUS[name]:
        gains = []
        for _ in range(1 if model.cfg.n_layers > 2 else ROUNDS):
            seconds, scores = timed(functools.partial(acdc, model, everywhere, "kl", tau=tau))
            gains.append(peer.ask(f"acdc {tau}") / seconds)
        gain, share = float(np.median(gains)), len(scores.kept) / peer.edges
        what = f"{name}, ACDC at {tau} ({seconds:.2f} s, keeps {len(scores.kept)} edges, {share:.0%})"
        shared.verdict(what, gain, "at least 5x", gain >= 5 and SHARES[0] <= share <= SHARES[1])
        if not quick:
            slow, reference = timed(functools.partial(acdc, model, everywhere, "kl", tau=tau, fast=False))
            same = bool((reference.kept.edges == scores.kept.edges).all())
            text = f"{name}, ACDC at {tau}: the reference ({slow:.1f} s, {slow / seconds:.1f}x) keeps"
            shared.report(f"{text} {'the same edges: ok' if same else 'OTHER EDGES: MISSED'}")


def main() -> None:
    torch.set_num_threads(1)
    wanted = [name for name in CASES if f"--{'two' if name[0] == '2' else 'six'}" in sys.argv] or list(CASES)
    for name in wanted:
        model, everywhere, last = make(CASES[name])
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            place = pathlib.Path(folder)
            (place / "case.json").write_text(json.dumps(CASES[name]))
            save_file(exported(model, last), place / "tensors.safetensors")
            other = Peer(place)
            stack.callback(other.close)
            compare(name, other, model, everywhere, last)


if __name__ == "__main__":
    if "--peer" in sys.argv:
        peer(pathlib.Path(sys.argv[sys.argv.index("--peer") + 1]))
    else:
        main()
