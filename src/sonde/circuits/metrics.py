"""How well does the model still do what it did? One number per pair, from the logits.

    metric = metrics.get("logit_diff")
    metric(logits, pairs, reference)        # one value per pair
    metric.loss(logits, pairs, reference)   # their mean, turned round if high is better

Logits come at the positions that the pairs read (`Pairs.places`); with several, a pair's value is the mean over them, and
its answers hold at each. `reference` are the clean run's logits. Any function of these three that gives one value per pair
is a metric too: `metrics.get(function)` takes high values as better, `metrics.Metric("mine", "low", function)` low ones.

`kl`, `mse` and `mae` measure the distance from the clean run, so they have their minimum there: their gradient at the
clean run is zero, and methods that look at nothing else (`eap`, `hisp`) find nothing with them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import weak

from sonde.circuits import pairs as circuit_pairs
from sonde.core import errors

Function = Callable[[Tensor, circuit_pairs.Pairs, Tensor], Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A number per pair.

    Attributes:
        name: What to call it.
        better: Whether high or low values mean that the behaviour is there.
        fn: `(logits, pairs, reference) -> values`.
        distance: It measures the distance from the reference, so that its gradient vanishes there.
    """

    name: str
    better: Literal["low", "high"]
    fn: Function
    distance: bool = False

    def __call__(
        self,
        logits: Float[Tensor, "pair read vocab"],
        pairs: circuit_pairs.Pairs,
        reference: Float[Tensor, "pair read vocab"],
    ) -> Float[Tensor, "pair"]:
        """One value per pair.

        Raises:
            RequestError: The function gave something else.
        """
        values = self.fn(logits, pairs, reference)
        if not isinstance(values, Tensor) or values.shape != (len(pairs),):
            got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise errors.RequestError(
                f"metric {self.name!r} gave {got}, expected one value for each of {len(pairs)} pairs"
            )
        return values

    def loss(
        self,
        logits: Float[Tensor, "pair read vocab"],
        pairs: circuit_pairs.Pairs,
        reference: Float[Tensor, "pair read vocab"],
    ) -> Float[Tensor, ""]:
        """The mean over pairs, negated if high values are better: what a good circuit keeps low."""
        mean = self(logits, pairs, reference).mean()
        return -mean if self.better == "high" else mean


Which = str | Metric | Function


def get(which: Which) -> Metric:
    """The metric of a name, or of a user's own function.

    Raises:
        RequestError: There is none of that name.
    """
    if isinstance(which, Metric):
        return which
    if callable(which):
        return Metric(getattr(which, "__name__", "custom"), "high", which)
    if which not in METRICS:
        raise errors.RequestError(
            f"no metric {which!r}{errors.suggest(which, METRICS)} (metrics: {', '.join(METRICS)}; or pass a function)"
        )
    return METRICS[which]


def check_moves(metric: Metric, clean: Float[Tensor, "pair"], corrupt: Float[Tensor, "pair"]) -> None:
    """Refuses a metric that says the same about clean and corrupt runs: no edge could matter to it.

    Raises:
        AnalysisError: It is the same for every pair, or not a number.
    """
    for side, values in (("clean", clean), ("corrupt", corrupt)):
        if not bool(torch.isfinite(values).all()):
            row = int((~torch.isfinite(values)).nonzero()[0])
            raise errors.AnalysisError(
                f"metric {metric.name!r} is {float(values[row])} on the {side} run of pair {row}"
            )
    if bool(((clean - corrupt).abs() <= 1e-7 * (1 + clean.abs())).all()):
        raise errors.AnalysisError(
            f"metric {metric.name!r} is the same on the clean and the corrupt run of all {len(clean)} pairs "
            f"(about {float(clean.mean()):.4g}): no edge can matter to it. Change the corruption or the metric"
        )


_distributions: Any = weak.WeakTensorKeyDictionary()


def _precise(logits: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """At least single precision."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _mean(values: Float[Tensor, "pair read"], pairs: circuit_pairs.Pairs) -> Float[Tensor, "pair"]:
    """The mean over the places that count."""
    if pairs.read is None:
        return values[:, 0]
    counted = pairs.counted.to(values.device)
    return torch.where(counted, values, 0.0).sum(dim=1) / counted.sum(dim=1)


def _of_options(
    values: Float[Tensor, "pair read vocab"], options: Int[Tensor, "pair option"], how: str
) -> Float[Tensor, "pair read"]:
    """Sum or mean of the values of a row's tokens, zero if it has none."""
    options = options.to(values.device)
    some = (options >= 0)[:, None]
    index = options.clamp(min=0)[:, None].expand(-1, values.shape[1], -1)
    total = torch.where(some, values.gather(2, index), 0.0).sum(dim=2)
    return total / some.sum(dim=2).clamp(min=1) if how == "mean" else total


def _need(pairs: circuit_pairs.Pairs, name: str, *, wrongs: bool = True) -> None:
    """Says so if the metric asks for answers that the pairs do not have."""
    for field in ("answers", "wrongs")[: 2 if wrongs else 1]:
        options = getattr(pairs, field)
        bare = ~(options >= 0).any(dim=1)
        if bool(bare.any()):
            label = pairs.labels[int(bare.nonzero()[0])]
            raise errors.RequestError(
                f"metric {name!r} needs {field}, and pair {label!r} has none: give them, or use 'kl'"
            )


def _kl(logits: Tensor, pairs: circuit_pairs.Pairs, reference: Tensor) -> Tensor:
    """KL divergence from the clean run's distribution; never below zero, where rounding would put that of the clean run."""
    chances, entropy = _distribution(reference)
    found = -entropy - (chances * _precise(logits).log_softmax(dim=-1)).sum(dim=-1)
    return _mean(found.clamp(min=0), pairs)


def _distribution(reference: Tensor) -> tuple[Float[Tensor, "pair read vocab"], Float[Tensor, "pair read"]]:
    """The clean run's distribution and its entropy, worked out once for all runs that are compared with it."""
    version, *known = _distributions.get(reference, (-1,))
    if version != reference._version:
        logs = _precise(reference.detach()).log_softmax(dim=-1)
        known = [logs.exp(), -(logs.exp() * logs).sum(dim=-1)]
        _distributions[reference] = (reference._version, *known)
    return known[0], known[1]


def _logit_diff(logits: Tensor, pairs: circuit_pairs.Pairs, reference: Tensor) -> Tensor:
    """Mean logit of the answers minus mean logit of the wrong ones."""
    _need(pairs, "logit_diff")
    right, wrong = (_of_options(logits, options, "mean") for options in (pairs.answers, pairs.wrongs))
    return _mean(right - wrong, pairs)


def _prob_diff(logits: Tensor, pairs: circuit_pairs.Pairs, reference: Tensor) -> Tensor:
    """Probability of the answers minus that of the wrong ones."""
    _need(pairs, "prob_diff")
    chances = _precise(logits).softmax(dim=-1)
    right, wrong = (_of_options(chances, options, "sum") for options in (pairs.answers, pairs.wrongs))
    return _mean(right - wrong, pairs)


def _cross_entropy(logits: Tensor, pairs: circuit_pairs.Pairs, reference: Tensor) -> Tensor:
    """Minus the log-probability of the answers together."""
    _need(pairs, "cross_entropy", wrongs=False)
    options = pairs.answers.to(logits.device)
    index = options.clamp(min=0)[:, None].expand(-1, logits.shape[1], -1)
    logs = _precise(logits).log_softmax(dim=-1).gather(2, index)
    return _mean(-torch.where((options >= 0)[:, None], logs, -torch.inf).logsumexp(dim=-1), pairs)


def _mse(logits: Tensor, pairs: circuit_pairs.Pairs, reference: Tensor) -> Tensor:
    """Mean squared difference from the clean run's logits."""
    return _mean((logits - reference).square().mean(dim=-1), pairs)


def _mae(logits: Tensor, pairs: circuit_pairs.Pairs, reference: Tensor) -> Tensor:
    """Mean absolute difference from the clean run's logits."""
    return _mean((logits - reference).abs().mean(dim=-1), pairs)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("kl", "low", _kl, distance=True),
        Metric("logit_diff", "high", _logit_diff),
        Metric("cross_entropy", "low", _cross_entropy),
        Metric("mse", "low", _mse, distance=True),
        Metric("mae", "low", _mae, distance=True),
        Metric("prob_diff", "high", _prob_diff),
    )
}
