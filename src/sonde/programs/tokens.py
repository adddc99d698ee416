"""Which tokens carry which part of a program? Roles by character offsets, so they hold for any tokenizer.

    roles = TokenAnalyzer(model.tokenizer).analyze(program)
    roles["rhs_1"], roles["query"], roles["final"]    # token positions

1. Fill the template and encode it as the model would, asking the tokenizer where each token stands in the text.
2. Find the characters of each part with `chains`.
3. A part's tokens are all those that share a character with it: one digit may be two tokens, and one token may hold
   a digit and the space before it.

Averages over programs go by role, never by position. Costs one encoding.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sonde.core import errors
from sonde.programs import chains, prompts

QUERY = "query"
FINAL = "final"
DISTRACTOR_CONSTANT = "distractor_constant"
DISTRACTOR_REFERENCE = "distractor_reference"


def rhs(depth: int) -> str:
    """Returns the role of the right-hand side at a referential depth; 1 is the root constant."""
    return f"rhs_{depth}"


@dataclasses.dataclass(frozen=True, slots=True)
class TokenRoles:
    """A program in its prompt, as tokens with roles.

    Attributes:
        text: The whole prompt.
        ids: Its tokens, with the special ones that the tokenizer adds.
        offsets: For each token, where it begins and ends in the text.
        roles: Token positions by role: `rhs_1` (the root constant) to `rhs_k` (the queried variable's), `query` (its
            name in the query line), `final` (the last token), `distractor_constant` and `distractor_reference` (the
            right-hand sides off the chain; left out if there are none).
        chain: The chain of assignments.
    """

    text: str
    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    roles: Mapping[str, tuple[int, ...]]
    chain: chains.VariableChain

    def __getitem__(self, role: str) -> tuple[int, ...]:
        """The token positions of a role."""
        if role not in self.roles:
            raise errors.RequestError(
                f"no token has the role {role!r}{errors.suggest(role, self.roles)} Roles here: {', '.join(self.roles)}"
            )
        return self.roles[role]

    def role_of(self, position: int) -> str | None:
        """The first role that a token position has, or None."""
        return next((role for role, positions in self.roles.items() if position in positions), None)


class TokenAnalyzer:
    """Finds the tokens of a binding program's parts."""

    def __init__(self, tokenizer: Any) -> None:
        """Takes the tokenizer of the model."""
        self.tokenizer = tokenizer

    def encode(self, text: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Returns the tokens of a text, and where each stands in it.

        Raises:
            RequestError: The tokenizer cannot say where its tokens stand.
        """
        try:
            encoded = self.tokenizer(text, return_offsets_mapping=True)
            offsets = encoded["offset_mapping"]
        except (NotImplementedError, KeyError, TypeError, ValueError) as error:
            raise errors.RequestError(
                f"{type(self.tokenizer).__name__} does not say at which characters its tokens stand, so roles cannot be "
                "found: use a fast tokenizer (transformers.AutoTokenizer gives one where it exists)"
            ) from error
        return tuple(encoded["input_ids"]), tuple((int(start), int(end)) for start, end in offsets)

    def analyze(self, program: str, *, template: str = prompts.MINIMAL) -> TokenRoles:
        """Finds all roles of a binding program inside a prompt template.

        Raises:
            RequestError: It is no binding program, the template has no `{code}`, or the tokenizer has no offsets.
        """
        text = prompts.filled(template, program)
        chain, at = chains.VariableChain.of(program), template.index(prompts.PLACE)
        ids, offsets = self.encode(text)
        spans: dict[str, list[tuple[int, int]]] = {}
        for depth, link in enumerate(reversed(chain.links), start=1):
            spans[rhs(depth)] = [(link.start, link.end)]
        spans[QUERY] = [(chain.query_start, chain.query_start + len(chain.query))]
        for one in chain.distractors:
            role = DISTRACTOR_CONSTANT if one.is_constant else DISTRACTOR_REFERENCE
            spans.setdefault(role, []).append((one.start, one.end))
        roles = {role: _covering(offsets, [(at + a, at + b) for a, b in places]) for role, places in spans.items()}
        for role, positions in roles.items():
            if not positions:
                raise errors.RequestError(f"no token covers {role} in {text[-80:]!r}: the tokenizer drops characters")
        last = max(position for position, (start, end) in enumerate(offsets) if end > start)
        return TokenRoles(text, ids, offsets, {**roles, FINAL: (last,)}, chain)


def _covering(offsets: tuple[tuple[int, int], ...], places: list[tuple[int, int]]) -> tuple[int, ...]:
    """The tokens that share a character with one of the places."""
    return tuple(
        position
        for position, (start, end) in enumerate(offsets)
        if any(start < stop and begin < end for begin, stop in places)
    )
