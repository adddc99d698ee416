"""Runs taken up in the middle: at a layer, from a position on, with another residual stream.

    engine = resuming.Engine(model)
    base = engine.base(ids)
    logits = engine.resume(base, 5, {3: resuming.Join(owners, vectors)})

A causal model's stream at a position depends on nothing later, so a run whose stream was changed into layer L at position
p differs from the clean one only in layers from L and positions from p on:

1. `base` runs the inputs once and keeps the stream into every layer, and keys and values of every layer.
2. `resume` runs positions p to the end only. Keys and values before p are the clean ones.
3. Rows join at the input of their layer, so the batch grows on the way up; layers below the lowest are not run.
4. Logits are computed for the last position only, unless more are asked for.

The model's own layers do the work, whatever the family. Nothing that rides on the model records or changes these runs.
Cost of a row: (layers from L) x (positions from p) of a forward pass, a quarter of it on average over a whole grid. Memory
of a base: the streams, and keys and values, of its inputs.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils import hooks as torch_hooks

from sonde.core import interventions
from sonde.models import edits, frames, layer_order, taps
from sonde.models import model as models_model
from sonde.models import tape as model_tape
from sonde.models import wiring as model_wiring

#: Sees what a layer is called with, and may give another stream.
Hook = Callable[[Any, dict[str, Any]], Tensor | None]


class Past:
    """What transformers sees as the cache: keys and values of the base, up to where a run is taken up."""

    is_compileable = False

    def __init__(self) -> None:
        """Keeps what it is given until `begin` is called."""
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self._start: int | None = None
        self._owners: Tensor | None = None

    def begin(self, start: int, owners: Tensor | None) -> None:
        """From now on hands out what lies before a position, for each row that of its owner (None: one for all)."""
        self._start, self._owners = start, owners

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Returns all keys and values that the new positions may look at."""
        if self._start is None:
            self.keys[layer_idx], self.values[layer_idx] = key, value
        if not self._start:
            return key, value
        before = (kept[layer_idx][:, :, : self._start] for kept in (self.keys, self.values))
        keys, values = (self._for_rows(past, len(key)) for past in before)
        return torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)

    def _for_rows(self, past: Tensor, rows: int) -> Tensor:
        return past.expand(rows, -1, -1, -1) if self._owners is None else past[self._owners[:rows]]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many positions lie before."""
        return self._start or 0


@dataclasses.dataclass(slots=True, eq=False)
class Base:
    """Inputs that were run as they are.

    Attributes:
        ids: Their tokens.
        streams: The stream into each layer, and at the end the one after the last.
        values: What else was recorded, by Site.
        logits: At the last position of each input.
        past: Their keys and values.
        calls: What each layer was called with beside the stream.
    """

    ids: Int[Tensor, "input pos"]
    streams: list[Float[Tensor, "input pos d_model"]]
    values: Mapping[str, Tensor]
    logits: Float[Tensor, "input kept d_vocab"]
    past: Past
    calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Join:
    """Rows that join at the input of a layer.

    Attributes:
        owners: The input of the base that each row goes on from.
        vectors: Its stream at the first positions of the resumed part; at later ones the stream is the base's.
    """

    owners: Int[Tensor, "row"]
    vectors: Float[Tensor, "row first d_model"]


class Engine:
    """Resumes the runs of one model."""

    def __init__(self, model: models_model.Model) -> None:
        """Touches nothing yet."""
        self.model = model
        self.parts = model.parts

    def base(self, ids: Int[Tensor, "input pos"], names: Sequence[str] = (), *, keep: int = 1) -> Base:
        """Runs inputs as they are and keeps what resuming needs, and the values at other Sites.

        Args:
            ids: Token ids of inputs of equal length.
            names: Sites to record beside the stream.
            keep: Positions, from the end, to compute logits at.
        """
        last = self.parts.cfg.n_layers - 1
        streams = [f"blocks.{layer}.hook_resid_pre" for layer in range(last + 1)] + [f"blocks.{last}.hook_resid_post"]
        tape, past = model_tape.Tape(frozenset((*streams, *names))), Past()
        calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        notes = {layer: functools.partial(_note, calls, layer) for layer in range(last + 1)}
        with self._wired(0, ids.shape[1], keep, tape=tape) as wires, self._hooked(wires, notes):
            logits = self._forward(ids, 0, past, keep)
        found = {name: tape.chunk(name)[0] for name in tape.wanted}
        past.begin(0, None)
        return Base(ids, [found[name] for name in streams], {name: found[name] for name in names}, logits, past, calls)

    def resume(
        self,
        base: Base,
        start: int,
        joins: Mapping[int, Join],
        *,
        keep: int = 1,
        settle: Mapping[int, Tensor] | None = None,
        bound: Sequence[edits.Edit] = (),
    ) -> Float[Tensor, "row kept d_vocab"]:
        """Takes runs up from a position on.

        Args:
            base: What they go on from.
            start: The first position.
            joins: Rows by the layer that they join at; the number of layers stands for the final norm.
            keep: Positions, from the end, to compute logits at.
            settle: For layers above, the stream that all rows are given at the first positions there, `first d_model`.
            bound: Interventions on the way; then all rows must join at one layer.

        Returns:
            Logits of the rows, in the order of their layers.
        """
        n_layers, width = self.parts.cfg.n_layers, base.ids.shape[1] - start
        joins = dict(sorted(joins.items()))
        unused = 0
        if min(joins) == n_layers:  # somebody must come through the last layer for the others to join
            nobody = torch.zeros(1, dtype=torch.long, device=base.ids.device)
            joins = {n_layers - 1: Join(nobody, base.streams[0].new_zeros(1, 0, self.parts.cfg.d_model)), **joins}
            unused = 1
        first = min(joins)
        owners = torch.cat([join.owners for join in joins.values()])
        order = interventions.LayerOrder(order=tuple(range(first, n_layers)))
        rows = len(owners) if bound else 1
        with self._wired(start, start + width, keep, bound=bound, rows=rows) as wires:
            base.past.begin(start, owners if len(base.ids) > 1 else None)
            hooks: dict[int, Hook] = {
                layer: functools.partial(_join, base.streams[layer][:, start:], join, layer == first)
                for layer, join in joins.items()
            }
            hooks |= {layer: functools.partial(_settle, held) for layer, held in (settle or {}).items()}
            with self._hooked(wires, hooks), layer_order.applied(self.parts, order):
                logits = self._forward(base.ids[:1, start:], start, base.past, keep)
        return logits[unused:]

    def through(
        self, base: Base, layer: int, site: str, values: Float[Tensor, "row pos *axes"]
    ) -> Float[Tensor, "row pos d_model"]:
        """The stream after a layer if a Site in it had these values at all positions.

        What attention or MLP write at a position changes, within their layer, the stream at that position only: keys and
        values come from the layer's input. So one run of the layer serves patches of every single position.

        Args:
            base: What goes into the layer; rows of `values` go through its inputs again and again, in their order.
            layer: The layer.
            site: `attn.hook_z`, `hook_attn_out` or `hook_mlp_out` of that layer.
            values: The whole value there.
        """
        tap = self.parts.taps[site]
        args, kwargs = base.calls[layer]
        rows = len(values) // len(base.ids)
        with self._wired(0, base.ids.shape[1], 0) as wires:
            base.past.begin(0, None)
            give = functools.partial(_give, wires, values.flatten(2))
            before = tap.side == "in"
            handle = tap.module.register_forward_pre_hook(give) if before else tap.module.register_forward_hook(give)
            try:
                stream = base.streams[layer].repeat(rows, 1, 1)
                return taps.first_tensor(self.parts.blocks[layer](stream, *args, **kwargs))
            finally:
                handle.remove()

    @contextlib.contextmanager
    def _wired(
        self,
        start: int,
        stop: int,
        keep: int,
        *,
        tape: model_tape.Tape | None = None,
        bound: Sequence[edits.Edit] = (),
        rows: int = 1,
    ) -> Iterator[model_wiring.Wiring]:
        """The model to itself, for one forward pass over positions `start` to `stop - 1`.

        One row of positions serves a batch of any size; only interventions must know the rows apart.
        """
        positions = torch.arange(stop, device=self.model.device).expand(rows, stop)
        here = positions[:, start:]
        frame = frames.Frame(here, here, positions, owns_mask=True, padded=False, kept=keep)
        wires = model_wiring.Wiring(self.parts, bound, tape)
        with self.model.lock, torch.no_grad(), wires, wires.forward(frame):
            yield wires

    @contextlib.contextmanager
    def _hooked(self, wires: model_wiring.Wiring, hooks: Mapping[int, Hook]) -> Iterator[None]:
        """Hooks at the input of layers; the number of layers stands for the final norm."""
        places = (*self.parts.blocks, self.parts.taps["ln_final.hook_out"].module)

        def visit(hook: Hook, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            stream = hook(args, kwargs) if wires.here is not None else None
            return None if stream is None else ((stream, *args[1:]), kwargs)

        handles: list[torch_hooks.RemovableHandle] = []
        try:
            for layer, hook in hooks.items():
                handles.append(
                    places[layer].register_forward_pre_hook(functools.partial(visit, hook), with_kwargs=True)
                )
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _forward(self, ids: Tensor, start: int, past: Past, keep: int) -> Tensor:
        device = ids.device
        return self.model.hf(
            input_ids=ids,
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
            # One row of positions serves any number of rows: rotary tables broadcast.
            position_ids=torch.arange(start, start + ids.shape[1], device=device)[None],
            past_key_values=past,
            use_cache=True,
            logits_to_keep=keep,
        ).logits


def _note(calls: dict[int, Any], layer: int, args: Any, kwargs: dict[str, Any]) -> None:
    calls[layer] = (args[1:], kwargs)


def _join(stream: Tensor, join: Join, first: bool, args: Any, kwargs: dict[str, Any]) -> Tensor:
    rows = stream[join.owners]
    rows[:, : join.vectors.shape[1]] = join.vectors
    return rows if first else torch.cat((args[0], rows))


def _settle(held: Tensor, args: Any, kwargs: dict[str, Any]) -> Tensor:
    stream = args[0].clone()
    stream[:, : len(held)] = held
    return stream


def _give(wires: model_wiring.Wiring, values: Tensor, module: nn.Module, args: Any, output: Any = None) -> Any:
    """Puts a value in place of a module's input, or of its output where there is one."""
    if wires.here is None:
        return None
    if output is None:
        return (values, *args[1:])
    return (values, *output[1:]) if isinstance(output, tuple) else values
