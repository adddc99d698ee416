"""Published InterpBench folders, written as they are published: pickles, and as the documented lines make them: plain files."""

import json
import os
import pickle
import re
from pathlib import Path

import numpy as np
import safetensors.torch
import tokenizers
import torch

from sonde.bench import cases, published, published_ioi, sizes

DOCS = Path(__file__).parents[3] / "docs" / "experiments.md"
IOI = {
    "n_layers": 6,
    "n_heads": 4,
    "d_model": 64,
    "d_head": 16,
    "d_mlp": 3072,
    "d_vocab": 50257,
    "d_vocab_out": 50257,
    "n_ctx": 64,
}
BROKEN = ("missing", "forged", "shapes", "numbers", "edges", "pipe", "link")


def config_of(case):
    """The configuration of a case's published model, by the published sizes."""
    one = cases.get(case)
    compiled, size = one.compiled(), sizes.of(case)
    found = {
        "n_layers": size.n_layers, "n_heads": size.n_heads, "d_model": size.d_model, "d_head": size.d_head,
        "d_mlp": 4 * size.d_model, "d_vocab": len(compiled.vocabulary) + 2, "d_vocab_out": len(compiled.outputs or (0,)),
        "n_ctx": one.max_length,
    }  # fmt: skip
    own = {"act_fn": "gelu", "normalization_type": None, "attention_dir": "causal" if one.causal else "bidirectional"}
    return (
        found
        | own
        | {
            "attn_scale": (2 * size.d_head) ** 0.5,
            "use_attn_scale": True,
            "eps": 1e-5,
            "seed": 0,
            "model_name": "custom",
        }
    )


def config_of_ioi(**changes):
    own = {
        "act_fn": "gelu_new",
        "normalization_type": "LNPre",
        "attention_dir": "causal",
        "attn_scale": 8.0,
        "eps": 1e-5,
    }
    return IOI | own | changes


def random_state(config, seed=0):
    """Weights of a configuration, under TransformerLens' names, with what else it keeps."""
    rng = np.random.default_rng(seed)
    n, heads, d, width, mlp = (config[name] for name in ("n_layers", "n_heads", "d_model", "d_head", "d_mlp"))
    shapes = {
        "embed.W_E": (config["d_vocab"], d), "pos_embed.W_pos": (config["n_ctx"], d),
        "unembed.W_U": (d, config["d_vocab_out"]), "unembed.b_U": (config["d_vocab_out"],),
    }  # fmt: skip
    for layer in range(n):
        at = f"blocks.{layer}"
        for letter in "QKV":
            shapes |= {f"{at}.attn.W_{letter}": (heads, d, width), f"{at}.attn.b_{letter}": (heads, width)}
        shapes |= {f"{at}.attn.W_O": (heads, width, d), f"{at}.attn.b_O": (d,)}
        shapes |= {
            f"{at}.mlp.W_in": (d, mlp),
            f"{at}.mlp.b_in": (mlp,),
            f"{at}.mlp.W_out": (mlp, d),
            f"{at}.mlp.b_out": (d,),
        }
    found = {
        name: torch.from_numpy(
            rng.standard_normal(size, dtype=np.float32)
            * (size[-2] ** -0.5 if ".W_" in name and not name.endswith(("W_E", "W_pos")) else 0.3)
        )
        for name, size in shapes.items()
    }
    for layer in range(n):
        found[f"blocks.{layer}.attn.mask"] = torch.ones(config["n_ctx"], config["n_ctx"], dtype=torch.bool).tril()
        found[f"blocks.{layer}.attn.IGNORE"] = torch.tensor(-torch.inf)
    return found


def forward(config, state, tokens):
    """Logits as the definitions of TransformerLens have them, in plain torch."""
    stream = state["embed.W_E"][tokens] + state["pos_embed.W_pos"][: tokens.shape[1]]
    bend = {"gelu": torch.nn.functional.gelu, "relu": torch.relu}.get(
        config["act_fn"], lambda one: torch.nn.functional.gelu(one, approximate="tanh")
    )

    def normed(one):
        if config["normalization_type"] is None:
            return one
        one = one - one.mean(-1, keepdim=True)
        return one / (one.pow(2).mean(-1, keepdim=True) + config["eps"]).sqrt()

    for layer in range(config["n_layers"]):
        at = f"blocks.{layer}.attn"
        q, k, v = (
            torch.einsum("bpd,hdw->bhpw", normed(stream), state[f"{at}.W_{one}"]) + state[f"{at}.b_{one}"][:, None]
            for one in "QKV"
        )
        scores = q @ k.mT / config["attn_scale"]
        if config["attention_dir"] == "causal":
            scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), -torch.inf)
        mixed = scores.softmax(-1) @ v
        stream = stream + torch.einsum("bhpw,hwd->bpd", mixed, state[f"{at}.W_O"]) + state[f"{at}.b_O"]
        at = f"blocks.{layer}.mlp"
        stream = (
            stream
            + bend(normed(stream) @ state[f"{at}.W_in"] + state[f"{at}.b_in"]) @ state[f"{at}.W_out"]
            + state[f"{at}.b_out"]
        )
    return normed(stream) @ state["unembed.W_U"] + state["unembed.b_U"]


def names_of(circuit):
    """A circuit in the published names, with what they have inside heads and MLPs."""
    found = []
    for edge in circuit.names:
        source, destination = edge.split("->")
        ones = ["hook_embed", "hook_pos_embed"] if source == "input" else [_writer(source)]
        found += [(one, _reader(destination, circuit.graph.n_layers)) for one in ones]
        if "<" in destination:
            layer, head, letter = re.fullmatch(r"a(\d+)\.h(\d+)<(.)>", destination).groups()
            inner = f"blocks.{layer}.attn.hook_{letter}[{head}]"
            found += [(_reader(destination, 0), inner), (inner, _writer(f"a{layer}.h{head}"))]
        elif destination.startswith("m"):
            found.append((_reader(destination, 0), _writer(destination)))
    return found


def _writer(node):
    if node.startswith("m"):
        return f"blocks.{node[1:]}.hook_mlp_out"
    layer, head = re.fullmatch(r"a(\d+)\.h(\d+)", node).groups()
    return f"blocks.{layer}.attn.hook_result[{head}]"


def _reader(name, n_layers):
    if name == "logits":
        return f"blocks.{n_layers - 1}.hook_resid_post"
    if name.startswith("m"):
        return f"blocks.{name[1:]}.hook_mlp_in"
    layer, head, letter = re.fullmatch(r"a(\d+)\.h(\d+)<(.)>", name).groups()
    return f"blocks.{layer}.hook_{letter}_input[{head}]"


def pickled(place, config, state, edges):
    """A folder as it is published."""
    place.mkdir(parents=True)
    torch.save(state, place / "ll_model.pth")
    for name, content in (("ll_model_cfg.pkl", config), ("edges.pkl", edges)):
        (place / name).write_bytes(pickle.dumps(content))
    (place / "meta.json").write_text(json.dumps({"lr": 0.001, "iit_weight": 1.0}))
    return place


def converted(place, config, state, edges=None):
    """A folder as the documented lines make it."""
    place.mkdir(parents=True)
    safetensors.torch.save_file({name: one.contiguous() for name, one in state.items()}, place / published.MODEL)
    (place / published.CONFIG).write_text(json.dumps(config))
    if edges is not None:
        (place / published.EDGES).write_text(json.dumps(edges))
    return place


def converter():
    """The documented lines."""
    (lines,) = (one for one in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "pickle" in one)
    return lines


def gpt2_tokenizer(place, size=50257):
    """A tokenizer of GPT-2's kind and size that knows the words of the sentences; what is left are fillers."""
    words = {*published_ioi.FRAME, *published_ioi.NAMES, *published_ioi.PLACES, *published_ioi.THINGS}
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = dict.fromkeys(
        (word[:at], word[at])
        for text in sorted(words)
        for word in [text.replace(" ", "Ġ")]
        for at in range(1, len(word))
    )
    known = dict.fromkeys([*letters, *("".join(pair) for pair in merges)])
    fill = (f"filler{number}" for number in range(size))
    vocabulary = [*known, *(next(fill) for _ in range(size - 1 - len(known))), published_ioi.BOS]
    model = tokenizers.models.BPE({word: index for index, word in enumerate(vocabulary)}, list(merges))
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([published_ioi.BOS])
    made.save(str(place / "tokenizer.json"))


def broken(place, how):
    """Breaks a folder."""
    model, config = place / published.MODEL, place / published.CONFIG
    if how == "missing":
        model.unlink()
    elif how == "forged":
        config.write_text('{"n_layers": 1e999, "n_heads": {}}')
    elif how == "shapes":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"d_mlp": 7}))
    elif how == "numbers":
        weights = safetensors.torch.load_file(model)
        weights["unembed.b_U"][0] = torch.nan
        safetensors.torch.save_file(weights, model)
    elif how == "edges":
        (place / published.EDGES).write_text('[["blocks.0.attn.hook_result[99]", "blocks.1.hook_mlp_in"]]')
    elif how == "pipe":
        model.unlink()
        os.mkfifo(model)
    elif how == "link":
        away = place.parent.parent / f"away-{place.name}"
        model.rename(away)
        model.symlink_to(away)
