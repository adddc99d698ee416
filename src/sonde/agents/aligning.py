"""Taking activations of one episode into another: which tokens correspond, and the patches that carry them over.

    pairs = align(success, failure)            # by role and step
    print(pairs)                               # the alignment, shown
    patches = patches_between(success, failure, "blocks.6.hook_resid_post", pairs)
    failure.fork(2, interventions=patches)

Two episodes of a task are told differently, so tokens are matched span by span: what was seen in a step with what was
seen in that step, what was said with what was said. Spans of unequal length are matched from their end, where the
model is about to speak, unless told otherwise. Costs no run of the model.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, interventions, sites, spans

ROLES = ("observation", "action")
Anchor = Literal["end", "start"]


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Two spans that correspond.

    Attributes:
        step: The step of both.
        role: `observation`: what was new in the step's prompt; `action`: what was said.
        source: Episode positions in the one, and `target` in the other; of equal length.
        left_out: How many tokens of the longer span have no partner.
    """

    step: int
    role: str
    source: spans.Span
    target: spans.Span
    left_out: int


@dataclasses.dataclass(frozen=True, slots=True)
class Alignment:
    """Which positions of two episodes correspond."""

    pairs: tuple[Pair, ...]
    texts: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """A table."""
        lines = [f"{'step':>4} {'role':<12} {'source':>12} {'target':>12} {'tokens':>6} {'left out':>8}  ends with"]
        for index, pair in enumerate(self.pairs):
            told = " | ".join(self.texts[index]) if self.texts else ""
            source, target = (f"{span.start}-{span.stop}" for span in (pair.source, pair.target))
            count = len(pair.source)
            lines.append(
                f"{pair.step:>4} {pair.role:<12} {source:>12} {target:>12} {count:>6} {pair.left_out:>8}  {told}"
            )
        return "\n".join(lines)


def role_spans(trajectory: capture_trajectory.TrajectoryActivations) -> list[dict[str, spans.Span]]:
    """For each step the episode positions of what was new to see and of what was said.

    Where turns were dropped, a token that stays keeps its position. Of what was new, the part counts that follows the gap,
    if one of the new turns was itself left out.

    Raises:
        EpisodeError: A step has no request, or its conversation ends before the last one did: it was rewritten.
    """
    found: list[dict[str, spans.Span]] = []
    before = 0
    for number, step in enumerate(trajectory.steps):
        if not step.calls or not step.calls[-1].prompt_length:
            raise errors.EpisodeError(f"step {number} has no request to align")
        call = step.calls[-1]
        prompt = spans.of_positions(call.positions[: call.prompt_length].tolist())[-1]
        if prompt.stop < before:
            raise errors.EpisodeError(
                f"the conversation of step {number} ends at position {prompt.stop}, before what was said in the step before "
                f"it ({before}): it was rewritten, and its steps cannot be aligned"
            )
        # The last sampled token was never encoded in this step: it belongs to the next prompt.
        end = prompt.stop + max(len(call.generated) - 1, 0)
        seen, said = spans.Span(max(before, prompt.start), prompt.stop), spans.Span(prompt.stop, end)
        found.append({"observation": seen, "action": said})
        before = end
    return found


def align(
    source: capture_trajectory.TrajectoryActivations,
    target: capture_trajectory.TrajectoryActivations,
    *,
    roles: Sequence[str] = ROLES,
    anchor: Anchor = "end",
    tokenizer: Any = None,
) -> Alignment:
    """Matches the tokens of two episodes by step and role.

    Args:
        source: Where activations are taken from.
        target: Where they are to go.
        roles: Which roles to match.
        anchor: Which end of spans of unequal length is matched.
        tokenizer: Shows the texts in the printed alignment.

    Raises:
        EpisodeError: An episode cannot be aligned, or they have nothing in common.
    """
    unknown = set(roles) - set(ROLES)
    if unknown or anchor not in ("end", "start"):
        raise errors.EpisodeError(f"roles are {ROLES} and anchors 'end' or 'start', got {sorted(unknown) or anchor!r}")
    pairs, texts = [], []
    both = zip(role_spans(source), role_spans(target), strict=False)
    for step, (one, other) in enumerate(both):
        for role in roles:
            left, right = one[role], other[role]
            lengths = (len(left), len(right))
            count = min(lengths)
            if not count:
                continue
            cut = [
                spans.Span(span.stop - count, span.stop)
                if anchor == "end"
                else spans.Span(span.start, span.start + count)
                for span in (left, right)
            ]
            pairs.append(Pair(step, role, cut[0], cut[1], max(lengths) - count))
            texts.append((_told(source, step, cut[0], tokenizer), _told(target, step, cut[1], tokenizer)))
    if not pairs:
        raise errors.EpisodeError("the episodes have no step in common to align")
    return Alignment(tuple(pairs), tuple(texts) if tokenizer is not None else ())


def patches_between(
    source: capture_trajectory.TrajectoryActivations,
    target: capture_trajectory.TrajectoryActivations,
    site: sites.SiteFilter,
    alignment: Alignment | None = None,
    *,
    steps: Sequence[int] | None = None,
) -> list[interventions.Intervention]:
    """Interventions that put the source's activations in the target's corresponding places.

    Activations are those of the step that a pair belongs to.

    Args:
        source: Recorded at the Sites, at all positions.
        target: The episode they are for; only its positions matter.
        site: Which of the source's Sites.
        alignment: What corresponds; by role and step if left out.
        steps: Only the spans of these steps.

    Raises:
        EpisodeError: The source was not recorded at a position that is needed, or a Site has no value of one position.
    """
    alignment = alignment if alignment is not None else align(source, target)
    pairs = [pair for pair in alignment.pairs if steps is None or pair.step in steps]
    if not pairs:
        raise errors.EpisodeError(f"the alignment has nothing at steps {list(steps or ())}")
    taken = [_records(source, pair) for pair in pairs]
    patches: list[interventions.Intervention] = []
    for name in sites.select(site, source.site_names):
        if sites.Site.parse(name).is_query_key:
            raise errors.EpisodeError(f"{name!r} is about pairs of positions: take activations at another Site")
        for pair, numbers in zip(pairs, taken, strict=True):
            values = source.records.values(name, numbers).float().cpu().numpy()
            patches.append(interventions.Patch(site=name, values=values, start=pair.target.start))
    return patches


def _records(source: capture_trajectory.TrajectoryActivations, pair: Pair) -> np.ndarray:
    """The records of a pair's source, of its own step."""
    call = source.steps[pair.step].calls[-1]
    known = call.records >= 0
    at = dict(zip(call.positions[known].tolist(), call.records[known].tolist(), strict=True))
    missing = [position for position in pair.source if position not in at]
    if missing:
        raise errors.EpisodeError(
            f"the source has no record of position {missing[0]} in step {pair.step}: record it with positions='all'"
        )
    return np.array([at[position] for position in pair.source])


def _told(trajectory: capture_trajectory.TrajectoryActivations, step: int, span: spans.Span, tokenizer: Any) -> str:
    if tokenizer is None:
        return ""
    tokens = dict(zip(trajectory.positions(step).tolist(), trajectory.tokens(step).tolist(), strict=True))
    tail = [tokens[position] for position in range(max(span.start, span.stop - 6), span.stop) if position in tokens]
    return repr(tokenizer.decode(tail))
