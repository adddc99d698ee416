"""Items of a stage on a Ray cluster: the same work, elsewhere.

    for number, content in cluster.results(context, "rows", {0: item, 3: other}):
        ...

An item travels with the experiment, without its model, and the settings; a worker has no run folder, so that what it gives back
is all that it does. A model is loaded again from its record, and refused if it is not the caller's (see `models.identity`).
At most two items per processor are in flight; what is finished is yielded at once, in any order.

Ray is the one that $RAY_ADDRESS names, or one started here. Costs one load of the model per worker process.
"""

import asyncio
import copy
import functools
import json
import logging
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, cast

from sonde.core import errors
from sonde.experiments import experiment as experiments
from sonde.experiments import kernel
from sonde.models import identity
from sonde.models import model as models_model

IN_FLIGHT = 2


def results(
    context: experiments.Context[Any], stage: str, todo: Mapping[int, experiments.Content]
) -> Iterator[tuple[int, experiments.Content]]:
    """Yields the number of each item and what it gave, as they are finished.

    Raises:
        MissingExtraError: Ray is not installed.
        SondeError: What an item's work raised, or the model cannot be sent; all others are cancelled.
    """
    try:
        import ray
    except ImportError as error:
        raise errors.MissingExtraError("ray", extra="ray", feature="engine='ray'") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    held = _sendable(context.experiment)
    sent = ray.put((_without_model(context.experiment), context.settings))
    task = ray.remote(
        num_cpus=getattr(context.settings, "threads", None) or 1,
        num_gpus=int(held.get("device") == "cuda"),
        max_retries=2,
    )(_work)
    most, left, flying = max(1, int(IN_FLIGHT * ray.cluster_resources().get("CPU", 1))), dict(todo), dict[Any, int]()
    try:
        while left or flying:
            while left and len(flying) < most:
                number = next(iter(left))
                flying[task.remote(sent, stage, left.pop(number), json.dumps(held))] = number
            (ready,), _ = ray.wait(list(flying), num_returns=1)
            yield flying.pop(ready), ray.get(ready)
    except BaseException as error:
        for ref in flying:
            ray.cancel(ref)
        cause = getattr(error, "cause", None)
        raise cause if isinstance(cause, errors.SondeError) else error from None


def _sendable(experiment: experiments.Experiment[Any]) -> dict[str, Any]:
    """The record of the experiment's model, if it has one."""
    if experiment.model is None:
        return {}
    held = identity.of(experiment.model)
    if held["source"] is None:
        raise errors.ModelError(
            f"{held['name']!r} was made from an object and cannot be sent to another process: save it to a folder (network and "
            "tokenizer), and sonde.load that"
        )
    return held


def _without_model(experiment: experiments.Experiment[Any]) -> experiments.Experiment[Any]:
    alone = copy.copy(experiment)
    alone.model = None
    return alone


def _work(sent: tuple[Any, Any], stage: str, item: experiments.Content, held: str) -> experiments.Content:
    """One item, in a worker."""
    experiment, settings = sent
    if held != "{}":
        experiment.model = _model(held)
    context = experiments.Context(experiment, settings, cast(Any, None), None)
    with kernel.pinned(getattr(settings, "threads", None)):
        found = experiment.stage(stage).work(context, item)
        return asyncio.run(_awaited(found)) if isinstance(found, Awaitable) else found


@functools.lru_cache(maxsize=1)
def _model(held: str) -> models_model.Model:
    """The model of a record; a worker keeps it for its next item."""
    return identity.rebuilt(json.loads(held))


async def _awaited(waiting: Awaitable[Any]) -> Any:
    return await waiting
