"""Two trajectories as one: the first steps of an episode, and how it went on from there.

Tokens, positions, notes and activations of both are kept. A Site that only one of them recorded can be read in its steps, as
long as that one recorded all Sites of the other; where each has Sites of its own, those of the later part are left out.
Costs the memory of both: nothing stays mapped.
"""

import dataclasses

import numpy as np
import torch

from sonde.capture import records as capture_records
from sonde.capture import trajectory as capture_trajectory


def joined(
    past: capture_trajectory.TrajectoryActivations, steps: int, new: capture_trajectory.TrajectoryActivations
) -> capture_trajectory.TrajectoryActivations:
    """The first steps of one trajectory, then all of another; reward and metadata are those of the other."""
    before = past.steps[:steps]
    used = [int(call.records.max(initial=-1)) + 1 for step in before for call in step.calls]
    old, fresh = past.records.head(max(used, default=0)), new.records.head(new.records.count)
    # A column must be whole in the records that come first: those are the ones with more Sites.
    turned = old.keys() <= fresh.keys()
    first, second = (fresh, old) if turned else (old, fresh)
    columns = {
        name: torch.cat([column, second[name].to(column.device)]) if name in second else column
        for name, column in first.items()
    }
    offset = len(first[capture_records.TOKENS]) if first else 0
    moved = before if turned else new.steps
    shifted = [_shifted(step, offset) for step in moved]
    whole = [*shifted, *new.steps] if turned else [*before, *shifted]
    records = capture_records.Records.of_columns(columns)
    return capture_trajectory.TrajectoryActivations(records, whole, reward=new.reward, metadata=new.metadata)


def _shifted(step: capture_trajectory.Step, offset: int) -> capture_trajectory.Step:
    calls = [
        dataclasses.replace(
            call,
            records=np.where(call.records >= 0, call.records + offset, -1),
            coverage=np.zeros(0, dtype=np.int64),
        )
        for call in step.calls
    ]
    return dataclasses.replace(step, calls=calls)
