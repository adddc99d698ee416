"""The generation loop: a batch of episodes, one step each, from prompts to responses.

1. Resolve which interventions are applied at which positions, per row; that is the row's lineage.
2. Find the longest cached prefix with the same tokens and lineage that the recorders already have (`kv`).
3. Prefill: encode what is left of each prompt, right-aligned, in one forward pass. Rows that were paused sit it out.
4. Decode token by token; rows that are finished ride along without writing anything.
5. Hand each row's recordings to its recorders, put the conversations back into the pool.

A run may be limited to some tokens per row: rows that are not finished then pause, and go on in a later batch with
other rows beside them.

Cost: one forward pass per generated token for the whole batch, plus one for the prompts' new tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sonde.core import interventions, spans
from sonde.models import checking, edits, frames, kv, layer_order, requests, sampling, tokenizer_files
from sonde.models import tape as model_tape
from sonde.models import wiring as model_wiring

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STOP_WINDOW = 64


@dataclasses.dataclass(slots=True, eq=False)
class Row:
    """One request under way.

    Attributes:
        request: The request.
        active: What is applied where.
        lineage: The same by effect and slot.
        reused: Slots taken from the cache.
        entry: Where they came from.
        known: For each recorder, its records of the slots that were in the cache at the start.
        parts: For each recorder what was recorded before the row paused.
        joined: What was recorded of its prompt, and in which row, if that was encoded apart.
    """

    request: requests.Request
    active: list[requests.Applied]
    lineage: dict[str, spans.Spans]
    generator: torch.Generator
    entry: kv.Entry | None = None
    reused: int = 0
    generated: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    encoded: int = 0
    known: dict[Any, np.ndarray] = dataclasses.field(default_factory=dict)
    parts: dict[Any, list[Mapping[str, Tensor]]] = dataclasses.field(default_factory=dict)
    joined: tuple[model_tape.Tape, int] | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and what was generated."""
        return (*self.request.tokens, *self.generated)

    def copy(self) -> "Row":
        """A row that goes on from here and leaves this one as it is."""
        generator = torch.Generator()
        generator.set_state(self.generator.get_state())
        parts = {key: list(found) for key, found in self.parts.items()}
        lists = {"generated": list(self.generated), "logprobs": list(self.logprobs)}
        return dataclasses.replace(self, generator=generator, parts=parts, **lists)

    @property
    def offset(self) -> int:
        """Episode position minus slot at the end of the prompt; 0 unless turns were dropped."""
        positions = self.request.positions
        return positions[-1] + 1 - len(positions) if positions else 0

    def position(self, slot: int) -> int:
        """Episode position of a slot."""
        return int(self.positions(slot + 1)[-1])

    def positions(self, length: int) -> np.ndarray:
        """Episode positions of the first slots."""
        asked = np.asarray((self.request.positions or ())[:length], dtype=np.int64)
        return np.concatenate([asked, np.arange(len(asked), length) + self.offset])


class Batch:
    """One run of the loop."""

    def __init__(
        self,
        parts: model_wiring.Parts,
        tokenizer: "PreTrainedTokenizerBase",
        pool: kv.Pool,
        batch: Sequence[requests.Item],
        *,
        limit: int | None = None,
    ) -> None:
        """Plans the run; nothing is computed yet.

        Args:
            parts: The model.
            tokenizer: Its tokenizer.
            pool: Its cached conversations.
            batch: Requests, and paused ones to go on with.
            limit: Pause rows that are not finished after so many tokens; None: run all to their end.
        """
        self.parts, self.tokenizer, self.pool = parts, tokenizer, pool
        self.device = next(parts.hf.parameters()).device
        self.end_ids = end_ids(parts.hf, tokenizer)
        self.end_index = torch.tensor(sorted(self.end_ids), dtype=torch.long, device=self.device)
        asked = [item.request if isinstance(item, requests.Paused) else item for item in batch]
        self.rows = [self._plan(item) if isinstance(item, requests.Request) else _taken_up(item) for item in batch]
        # What an intervention finds out from the whole prompt, or a function remembers, does not outlast a batch.
        lasting = any(one.spec.needs_whole_prompt or _is_opaque(one.spec) for row in self.rows for one in row.active)
        self.limit = None if lasting else limit
        self.may_join = not lasting
        self.order = checking.layer_order_of(asked[0])
        self._seat()
        self.tape = _tape(self.rows)
        self.edits = _bind(self.rows)

    def _plan(self, request: requests.Request) -> Row:
        active = [one for one in request.active() if not isinstance(one.spec, interventions.LayerOrder)]
        generator = torch.Generator().manual_seed(request.sampling.seed)
        row = Row(request, active, {}, generator)
        for one in active:
            row.lineage[one.key] = _slots(row, one.where)
        limit = len(request.tokens) - 1
        for one in active:
            if one.spec.needs_whole_prompt:
                first = request.new_start if one.spec.scope == "new" else 0
                limit = min(limit, int((row.positions(limit) < first).sum()))
        if self.parts.cfg.causal:
            order = checking.layer_order_of(request)
            row.entry, row.reused = self.pool.match(
                kv.cells(request.tokens, row.positions(len(request.tokens))),
                row.lineage,
                order=order.digest if order else None,
                recorders=[recorder.key for recorder in request.recorders if recorder.sites],
                limit=limit,
            )
        for recorder in request.recorders:
            # Who records no Site misses nothing in a prefix that another conversation encoded.
            missing = np.full(row.reused, -1, dtype=np.int64)
            known = row.entry.coverage.get(recorder.key, missing) if row.entry else missing
            row.known[recorder.key] = known[: row.reused]
        return row

    def _seat(self) -> None:
        need = max(len(row.request.tokens) + row.request.sampling.max_new_tokens for row in self.rows)
        self.slab, seats = self.pool.seat([(row.entry, row.reused) for row in self.rows], need)
        self.origin = sorted(range(len(self.rows)), key=lambda index: seats[index])
        self.rows = [self.rows[index] for index in self.origin]

    @torch.no_grad()
    def run(self) -> list[requests.Outcome]:
        """Generates; answers in the order of the requests."""
        cache = kv.SlabCache(self.slab)
        new = [index for index, row in enumerate(self.rows) if not row.generated]
        apart = self.may_join and 0 < len(new) < len(self.rows)
        wires = model_wiring.Wiring(self.parts, self.edits, self.tape)
        with layer_order.applied(self.parts, self.order):
            if apart:
                self._join(cache, new)
            with wires:
                self._generate(wires, cache, joined=apart)
        outcomes = [self._outcome(index, self.rows[index]) for index in np.argsort(self.origin).tolist()]
        answers = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
        if len(answers) < len(outcomes):
            raise requests.BatchError(outcomes)
        return answers

    def _generate(self, wires: model_wiring.Wiring, cache: kv.SlabCache, *, joined: bool) -> None:
        if not joined:
            self._take(self._prefill(wires, cache, self.rows), self.rows)
        done = 0 if joined else 1
        while done != self.limit and any(row.finish_reason is None for row in self.rows):
            self._take(self._decode(wires, cache), self.rows)
            done += 1

    def _join(self, cache: kv.SlabCache, new: Sequence[int]) -> None:
        """Encodes the prompts of some rows while the others wait: in one pass with them, those would be padding."""
        rows = [self.rows[index] for index in new]
        tape = _tape(rows)
        with model_wiring.Wiring(self.parts, _bind(rows), tape) as wires, cache.only(new):
            self._take(self._prefill(wires, cache, rows), rows)
        for index, row in enumerate(rows):
            row.joined = (tape, index) if tape is not None else None

    def _prefill(self, wires: model_wiring.Wiring, cache: kv.SlabCache, rows: Sequence[Row]) -> Tensor:
        width = max(len(row.tokens) - row.reused for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        slots = torch.full((len(rows), width), -1)
        for index, row in enumerate(rows):
            new = row.tokens[row.reused :]
            ids[index, width - len(new) :] = torch.tensor(new)
            slots[index, width - len(new) :] = torch.arange(row.reused, len(row.tokens))
            row.encoded += len(new)
        return self._forward(wires, cache, rows, (ids, slots))

    def _decode(self, wires: model_wiring.Wiring, cache: kv.SlabCache) -> Tensor:
        ids, slots = [], []
        for row in self.rows:
            alive = row.finish_reason is None
            ids.append([row.generated[-1] if alive else 0])
            slots.append([len(row.request.tokens) + len(row.generated) - 1 if alive else -1])
            row.encoded += alive
        return self._forward(wires, cache, self.rows, (torch.tensor(ids), torch.tensor(slots)))

    def _forward(
        self, wires: model_wiring.Wiring, cache: kv.SlabCache, rows: Sequence[Row], cells: tuple[Tensor, Tensor]
    ) -> Tensor:
        ids, slots = cells
        length = max(int(slots.max()) + 1, 1)
        slots = slots.to(self.device)
        frame = frames.Frame(
            positions=_positions(rows, slots),
            slots=slots,
            key_positions=_positions(rows, torch.arange(length, device=self.device).expand(len(rows), length)),
            owns_mask=True,
            padded=bool((slots < 0).any()),
            kept=1,
        )
        cache.begin(slots, length)
        with wires.forward(frame):
            output: Any = self.parts.hf(
                input_ids=ids.to(self.device),
                attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device),
                position_ids=slots.clamp(min=0),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=0 if wires.uses("unembed.hook_out") else frame.kept,
            )
        return output.logits[:, -1]

    def _take(self, logits: Tensor, rows: Sequence[Row]) -> None:
        """Chooses the next token of every row that is not finished."""
        early = [index for index, row in enumerate(rows) if len(row.generated) < row.request.sampling.min_new_tokens]
        open_to = sampling.without(logits, early, self.end_index)
        greedy = any(row.request.sampling.temperature == 0 for row in rows)
        likeliest = open_to.argmax(dim=-1).tolist() if greedy else []  # of all rows at once
        chosen = []
        for index, row in enumerate(rows):
            asked, forced = row.request.sampling, row.request.forced
            if row.finish_reason is not None:
                chosen.append(0)
                continue
            # Drawn even if forced, so that what follows a replay is drawn as it would have been without one.
            drawn = sampling.draw(open_to[index], asked, row.generator) if asked.temperature else likeliest[index]
            chosen.append(forced[len(row.generated)] if len(row.generated) < len(forced) else drawn)
        for row, token, logprob in zip(rows, chosen, sampling.logprobs_of(logits, chosen), strict=True):
            if row.finish_reason is None:
                row.generated.append(token)
                row.logprobs.append(logprob)
                row.finish_reason = self._finish_reason(row)

    def _finish_reason(self, row: Row) -> str | None:
        if row.request.cancelled.is_set():
            return "cancelled"
        if row.generated[-1] in self.end_ids:
            return "stop"
        if row.request.sampling.stop:
            window = STOP_WINDOW + max(len(stop.encode()) for stop in row.request.sampling.stop)
            tail = tokenizer_files.decode(self.tokenizer, row.generated[-window:], skip_special_tokens=True)
            if any(stop in tail for stop in row.request.sampling.stop):
                return "stop"
        return "length" if len(row.generated) >= row.request.sampling.max_new_tokens else None

    def _outcome(self, index: int, row: Row) -> requests.Outcome | Exception:
        """A recorder that fails spoils its own request only."""
        try:
            for recorder in row.request.recorders:
                assert self.tape is not None
                played = ([row.joined] if row.joined else []) + [(self.tape, index)]
                found = [tape.row(place, recorder.sites) for tape, place in played if tape.passes]
                row.parts.setdefault(recorder.key, []).extend(found)
            row.joined = None
            return self._pause(index, row) if row.finish_reason is None else self._finish(index, row)
        except Exception as error:
            return error

    def _pause(self, index: int, row: Row) -> requests.Paused:
        row.entry, row.reused = self._entry(index, row, {}), len(row.tokens) - 1
        return requests.Paused(row.request, row)

    def _entry(self, index: int, row: Row, coverage: dict[Any, np.ndarray]) -> kv.Entry:
        """The row as a cached conversation: all of its tokens but the last, which was not encoded."""
        length = len(row.tokens) - 1
        cells = kv.cells(row.tokens[:length], row.positions(length))
        lineage = {digest: spans.clip(where, 0, length) for digest, where in row.lineage.items()}
        order = self.order.digest if self.order else None
        return kv.Entry(cells, lineage, order, self.slab, self.slab.place.index(index), coverage)

    def _finish(self, index: int, row: Row) -> requests.Generation:
        request = row.request
        encoded = (*request.tokens, *row.generated[:-1])
        coverage: dict[Any, np.ndarray] = {}
        for recorder in request.recorders:
            known, values = row.known[recorder.key], _joined(row.parts[recorder.key])
            where = row.positions(len(encoded))
            told = (encoded, len(request.tokens), known, where, values, tuple(row.generated), request.step)
            coverage[recorder.key] = recorder.deliver(requests.Recorded(*told))
        end = row.position(len(encoded)) + 1
        if self.parts.cfg.causal:
            self.pool.add(self._entry(index, row, coverage))
        return requests.Generation(
            text=cut_text(self.tokenizer, row.generated, request.sampling.stop),
            tokens=tuple(row.generated),
            logprobs=tuple(row.logprobs),
            finish_reason=row.finish_reason or "length",
            prompt_tokens=len(request.tokens),
            encoded_tokens=row.encoded,
            persisted=requests.persisting(request, end),
            seed=request.sampling.seed,
        )


def _tape(rows: Sequence[Row]) -> model_tape.Tape | None:
    recorders = [recorder for row in rows for recorder in row.request.recorders]
    return model_tape.Tape(frozenset(name for one in recorders for name in one.sites)) if recorders else None


def _bind(rows: Sequence[Row]) -> list[edits.Edit]:
    """Equal interventions of several rows become one edit, as long as that keeps every row's own order."""
    keys: list[str] = []
    bound: list[edits.Edit] = []
    for index, row in enumerate(rows):
        prompt = (row.request.new_start, row.position(len(row.request.tokens) - 1) + 1)
        after = 0
        for one in row.active:
            if one.key in keys[after:]:
                at = keys.index(one.key, after)
            else:
                at = len(keys)
                keys.append(one.key)
                bound.append(edits.Edit(one.spec, {}, {}, {}))
            bound[at].rows[index] = one.where
            bound[at].prompts[index] = prompt
            bound[at].steps[index] = row.request.step
            after = at + 1
    return bound


def _positions(rows: Sequence[Row], slots: Tensor) -> Tensor:
    """The episode positions of slots; -1 stays."""
    if all(row.request.positions is None for row in rows):
        return slots
    here = slots.cpu().numpy()
    known = [row.positions(max(int(here.max()) + 1, 1)) for row in rows]
    table = [np.where(line >= 0, where[line], -1) for where, line in zip(known, here, strict=True)]
    return torch.from_numpy(np.stack(table)).to(slots.device)


def _taken_up(paused: requests.Paused) -> Row:
    assert isinstance(paused.state, Row)
    return paused.state.copy()


def _is_opaque(spec: interventions.Intervention) -> bool:
    return isinstance(spec, interventions.Opaque)


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    """What was recorded from pause to pause, as one."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def end_ids(hf: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a text, by the model's generation config and the tokenizer."""
    declared = getattr(hf.generation_config, "eos_token_id", None)
    found = declared if isinstance(declared, list) else [declared]
    return frozenset(int(token) for token in [*found, getattr(tokenizer, "eos_token_id", None)] if token is not None)


def cut_text(tokenizer: Any, tokens: Sequence[int], stops: Sequence[str]) -> str:
    """Decoded text without special tokens, cut where the first stop string starts (it may end inside a token)."""
    text = tokenizer_files.decode(tokenizer, tokens, skip_special_tokens=True)
    cuts = [text.index(stop) for stop in stops if stop in text]
    return text[: min(cuts)] if cuts else text


def _slots(row: Row, where: spans.Spans) -> spans.Spans:
    """Episode positions as slots."""
    positions = row.request.positions
    if positions is None:
        return where
    inside = [slot for slot, position in enumerate(positions) if any(position in span for span in where)]
    later = spans.clip(where, positions[-1] + 1, interventions.FOREVER)
    shifted = [spans.Span(span.start - row.offset, span.stop - row.offset) for span in later]
    return spans.union([*spans.of_positions(inside), *shifted])
