"""Weights laid out for the processor: the same products, up to twice as fast for a few rows.

A linear layer that meets two to sixteen rows spends its time on reading its weights, and the usual kernel first copies
them into blocks, at every call. `packed` makes that copy once, for as long as a block of code runs:

    with model.packed():
        played = ...

What comes out differs from the plain kernels in the last bits, so whoever wants equal bits stays inside or outside.
Cost: the linear weights a second time in memory, and about half a second per gigabyte at the start. Only 32-bit floats
on a CPU gain; everything else is left as it is. One or two rows read the plain weights: with MKL's own kernel on Intel's
processors; on others, where that kernel reads on a single thread at a third of the memory's speed, in as many parts as there
are threads. A weight that was changed inside the block, except through `.data`, is noticed, and its layer goes back to the
plain kernel. Llama's norms take three operations instead of eight, and its layers are run with fewer calls on the way: see
`lean`.
"""

import contextlib
import functools
import pathlib
import platform
import threading
import weakref
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from sonde.models import lean

#: Linear weights of more bytes than this are not copied.
LIMIT = 4 << 30
#: Rows that the layout is made for.
ROWS = 16
#: Up to so many rows, plain weights are faster.
FEW = 2

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
    for layer in linear:
        layer.forward = _Packed(layer)
    for layer in norms:
        layer.forward = _Norm(layer)
    for layer in whole:
        layer.forward = lean.Lean(layer)
    return [*linear, *norms, *whole]


def _gains(layer: nn.Linear) -> bool:
    weight = layer.weight
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and type(weight) is nn.Parameter
    return plain and "forward" not in vars(layer) and torch.backends.mkldnn.is_available()


class _Packed:
    """The forward pass of one layer."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._made_from = _version(layer.weight)
        self._blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)
        self._parts = layer.weight.detach().unflatten(0, (_parts(layer.out_features), -1)) if _slow_alone() else None

    def __call__(self, input: Tensor) -> Tensor:  # the name that nn.Linear gives it
        weight, bias = self._layer.weight, self._layer.bias
        few = input.numel() <= FEW * input.shape[-1]
        if few and self._parts is None:
            return F.linear(input, weight, bias)
        if self._made_from != _version(weight) or input.dtype != torch.float32 or torch.is_grad_enabled():
            return F.linear(input, weight, bias)
        if few:
            return self._few(input)
        return torch.ops.mkldnn._linear_pointwise(input, self._blocks, bias, "none", [], "")

    def _few(self, input: Tensor) -> Tensor:
        parts, bias = self._parts, self._layer.bias
        assert parts is not None
        columns = input.reshape(-1, input.shape[-1]).t()
        found = torch.bmm(parts, columns.expand(len(parts), -1, -1)).flatten(0, 1).t().contiguous()
        found = found.view(*input.shape[:-1], -1)
        return found if bias is None else found + bias


class _Norm:
    """The forward pass of one RMSNorm: x / sqrt(|x|^2 + n eps), times sqrt(n) weight."""

    def __init__(self, layer: modeling_llama.LlamaRMSNorm) -> None:
        width = len(layer.weight)
        self._layer, self._made_from = layer, _version(layer.weight)
        self._weight = layer.weight.detach() * width**0.5
        self._floor = torch.tensor((width * layer.variance_epsilon) ** 0.5)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        layer = self._layer
        if self._made_from != _version(layer.weight) or hidden_states.dtype != torch.float32 or torch.is_grad_enabled():
            return type(layer).forward(layer, hidden_states)
        length = torch.linalg.vector_norm(hidden_states, dim=-1, keepdim=True)
        return torch.div(hidden_states, torch.hypot(length, self._floor)).mul_(self._weight)


def _version(weight: Tensor) -> tuple[int, int]:
    return weight.data_ptr(), weight._version


def _parts(rows: int) -> int:
    """How many equal parts of a weight's rows keep the threads busy; two are better than one even on one thread."""
    return next(n for n in range(max(2, torch.get_num_threads()), 0, -1) if rows % n == 0)


@functools.cache
def _slow_alone() -> bool:
    """Whether one row's product is slow here: MKL runs it on one thread, unless the processor is Intel's."""
    about = pathlib.Path("/proc/cpuinfo")
    maker = about.read_text() if about.is_file() else platform.processor()
    return torch.backends.mkl.is_available() and "Intel" not in maker
