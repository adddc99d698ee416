"""Which component carries the answer from the prompt to the end? Activation patching between minimal pairs of a task.

    body = patching.survey(bench, inquiry, tools.PatchPairs(component="mlp", layers=(3, 4)))

1. A pair is two prompts of as many tokens with different answers: of those among the exploring examples, the two that differ
   in the fewest tokens; or texts that are given, with what the intact model says to each as the answers.
2. What a component has in the corrupt run is put into the clean one (`analysis.tracing.sweeps`), at the last of the tokens
   that differ (`changed`) and at the last token of all (`final`).
3. `success`: share of pairs in which that brings the corrupt prompt's answer about, with the exact binomial interval; `recovery`:
   how much of the difference of the two answers' logits it brings about. Pairs that the model does not answer both ways
   are left out, and counted.
4. Control: the same, with values from a third prompt with yet another answer. It must not bring the pair's answer about.

Costs about a quarter of a forward pass per cell and pair, twice over for the control.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde.analysis.tracing import metrics, pairs, sweeps
from sonde.core import errors
from sonde.lab import experiments, inquiries, tools
from sonde.models import model as models_model

SHOWN = 8
_LETTER = {"residual_stream": "r", "attention": "a", "mlp": "m", "attention_heads": "a"}


def survey(bench: experiments.Experiments, inquiry: inquiries.Inquiry, asked: tools.PatchPairs) -> dict[str, Any]:
    """Patches a component at all layers asked for.

    Raises:
        RequestError: There are fewer than two pairs, or the texts that were given do not match.
    """
    began = time.monotonic()
    if len(asked.clean) != len(asked.corrupt):
        raise errors.RequestError(
            f"{len(asked.clean)} clean texts and {len(asked.corrupt)} corrupt ones: give as many of each"
        )
    given = (
        _given(bench.model, asked.clean, asked.corrupt) if asked.clean else _of_task(bench, inquiry.settings.explore)
    )
    found, controls = given
    if len(found) < 2:
        raise errors.RequestError(
            f"{len(found)} pairs of prompts of as many tokens with different answers: give texts as `clean` and `corrupt`"
        )
    settings = sweeps.Settings(layers=asked.layers or None, positions=[sorted(_roles(one).values()) for one in found])
    whole = metrics.kept(sweeps.sweep(bench.model, found, asked.component, settings=settings))
    if len(whole.indices) < 2:
        raise errors.RequestError(
            f"the model answers {len(whole.indices)} of {len(found)} pairs both ways; two are needed"
        )
    roles = [_spread(found[index]) for index in whole.indices]
    beside = [controls[index] for index in whole.indices]
    real = [at for at, one in enumerate(beside) if one is not None]
    tables = {name: metrics.by_role(whole.sweep, roles, name) for name in ("success", "recovery")}
    control = None
    if len(real) >= 2:
        chosen = [one for one in beside if one is not None]
        settings = sweeps.Settings(
            layers=asked.layers or None, positions=[sorted(_roles(found[whole.indices[at]]).values()) for at in real]
        )
        other = sweeps.sweep(bench.model, chosen, asked.component, settings=settings)
        control = metrics.by_role(other, [roles[at] for at in real], "success")
    rows = _rows(asked.component, tables, control)
    best = sorted(rows, key=lambda row: -(row["recovery"] or 0.0))[:SHOWN]
    short = [{name: row[name] for name in ("what", "role", "success", "recovery", "n", "control")} for row in best]
    summary = {"pairs": len(whole.indices), "left_out": sum(whole.dropped.values()), "strongest": short}
    return {"rows": rows, "summary": summary, "seconds": round(time.monotonic() - began, 3)}


def _of_task(
    bench: experiments.Experiments, examples: Sequence[int]
) -> tuple[list[pairs.TracePair], list[pairs.TracePair | None]]:
    """Each exploring example with the one that differs least, and with a third one for the control."""
    encode, task = bench.model.tokenizer.encode, bench.task
    prompts = {at: tuple(encode(task.examples[at].prompt)) for at in examples}
    answers = {at: encode(task.examples[at].answers[0], add_special_tokens=False)[0] for at in examples}
    found, controls = [], list[pairs.TracePair | None]()
    for at in examples:
        others = [one for one in examples if len(prompts[one]) == len(prompts[at]) and answers[one] != answers[at]]
        others.sort(key=lambda one: sum(a != b for a, b in zip(prompts[one], prompts[at], strict=True)))
        if others:
            best = others[0]
            third = next((one for one in others[1:] if answers[one] != answers[best]), None)
            found.append(pairs.TracePair(prompts[at], prompts[best], answers[at], answers[best], f"example {at}"))
            controls.append(
                None if third is None else pairs.TracePair(prompts[at], prompts[third], answers[at], answers[best])
            )
    return found, controls


def _given(
    model: models_model.Model, clean: Sequence[str], corrupt: Sequence[str]
) -> tuple[list[pairs.TracePair], list[pairs.TracePair | None]]:
    """Texts as pairs; what the intact model says are the answers. The next pair of that length is the control."""
    found = []
    for at, (text, other) in enumerate(zip(clean, corrupt, strict=True)):
        answer, another = (int(model.run_with_hooks(model.to_tokens(one))[0, -1].argmax()) for one in (text, other))
        ids, others = (tuple(model.tokenizer.encode(one)) for one in (text, other))
        found.append(pairs.TracePair(ids, others, answer, another, f"pair {at}"))
    controls = list[pairs.TracePair | None]()
    for one in found:
        third = next((two for two in found if two is not one and len(two) == len(one)
                      and two.counterfactual not in (one.clean, one.counterfactual)
                      and two.counterfactual_answer not in (one.answer, one.counterfactual_answer)), None)  # fmt: skip
        controls.append(
            None if third is None
            else pairs.TracePair(one.clean, third.counterfactual, one.answer, one.counterfactual_answer)
        )  # fmt: skip
    return found, controls


def _roles(pair: pairs.TracePair) -> dict[str, int]:
    """Where to patch: the last token that differs, and the last of all."""
    changed = max(at for at in range(len(pair)) if pair.clean[at] != pair.counterfactual[at])
    return {"changed": changed, "final": len(pair) - 1}


def _spread(pair: pairs.TracePair) -> dict[str, list[int]]:
    return {name: [at] for name, at in _roles(pair).items()}


def _rows(
    component: str, tables: dict[str, metrics.RoleTable], control: metrics.RoleTable | None
) -> list[dict[str, Any]]:
    """A row for each role, layer and head."""
    success, recovery = tables["success"], tables["recovery"]
    rows = []
    for cell in itertools.product(*map(range, success.estimate.shape)):
        layer = success.layers[cell[1]]
        what = f"{_LETTER[component]}{layer}" + (f".h{success.heads[cell[2]]}" if success.heads else "")
        row = {"what": what, "layer": layer, "role": success.roles[cell[0]], "n": int(success.n[cell])}
        row |= {
            "success": _known(success.estimate[cell]),
            "low": _known(success.low[cell]),
            "high": _known(success.high[cell]),
        }
        row |= {"recovery": _known(recovery.estimate[cell]), "recovery_low": _known(recovery.low[cell])}
        row |= {"recovery_high": _known(recovery.high[cell])}
        row["control"] = None if control is None else _known(control.estimate[cell])
        row["control_n"] = 0 if control is None else int(control.n[cell])
        rows.append(row)
    return rows


def _known(value: Any) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
