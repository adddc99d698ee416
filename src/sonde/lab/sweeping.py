"""How much does each of many layer orders cost, without running what they share again and again?

    base = sweeping.Base(model, ids)
    for name, logits in sweeping.sweep(base, {"skip:11": order, …}):
        …                                                     # batch pos d_vocab, one order at a time

1. The intact model runs once, and the stream into each layer is kept.
2. An order that begins like the intact model (0, 1, 2, …) goes on from the first layer that is another: `skip:20` of 30
   layers runs nine. An order that leaves out only the last layers runs none at all.
3. The model's own layers do the work. The result is that of a whole forward pass under the order, to the last bits.

Cost of a whole sweep of single skips: half of the layers' work and all of the unembedding's, about 0.6 of as many forward
passes. Memory: the streams of the inputs, and the logits of one order at a time. Interventions at Sites are
not for here: they need `run_with_hooks`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sonde.core import errors, interventions
from sonde.models import layer_order, readout
from sonde.models import model as models_model
from sonde.models import wiring as model_wiring


class Base:
    """Inputs that the intact model has run.

    Attributes:
        model: The model.
        ids: Token ids of texts of equal length.
        streams: The stream into each layer, and at the end the one after the last.
        logits: What the intact model says.
    """

    def __init__(self, model: models_model.Model, ids: Int[Tensor, "batch pos"]) -> None:
        """Runs the inputs once."""
        last = model.cfg.n_layers - 1
        names = [f"blocks.{layer}.hook_resid_pre" for layer in range(last + 1)] + [f"blocks.{last}.hook_resid_post"]
        logits, cache = model.run_with_cache(ids, names)
        self.model, self.ids = model, ids
        self.streams: list[Float[Tensor, "batch pos d_model"]] = [cache[name] for name in names]
        self.logits: Float[Tensor, "batch pos d_vocab"] = logits.as_subclass(Tensor)

    def run(self, order: interventions.LayerOrder) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits under an order, taken up where it leaves the intact one.

        Raises:
            InterventionError: The order names no such layer.
        """
        model_wiring.check(order, self.model.parts)
        shared = common(order)
        rest = order.stages[shared:]
        return self._resumed(self.streams[shared], rest, order.combine)

    def resume(self, layer: int, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits if this were the stream into a layer, from where all goes its usual way."""
        return self._resumed(stream, tuple((one,) for one in range(layer, self.model.cfg.n_layers)), "sum")

    def _resumed(
        self,
        stream: Float[Tensor, "batch pos d_model"],
        rest: tuple[tuple[int, ...], ...],
        combine: interventions.Combine,
    ) -> Float[Tensor, "batch pos d_vocab"]:
        model, parts = self.model, self.model.parts
        if not rest:
            return self.read_out(stream)
        order = interventions.LayerOrder(order=rest, combine=combine)
        with model.lock, torch.no_grad(), layer_order.applied(parts, order):
            layers: Any = parts.hf.get_submodule(parts.family.layers)
            handle = layers[0].register_forward_pre_hook(_Once(stream), with_kwargs=True)
            try:
                return model.hf(input_ids=self.ids, use_cache=False).logits
            finally:
                handle.remove()

    def read_out(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        """What the model would say if this were the stream after its last layer."""
        return readout.logits(self.model, stream)


class _Once:
    """Gives a layer another stream the first time that it runs: it may run again later in the order."""

    def __init__(self, stream: Tensor) -> None:
        self._stream: Tensor | None = stream

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if self._stream is None:
            return None
        stream, self._stream = self._stream, None
        if not args:
            return args, {**kwargs, "hidden_states": stream}
        return (stream, *args[1:]), kwargs


def sweep(
    base: Base, orders: Mapping[str, interventions.LayerOrder]
) -> Iterator[tuple[str, Float[Tensor, "batch pos d_vocab"]]]:
    """Logits under each of the orders, one at a time.

    Raises:
        InterventionError: An order names no such layer; before anything runs.
    """
    for order in orders.values():
        model_wiring.check(order, base.model.parts)
    for name, order in orders.items():
        yield name, base.run(order)


def common(order: interventions.LayerOrder) -> int:
    """How many stages an order has in common with the intact model, from the first on."""
    for at, stage in enumerate(order.stages):
        if stage != (at,):
            return at
    return len(order.stages)


def encode(model: models_model.Model, texts: Mapping[str, str], tokens: int) -> Int[Tensor, "batch pos"]:
    """Token ids of the first so many tokens of each text.

    Raises:
        RequestError: A text is shorter.
    """
    rows = []
    for name, text in texts.items():
        ids = model.tokenizer.encode(text)
        if len(ids) < tokens:
            raise errors.RequestError(
                f"text {name!r} has {len(ids)} tokens, expected at least {tokens}: give a longer text"
            )
        rows.append(ids[:tokens])
    return torch.tensor(rows, device=model.device)
