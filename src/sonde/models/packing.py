"""Weights laid out for the processor: the same products, up to twice as fast for a few rows.

A linear layer that meets two to sixteen rows spends its time on reading its weights, and the usual kernel first copies
them into blocks, at every call. `packed` makes that copy once, for as long as a block of code runs:

    with model.packed():
        played = ...

What comes out differs from the plain kernels in the last bits, so whoever wants equal bits stays inside or outside.
Layers that read one input (queries, keys and values; the two halves of a gated MLP) are one product, of which each takes its
part. Cost: the linear weights a second time in memory, those of such groups a third, and one to two seconds per gigabyte at
the start. Only 32-bit floats on a CPU gain; everything else is left as it is. One or two rows read plain weights: with MKL's own
kernel on Intel's processors; on others, where that kernel reads on a single thread at a third of the memory's speed, in as
many parts as there are threads. A weight that was changed inside the block, except through `.data`, is noticed, and its group
goes back to the plain kernel. Llama's norms take three operations instead of eight, and its layers are run with fewer calls
on the way: see `lean`.
"""

import contextlib
import functools
import itertools
import pathlib
import platform
import threading
import weakref
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from sonde.models import lean

#: Linear weights of more bytes than this are not packed.
LIMIT = 4 << 30
#: Rows that the layout is made for.
ROWS = 16
#: Up to so many rows, plain weights are faster.
FEW = 2
#: Layers that read one input are one product.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))

_lock = threading.Lock()
_inside: "weakref.WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def packed(network: nn.Module) -> Iterator[None]:
    """Runs the linear layers of a network on packed copies of their weights; who is inside already changes nothing."""
    with _lock:
        users, layers = _inside.get(network, (0, []))
        _inside[network] = (users + 1, layers or _pack(network))
    try:
        yield
    finally:
        with _lock:
            users, layers = _inside.pop(network)
            if users > 1:
                _inside[network] = (users - 1, layers)
            else:
                for layer in layers:
                    del layer.forward


def _pack(network: nn.Module) -> list[nn.Module]:
    linear = [module for module in network.modules() if type(module) is nn.Linear and _gains(module)]
    if sum(layer.weight.nbytes for layer in linear) > LIMIT:
        linear = []
    norms = [module for module in network.modules() if lean.fits_norm(module) and module.weight.device.type == "cpu"]
    whole = [module for module in network.modules() if lean.fits(module)]
    for together in _groups(network, linear):
        product = _Product(together)
        for place in range(len(together)):
            together[place].forward = _Packed(together, place, product)
    for layer in norms:
        layer.forward = _Norm(layer)
    for layer in whole:
        layer.forward = lean.Lean(layer)
    return [*linear, *norms, *whole]


def _groups(network: nn.Module, linear: Sequence[nn.Linear]) -> list[list[nn.Linear]]:
    """The layers, those together that read one input."""
    left, found = dict.fromkeys(linear), []
    for parent, names in itertools.product(network.modules(), TOGETHER):
        children = (getattr(parent, name, None) for name in names)
        together = [child for child in children if isinstance(child, nn.Linear) and child in left]
        if len(together) == len(names) and len({(one.in_features, one.bias is None) for one in together}) == 1:
            found.append(together)
            for layer in together:
                del left[layer]
    return [*found, *([layer] for layer in left)]


def _gains(layer: nn.Linear) -> bool:
    weight = layer.weight
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and type(weight) is nn.Parameter
    return plain and "forward" not in vars(layer) and torch.backends.mkldnn.is_available()


class _Product:
    """What the layers of a group make of one input: computed when the first asks, kept for those behind it."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers, self._made_from = layers, [_versions(layer) for layer in layers]
        weights = [layer.weight.detach() for layer in layers]
        self._weight = torch.cat(weights) if len(layers) > 1 else weights[0]
        self._bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
        self._blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(self._weight, ROWS)
        self._parts = self._weight.unflatten(0, (_parts(len(self._weight)), -1)) if _slow_alone() else None
        self._kept: tuple[Tensor, int, Tensor, int] | None = None

    def serves(self, input: Tensor) -> bool:
        """Whether the copies are still what the layers have, and gradients and types no matter."""
        fresh = all(made == _versions(layer) for made, layer in zip(self._made_from, self._layers, strict=True))
        return fresh and input.dtype == torch.float32 and not torch.is_grad_enabled()

    def for_layer(self, place: int, input: Tensor) -> Tensor:
        """The product for one of the layers, which may change its part: nobody is given the same part twice."""
        kept, self._kept = self._kept, None
        same = kept is not None and kept[0] is input and kept[1] == input._version and kept[3] < place
        found = kept[2] if kept is not None and same else self.whole(input)
        if place < len(self._layers) - 1 and not input.is_inference():  # such a tensor does not say when it is changed
            self._kept = (input, input._version, found, place)
        return found

    def whole(self, input: Tensor) -> Tensor:
        """The product itself."""
        if input.numel() > FEW * input.shape[-1]:
            return torch.ops.mkldnn._linear_pointwise(input, self._blocks, self._bias, "none", [], "")
        if self._parts is None:
            return F.linear(input, self._weight, self._bias)
        columns = input.reshape(-1, input.shape[-1]).t()
        found = torch.bmm(self._parts, columns.expand(len(self._parts), -1, -1)).flatten(0, 1).t().contiguous()
        found = found.view(*input.shape[:-1], -1)
        return found if self._bias is None else found + self._bias


class _Packed:
    """The forward pass of one layer: its part of the group's product."""

    def __init__(self, together: Sequence[nn.Linear], place: int, product: _Product) -> None:
        self._layer, self._place, self._product = together[place], place, product
        self._first = sum(one.out_features for one in together[:place])
        self._alone = len(together) == 1

    def __call__(self, input: Tensor) -> Tensor:  # the name that nn.Linear gives it
        if not self._product.serves(input):
            return F.linear(input, self._layer.weight, self._layer.bias)
        found = self._product.for_layer(self._place, input)
        return found if self._alone else found.narrow(-1, self._first, self._layer.out_features)

    def whole(self, input: Tensor) -> Tensor | None:
        """The product of the whole group, if there is one; for `lean`."""
        return None if self._alone or not self._product.serves(input) else self._product.whole(input)


class _Norm:
    """The forward pass of one RMSNorm: x / sqrt(|x|^2 + n eps), times sqrt(n) weight."""

    def __init__(self, layer: modeling_llama.LlamaRMSNorm) -> None:
        width = len(layer.weight)
        self._layer, self._made_from = layer, _versions(layer)
        self._weight = layer.weight.detach() * width**0.5
        self._floor = torch.tensor((width * layer.variance_epsilon) ** 0.5)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        layer = self._layer
        if self._made_from != _versions(layer) or hidden_states.dtype != torch.float32 or torch.is_grad_enabled():
            return type(layer).forward(layer, hidden_states)
        length = torch.linalg.vector_norm(hidden_states, dim=-1, keepdim=True)
        return torch.div(hidden_states, torch.hypot(length, self._floor)).mul_(self._weight)


def _versions(layer: nn.Module) -> list[tuple[int, int]]:
    return [(one.data_ptr(), one._version) for one in layer._parameters.values() if one is not None]


def _parts(rows: int) -> int:
    """How many equal parts of a weight's rows keep the threads busy; two are better than one even on one thread."""
    return next(n for n in range(max(2, torch.get_num_threads()), 0, -1) if rows % n == 0)


@functools.cache
def _slow_alone() -> bool:
    """Whether one row's product is slow here: MKL runs it on one thread, unless the processor is Intel's."""
    about = pathlib.Path("/proc/cpuinfo")
    maker = about.read_text() if about.is_file() else platform.processor()
    return torch.backends.mkl.is_available() and "Intel" not in maker
