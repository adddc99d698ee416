"""Hooks where they are asked for, and nowhere else, for the length of one run.

    with Wiring(parts, edits, tape) as wiring:
        with wiring.forward(frame):
            hf(...)

Entering registers one PyTorch hook per Site in use; leaving removes them whatever happened. A run with no edits and
no tape registers nothing.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import hooks as torch_hooks

from sonde.core import errors, interventions, sites
from sonde.models import attention, edits, families, frames, paths
from sonde.models import config as model_config
from sonde.models import tape as model_tape
from sonde.models import taps as model_taps


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A loaded network and how to read it.

    Attributes:
        hf: The network.
        family: Its row in the family table.
        cfg: Its sizes.
        site_names: Its Sites.
        taps: Where they are. Resolved once, so that a changed layer order does not change what a Site name means.
        blocks: Its layers, in their own order.
    """

    hf: nn.Module
    family: families.Family
    cfg: model_config.ModelConfig
    site_names: tuple[str, ...]
    taps: Mapping[str, model_taps.Tap]
    blocks: tuple[nn.Module, ...]

    @classmethod
    def of(cls, hf: nn.Module, family: families.Family, cfg: model_config.ModelConfig) -> "Parts":
        """Resolves every Site of a network."""
        names = tuple(model_taps.site_names(family, cfg))
        blocks = tuple(model_taps.submodule(hf, family.layers, family).children())
        return cls(hf, family, cfg, names, model_taps.resolve_all(names, hf, family, cfg), blocks)


class Wiring:
    """The hooks of one run."""

    def __init__(self, parts: Parts, bound: Sequence[edits.Edit], tape: model_tape.Tape | None = None) -> None:
        """Resolves wildcards and checks every edit against the model; nothing is hooked yet."""
        self.parts = parts
        self.tape = tape
        self.frame: frames.Frame | None = None
        self._handles: list[torch_hooks.RemovableHandle] = []
        self._paths: list[edits.Edit] = []
        #: What each head wrote in the forward pass under way, by layer, where paths may begin there.
        self.results: dict[int | None, Tensor] = {}
        self._edits: dict[str, list[edits.Edit]] = {}
        for edit in bound:
            if isinstance(edit.spec, interventions.PathPatch):
                self._paths.append(edit)
                continue
            for name in sites.select(edit.spec.site, self.parts.site_names):
                self._edits.setdefault(name, []).append(edit)

    def __enter__(self) -> Self:
        """Registers the hooks."""
        wanted = self.tape.wanted if self.tape else frozenset()
        routes = paths.Paths(self._paths, self)
        try:
            self._handles += routes.attach_projections()
            for name in [site for site in self.parts.site_names if site in self._edits or site in wanted]:
                if name in self.parts.taps:
                    self._attach(self.parts.taps[name])
            self._handles += routes.attach_rest()
        except BaseException:
            self._detach()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes them."""
        self._detach()

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextlib.contextmanager
    def forward(self, frame: frames.Frame) -> Iterator[None]:
        """Declares the forward pass that runs inside."""
        config: Any = self.parts.hf.config
        own = config._attn_implementation
        needs_kernel = frame.owns_mask or any(site.is_query_key for site in self._sites())
        if self.tape:
            self.tape.passes.append(frame)
        outer, self.frame = attention.current(), frame
        attention.set_current(self)
        if needs_kernel:
            config._attn_implementation = attention.kernel_name(own)
        try:
            yield
        finally:
            if needs_kernel:
                config._attn_implementation = own
            attention.set_current(outer)
            self.frame = None
            self.results.clear()

    @property
    def here(self) -> frames.Frame | None:
        """The forward pass of this run in this thread; hooks must leave those of other threads alone."""
        return self.frame if attention.current() is self else None

    def _sites(self) -> Iterator[sites.Site]:
        yield from (sites.Site.parse(name) for name in self._edits)
        yield from (sites.Site.parse(name) for name in (self.tape.wanted if self.tape else ()))

    def uses(self, name: str) -> bool:
        """Whether a Site is edited or recorded."""
        return name in self._edits or bool(self.tape and name in self.tape.wanted)

    def edits_kernel(self, layer: int) -> bool:
        """Whether scores or pattern of a layer are edited in this forward pass."""
        assert self.frame is not None
        frame = self.frame
        return bool(self._edits) and any(
            edit.mask(frame) is not None
            for kind in sites.QUERY_KEY_KINDS
            for edit in self._edits.get(f"blocks.{layer}.{kind}", ())
        )

    def records_kernel(self, layer: int) -> bool:
        """Whether scores or pattern of a layer are recorded."""
        wanted = self.tape.wanted if self.tape else frozenset()
        return bool(wanted) and any(f"blocks.{layer}.{kind}" in wanted for kind in sites.QUERY_KEY_KINDS)

    def visit_kernel(self, layer: int, kind: str, value: Tensor) -> Tensor:
        """Edits and records scores or pattern, called by the kernel."""
        return self.visit(sites.Site(kind, layer), value)

    def visit(self, site: sites.Site, value: Tensor) -> Tensor:
        """Edits and records one value."""
        assert self.frame is not None
        name = str(site)
        for edit in self._edits.get(name, ()):
            value = edits.apply(edit, site, value, self.frame)
        if self.tape and name in self.tape.wanted:
            self.tape.put(name, value)
        return value

    def _attach(self, tap: model_taps.Tap) -> None:
        special = {"attn.hook_result": self._on_result, "unembed.hook_out": self._on_logits}
        if tap.side == "out":
            visit = functools.partial(special.get(tap.site.kind, self._on_output), tap)
            self._handles.append(tap.module.register_forward_hook(visit))
        else:
            self._handles.append(tap.module.register_forward_pre_hook(functools.partial(self._on_input, tap)))

    def _on_output(self, tap: model_taps.Tap, module: nn.Module, args: Any, output: Any) -> Any:
        if self.here is None:
            return None
        whole = model_taps.first_tensor(output)
        new = self._through(tap, whole)
        if new is whole:
            return None
        return (new, *output[1:]) if isinstance(output, tuple) else new

    def _on_logits(self, tap: model_taps.Tap, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        new = self._on_output(tap, module, args, output)
        if self.here is None or not self.here.kept:
            return new
        if new is not None:
            return new[:, -self.here.kept :]
        # A product of another size would change the last bits: recording must not.
        return module.forward(args[0][:, -self.here.kept :])

    def _on_input(self, tap: model_taps.Tap, module: nn.Module, args: Any) -> Any:
        if self.here is None:
            return None
        new = self._through(tap, args[0])
        return None if new is args[0] else (new, *args[1:])

    def _on_result(self, tap: model_taps.Tap, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if self.here is None:
            return None
        n_heads = self.parts.cfg.n_heads
        heads = args[0].unflatten(-1, (n_heads, -1))
        value = torch.einsum("bphd,hdm->bphm", heads, model_taps.output_weight(module, n_heads))
        new = self.visit(tap.site, value)
        if self._paths:
            self.results[tap.site.layer] = new
        return None if new is value else output + (new - value).sum(dim=2)

    def _through(self, tap: model_taps.Tap, whole: Tensor) -> Tensor:
        value = tap.view(whole)
        if tap.site.kind == "hook_pos_embed" and self.frame is not None:
            # transformers embeds the positions once for all rows.
            value = value.expand(self.frame.positions.shape[0], -1, -1)
        new = self.visit(tap.site, value)
        if new is value:
            return whole
        if new.shape[0] != whole.shape[0]:
            return new
        if tap.in_place:
            whole.copy_(new)
            return whole
        if value is whole:
            return new
        whole = whole.clone()
        tap.view(whole).copy_(new)
        return whole


def check(spec: interventions.Intervention, parts: Parts) -> None:
    """Refuses an intervention that does not fit a model.

    Raises:
        SiteError: The model has no such Site.
        InterventionError: Heads, positions or shapes do not fit.
    """
    if not isinstance(spec, interventions.Intervention):
        raise errors.InterventionError(f"expected an intervention, such as sonde.Zero(site=…), got {spec!r:.80}")
    if isinstance(spec, interventions.LayerOrder):
        _check_order(spec, parts)
        return
    if spec.site is None:
        raise errors.InterventionError(
            f"{spec.name} names no site: give site=…, or use .at('blocks.0.hook_resid_post')"
        )
    if isinstance(spec, interventions.Mean) and spec.values is None and spec.after == "persist":
        raise errors.InterventionError("a mean over the prompt of a step cannot persist: give Mean(values=…)")
    for name in sites.select(spec.site, parts.site_names):
        edits.check(spec, sites.Site.parse(name), parts.cfg)
    if isinstance(spec, interventions.PathPatch):
        paths.check(spec, parts.family, parts.cfg)


def _check_order(spec: interventions.LayerOrder, parts: Parts) -> None:
    n_layers = parts.cfg.n_layers
    flat = [layer for stage in spec.stages for layer in stage]
    if not flat or not all(0 <= layer < n_layers for layer in flat):
        raise errors.InterventionError(
            f"a layer order names layers 0 to {n_layers - 1} and at least one; got {spec.order}"
        )
    kinds = getattr(parts.hf.config, "layer_types", None)
    for stage in spec.stages:
        # transformers hands one mask and one rotary embedding to a stage.
        if kinds and len({kinds[layer] for layer in stage}) > 1:
            raise errors.InterventionError(
                f"layers {stage} cannot run side by side: they attend differently ({', '.join(kinds[i] for i in stage)})"
            )
