"""How are the published InterpBench models used here? A folder per case, read into the shape of Sonde's own models.

    published.places(Path("InterpBench"))                       # {"3": InterpBench/3, …}
    subject = published.opened("3", Path("InterpBench/3"))

    InterpBench/3/
        ll_model_cfg.json       TransformerLens' configuration: n_layers, n_heads, d_model, d_head, d_mlp, act_fn …
        ll_model.safetensors    its weights: embed.W_E, blocks.0.attn.W_Q [head d_model d_head], blocks.0.mlp.W_in …
        edges.json              the true circuit, [["blocks.0.mlp.hook_post", "blocks.1.attn.hook_result[2]"], …]; optional
        meta.json               how it was trained; optional

They are published as pickles (`ll_model_cfg.pkl`, `ll_model.pth`, `edges.pkl`), which can run code and which Sonde never reads; the
page "Experiments" of the documentation has the few lines that turn them into these files.

1. Weights get the names and shapes of `plain.PlainForCausalLM`. Models with norms or rotary positions are refused.
2. Tokens and answers are put into Sonde's order; tracr sorts them by value, BOS and PAD among them.
3. The true circuit is the one in edges.json, or that of Sonde's program of the case, at the places of the published models.
4. The model proves itself: if it answers less than 90 % of 200 inputs as the program does, it is refused.

Costs the loading of one tiny model and a forward pass.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from sonde.bench import batched, cases, correspondence, high, rasp, shipped, siit, words
from sonde.circuits import graph as circuits_graph
from sonde.core import errors
from sonde.models import model as models_model
from sonde.store import disk

CONFIG, MODEL, EDGES, META = "ll_model_cfg.json", "ll_model.safetensors", "edges.json", "meta.json"
PICKLES = ("ll_model_cfg.pkl", "ll_model.pth")
BOS, PAD = "BOS", "PAD"
LEAST, ROWS = 0.9, 200
MOVED = {"3": {"a1.h0": "a1.h2"}}  # nodes that do not stand where they stand in the program
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_pytorch_tanh"}
_HEAD = re.compile(r"(?:blocks\.(\d+)\.attn\.\w+\[(?:.*\D)?(\d+)\D*\]|a(\d+)\.h(\d+))")
_MLP = re.compile(r"(?:blocks\.(\d+)\.(?:mlp|hook_mlp)\S*|m(\d+))")


def places(folder: Path) -> dict[str, Path]:
    """The folder of each case: those below this one, or this one.

    Raises:
        RequestError: There are only pickles, or nothing.
    """
    some = [folder, *sorted(folder.iterdir())] if folder.is_dir() else []
    found = {place.name: place for place in some if (place / CONFIG).is_file() and (place / MODEL).is_file()}
    if not found:
        pickled = [place for place in some if any((place / name).is_file() for name in PICKLES)]
        if pickled:
            raise errors.RequestError(
                f"{pickled[0]} holds pickles ({', '.join(PICKLES)}), which can run code and are not read: turn them into "
                f"{CONFIG} and {MODEL} with the lines on the page 'Experiments' of the documentation"
            )
        raise errors.RequestError(
            f"{folder} is no InterpBench folder: no {CONFIG} and {MODEL} in it or one level below"
        )
    return found


def told(folder: Path) -> str:
    """Which cases a folder has, in words."""
    return ", ".join(sorted(places(folder), key=lambda name: (len(name), name)))


def opened(case: str, place: Path) -> shipped.Subject:
    """The published model of a case.

    Raises:
        RequestError: It is one of another kind or case, or does not do its task.
    """
    if not case.isdecimal():
        raise errors.RequestError(
            f"{place} is no numbered case: the published IOI models read GPT-2's tokens, Sonde's IOI task has its own "
            "words; only numbered cases can be loaded"
        )
    task = shipped.task_of(case)
    with disk.explained(place, doing="read"):
        config, weights = _json(place / CONFIG), safetensors.torch.load_file(place / MODEL)
        meta = _json(place / META) if (place / META).is_file() else {}
        edges = _json(place / EDGES) if (place / EDGES).is_file() else None
    shape = _shape(config, place)
    row = batched.joined(shape, _ordered(_plain(weights, shape, place), case))
    name = f"case-{case}-published"
    hf = batched.to_plain(shape, row[0])
    low = circuits_graph.Graph(shape.n_layers, shape.n_heads, shape.n_heads)
    program = task.program.circuit
    own = correspondence.draw(program, low, same_place=True) | MOVED.get(case, {})
    truth = correspondence.carried(program, own, low) if edges is None else _circuit(edges, low, place)
    model = models_model.Model(hf, words.tokenizer(cases.get(int(case)).compiled().vocabulary), name=name)
    _prove(hf, task, place)
    log = {"task": task.name, "places": own, "published": str(place), "meta": meta}
    return shipped.Subject(name, model, truth, task, log, shipped.positional(case))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise errors.RequestError(f"{path} is no JSON: {error}") from error


def _shape(config: Mapping[str, Any], place: Path) -> batched.Shape:
    expected = {"normalization_type": (None,), "positional_embedding_type": (None, "standard")}
    expected |= {"attention_dir": (None, "causal", "bidirectional"), "act_fn": tuple(ACTIVATIONS)}
    for name, known in expected.items():
        if config.get(name) not in known:
            raise errors.RequestError(
                f"{place / CONFIG}: {name} is {config.get(name)!r}, expected {' or '.join(map(str, known))}"
            )
    try:
        sizes = {name: int(config[name]) for name in ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab")}
        out = int(config.get("d_vocab_out", -1))
        return batched.Shape(
            **sizes, d_out=out if out > 0 else sizes["d_vocab"], n_positions=int(config["n_ctx"]),
            causal=config.get("attention_dir") != "bidirectional", activation=ACTIVATIONS[config["act_fn"]],
        )  # fmt: skip
    except KeyError as error:
        raise errors.RequestError(f"{place / CONFIG} does not say {error.args[0]}") from error


def _plain(state: Mapping[str, Tensor], shape: batched.Shape, place: Path) -> dict[str, Tensor]:
    """TransformerLens' weights under the names and in the shapes of transformers."""
    try:
        found = {
            "model.embed_tokens.weight": state["embed.W_E"],
            "model.embed_positions.weight": state["pos_embed.W_pos"],
            "lm_head.weight": state["unembed.W_U"].T,
            "lm_head.bias": state["unembed.b_U"],
        }
        for layer in range(shape.n_layers):
            theirs, ours = f"blocks.{layer}", f"model.layers.{layer}"
            for letter in "QKV":
                at = f"{ours}.self_attn.{letter.lower()}_proj"
                found[f"{at}.weight"] = state[f"{theirs}.attn.W_{letter}"].transpose(1, 2).flatten(0, 1)
                found[f"{at}.bias"] = state[f"{theirs}.attn.b_{letter}"].flatten()
            found[f"{ours}.self_attn.o_proj.weight"] = state[f"{theirs}.attn.W_O"].flatten(0, 1).T
            found[f"{ours}.self_attn.o_proj.bias"] = state[f"{theirs}.attn.b_O"]
            for name, letter in (("fc_in", "in"), ("fc_out", "out")):
                found[f"{ours}.mlp.{name}.weight"] = state[f"{theirs}.mlp.W_{letter}"].T
                found[f"{ours}.mlp.{name}.bias"] = state[f"{theirs}.mlp.b_{letter}"]
    except KeyError as error:
        raise errors.RequestError(f"{place / MODEL} has no {error.args[0]}: is it TransformerLens' state?") from error
    return found


def _ordered(weights: dict[str, Tensor], case: str) -> dict[str, Tensor]:
    """Rows of the embedding and of the unembedding in Sonde's order."""
    compiled = cases.get(int(case)).compiled()
    theirs = _sorted((*compiled.vocabulary, BOS, PAD))
    tokens = [theirs.index(word) for word in (*compiled.vocabulary, BOS, PAD)]
    table = weights["model.embed_tokens.weight"]
    if len(table) != len(tokens):
        raise errors.RequestError(
            f"case {case} has {len(tokens)} tokens, the model {len(table)}: is it another case's?"
        )
    found = weights | {"model.embed_tokens.weight": table[tokens]}
    if compiled.outputs is not None and len(compiled.outputs) == len(weights["lm_head.bias"]):
        known = _sorted(compiled.outputs)
        answers = [known.index(value) for value in compiled.outputs]
        found |= {name: weights[name][answers] for name in ("lm_head.weight", "lm_head.bias")}
    return found


def _sorted(values: Sequence[rasp.Value]) -> list[rasp.Value]:
    """Values as tracr sorts them: by value, or numbers before words."""
    some: list[Any] = list(values)
    try:
        return sorted(some)
    except TypeError:
        return sorted(some, key=lambda one: (isinstance(one, str), one if not isinstance(one, str) else 0, str(one)))


def _circuit(edges: Any, low: circuits_graph.Graph, place: Path) -> circuits_graph.Circuit:
    """A circuit from pairs of nodes; a head is read by its queries, keys and values."""
    names = []
    for source, destination in edges:
        one, two = (_node(str(text), place) for text in (source, destination))
        one = circuits_graph.INPUT if one == circuits_graph.LOGITS else one
        readers = [f"{two}<{letter}>" for letter in "qkv"] if two.startswith("a") else [two]
        names += [f"{one}->{reader}" for reader in readers]
    return circuits_graph.Circuit.of(low, names)


def _node(text: str, place: Path) -> str:
    if found := _HEAD.search(text):
        layer, head, *own = found.groups()
        return f"a{layer or own[0]}.h{head or own[1]}"
    if found := _MLP.search(text):
        return f"m{found.group(1) or found.group(2)}"
    if ("embed" in text and "unembed" not in text) or text == circuits_graph.INPUT or text.endswith("hook_resid_pre"):
        return circuits_graph.INPUT
    if text == circuits_graph.LOGITS or "unembed" in text or text.endswith("hook_resid_post"):
        return circuits_graph.LOGITS
    raise errors.RequestError(f"{place / EDGES}: {text!r} is no node; write blocks.0.attn.hook_result[1], m0, input …")


def _prove(hf: Any, task: high.Task, place: Path) -> None:
    inputs, _ = task.inputs.pair(np.random.default_rng(0), ROWS, length=max(task.inputs.lengths))
    none = torch.zeros(1, ROWS, len(correspondence.nodes_of(task.program.circuit)), dtype=torch.bool)
    labels = task.program.answers(inputs, inputs, none)[0, :, task.counted]
    with torch.no_grad():
        logits = hf(inputs).logits[:, task.counted]
    right = (logits[..., 0] - labels).abs() < siit.TOLERANCE if task.regression else logits.argmax(-1) == labels
    share = float(right.float().mean())
    if share < LEAST:
        raise errors.RequestError(
            f"{place} answers {share:.1%} of {ROWS} inputs as {task.name} does, expected at least {LEAST:.0%}: is it the model "
            "of another case, or are its tokens in another order?"
        )
