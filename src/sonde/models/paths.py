"""Path patching: what if the receivers alone had read another value of the sender?

1. At the sender, compute what its patched value would have written to the residual stream, minus what it wrote: a
   delta. The sender itself stays as it is.
2. At each receiver, recompute its input from the residual stream plus the delta: queries, keys or values of chosen
   heads, an MLP, the final norm, or the stream itself.

Everything between is untouched, so the effect is that of the direct path (Wang et al. 2023, without the re-run: the
residual stream is linear). Cost: the receivers' norm and projection once more.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import hooks as torch_hooks

from sonde.core import errors, interventions, sites
from sonde.models import config as model_config
from sonde.models import edits, families, frames, taps

if TYPE_CHECKING:
    from sonde.models import wiring as model_wiring

SENDERS = ("hook_embed", "attn.hook_z", "attn.hook_result", "hook_attn_out", "hook_mlp_out")
RECEIVERS = ("attn.hook_q", "attn.hook_k", "attn.hook_v", "mlp.hook_pre", "hook_resid_pre", "ln_final.hook_out")


def check(spec: interventions.PathPatch, family: families.Family, cfg: model_config.ModelConfig) -> None:
    """Refuses a path that does not lead forward through the residual stream."""
    sender = sites.Site.parse(str(spec.site))
    if sender.kind not in SENDERS:
        raise errors.InterventionError(f"{sender} does not write to the residual stream; senders are {SENDERS}")
    if not spec.receivers:
        raise errors.InterventionError("a path needs at least one receiver")
    for name in spec.receivers:
        receiver = sites.Site.parse(name)
        if receiver.layer is not None and receiver.layer >= cfg.n_layers:
            raise errors.SiteError(f"no receiver {name!r} in this model: it has layers 0 to {cfg.n_layers - 1}")
        if receiver.kind not in RECEIVERS:
            raise errors.InterventionError(f"{receiver} cannot receive a path; receivers are {RECEIVERS}")
        parallel = family.resid_mid is None and sender.layer is not None and receiver.layer == sender.layer
        if _order(receiver) <= _order(sender) or parallel:
            raise errors.InterventionError(f"the path from {sender} to {receiver} does not lead forward")
        if spec.receiver_heads and receiver.kind in sites.HEAD_KINDS:
            n_heads = taps.value_shape(receiver, cfg)[0]
            if not all(0 <= head < n_heads for head in spec.receiver_heads):
                raise errors.InterventionError(f"{receiver} has heads 0 to {n_heads - 1}, got {spec.receiver_heads}")


class Paths:
    """All paths of one run: their deltas, and the hooks that make and read them.

    Deltas that meet at a receiver add up before its norm, so several paths to one receiver are one change of its input.
    """

    def __init__(self, bound: Sequence[edits.Edit], wiring: "model_wiring.Wiring") -> None:
        """Nothing is hooked yet."""
        self.wiring, self.parts = wiring, wiring.parts
        self._paths = [_Path(edit, wiring) for edit in bound]
        self._streams: dict[int, Tensor] = {}
        self._readers: dict[str, list[_Path]] = {}
        for path in self._paths:
            for name in path.spec.receivers:
                self._readers.setdefault(name, []).append(path)

    def attach_projections(self) -> list[torch_hooks.RemovableHandle]:
        """Hooks that go before those of the Sites, which then see what the receivers really read."""
        handles = []
        for name, readers in self._readers.items():
            site = sites.Site.parse(name)
            if site.kind == "hook_resid_pre":
                handles.append(
                    self.parts.taps[name].module.register_forward_pre_hook(functools.partial(self._on_stream, readers))
                )
            elif site.kind in sites.HEAD_KINDS:
                handles += self._attach_projection(self.parts.taps[name], readers)
        return handles

    def attach_rest(self) -> list[torch_hooks.RemovableHandle]:
        """Hooks that go after those of the Sites: norms must not hide the stream from them, senders must see edits."""
        family = self.parts.family
        handles = []
        for name, readers in self._readers.items():
            site = sites.Site.parse(name)
            norm = None
            if site.layer is None:
                norm = self.parts.taps[name].module
            elif site.kind == "mlp.hook_pre":
                norm = taps.submodule(self.parts.blocks[site.layer], family.mlp_norm, family)
            if norm is not None:
                handles.append(norm.register_forward_pre_hook(functools.partial(self._on_stream, readers)))
        for path in self._paths:
            handles += path.attach_sender()
        return handles

    def _attach_projection(self, tap: taps.Tap, readers: "Sequence[_Path]") -> list[torch_hooks.RemovableHandle]:
        layer = tap.site.layer
        assert layer is not None
        norm = taps.submodule(self.parts.blocks[layer], self.parts.family.attn_norm, self.parts.family)
        by_readers: dict[tuple[int, ...], list[int]] = {}
        for head in range(taps.value_shape(tap.site, self.parts.cfg)[0]):
            chosen = tuple(index for index, path in enumerate(readers) if path.reaches(head))
            by_readers.setdefault(chosen, []).append(head)
        groups = [([readers[index] for index in chosen], heads) for chosen, heads in by_readers.items()]
        return [
            norm.register_forward_pre_hook(functools.partial(self._remember, layer)),
            tap.module.register_forward_hook(functools.partial(self._on_projection, tap, norm, groups)),
        ]

    def _on_stream(self, readers: "Sequence[_Path]", module: nn.Module, args: Any) -> Any:
        delta = _total(readers)
        return None if delta is None else (args[0] + delta, *args[1:])

    def _remember(self, layer: int, module: nn.Module, args: Any) -> None:
        if self.wiring.here is not None:
            self._streams[layer] = args[0]

    def _on_projection(
        self, tap: taps.Tap, norm: nn.Module, groups: "list[tuple[list[_Path], list[int]]]", *call: Any
    ) -> Tensor | None:
        module, _, output = call
        for readers, heads in groups:
            delta = _total(readers)
            if delta is not None and tap.site.layer is not None:
                patched = module.forward(norm.forward(self._streams[tap.site.layer] + delta))
                output = output.clone()
                tap.view(output)[:, :, heads] = tap.view(patched)[:, :, heads]
        return output


class _Path:
    """One sender and the delta it makes."""

    def __init__(self, edit: edits.Edit, wiring: "model_wiring.Wiring") -> None:
        assert isinstance(edit.spec, interventions.PathPatch)
        self.edit, self.spec, self.wiring, self.parts = edit, edit.spec, wiring, wiring.parts
        patch = interventions.Patch(values=self.spec.values, start=self.spec.start, heads=self.spec.heads)
        self._patch = edits.Edit(patch, edit.rows, edit.prompts)
        self._made: tuple[frames.Frame, Tensor] | None = None

    @property
    def delta(self) -> Tensor | None:
        """The change of what the sender wrote in the forward pass that runs here; None if there is none (yet)."""
        frame = self.wiring.here
        return self._made[1] if frame is not None and self._made is not None and self._made[0] is frame else None

    def reaches(self, head: int) -> bool:
        """Whether a head of a `q`, `k` or `v` receiver reads it."""
        return self.spec.receiver_heads is None or head in self.spec.receiver_heads

    def attach_sender(self) -> list[torch_hooks.RemovableHandle]:
        tap = self.parts.taps[str(self.spec.site)]
        handles = [tap.module.register_forward_hook(functools.partial(self._on_sender, tap))]
        family = self.parts.family
        if tap.site.kind in ("attn.hook_z", "attn.hook_result") and family.attn_out != family.attn:
            assert tap.site.layer is not None
            norm = taps.submodule(self.parts.blocks[tap.site.layer], family.attn_out, family)
            handles.append(norm.register_forward_hook(self._on_post_norm))
        return handles

    def _on_sender(self, tap: taps.Tap, module: nn.Module, args: Any, output: Any) -> None:
        frame = self.wiring.here
        if frame is not None and self.edit.mask(frame) is not None:
            self._made = (frame, self._change(tap, module, args, output, frame))

    def _change(self, tap: taps.Tap, module: nn.Module, args: Any, output: Any, frame: frames.Frame) -> Tensor:
        if tap.site.kind not in ("attn.hook_z", "attn.hook_result"):
            value = taps.first_tensor(output)
            return edits.apply(self._patch, tap.site, value, frame) - value
        weight = taps.output_weight(module, self.parts.cfg.n_heads)
        heads = args[0].unflatten(-1, (self.parts.cfg.n_heads, -1))
        if tap.site.kind == "attn.hook_z":
            change = edits.apply(self._patch, tap.site, heads, frame) - heads
            return torch.einsum("bphd,hdm->bpm", change, weight)
        value = self.wiring.results.get(tap.site.layer)  # as interventions left it
        if value is None:
            value = torch.einsum("bphd,hdm->bphm", heads, weight)
        return (edits.apply(self._patch, tap.site, value, frame) - value).sum(dim=2)

    def _on_post_norm(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """A head writes to the stream through the norm after attention, where there is one."""
        if self.delta is not None and self._made is not None:
            self._made = (self._made[0], module.forward(args[0] + self.delta) - module.forward(args[0]))


def _total(readers: Sequence[_Path]) -> Tensor | None:
    deltas = [path.delta for path in readers if path.delta is not None]
    return sum(deltas[1:], deltas[0]) if deltas else None


def _order(site: sites.Site) -> tuple[float, int]:
    """Where in the computation a Site reads or writes the stream."""
    if site.kind == "hook_embed":
        return (-1.0, 0)
    if site.layer is None:
        return (float("inf"), 0)
    stage = {"hook_resid_pre": 0, "attn.hook_q": 1, "attn.hook_k": 1, "attn.hook_v": 1, "mlp.hook_pre": 3}
    return (float(site.layer), stage.get(site.kind, 4 if site.kind == "hook_mlp_out" else 2))
