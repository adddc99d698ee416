"""A loaded model: a bare transformers network, its Sites, and the engine that owns it.

    with sonde.load("tiny-gpt2") as model:
        logits, cache = model.run_with_cache("hello", "blocks.*.hook_resid_post")
        print(model.generate("hello", max_new_tokens=5).text)

Nothing is hooked until something is recorded or changed, so an idle Model costs what the bare network costs.
"""

import contextlib
import dataclasses
import gc
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from types import TracebackType
from typing import Any, Self, cast, overload

import torch
from torch import Tensor, nn

from sonde.core import errors, interventions, sites
from sonde.models import checking, families, gate, generation, kv, layer_order, packing, requests, riders, scheduler
from sonde.models import config as model_config
from sonde.models import wiring as model_wiring

Tokens = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Tensor
FwdHook = tuple[str | Callable[[str], bool], Any] | interventions.Intervention


class ActivationCache(dict[str, Tensor]):
    """Recorded values by Site name, batch axis kept. They are copies: nothing changes them later."""

    def __missing__(self, name: str) -> Tensor:
        """Says what was recorded."""
        raise errors.CaptureError(f"{name!r} was not recorded{errors.suggest(name, self)}")


class Logits(Tensor):
    """Logits that also answer to Site names.

    `run_with_cache` returns `logits, cache` as TransformerLens does. People unpack it the other way round too
    (`cache, _ = …`), so the first value can be asked for Sites as well. Every operation returns a plain tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]
    cache: ActivationCache

    @classmethod
    def of(cls, logits: Tensor, cache: ActivationCache) -> "Logits":
        """Attaches a cache."""
        whole = logits.as_subclass(cls)
        whole.cache = cache
        return whole

    def __getitem__(self, index: Any) -> Tensor:
        """A Site's value for a name, the usual indexing otherwise."""
        return self.cache[index] if isinstance(index, str) else super().__getitem__(index)


class Model:
    """A language model one can look into while it runs."""

    def __init__(
        self,
        hf: nn.Module,
        tokenizer: Any,
        *,
        name: str | None = None,
        kv_budget: int = 4 << 30,
        max_batch: int = 32,
    ) -> None:
        """Adopts a transformers causal language model.

        Args:
            hf: The network. It is put into evaluation mode.
            tokenizer: Its tokenizer.
            name: What to call it.
            kv_budget: Bytes of keys and values to keep between steps.
            max_batch: Requests to run at once at most.
        """
        config: Any = hf.config
        family = families.of_config(config)
        cfg = model_config.ModelConfig.of_transformers(config, name or config.name_or_path or family.name)
        self.parts = model_wiring.Parts.of(hf.eval(), family, cfg)
        self.hf: Any = hf
        self.tokenizer = tokenizer
        self.cfg = cfg
        self.lock = threading.RLock()
        self.gate = gate.Gate(self)
        self.pool = kv.Pool(kv_budget)
        self._scheduler = scheduler.Scheduler(self._run, _group, max_batch=max_batch)

    def __repr__(self) -> str:
        """Name and size."""
        return f"Model({self.cfg.model_name!r}, {self.cfg.n_layers} layers, d_model {self.cfg.d_model})"

    @property
    def site_names(self) -> tuple[str, ...]:
        """Every Site of this model, from input to output."""
        return self.parts.site_names

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parts.hf.parameters()).device

    def to_tokens(self, text: Tokens) -> Tensor:
        """Token ids, `batch pos`, of a text, of several texts of equal length, of ids, or of a tensor of ids."""
        if isinstance(text, str):
            text = self.tokenizer.encode(text)
        elif not isinstance(text, Tensor) and len(text) and isinstance(text[0], str):
            rows = [self.tokenizer.encode(one) for one in text]
            if len({len(row) for row in rows}) > 1:
                raise errors.RequestError(
                    f"these texts have {[len(row) for row in rows]} tokens: pad them yourself and pass attention_mask, "
                    "or run them one at a time"
                )
            text = torch.tensor(rows)
        try:
            given = torch.as_tensor(text, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise _no_tokens(text, " in rows of equal length") from error
        if given.numel() == 0:
            raise errors.RequestError("the prompt is empty: give at least one token (a BOS token will do)")
        whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
        if not whole or given.ndim not in (1, 2):
            raise _no_tokens(text, ", `pos` or `batch pos`")
        tokens = given.long() if given.ndim == 2 else given.long()[None]
        if tokens.shape[1] > self.cfg.n_ctx:
            raise errors.ContextError(f"{tokens.shape[1]} tokens do not fit the context of {self.cfg.n_ctx}")
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= self.cfg.d_vocab:
            raise errors.RequestError(f"token ids must be 0 to {self.cfg.d_vocab - 1}, got {least} to {most}")
        return tokens

    def run_with_cache(
        self,
        tokens: Tokens,
        names_filter: sites.SiteFilter = None,
        *,
        attention_mask: Tensor | None = None,
        interventions: Sequence[interventions.Intervention] = (),
    ) -> tuple[Logits, ActivationCache]:
        """One forward pass with everything asked for recorded.

        Args:
            tokens: Text or token ids.
            names_filter: Which Sites; None for all but the costly ones.
            attention_mask: `batch pos`, 0 at padding.
            interventions: What to change.

        Returns:
            The logits, and the recorded values by Site name.
        """
        collector = gate.Collector(tuple(sites.select(names_filter, self.site_names)))
        with riders.riding(_Fixed(self, interventions, (collector,))):
            logits = self._forward(tokens, attention_mask, interventions)
        assert collector.tape is not None
        cache = ActivationCache({name: collector.tape.chunks[name][0] for name in collector.sites})
        return Logits.of(logits, cache), cache

    def run_with_hooks(
        self, tokens: Tokens, fwd_hooks: Sequence[FwdHook] = (), *, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Logits of one forward pass with interventions, or plain `(site, fn)` hooks, in force."""
        specs = bind_hooks(fwd_hooks, self)
        with riders.riding(_Fixed(self, specs, ())):
            return self._forward(tokens, attention_mask, specs)

    def _forward(self, tokens: Tokens, mask: Tensor | None, specs: Sequence[interventions.Intervention]) -> Tensor:
        self._scheduler.check_open()
        ids = self.to_tokens(tokens)
        for spec in specs:
            model_wiring.check(spec, self.parts)
            beyond = [p for p in spec.positions or () if p >= ids.shape[1] or p < -ids.shape[1]]
            if beyond:
                raise errors.InterventionError(
                    f"position {beyond[0]} is out of range: the input has {ids.shape[1]} tokens"
                )
        order = next((spec for spec in specs if isinstance(spec, interventions.LayerOrder)), None)
        extra: dict[str, Tensor] = {}
        if mask is not None:
            # Learned positions do not follow the mask by themselves: with left padding every token would be off.
            extra = {"attention_mask": mask, "position_ids": (mask.long().cumsum(dim=1) - 1).clamp(min=0)}
        with self.lock, torch.no_grad(), layer_order.applied(self.parts, order):
            return self.hf(input_ids=ids, use_cache=False, **extra).logits

    @overload
    def generate(  # pyright: ignore[reportOverlappingOverload]
        self, prompts: str, *, interventions: Sequence[interventions.Intervention] = (), **sampling: Any
    ) -> requests.Generation: ...

    @overload
    def generate(
        self, prompts: Sequence[int], *, interventions: Sequence[interventions.Intervention] = (), **sampling: Any
    ) -> requests.Generation: ...

    @overload
    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]] | Tensor,
        *,
        interventions: Sequence[interventions.Intervention] = (),
        **sampling: Any,
    ) -> list[requests.Generation]: ...

    def generate(
        self,
        prompts: Tokens,
        *,
        interventions: Sequence[interventions.Intervention] = (),
        **sampling: Any,
    ) -> requests.Generation | list[requests.Generation]:
        """Continues one prompt, or several at once.

        Args:
            prompts: A text or a list of token ids; or several of those, or `batch pos` ids, which run as one batch.
            interventions: What to change; `steps` count from 0 and each prompt is step 0.
            **sampling: `max_new_tokens`, `temperature`, `top_p`, `top_k`, `stop`, `seed`: see `Sampling`.

        Returns:
            One Generation, or a list for a list of prompts.
        """
        if isinstance(prompts, Tensor):
            prompts = self.to_tokens(prompts).tolist()
        several = isinstance(prompts, Iterable) and any(hasattr(prompt, "__len__") for prompt in prompts)
        single = isinstance(prompts, str) or not several
        rows: Any = [prompts] if single else prompts
        settings = requests.Sampling(**sampling)
        self._check_within_context(interventions)
        batch = [self.request(self._ids(row), settings, tuple(interventions)) for row in rows]
        answers = self.wait(self.submit(batch), batch)
        return answers[0] if single else answers

    def _check_within_context(self, specs: Sequence[interventions.Intervention]) -> None:
        """Refuses places that no single prompt has. An episode goes beyond the context where turns are dropped."""
        for spec in specs:
            if spec.positions is not None and max(spec.positions, default=0) >= self.cfg.n_ctx:
                raise errors.InterventionError(
                    f"position {max(spec.positions)} at {spec.site} is beyond the context of {self.cfg.n_ctx} tokens"
                )

    def _ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        try:
            return tuple(map(operator.index, self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt))
        except TypeError as error:
            raise _no_tokens(prompt) from error

    def request(
        self,
        tokens: tuple[int, ...],
        sampling: requests.Sampling,
        interventions: tuple[interventions.Intervention, ...] = (),
        *,
        call: riders.Call | None = None,
        **fields: Any,
    ) -> requests.Request:
        """A request that carries what is in force here and now: the riders' interventions and recorders."""
        call = call or riders.Call(step=0)
        aboard = [rider.board(call) for rider in riders.of(self)]
        specs = [*interventions]
        for rider in aboard:
            counted = rider.step is not None
            # One that does not hold now keeps its place: it may have left something behind.
            specs += [
                dataclasses.replace(spec, steps=None if _holds(spec, rider.step) else ()) if counted else spec
                for spec in rider.interventions
            ]
        return requests.Request(
            tokens=tokens,
            sampling=sampling,
            interventions=tuple(specs),
            recorders=tuple(recorder for rider in aboard for recorder in rider.recorders),
            step=call.step or 0,
            **fields,
        )

    def submit(self, batch: Sequence[requests.Request]) -> list["futures.Future[requests.Generation]"]:
        """Queues requests; returns at once.

        Raises:
            RequestError: A request cannot run; then none is queued.
        """
        return cast("list[futures.Future[requests.Generation]]", self.submit_for(batch, None))

    def submit_for(self, batch: Sequence[requests.Item], limit: int | None) -> list["futures.Future[requests.Outcome]"]:
        """Queues requests, and paused ones, to run for so many tokens; those not finished then come back paused.

        Raises:
            RequestError: A request cannot run; then none is queued.
        """
        for item in batch:
            if isinstance(item, requests.Request):
                checking.check(item, self.parts)
        return self._scheduler.submit(batch, limit)

    def wait(
        self, answers: Sequence["futures.Future[requests.Generation]"], batch: Sequence[requests.Request]
    ) -> list[requests.Generation]:
        """Waits for answers; an interrupt cancels the generation first."""
        try:
            return [answer.result() for answer in answers]
        except BaseException:
            for request in batch:
                request.cancelled.set()
            raise

    def _run(self, batch: Sequence[requests.Item], limit: int | None) -> list[requests.Outcome]:
        with self.lock:
            return generation.Batch(self.parts, self.tokenizer, self.pool, batch, limit=limit).run()

    def packed(self) -> contextlib.AbstractContextManager[None]:
        """A block in which generation is faster and takes more memory: see `packing`."""
        return packing.packed(self.hf)

    def close(self) -> None:
        """Frees weights and caches. The Model cannot be used any more."""
        self._scheduler.close()
        self.pool.entries.clear()
        if self.parts.hf is not None:
            self.parts.hf.to("meta")
        gc.collect()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Frees everything, whatever happened."""
        self.close()


def _no_tokens(got: Any, form: str = "") -> errors.RequestError:
    return errors.RequestError(f"expected a text, or token ids{form}, got {got!r:.80}")


class _Fixed:
    """A rider with fixed content."""

    def __init__(
        self, model: Model, specs: Sequence[interventions.Intervention], recorders: tuple[requests.Recorder, ...]
    ) -> None:
        held = [spec for spec in specs if not isinstance(spec, interventions.LayerOrder)]
        self.model = model
        self._aboard = riders.InForce(tuple(held), recorders, step=0)

    def board(self, call: riders.Call) -> riders.InForce:
        """The same for every call."""
        return self._aboard


def bind_hooks(hooks: Sequence[FwdHook], model: Model) -> list[interventions.Intervention]:
    """Interventions from TransformerLens-style `(name or predicate, fn)` pairs; interventions pass through."""
    bound: list[interventions.Intervention] = []
    for hook in hooks:
        if isinstance(hook, interventions.Intervention):
            bound.append(hook)
            continue
        where, what = hook
        bound += [as_intervention(what).at(name) for name in sites.select(where, model.site_names)]
    for spec in bound:
        model_wiring.check(spec, model.parts)
    return bound


def as_intervention(what: Any) -> interventions.Intervention:
    """An intervention as it is; a function wrapped as opaque."""
    if isinstance(what, interventions.Intervention):
        return what
    if not callable(what):
        raise errors.InterventionError(f"expected an intervention or a function, got {type(what).__name__}")
    return interventions.Opaque(fn=what)


def _holds(spec: interventions.Intervention, step: int | None) -> bool:
    return spec.steps is None or step in spec.steps


def _group(request: requests.Request) -> str | None:
    order = checking.layer_order_of(request)
    return order.digest if order else None
