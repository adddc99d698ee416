"""What do finders that use gradients share? Refusals one can read, and scores that are checked before they go out.

    search = running_options.Search("mine", model, pairs, metric, options)
    for batch in attributing.batches(search):
        gradients = attributing.gradients(search.runner, batch)
    return attributing.finish(search, values, settings={"steps": steps})

Scores of gradient methods are signed: how much the loss is expected to rise when the edge is cut.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.circuits import graph as circuits_graph
from sonde.circuits import running, running_options, running_plain, scores
from sonde.core import errors


def batches(search: running_options.Search) -> Iterator[running.Batch]:
    """The batches, one after the other; tells after each."""
    for done, batch in enumerate(search.runner.batches, start=1):
        yield batch
        search.tell(search.method, done, len(search.runner.batches))


def gradients(runner: running.Runner, batch: running.Batch, **how: Any) -> running_plain.Gradients:
    """Gradients of the loss at every destination; see `Runner.destination_gradients`.

    Raises:
        AnalysisError: The metric is constant.
        RequestError: It has no gradient.
    """
    try:
        return runner.destination_gradients(batch, **how)
    except RuntimeError as error:
        if "does not require grad" in str(error):
            raise _no_gradient(runner) from error
        raise


def mask_gradient(
    runner: running.Runner, batch: running.Batch, mask: Float[Tensor, "source destination"]
) -> tuple[float, Float[Tensor, "source destination"]]:
    """A batch's part of the loss under a float mask, and its gradient.

    Raises:
        AnalysisError: The metric is constant.
        RequestError: It has no gradient.
    """
    mask = mask.detach().requires_grad_()
    values = runner.batch_metric(batch, runner.batch_logits(batch, mask))
    if not values.requires_grad:
        raise _no_gradient(runner)
    loss = runner.sign * values.sum() / len(runner.pairs)
    (gradient,) = torch.autograd.grad(loss, mask)
    runner.spent.backwards += len(batch.pairs)
    return float(loss.detach()), gradient


def finish(
    search: running_options.Search,
    values: Tensor | np.ndarray,
    *,
    settings: Mapping[str, Any] | None = None,
    kept: circuits_graph.Circuit | None = None,
) -> scores.Scores:
    """The Scores, once the metric has been shown to move.

    Raises:
        AnalysisError: The metric says the same about clean and corrupt runs, or a score is not a number.
    """
    search.runner.check_moves()
    found = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    known = found[search.runner.graph.allowed] if found.ndim == 2 else found[1:]  # `input` may have no score
    if np.isnan(known).any():
        raise errors.AnalysisError(f"{search.method} gave scores that are not numbers: are the weights finite?")
    return search.scores(found, settings=settings, kept=kept)


def flat(runner: running.Runner) -> dict[str, str]:
    """A note for the settings if the metric is a distance from the clean run, which has no slope there."""
    if not runner.metric.distance:
        return {}
    return {
        "note": f"{runner.metric.name} has its minimum at the clean run and so no slope there: these scores are rounding "
        "errors. Use eap-ig, or a metric such as logit_diff"
    }


def _no_gradient(runner: running.Runner) -> errors.RequestError:
    runner.check_moves()
    return errors.RequestError(
        f"metric {runner.metric.name!r} has no gradient: use a method that needs none (exact, acdc), or a metric that is "
        "made of the logits by operations of torch"
    )
