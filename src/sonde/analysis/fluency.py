"""How likely does the unsteered model find what was written? A steered text that is valid but gibberish shows here.

    fluent = mean_logprobs(model, [episode.trajectory for episode in played])

1. Tokens are those that were recorded. Where some of a prompt were not (a filter chose other positions), the prompt is made
   again from the conversation, as it was when it was played, and checked against its recorded length and tokens.
2. The conversation of an episode grows: mostly, a step's prompt begins with all that came before. Such steps are one
   passage, and the last of them holds the tokens of all. Where a prompt does not go on from the step before (turns
   were dropped, reasoning was cut), a new passage begins.
3. What all passages begin with (rules, an example game) is encoded once. The rest of passages of like length is run
   together, padded on the right, with nothing recorded and nothing changed, whatever is in force around the call.
4. Each generated token's log-probability is read off at the token before it; temperature plays no part.

Cost: one forward pass over each episode's own tokens, at most `MOST_TOKENS` or one passage at a time. Positions are counted
from the start of a passage.
"""

import contextvars
import copy
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sonde.agents import trajectories
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, progress, spans
from sonde.models import model as models_model

#: Tokens, padding included, that are run at once: their logits are the most of what is held in memory.
MOST_TOKENS = 2048
#: Tokens that all passages must begin with to have them encoded once for all.
WORTH_SHARING = 32
Logprobs = tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Passage:
    """Tokens, and which of them to judge.

    Attributes:
        tokens: A text as the model saw it.
        parts: Where in it the parts to judge stand; the first token of a text cannot be judged.
    """

    tokens: tuple[int, ...]
    parts: tuple[spans.Span, ...]

    def __post_init__(self) -> None:
        """Checks that the parts are inside."""
        outside = [part for part in self.parts if part.start < 1 or part.stop > len(self.tokens)]
        if outside:
            raise errors.RequestError(
                f"{outside[0]} cannot be judged in a passage of {len(self.tokens)} tokens: expected 1 to {len(self.tokens)}"
            )


def mean_logprobs(
    model: models_model.Model,
    trajectories: Sequence[capture_trajectory.TrajectoryActivations],
    *,
    tell: progress.Tell = progress.silent,
) -> list[float]:
    """The mean log-probability of all tokens generated in each episode; NaN if there are none.

    Args:
        model: The model, unsteered.
        trajectories: Episodes that this model played; with the tokens of all positions, or else with their conversation,
            as `sonde.play` and `run_episode` record it.
        tell: Reports how many passages are done, and of how many.

    Raises:
        CaptureError: The tokens of a prompt were not recorded and cannot be made again.
    """
    told = step_logprobs(model, trajectories, tell=tell)
    return [_mean([value for step in episode for value in step]) for episode in told]


def step_logprobs(
    model: models_model.Model,
    trajectories: Sequence[capture_trajectory.TrajectoryActivations],
    *,
    tell: progress.Tell = progress.silent,
) -> list[list[Logprobs]]:
    """The log-probability of each generated token, by episode and step; see `mean_logprobs`."""
    passages = [passages_of(model, trajectory) for trajectory in trajectories]
    judged = iter(judge(model, [one for some in passages for one in some], tell=tell))
    return [[step for _ in some for step in next(judged)] for some in passages]


def passages_of(model: models_model.Model, trajectory: capture_trajectory.TrajectoryActivations) -> list[Passage]:
    """The passages of an episode; its steps are their parts, in order.

    Raises:
        CaptureError: The tokens of a prompt were not recorded and cannot be made again.
    """
    found: list[Passage] = []
    for number, prompt in enumerate(_prompts(model, trajectory)):
        generated = trajectory.generated(number)
        part = spans.Span(len(prompt), len(prompt) + len(generated))
        if found and prompt[: len(found[-1].tokens)] == found[-1].tokens:
            found[-1] = Passage(prompt + generated, (*found[-1].parts, part))
        else:
            found.append(Passage(prompt + generated, (part,)))
    return found


def judge(
    model: models_model.Model, passages: Sequence[Passage], *, tell: progress.Tell = progress.silent
) -> list[list[Logprobs]]:
    """The log-probability of each token of each part of each passage.

    Raises:
        ContextError: A passage does not fit the model's context.
    """
    longest = max([len(passage.tokens) for passage in passages], default=0)
    if longest > model.cfg.n_ctx:
        raise errors.ContextError(f"a passage of {longest} tokens does not fit the context of {model.cfg.n_ctx}")
    # In a context of its own nobody rides along: no capture records this, and no intervention changes it.
    alone = contextvars.Context()
    beginning = alone.run(_Beginning.of, model, passages)
    found: dict[int, list[Logprobs]] = {}
    for batch in _batches([len(passage.tokens) - beginning.length for passage in passages]):
        chosen = [passages[index] for index in batch]
        found.update(zip(batch, alone.run(_judged, model, chosen, beginning), strict=True))
        tell("fluency", len(found), len(passages))
    return [found[index] for index in range(len(passages))]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Beginning:
    """What all passages begin with: how many tokens, and their keys and values."""

    length: int = 0
    cache: Any = None

    @classmethod
    def of(cls, model: models_model.Model, passages: Sequence[Passage]) -> "_Beginning":
        # The token before a part is where the part is judged, and must be run again.
        known = [one.tokens[: min([part.start - 1 for part in one.parts], default=0)] for one in passages]
        columns = zip(*known, strict=False) if len(known) > 1 else ()
        common = [column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns)]
        if len(common) < WORTH_SHARING:
            return cls()
        tokens = torch.tensor([common], device=model.device)
        with model.lock, torch.no_grad():
            return cls(len(common), model.hf(input_ids=tokens, use_cache=True).past_key_values)

    def repeated(self, count: int) -> Any:
        """The keys and values for so many rows; a copy, for a forward pass adds to them."""
        cache = copy.deepcopy(self.cache)
        if cache is not None:
            cache.batch_repeat_interleave(count)
        return cache


def _judged(model: models_model.Model, passages: list[Passage], beginning: _Beginning) -> list[list[Logprobs]]:
    # What comes after the last token to judge, and that token itself, need not be encoded.
    known = beginning.length
    ends = [max([part.stop - 1 for part in one.parts], default=known + 1) for one in passages]
    ends = [max(end, known + 1) for end in ends]
    tokens = torch.zeros(len(passages), max(ends) - known, dtype=torch.long)
    mask = torch.zeros(len(passages), max(ends), dtype=torch.long)
    for row, (passage, end) in enumerate(zip(passages, ends, strict=True)):
        tokens[row, : end - known] = torch.tensor(passage.tokens[known:end])
        mask[row, :end] = 1
    with model.lock, torch.no_grad():
        logits = model.hf(
            input_ids=tokens.to(model.device),
            attention_mask=mask.to(model.device),
            position_ids=torch.arange(known, max(ends), device=model.device)[None].expand(len(passages), -1),
            past_key_values=beginning.repeated(len(passages)),
            use_cache=beginning.cache is not None,
        ).logits
    found: list[list[Logprobs]] = []
    for row, passage in enumerate(passages):
        parts: list[Logprobs] = []
        for part in passage.parts:
            said = torch.tensor(passage.tokens[part.start : part.stop], dtype=torch.long, device=logits.device)
            where = slice(part.start - 1 - known, part.stop - 1 - known)
            scores = torch.log_softmax(logits[row, where].float(), dim=-1)
            parts.append(tuple(scores.gather(1, said[:, None])[:, 0].tolist()))
        found.append(parts)
    return found


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Which passages are run together: neighbours in length, as many as fit."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= MOST_TOKENS:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _prompts(model: models_model.Model, trajectory: capture_trajectory.TrajectoryActivations) -> list[tuple[int, ...]]:
    """The prompt of every step."""
    steps = range(len(trajectory))
    recorded = [trajectory.tokens(step).tolist() for step in steps]
    slots = [np.flatnonzero(trajectory.steps[step].calls[-1].records >= 0) for step in steps]
    lengths = [trajectory.prompt_length(step) for step in steps]
    if all((kept < length).sum() == length for kept, length in zip(slots, lengths, strict=True)):
        return [tuple(tokens[:length]) for tokens, length in zip(recorded, lengths, strict=True)]
    try:
        prompts = [one.tokens for one in trajectories.asked(model, trajectory)]
    except errors.EpisodeError as error:
        raise errors.CaptureError(
            f"of the prompts only some tokens were recorded, and no conversation ({error}): record positions='all' to judge "
            "how fluent an episode is"
        ) from error
    for step in steps:
        whole = (*prompts[step], *trajectory.generated(step))
        if len(prompts[step]) != lengths[step] or [whole[slot] for slot in slots[step]] != recorded[step]:
            raise errors.CaptureError(
                f"the prompt of step {step}, made again from its conversation, has {len(prompts[step])} tokens and is not "
                f"the one that was played, of {lengths[step]}: give the model that played it, or record positions='all'"
            )
    return prompts


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
