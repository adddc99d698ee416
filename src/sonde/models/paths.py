"""Path patching: what if the receivers alone had read another value of the sender?

1. At the sender, compute what its patched value would have written to the residual stream, minus what it wrote: a
   delta. The sender itself stays as it is.
2. At each receiver, recompute its input from the residual stream plus the delta: queries, keys or values of chosen
   heads, an MLP, the final norm, or the stream itself.

Everything between is untouched, so the effect is that of the direct path (Wang et al. 2023, without the re-run: the
residual stream is linear). Cost: the receivers' norm and projection once more.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import hooks as torch_hooks

from sonde.core import errors, interventions, sites
from sonde.models import config as model_config
from sonde.models import edits, families, taps

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
        if receiver.kind not in RECEIVERS:
            raise errors.InterventionError(f"{receiver} cannot receive a path; receivers are {RECEIVERS}")
        parallel = family.resid_mid is None and sender.layer is not None and receiver.layer == sender.layer
        if _order(receiver) <= _order(sender) or parallel:
            raise errors.InterventionError(f"the path from {sender} to {receiver} does not lead forward")
        if spec.receiver_heads and receiver.kind in sites.HEAD_KINDS:
            n_heads = taps.value_shape(receiver, cfg)[0]
            if max(spec.receiver_heads) >= n_heads:
                raise errors.InterventionError(f"{receiver} has heads 0 to {n_heads - 1}, got {spec.receiver_heads}")


def attach(edit: edits.Edit, wiring: "model_wiring.Wiring") -> list[torch_hooks.RemovableHandle]:
    """Registers the hooks of one path."""
    spec = edit.spec
    assert isinstance(spec, interventions.PathPatch)
    path = _Path(edit, wiring)
    sender = wiring.parts.taps[str(spec.site)]
    handles = [sender.module.register_forward_hook(path.sender_hook(sender))]
    for name in spec.receivers:
        handles += path.receive(sites.Site.parse(name))
    return handles


class _Path:
    """The delta of one path and the hooks that make and read it."""

    def __init__(self, edit: edits.Edit, wiring: "model_wiring.Wiring") -> None:
        self.edit, self.wiring, self.parts = edit, wiring, wiring.parts
        self.delta: Tensor | None = None
        self.stream: Tensor | None = None

    def sender_hook(self, tap: taps.Tap) -> Callable[..., None]:
        spec = self.edit.spec
        assert isinstance(spec, interventions.PathPatch)
        patch = interventions.Patch(values=spec.values, start=spec.start, heads=spec.heads)
        bound = edits.Edit(patch, self.edit.rows, self.edit.prompts)

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            frame = self.wiring.frame
            self.delta = None
            if frame is None or self.edit.mask(frame) is None:
                return
            bound.rows = self.edit.rows
            if tap.site.kind in ("attn.hook_z", "attn.hook_result"):
                weight = taps.output_weight(module, self.parts.cfg.n_heads)
                heads = args[0].unflatten(-1, (self.parts.cfg.n_heads, -1))
                if tap.site.kind == "attn.hook_z":
                    change = edits.apply(bound, tap.site, heads, frame) - heads
                    self.delta = torch.einsum("bphd,hdm->bpm", change, weight)
                else:
                    value = torch.einsum("bphd,hdm->bphm", heads, weight)
                    self.delta = (edits.apply(bound, tap.site, value, frame) - value).sum(dim=2)
            else:
                value = taps.first_tensor(output)
                self.delta = edits.apply(bound, tap.site, value, frame) - value

        return hook

    def receive(self, site: sites.Site) -> list[torch_hooks.RemovableHandle]:
        family = self.parts.family
        if site.layer is None:
            return [self.parts.taps[str(site)].module.register_forward_hook(self._norm_hook)]
        block = self.parts.blocks[site.layer]
        if site.kind == "hook_resid_pre":
            return [block.register_forward_pre_hook(self._stream_hook)]
        if site.kind == "mlp.hook_pre":
            return [taps.submodule(block, family.mlp_norm, family).register_forward_hook(self._norm_hook)]
        norm = taps.submodule(block, family.attn_norm, family)
        tap = self.parts.taps[str(site)]
        return [
            norm.register_forward_pre_hook(self._remember),
            tap.module.register_forward_hook(self._projection_hook(tap, norm)),
        ]

    def _remember(self, module: nn.Module, args: Any) -> None:
        self.stream = args[0]

    def _stream_hook(self, module: nn.Module, args: Any) -> Any:
        return None if self.delta is None else (args[0] + self.delta, *args[1:])

    def _norm_hook(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        return None if self.delta is None else module.forward(args[0] + self.delta)

    def _projection_hook(self, tap: taps.Tap, norm: nn.Module) -> Callable[..., Any]:
        spec = self.edit.spec
        assert isinstance(spec, interventions.PathPatch)

        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            if self.delta is None or self.stream is None:
                return None
            patched = tap.view(module.forward(norm.forward(self.stream + self.delta)))
            output = output.clone()
            target = tap.view(output)
            heads = list(spec.receiver_heads) if spec.receiver_heads is not None else slice(None)
            target[:, :, heads] = patched[:, :, heads]
            return output

        return hook


def _order(site: sites.Site) -> tuple[float, int]:
    """Where in the computation a Site reads or writes the stream."""
    if site.kind == "hook_embed":
        return (-1, 0)
    if site.layer is None:
        return (float("inf"), 0)
    stage = {"hook_resid_pre": 0, "attn.hook_q": 1, "attn.hook_k": 1, "attn.hook_v": 1, "mlp.hook_pre": 3}
    return (site.layer, stage.get(site.kind, 4 if site.kind == "hook_mlp_out" else 2))
