"""Does a run with edges cut fit into memory, and how many pairs at a time?

Estimates count the large tensors: what every source writes, what every destination reads and, with gradients, autograd's
tape of it. They are meant to be right within a factor of two. A run that cannot fit is refused before it starts.
"""

import dataclasses
from pathlib import Path

import torch

from sonde.circuits import graph as circuits_graph
from sonde.circuits import pairs as circuits_pairs
from sonde.core import errors
from sonde.models import model as models_model

#: What one batch may take if nobody says how many pairs are in it.
COMFORTABLE = 2 << 30
_MEMINFO = Path("/proc/meminfo")


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """What the size of a run depends on.

    Attributes:
        n_sources: Sources.
        n_destinations: Destinations.
        stream: Elements of the stream of one pair.
        logits: Elements of the logits of one pair.
        dtype: Type of the weights.
    """

    n_sources: int
    n_destinations: int
    stream: int
    logits: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: models_model.Model, graph: circuits_graph.Graph, pairs: circuits_pairs.Pairs) -> "Sizes":
        """Of a model and pairs."""
        return cls(
            n_sources=len(graph.sources),
            n_destinations=len(graph.destinations),
            stream=pairs.width * model.cfg.d_model,
            # The plain run gives logits at every position; those that are read are few.
            logits=(pairs.width + 4 * pairs.places.shape[1]) * model.cfg.d_vocab,
            dtype=next(model.parts.hf.parameters()).dtype,
        )

    def contributions(self, n_pairs: int) -> int:
        """Bytes of what every source writes."""
        return n_pairs * self.n_sources * self.stream * self.dtype.itemsize

    def masked(self, n_pairs: int) -> int:
        """Bytes of a run with a float mask and its gradients, the largest kind."""
        per_pair = (3 * self.n_sources + 6 * self.n_destinations) * self.stream + self.logits
        return n_pairs * per_pair * self.dtype.itemsize

    def state(self, n_pairs: int) -> int:
        """Bytes of the state of a search that cuts one edge after the other."""
        return n_pairs * (3 * self.n_sources + 2 * self.n_destinations) * self.stream * self.dtype.itemsize


def batch_size(sizes: Sizes, n_pairs: int, wanted: int | None) -> int:
    """How many pairs run at once: as wanted, or as many as are comfortable."""
    if wanted is None:
        return max(1, min(n_pairs, COMFORTABLE // max(1, sizes.masked(1))))
    if wanted < 1:
        raise errors.RequestError(f"batch_size is {wanted}: expected at least 1")
    return min(wanted, n_pairs)


def check(sizes: Sizes, n_pairs: int, device: torch.device) -> None:
    """Refuses a batch that does not fit."""
    refuse(
        sizes.masked(n_pairs),
        device,
        what=f"{sizes.n_sources} sources x {sizes.n_destinations} destinations x {n_pairs} pairs",
        advice="reduce batch_size" if n_pairs > 1 else "use shorter pairs or a smaller model",
    )


def refuse(needed: int, device: torch.device, *, what: str, advice: str) -> None:
    """Refuses what takes more memory than there is.

    Raises:
        RequestError: It does; with the estimate, and what to reduce.
    """
    free = available(device)
    if free is not None and needed > free:
        raise errors.RequestError(
            f"{what} need about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: {advice}"
        )


def available(device: torch.device) -> int | None:
    """Free bytes on a device; None if that cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu" or not _MEMINFO.exists():
        return None
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="utf-8").splitlines() if ":" in line)
    found = lines.get("MemAvailable")
    return None if found is None else int(found.split()[0]) * 1024
