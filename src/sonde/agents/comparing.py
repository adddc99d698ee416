"""Trajectories side by side: how different models, or conditions, went through the same task."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """One row per trajectory.

    Attributes:
        rows: Label, steps, tokens, reward, and the mean norm of the residual stream at each recorded `hook_resid_post`,
            from the first such layer to the last.
    """

    rows: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        """A plain table."""
        lines = [f"{'model':<28} {'steps':>5} {'tokens':>6} {'reward':>8}  residual norm, first to last layer"]
        for row in self.rows:
            norms = row["norms"]
            shown = f"{norms[0]:.2f} to {norms[-1]:.2f} ({len(norms)} layers)" if norms else "not recorded"
            reward = "-" if row["reward"] is None else f"{row['reward']:.3f}"
            lines.append(f"{row['label']:<28} {row['steps']:>5} {row['tokens']:>6} {reward:>8}  {shown}")
        return "\n".join(lines)


def compare_trajectories(
    trajectories: Sequence[capture_trajectory.TrajectoryActivations], labels: Sequence[str] | None = None
) -> Comparison:
    """Compares trajectories of the same task.

    Args:
        trajectories: What to compare, at least one.
        labels: Their names; the models' by default.
    """
    if not trajectories:
        raise errors.CaptureError("there is nothing to compare: give at least one trajectory")
    names = labels or [str(one.metadata.get("model", f"trajectory {i}")) for i, one in enumerate(trajectories)]
    rows = []
    for label, one in zip(names, trajectories, strict=True):
        rows.append(
            {
                "label": label,
                "steps": len(one),
                "tokens": one.records.count,
                "reward": one.reward,
                "norms": _norms(one),
            }
        )
    return Comparison(tuple(rows))


def _norms(trajectory: capture_trajectory.TrajectoryActivations) -> list[float]:
    names = [name for name in trajectory.site_names if name.endswith("hook_resid_post")]
    names.sort(key=lambda name: int(name.split(".")[1]))
    return [float(torch.linalg.vector_norm(trajectory.records.whole(name).float(), dim=-1).mean()) for name in names]
