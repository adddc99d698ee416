"""How well does the model still tell the clean answer from the corrupt one? A metric that has a slope at the clean run.

    metric = contrast.metric(subject.model, pairs, regression=False)        # "answer_diff"
    registry.find(subject.model, pairs, metric=metric, method="eap")

`kl` and `mse` are smallest at the clean run, so methods that look at the slope there alone (`eap`, `hisp`) find nothing with
them. This one falls steadily from the clean to the corrupt answer:

1. Run the model on clean and corrupt inputs: its own answers at every position that is read.
   Where corrupt inputs are shorter, what they do not answer is as in the clean run.
2. Where they differ, the value is the logit of the clean answer minus that of the corrupt one; of a number, its distance from the
   corrupt one in the direction of the clean one. A pair's value is the mean over its positions; where answers agree it is 0.

Costs two forward passes over the pairs.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from sonde.circuits import metrics as circuits_metrics
from sonde.circuits import pairs as circuits_pairs
from sonde.models import model as models_model

NAME = "answer_diff"


def metric(
    model: models_model.Model, pairs: circuits_pairs.Pairs, *, regression: bool = False
) -> circuits_metrics.Metric:
    """The metric for these pairs (or for some of them: rows are known by their labels)."""
    clean, corrupt = _logits(model, pairs, corrupt=False), _logits(model, pairs, corrupt=True)
    rows = {label: row for row, label in enumerate(pairs.labels)}
    right, wrong = (clean, corrupt) if regression else (clean.argmax(-1, True), corrupt.argmax(-1, True))

    def values(logits: Tensor, some: circuits_pairs.Pairs, reference: Tensor) -> Tensor:
        at = [rows[label] for label in some.labels]
        counted = some.counted
        if regression:
            found = (logits - wrong[at]) * (right[at] - wrong[at]).sign()
        else:
            found = logits.gather(-1, right[at]) - logits.gather(-1, wrong[at])
        return torch.where(counted, found.mean(dim=-1), 0.0).sum(dim=1) / counted.sum(dim=1)

    return circuits_metrics.Metric(NAME, "high", values)


def _logits(
    model: models_model.Model, pairs: circuits_pairs.Pairs, *, corrupt: bool
) -> Float[Tensor, "pair read d_out"]:
    """Logits at the positions that are read, on one side of the pairs."""
    ids = pairs.corrupt if corrupt else pairs.clean
    places = pairs.positions if corrupt else None
    with model.lock, torch.no_grad():
        found = model.hf(
            input_ids=ids, position_ids=places, attention_mask=torch.ones_like(ids), use_cache=False
        ).logits
        if found.shape[1] < pairs.width:
            clean = torch.ones_like(pairs.clean)
            rest = model.hf(input_ids=pairs.clean, attention_mask=clean, use_cache=False).logits
            found = torch.cat([found, rest[:, found.shape[1] :]], dim=1)
    return pairs.reading(found)
