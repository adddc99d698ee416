"""What does a circuit have to explain? Clean inputs and their corrupt twins, as tensors, with the answers told apart.

    two = pairs.Pairs.of([pairs.Pair(clean, corrupt, answers=(7,), wrongs=(9,), label="Ann gave Bob", cluster="template 1")])
    two.select([0, 2]), two.batches(16), len(two)

Both inputs of a pair have the same length, so that positions correspond; but all corrupt inputs together may be longer or shorter than the
clean ones: then positions correspond from the left, and where there is no corrupt position nothing is corrupted. Pairs of different lengths share a batch: rows
are padded on the right, where a causal model never looks from a real position. Costs the memory of the token ids.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sonde.core import errors

NONE = -1  # no (further) answer in this row


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """One clean input and its corrupt twin.

    Attributes:
        clean: Token ids of the input whose behaviour is to be explained.
        corrupt: Token ids of the input that edges are corrupted with.
        answers: The tokens to prefer after the clean input.
        wrongs: The tokens to prefer less.
        label: What to call it.
        cluster: Pairs of one cluster, such as one template, are not independent of each other.
    """

    clean: Sequence[int]
    corrupt: Sequence[int]
    answers: Sequence[int] = ()
    wrongs: Sequence[int] = ()
    label: str = ""
    cluster: str = ""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Clean inputs and their corrupt twins.

    Attributes:
        clean: Token ids, padded on the right.
        corrupt: Token ids of the twins; of another width if all of them have another length.
        ends: The last real position of each row.
        answers: Tokens to prefer, `NONE` where a row has fewer.
        wrongs: Tokens to prefer less, `NONE` where a row has fewer.
        positions: Position ids of the corrupt run, if they are corrupted too.
        read: Where the metric reads the logits; at `ends` only if not given.
        labels: What to call each pair.
        clusters: Which pairs belong together, in intervals.
    """

    clean: Int[Tensor, "pair pos"]
    corrupt: Int[Tensor, "pair twin"]
    ends: Int[Tensor, "pair"]
    answers: Int[Tensor, "pair answer"]
    wrongs: Int[Tensor, "pair wrong"]
    positions: Int[Tensor, "pair twin"] | None = None
    read: Bool[Tensor, "pair pos"] | None = None
    labels: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks that the parts fit together."""
        count, width = self.clean.shape
        if not count or not width:
            raise errors.RequestError("no pairs: give at least one clean input and its corrupt twin")
        for name in ("labels", "clusters"):
            if not getattr(self, name):
                object.__setattr__(self, name, tuple(str(row) for row in range(count)))
            if len(getattr(self, name)) != count:
                raise errors.RequestError(f"{len(getattr(self, name))} {name} for {count} pairs: give one for each")
        other = self.corrupt.shape[1]
        if other != width and bool((self.ends != width - 1).any()):
            raise errors.RequestError(
                f"corrupt inputs have {other} positions and clean ones up to {width}: only pairs without padding may differ in length"
            )
        for name, side, expected in (
            ("corrupt", "clean", (count, other)), ("positions", "corrupt", (count, other)), ("read", "clean", (count, width)),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value.shape != expected:
                raise errors.RequestError(
                    f"{name} has shape {tuple(value.shape)}, expected that of the {side} inputs, {expected}"
                )
        if int(self.ends.min()) < 0 or int(self.ends.max()) >= width:
            raise errors.RequestError(f"ends must lie between 0 and {width - 1}: got {self.ends.tolist()}")
        if self.read is not None and not bool(self.read.any(dim=1).all()):
            row = int((~self.read.any(dim=1)).nonzero()[0])
            raise errors.RequestError(
                f"pair {self.labels[row]!r} is read nowhere: mark at least one position of its row"
            )

    @classmethod
    def of(cls, pairs: Sequence[Pair], *, pad: int = 0) -> "Pairs":
        """Puts pairs of tokens together.

        Args:
            pairs: The pairs; they may differ in length from each other.
            pad: The token to fill shorter rows with.

        Raises:
            RequestError: There are none, one is empty, or its two inputs differ in length.
        """
        if not pairs:
            raise errors.RequestError("no pairs: give at least one clean input and its corrupt twin")
        for row, pair in enumerate(pairs):
            _check(pair, pair.label or str(row))
        width = max(len(pair.clean) for pair in pairs)
        return cls(
            clean=_table([pair.clean for pair in pairs], width, pad),
            corrupt=_table([pair.corrupt for pair in pairs], width, pad),
            ends=torch.tensor([len(pair.clean) - 1 for pair in pairs]),
            answers=_table([pair.answers for pair in pairs], max(len(pair.answers) for pair in pairs), NONE),
            wrongs=_table([pair.wrongs for pair in pairs], max(len(pair.wrongs) for pair in pairs), NONE),
            labels=tuple(pair.label or str(row) for row, pair in enumerate(pairs)),
            clusters=tuple(pair.cluster or pair.label or str(row) for row, pair in enumerate(pairs)),
        )

    @classmethod
    def of_tensors(
        cls,
        clean: Int[Tensor, "pair pos"],
        corrupt: Int[Tensor, "pair twin"],
        *,
        answers: Int[Tensor, "pair answer"] | None = None,
        wrongs: Int[Tensor, "pair wrong"] | None = None,
        positions: Int[Tensor, "pair twin"] | None = None,
        read: Bool[Tensor, "pair pos"] | None = None,
    ) -> "Pairs":
        """Pairs that all have the same length, or all twins another one, from tensors of ids; see the class for the arguments."""
        count = len(clean)
        nothing = torch.full((count, 0), NONE)
        return cls(
            clean=clean,
            corrupt=corrupt,
            ends=torch.full((count,), clean.shape[1] - 1),
            answers=nothing if answers is None else answers,
            wrongs=nothing if wrongs is None else wrongs,
            positions=positions,
            read=read,
        )

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.clean)

    @property
    def width(self) -> int:
        """Positions in a row, padding included."""
        return self.clean.shape[1]

    @property
    def real(self) -> Bool[Tensor, "pair pos"]:
        """Which positions hold real tokens."""
        return torch.arange(self.width, device=self.ends.device) <= self.ends[:, None]

    @property
    def places(self) -> Int[Tensor, "pair read"]:
        """The positions at which the metric reads, in order; rows with fewer repeat their last one."""
        if self.read is None:
            return self.ends[:, None]
        count = self.read.sum(dim=1)
        order = torch.sort((~self.read).to(torch.int8), dim=1, stable=True).indices[:, : int(count.max())]
        slots = torch.arange(order.shape[1], device=order.device)
        return order.gather(1, torch.minimum(slots, count[:, None] - 1))

    @property
    def counted(self) -> Bool[Tensor, "pair read"]:
        """Which of `places` count: not those that only repeat the last one of a shorter row."""
        if self.read is None:
            return torch.ones_like(self.ends[:, None], dtype=torch.bool)
        count = self.read.sum(dim=1)
        return torch.arange(int(count.max()), device=count.device) < count[:, None]

    def reading(self, logits: Float[Tensor, "pair pos vocab"]) -> Float[Tensor, "pair read vocab"]:
        """The logits at `places`, out of those of all positions."""
        rows = torch.arange(len(self), device=logits.device)[:, None]
        return logits[rows, self.places.to(logits.device)]

    def select(self, indices: Sequence[int] | Int[Tensor, "chosen"] | slice) -> "Pairs":
        """Some of the pairs, in the order given. Rows keep their padding."""
        if isinstance(indices, Tensor):
            indices = indices.tolist()
        rows = list(range(len(self))[indices]) if isinstance(indices, slice) else [int(row) for row in indices]
        return Pairs(
            clean=self.clean[rows],
            corrupt=self.corrupt[rows],
            ends=self.ends[rows],
            answers=self.answers[rows],
            wrongs=self.wrongs[rows],
            positions=None if self.positions is None else self.positions[rows],
            read=None if self.read is None else self.read[rows],
            labels=tuple(self.labels[row] for row in rows),
            clusters=tuple(self.clusters[row] for row in rows),
        )

    def batches(self, size: int | None) -> Iterator["Pairs"]:
        """The pairs in order, at most `size` at a time; all at once if it is None."""
        if size is not None and size < 1:
            raise errors.RequestError(f"batch_size is {size}: expected at least 1")
        size = size or len(self)
        for start in range(0, len(self), size):
            yield self if size >= len(self) else self.select(slice(start, start + size))


def _check(pair: Pair, label: str) -> None:
    if not len(pair.clean) or not len(pair.corrupt):
        raise errors.RequestError(f"pair {label!r} has an empty input: give at least one token on both sides")
    if len(pair.clean) != len(pair.corrupt):
        raise errors.RequestError(
            f"pair {label!r} has {len(pair.clean)} clean and {len(pair.corrupt)} corrupt tokens: positions must "
            "correspond, so change the text into one of as many tokens"
        )


def _table(rows: Sequence[Sequence[int]], width: int, filler: int) -> Int[Tensor, "pair column"]:
    filled = [[int(token) for token in row] + [filler] * (width - len(row)) for row in rows]
    return torch.tensor(filled, dtype=torch.long).reshape(len(rows), width)
