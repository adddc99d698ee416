"""Which layer does more harm when it is skipped than its size explains? Norm and block influence first, then what is left.

    judged = outliers.judge(harms, log_norms, influences)
    [one.at for one in judged if one.odd]

Layers that write more, or turn the stream further, are missed more. What is interesting is a layer that is missed more than
layers of its size. For each layer in turn:

1. log(harm + `FLOOR`) of all OTHER layers is regressed on the log of their norm and the log of their block influence, by
   Huber's robust regression: a second odd layer among them has little weight.
2. The layer's residual from that line is divided by the robust spread of theirs (the median absolute residual, corrected for
   the coefficients), widened for how far the layer's size lies from theirs.
3. That is held against Student's t, one-sided, and corrected by Holm's method over all layers.
4. A layer is odd if that p-value is below `LEVEL`, its harm is at least `TIMES` what its size explains, and it is at least
   `MATTERS` nats per token: what is statistically sure but small does not matter.

`bound` is what a layer of this size does at most, 95 times in 100. This is a rule for what to look at; whether it holds is
decided on other examples (`rules`). Fewer than `LEAST` layers are not judged. Costs nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from sonde.analysis import jackknife, stats

FLOOR, MATTERS = 0.03, 0.5
TIMES, LEVEL = 5.0, 0.2
#: Fewer layers leave nothing to judge by after three coefficients.
LEAST = 8
#: A spread of residuals below this, in log units, is not believed.
_LEAST_SPREAD = 0.2
_HUBER, _ROUNDS = 1.345, 50


@dataclass(frozen=True, slots=True)
class Judged:
    """One layer.

    Attributes:
        at: Its place in what was judged.
        expected: The harm that its size explains.
        bound: The harm that a layer of this size does at most, 95 times in 100; at least `MATTERS`.
        z: How many spreads its harm lies above that, in log units.
        p_corrected: One-sided, after Holm's correction over the layers.
        odd: Whether it stands out.
    """

    at: int
    expected: float
    bound: float
    z: float
    p_corrected: float
    odd: bool

    def to_json(self) -> dict[str, Any]:
        """The numbers as fields of a row."""
        found = asdict(self)
        found.pop("at")
        return found


def judge(harms: Sequence[float], log_norms: Sequence[float], influences: Sequence[float]) -> list[Judged]:
    """Judges each layer by all others; nothing for fewer than `LEAST`.

    Args:
        harms: What skipping each does, such as the change of loss in nats.
        log_norms: Log of how much each writes into the stream.
        influences: Block influence of each, 1 - cos(input, output).
    """
    count = len(harms)
    if count < LEAST:
        return []
    found = np.asarray(harms, dtype=np.float64)
    logs = np.log(np.maximum(found, 0.0) + FLOOR)
    rows = np.stack([np.ones(count), log_norms, np.log(np.maximum(influences, 1e-9))], axis=1)
    student = jackknife.imported("scipy.stats", "outliers").t
    free = count - 1 - rows.shape[1]
    lines = [_line(rows, logs, at) for at in range(count)]
    z = np.array([(logs[at] - middle) / spread for at, (middle, spread) in enumerate(lines)])
    p = stats.holm(student.sf(z, free))
    judged = []
    for at, (middle, spread) in enumerate(lines):
        expected = max(float(np.exp(middle)) - FLOOR, 0.0)
        bound = max(float(np.exp(middle + student.ppf(0.95, free) * spread)) - FLOOR, MATTERS)
        odd = p[at] < LEVEL and found[at] >= TIMES * (expected + FLOOR) and found[at] >= MATTERS
        judged.append(Judged(at, expected, bound, float(z[at]), float(p[at]), bool(odd)))
    return judged


def _line(
    rows: Float[np.ndarray, "layer coefficient"], logs: Float[np.ndarray, "layer"], at: int
) -> tuple[float, float]:
    """What the other layers make likely at one, and the spread of such a guess."""
    others = np.arange(len(logs)) != at
    known, wanted, weights = rows[others], logs[others], np.ones(len(logs) - 1)
    spread, coefficients = _LEAST_SPREAD, np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)[:, None]
        coefficients = np.linalg.lstsq(known * root, wanted * root[:, 0], rcond=None)[0]
        left = np.abs(wanted - known @ coefficients)
        lost = len(left) / (len(left) - rows.shape[1])
        spread = max(1.4826 * float(np.median(left)) * np.sqrt(lost), _LEAST_SPREAD)
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(left, 1e-12))
    leverage = rows[at] @ np.linalg.pinv((known * weights[:, None]).T @ known) @ rows[at]
    return float(rows[at] @ coefficients), float(spread * np.sqrt(1 + leverage))
