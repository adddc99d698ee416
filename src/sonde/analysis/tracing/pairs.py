"""What is compared: two inputs of equal length that differ where the cause is looked for.

    pair = pairs.TracePair(clean, counterfactual, answer, counterfactual_answer, name="program 7")

Positions correspond, so whatever happens at a position in one run can be put into the same position of the other.
"""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

from sonde.core import errors


@dataclasses.dataclass(frozen=True, slots=True)
class TracePair:
    """A clean input and its counterfactual.

    Attributes:
        clean: Token ids of the input that is run and patched.
        counterfactual: Token ids of the input that patches are taken from.
        answer: The token expected after the clean input.
        counterfactual_answer: The token expected after the counterfactual. In a control pair, in which something that
            should not matter was changed, the token of that changed thing: patches must not bring it about.
        name: What to call it.
    """

    clean: tuple[int, ...]
    counterfactual: tuple[int, ...]
    answer: int
    counterfactual_answer: int
    name: str = ""

    def __post_init__(self) -> None:
        """Checks that the two correspond."""
        for field in ("clean", "counterfactual"):
            object.__setattr__(self, field, tuple(operator.index(token) for token in getattr(self, field)))
        called = f"pair {self.name!r}" if self.name else "the pair"
        if not self.clean or not self.counterfactual:
            raise errors.RequestError(f"{called} has an empty input: give at least one token on both sides")
        if len(self.clean) != len(self.counterfactual):
            raise errors.RequestError(
                f"{called} has {len(self.clean)} clean and {len(self.counterfactual)} counterfactual tokens: positions must "
                "correspond, so change the text into one of as many tokens"
            )
        if self.clean == self.counterfactual:
            raise errors.RequestError(f"both inputs of {called} are the same: there is nothing to trace")

    def __len__(self) -> int:
        """How many tokens each side has."""
        return len(self.clean)

    def to_json(self) -> dict[str, Any]:
        """The pair as JSON data."""
        return {**dataclasses.asdict(self), "clean": list(self.clean), "counterfactual": list(self.counterfactual)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TracePair":
        """Reads what `to_json` wrote."""
        return cls(**{**data, "clean": tuple(data["clean"]), "counterfactual": tuple(data["counterfactual"])})
