"""Rows that come and go: requests that join others which have paused.

1. What joins is encoded in a batch of its own, and generates its first token there. In the batch of the others it would
   cost each of them as many columns of padding as the longest new prompt has tokens.
2. Then all go on together, one token per forward pass.

Cost: one more reading of the weights, and one copy of each prompt that joins.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sonde.models import generation, kv, requests
from sonde.models import wiring as model_wiring

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def run(
    parts: model_wiring.Parts,
    tokenizer: "PreTrainedTokenizerBase",
    pool: kv.Pool,
    batch: Sequence[requests.Item],
    *,
    limit: int | None,
) -> list[requests.Outcome]:
    """Runs a batch of requests and paused ones; with a limit, those not finished after so many tokens pause.

    Raises:
        BatchError: Some of the requests failed.
    """
    joining = [index for index, item in enumerate(batch) if isinstance(item, requests.Request)]
    if limit is None or len(joining) in (0, len(batch)):
        return generation.Batch(parts, tokenizer, pool, batch, limit=limit).run()
    items: list[Any] = list(batch)
    for where, most in ((joining, 1), (range(len(batch)), limit)):
        going = [index for index in where if isinstance(items[index], requests.Item)]
        if not going:
            continue
        try:
            ends: Sequence[Any] = generation.Batch(
                parts, tokenizer, pool, [items[index] for index in going], limit=most
            ).run()
        except requests.BatchError as failed:
            ends = failed.outcomes
        for index, end in zip(going, ends, strict=True):
            items[index] = end
    if any(isinstance(item, BaseException) for item in items):
        raise requests.BatchError(items)
    return items
