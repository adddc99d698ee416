"""Published InterpBench models: a folder per case, read into models of Sonde's own.

    found, broken = published.places(Path("InterpBench"))     # {"3": InterpBench/3, …}, {"7": "has no ll_model.safetensors"}
    subject = published.opened("3", Path("InterpBench/3"))

    InterpBench/3/
        ll_model_cfg.json       TransformerLens' configuration: n_layers, n_heads, d_model, d_head, d_mlp, act_fn …
        ll_model.safetensors    its weights: embed.W_E, blocks.0.attn.W_Q [head d_model d_head], blocks.0.mlp.W_in …
        edges.json              the true circuit, [["blocks.0.hook_mlp_out", "blocks.1.hook_v_input[2]"], …]; optional
        meta.json               how it was trained; optional
        tokenizer.json          GPT-2's tokenizer; for `ioi` and `ioi_next_token` only

They are published as pickles (`ll_model_cfg.pkl`, `ll_model.pth`, `edges.pkl`), which can run code and which Sonde never reads; the
page "Experiments" of the documentation has the few lines that turn them into these files.

1. Weights get the names and shapes of Sonde's models (`published_weights`): without norms for numbered cases, GPT-2's for IOI.
2. Tokens and answers are put into Sonde's order; tracr sorts them by value, BOS and PAD among them.
3. The true circuit is the one in edges.json (`published_edges`), or that of Sonde's program of the case, at the places of the
   published models.
4. Inputs have the greatest length, the only one that these models were trained at.
5. The model proves itself: if it answers less than 90 % of 200 inputs as the program does, it is refused.

A folder may come from anyone: links that lead out of it, pipes and sizes that do not fit are refused. Costs the loading of one tiny
model and a forward pass.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonde.bench import (
    batched,
    cases,
    correspondence,
    high,
    published_edges,
    published_ioi,
    published_weights,
    rasp,
    shipped,
    siit,
    words,
)
from sonde.circuits import graph as circuits_graph
from sonde.core import errors
from sonde.models import folders, tokenizer_files
from sonde.models import model as models_model
from sonde.store import disk

CONFIG, MODEL, EDGES, META = published_weights.CONFIG, published_weights.MODEL, "edges.json", "meta.json"
FILES = (CONFIG, MODEL, EDGES)  # what figures depend on
PICKLES = ("ll_model_cfg.pkl", "ll_model.pth")
LARGEST_EDGES = 16 * folders.MIB
BOS, PAD = "BOS", "PAD"
LEAST, ROWS = 0.9, 200
MOVED = {"3": {"a1.h0": "a1.h2"}}  # nodes that do not stand where they stand in the program
SPELLED = frozenset({"30"})  # cases whose published models know numbers as words, and sort them so
CONVERT = f"turn them into {CONFIG} and {MODEL} with the lines on the page 'Experiments' of the documentation"


def places(folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """The folder of each case, those below this one or this one, and why others cannot be one.

    Raises:
        RequestError: There are only pickles, or nothing.
        StoreError: The folder cannot be read.
    """
    with disk.explained(folder, doing="read"):
        below = sorted(folder.iterdir()) if folder.is_dir() else []
    some = [(folder, _names(folder)), *((place, _names(place)) for place in below if place.is_dir())]
    found: dict[str, Path] = {}
    broken: dict[str, str] = {}
    pickled = [place for place, names in some if names & {*PICKLES} and not names & {CONFIG, MODEL}]
    for place, names in some:
        outside = place.is_symlink() and not place.resolve().is_relative_to(folder.resolve())
        if place != folder and outside and (names & {CONFIG, MODEL} or _is_case(place.name)):
            broken[place.name] = f"is a link that leads out of {folder}: put the folder itself there"
        elif place in pickled:
            broken[place.name] = f"holds pickles ({', '.join(PICKLES)}), which can run code and are not read: {CONVERT}"
        elif {CONFIG, MODEL} <= names:
            found[place.name] = place
        elif names & {CONFIG, MODEL} or (place != folder and _is_case(place.name)):
            broken[place.name] = f"has no {' and no '.join(name for name in (CONFIG, MODEL) if name not in names)}"
    if not found and pickled:
        raise errors.RequestError(f"{pickled[0]} {broken[pickled[0].name]}")
    if not found:
        raise errors.RequestError(
            f"{folder} is no InterpBench folder: no {CONFIG} and {MODEL} in it or one level below"
        )
    return found, broken


def opened(case: str, place: Path, *, least: float = LEAST) -> shipped.Subject:
    """The published model of a case.

    Args:
        case: A number, `ioi` or `ioi_next_token`.
        place: Its folder.
        least: The share of answers that it must give as its program does.

    Raises:
        ModelError: Its files cannot be read, or do not fit each other.
        RequestError: It is one of another kind or case, or does not do its task.
    """
    if not _is_case(case):
        raise errors.RequestError(
            f"{place}: {case!r:.40} is no case: name the folder by its number, or {' or '.join(shipped.IOI)}"
        )
    folder = folders.Folder(place)
    with disk.explained(place, doing="read"):
        hf, tokenizer, task = (_ioi if case in shipped.IOI else _numbered)(case, folder)
        meta, edges = folder.json(META) or {}, _edges(folder)
    _prove(hf, task, place, least)
    heads = hf.config.num_attention_heads
    program, low = task.program.circuit, circuits_graph.Graph(hf.config.num_hidden_layers, heads, heads)
    try:
        own = correspondence.draw(program, low, same_place=True) | MOVED.get(case, {})
        truth = correspondence.carried(program, own, low) if edges is None else published_edges.circuit(edges, low)
    except errors.RequestError as error:
        raise errors.RequestError(f"{place / EDGES if edges is not None else place}: {error}") from error
    name, log = f"case-{case}-published", {"task": task.name, "places": own, "published": str(place), "meta": meta}
    return shipped.Subject(
        name, models_model.Model(hf, tokenizer, name=name), truth, task, log, shipped.positional(case)
    )


def _names(place: Path) -> set[str]:
    """What is in a folder; nothing if it cannot be read."""
    try:
        return {path.name for path in place.iterdir()}
    except OSError:
        return set()


def _is_case(name: str) -> bool:
    known = {str(case) for case in cases.ids("all")}
    return name in known or name in shipped.IOI


def _edges(folder: folders.Folder) -> Any:
    content = folder.read(EDGES, most=LARGEST_EDGES)
    if content is None:
        return None
    with folders.explained(f"{folder.path / EDGES} is no JSON"):
        return json.loads(content)


def _numbered(case: str, folder: folders.Folder) -> tuple[Any, Any, high.Task]:
    """Network, tokenizer and task of a numbered case."""
    config = published_weights.config(folder)
    weights = published_weights.plain(config, published_weights.state(folder, config))
    task, compiled = shipped.task_of(case), cases.get(int(case)).compiled()
    length = max(task.inputs.lengths)
    if config.shape.n_positions <= length:
        raise errors.RequestError(
            f"{folder.path / CONFIG}: n_ctx is {config.shape.n_positions}, case {case} has inputs of {length} tokens after BOS"
        )
    inputs: Any = task.inputs
    task = dataclasses.replace(task, inputs=dataclasses.replace(inputs, lengths=(length,)))
    row = batched.joined(config.shape, _ordered(weights, case))
    return batched.to_plain(config.shape, row[0]), words.tokenizer(compiled.vocabulary), task


def _ioi(case: str, folder: folders.Folder) -> tuple[Any, Any, high.Task]:
    """Network, tokenizer and task of an IOI model."""
    config = published_weights.config(folder, norms=("LNPre",))
    hf = published_weights.gpt2(config, published_weights.state(folder, config))
    if folder.file("tokenizer.json") is None:
        raise errors.ModelError(
            f"{folder.path} has no tokenizer.json: IOI models read GPT-2's tokens; put its tokenizer there "
            f"(hf download gpt2 tokenizer.json --local-dir {folder.path})"
        )
    tokenizer = tokenizer_files.read(folder, hf.config)
    return hf, tokenizer, published_ioi.task(case, tokenizer, d_vocab=config.shape.d_vocab)


def _ordered(weights: dict[str, Tensor], case: str) -> dict[str, Tensor]:
    """Rows of the embedding and of the unembedding in Sonde's order."""
    compiled = cases.get(int(case)).compiled()
    theirs = sorted_as_tracr((*compiled.vocabulary, BOS, PAD), spelled=case in SPELLED)
    tokens = [theirs.index(word) for word in (*compiled.vocabulary, BOS, PAD)]
    table = weights["model.embed_tokens.weight"]
    if len(table) != len(tokens):
        raise errors.RequestError(
            f"case {case} has {len(tokens)} tokens, the model {len(table)}: is it another case's?"
        )
    found = weights | {"model.embed_tokens.weight": table[tokens]}
    if compiled.outputs is not None and len(compiled.outputs) == len(weights["lm_head.bias"]):
        known = sorted_as_tracr(compiled.outputs)
        answers = [known.index(value) for value in compiled.outputs]
        found |= {name: weights[name][answers] for name in ("lm_head.weight", "lm_head.bias")}
    return found


def sorted_as_tracr(values: Sequence[rasp.Value], *, spelled: bool = False) -> list[rasp.Value]:
    """Values in tracr's order: by value, numbers before words; `spelled`: as the words that stand for them."""
    some: list[Any] = list(values)
    if spelled:
        return sorted(some, key=str)
    try:
        return sorted(some)
    except TypeError:
        return sorted(some, key=lambda one: (isinstance(one, str), one if not isinstance(one, str) else 0, str(one)))


def _prove(hf: Any, task: high.Task, place: Path, least: float) -> None:
    inputs, _ = task.inputs.pair(np.random.default_rng(0), ROWS, length=max(task.inputs.lengths))
    none = torch.zeros(1, ROWS, len(correspondence.nodes_of(task.program.circuit)), dtype=torch.bool)
    labels = task.program.answers(inputs, inputs, none)[0, :, task.counted]
    with torch.no_grad():
        logits = torch.cat([hf(part).logits[:, task.counted] for part in inputs.split(50)])
    right = (logits[..., 0] - labels).abs() < siit.TOLERANCE if task.regression else logits.argmax(-1) == labels
    share = float(right.float().mean())
    if share < least:
        raise errors.RequestError(
            f"{place} answers {share:.1%} of {ROWS} inputs as {task.name} does, expected at least {least:.0%}: is it the model "
            "of another case, or are its tokens in another order? (the leaderboard's --least takes it as it is)"
        )
