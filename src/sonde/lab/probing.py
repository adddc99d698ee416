"""What can be read off the stream, layer by layer? Linear probes with their baselines.

    body = probing.survey(bench, inquiry, tools.Probe(yes=("It is warm", …), no=("It is cold", …)))

1. Rows are texts of two kinds, `yes` and `no`; or the task's prompts, all but the held-out ones, those with one of `answers`
   against the others.
2. The stream after each layer at the last token is probed by logistic regression, with whole texts held out (`analysis.probes`).
3. Each row has the AUROC with its interval, a permutation p-value corrected over the layers, and what it has to beat: a probe
   on shuffled labels, the majority, the words of the text, random features.

Costs a forward pass a text, and some seconds a layer.
"""

import time
from typing import Any

import numpy as np

from sonde.analysis import examples as analysis_examples
from sonde.analysis import probes
from sonde.core import errors
from sonde.lab import experiments, inquiries, tools

SHOWN = 6
LEAST, FOLDS = 6, 3
BESIDE = ("majority", "bag of words", "random features")


def survey(bench: experiments.Experiments, inquiry: inquiries.Inquiry, asked: tools.Probe) -> dict[str, Any]:
    """Probes the stream after each layer asked for.

    Raises:
        RequestError: Too few texts on a side, or no such layer.
        AnalysisError: The probe cannot be fitted.
    """
    began = time.monotonic()
    texts, labels = _labelled(bench, inquiry, asked)
    positive = int(labels.sum())
    if min(positive, len(labels) - positive) < LEAST:
        raise errors.RequestError(
            f"{positive} texts on one side and {len(labels) - positive} on the other; a probe needs {LEAST} of each: give "
            "`yes` and `no` texts"
        )
    layers = list(dict.fromkeys(asked.layers)) or list(range(bench.n_layers))
    names = [f"blocks.{layer}.hook_resid_post" for layer in layers]
    found: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}
    for text in texts:
        _, cache = bench.model.run_with_cache(text, names)
        for layer, name in zip(layers, names, strict=True):
            found[layer].append(cache[name][0, -1].float().cpu().numpy())
    cells = {analysis_examples.Cell(layer, "last_prompt"): np.stack(values) for layer, values in found.items()}
    order = np.arange(len(texts))
    rows_of = analysis_examples.Examples(labels, order, np.zeros(len(texts), dtype=np.int64), before=tuple(texts))
    settings = analysis_examples.Settings(folds=FOLDS, inner_folds=2, least=LEAST // 2, seed=inquiry.settings.seed)
    swept = probes.sweep(cells, rows_of, settings)
    (baselines,) = swept.baselines.values() if swept.baselines else ({},)
    beside = {name: round(one.auroc.value, 4) for name, one in baselines.items() if name in BESIDE}
    rows = []
    for cell, one in swept.cells.items():
        auroc = one.scored.auroc
        row = {"what": f"r{cell.layer}", "layer": cell.layer, "n": one.n, "auroc": round(auroc.value, 4)}
        row |= {"low": round(auroc.low, 4), "high": round(auroc.high, 4), "p_corrected": round(one.adjusted, 4)}
        rows.append(row | {"shuffled": None if one.control is None else round(one.control, 4), **beside})
    best = sorted(rows, key=lambda row: -row["auroc"])[:SHOWN]
    summary = {"texts": len(texts), "yes": positive, "must_beat": beside, "best": best}
    return {"rows": rows, "summary": summary, "seconds": round(time.monotonic() - began, 3)}


def _labelled(
    bench: experiments.Experiments, inquiry: inquiries.Inquiry, asked: tools.Probe
) -> tuple[list[str], np.ndarray]:
    if bool(asked.yes or asked.no) == bool(asked.answers):
        raise errors.RequestError("say what to probe for: texts as `yes` and `no`, or `answers` of the task")
    if asked.answers:
        held = set(inquiry.settings.held_out)
        chosen = [one for at, one in enumerate(bench.task.examples) if at not in held]
        wanted = {one.strip() for one in asked.answers}
        return [one.prompt for one in chosen], np.array(
            [one.answers[0].strip() in wanted for one in chosen], dtype=bool
        )
    texts = [*asked.yes, *asked.no]
    return texts, np.arange(len(texts)) < len(asked.yes)
