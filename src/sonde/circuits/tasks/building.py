"""Does a prompt fit the tokenizer? Drafts in words become pairs of tokens, or are dropped with a reason.

    builder = building.Builder(model, "ioi")
    names = builder.single(NAMES)                       # those that are one token after a space
    builder.fill(drafts, n=64)                          # drafts until 64 fit
    pairs, report = builder.finish()

A draft fits if

1. clean and corrupt have the same number of tokens and differ,
2. every answer begins with a token of its own: writing it after the prompt leaves the prompt's tokens as they are,
3. no answer begins with the same token as a wrong one.

An answer stands for its first token. Costs a few encodings per draft.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sonde.circuits import pairs as circuit_pairs
from sonde.core import errors

SHOWN = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A pair before tokenization; texts may be token ids already, and answers too."""

    clean: str | Sequence[int]
    corrupt: str | Sequence[int]
    answers: Sequence[str | int]
    wrongs: Sequence[str | int] = ()
    label: str = ""
    cluster: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What became of the drafts of a task.

    Attributes:
        task: Its name.
        asked: How many pairs were asked for; None for all there are.
        kept: How many there are.
        dropped: Drafts and words that did not fit, counted by reason.
        examples: One that was dropped, for each reason.
    """

    task: str
    asked: int | None
    kept: int
    dropped: Mapping[str, int]
    examples: Mapping[str, str]

    def __str__(self) -> str:
        """One line per reason."""
        asked = "" if self.asked in (None, self.kept) else f" of {self.asked} asked for"
        lines = [f"{self.task}: {self.kept} pairs{asked}"]
        lines += [f"  {count} dropped: {why} (such as {self.examples[why]})" for why, count in self.dropped.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {**dataclasses.asdict(self), "dropped": dict(self.dropped), "examples": dict(self.examples)}


class _UnfitError(Exception):
    """A draft does not fit, for this reason."""


class Builder:
    """Turns drafts into pairs and remembers what did not fit."""

    def __init__(self, model: Any, task: str) -> None:
        """Takes the model whose tokenizer has to be satisfied."""
        self._model, self._task = model, task
        self._kept: list[circuit_pairs.Pair] = []
        self._seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        self._dropped: collections.Counter[str] = collections.Counter()
        self._examples: dict[str, str] = {}
        self._asked: int | None = None

    def single(self, words: Sequence[str], *, least: int = 2) -> list[str]:
        """Those words that are one token after a space.

        Raises:
            RequestError: Fewer than `least` are.
        """
        fit = [word for word in words if len(self._bare(f" {word}")) == 1]
        for word in words:
            if word not in fit:
                self._drop("the word is not one token after a space", repr(f" {word}"))
        if len(fit) < least:
            raise self._nothing(f"only {len(fit)} of {len(words)} words can be used, {least} are needed")
        return fit

    def fill(self, drafts: Iterable[Draft], *, n: int | None) -> None:
        """Keeps drafts that fit, each once, until there are `n`, or drafts end, or far too many did not fit.

        Raises:
            RequestError: `n` is less than 1.
        """
        if n is not None and n < 1:
            raise errors.RequestError(f"{self._task}: n is {n}, expected at least 1")
        self._asked = n
        for tried, draft in enumerate(drafts):
            if n is not None and (len(self._kept) >= n or tried >= 20 * n + 200):
                return
            try:
                pair = self._pair(draft)
            except _UnfitError as reason:
                self._drop(str(reason), repr(draft.label or _shown(draft.clean)))
                continue
            key = (tuple(pair.clean), tuple(pair.corrupt))
            if key not in self._seen:
                self._seen.add(key)
                self._kept.append(pair)
            elif n is None:  # a generator goes on until it has n; what was given by somebody is accounted for
                self._drop("the same pair as an earlier one", repr(pair.label))

    def leave_out(self, drafts: Iterable[Draft], reason: str) -> None:
        """Counts drafts that are not tried."""
        for draft in drafts:
            self._drop(reason, repr(draft.label or _shown(draft.clean)))

    def finish(self) -> tuple[circuit_pairs.Pairs, Report]:
        """The pairs, and what was dropped.

        Raises:
            RequestError: Nothing was kept; says why.
        """
        if not self._kept:
            raise self._nothing("no pair is left")
        pad = getattr(self._model.tokenizer, "pad_token_id", None) or 0
        report = Report(self._task, self._asked, len(self._kept), dict(self._dropped), dict(self._examples))
        return circuit_pairs.Pairs.of(self._kept, pad=pad), report

    def continuations(self, text: str, words: Sequence[str]) -> list[int | None]:
        """The first token that each word adds to a text; None where it changes the text's own tokens."""
        prompt = self._encode(text)
        return [self._after(text, prompt, word) for word in words]

    def _pair(self, draft: Draft) -> circuit_pairs.Pair:
        clean, corrupt = self._encode(draft.clean), self._encode(draft.corrupt)
        if not clean or not corrupt:
            raise _UnfitError("an input has no tokens")
        if len(clean) != len(corrupt):
            raise _UnfitError("clean and corrupt differ in their number of tokens")
        if clean == corrupt:
            raise _UnfitError("clean and corrupt are the same tokens")
        answers, wrongs = (self._options(draft.clean, clean, words) for words in (draft.answers, draft.wrongs))
        if set(answers) & set(wrongs):
            raise _UnfitError("an answer begins with the same token as a wrong one")
        return circuit_pairs.Pair(clean, corrupt, answers, wrongs, draft.label or _shown(draft.clean), draft.cluster)

    def _options(self, text: str | Sequence[int], prompt: list[int], words: Sequence[str | int]) -> list[int]:
        found = [self._after(text, prompt, word) if isinstance(word, str) else word for word in words]
        if any(token is None for token in found):
            raise _UnfitError("an answer melts into the tokens of the prompt")
        tokens = list(dict.fromkeys(token for token in found if token is not None))
        strange = [token for token in tokens if not 0 <= token < self._model.cfg.d_vocab]
        if strange:
            raise _UnfitError(f"an answer is no token of this model, which has {self._model.cfg.d_vocab}")
        return tokens

    def _after(self, text: str | Sequence[int], prompt: list[int], word: str) -> int | None:
        """The first token of a word written after a prompt."""
        if not isinstance(text, str):
            own = self._bare(word)
            return own[0] if own else None
        whole = self._encode(text + word)
        fits = len(whole) > len(prompt) and whole[: len(prompt)] == prompt
        return whole[len(prompt)] if fits else None

    def _encode(self, text: str | Sequence[int]) -> list[int]:
        if not isinstance(text, str):
            return [int(token) for token in text]
        return self._model.to_tokens(text)[0].tolist() if text else []

    def _bare(self, text: str) -> list[int]:
        """Tokens without the special ones."""
        return list(self._model.tokenizer.encode(text, add_special_tokens=False))

    def _drop(self, reason: str, example: str) -> None:
        self._dropped[reason] += 1
        self._examples.setdefault(reason, example)

    def _nothing(self, what: str) -> errors.RequestError:
        reasons = [f"{count} times {why} (such as {self._examples[why]})" for why, count in self._dropped.items()]
        return errors.RequestError(
            f"task {self._task!r} does not fit the tokenizer of {self._model.cfg.model_name}: {what}. Dropped: "
            f"{'; '.join(reasons) or 'nothing'}. Use another model or task, or bring your own pairs as JSONL"
        )


def _shown(text: str | Sequence[int]) -> str:
    words = text if isinstance(text, str) else " ".join(str(token) for token in text)
    return words if len(words) <= SHOWN else words[: SHOWN - 1] + "…"
