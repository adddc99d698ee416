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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast, overload

import torch
from torch import Tensor, nn

from sonde.core import errors, interventions, sites
from sonde.models import (
    bos,
    checking,
    families,
    gate,
    generation,
    idioms,
    kv,
    layer_order,
    outputs,
    packing,
    requests,
    riders,
    scheduler,
    texts,
    weights,
)
from sonde.models import config as model_config
from sonde.models import wiring as model_wiring

Tokens = texts.Tokens
FwdHook = tuple[str | Callable[[str], bool], Any] | interventions.Intervention


class Model(texts.Texts, weights.Weights):
    """A language model one can look into while it runs.

    Besides what is below it has TransformerLens' names for weights (`W_Q`, `b_in`, …: see `weights`) and for the modules at
    its ends: `embed`, `ln_final`, `unembed`.
    """

    from_pretrained = idioms.Elsewhere(idioms.MODEL)
    boot_transformers = idioms.Elsewhere(idioms.MODEL)

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
        #: What `sonde.load` takes to make it again; None if it was made from an object.
        self.source: str | None = None
        self.lock = threading.RLock()
        self.gate = gate.Gate(self)
        self.pool = kv.Pool(kv_budget)
        self._beginnings = bos.Watch(tokenizer, cfg.model_name)
        self._scheduler = scheduler.Scheduler(self._run, _group, max_batch=max_batch)
        self._max_batch = max_batch

    def __repr__(self) -> str:
        """Name and size."""
        return f"Model({self.cfg.model_name!r}, {self.cfg.n_layers} layers, d_model {self.cfg.d_model})"

    @property
    def site_names(self) -> tuple[str, ...]:
        """Every Site of this model, from input to output."""
        return self.parts.site_names

    @property
    def options(self) -> dict[str, int]:
        """What it was made with, besides the weights."""
        return {"kv_budget": self.pool.budget, "max_batch": self._max_batch}

    def check_open(self) -> None:
        """Refuses a model that was closed."""
        self._scheduler.check_open()

    if not TYPE_CHECKING:  # which is to find misspelt names, and knows the others from `weights.Weights`

        def __getattr__(self, name: str) -> Any:
            """Weights and modules by TransformerLens' names; for other libraries' words, an error with Sonde's."""
            if name in weights.NAMES:
                return weights.read(self.parts, name)
            if name in weights.MODULES:
                return self.parts.taps[weights.MODULES[name]].module
            raise idioms.missing(self, name, idioms.MODEL, bare=self.__dict__.get("hf"))

    @idioms.explained
    def __call__(
        self,
        tokens: Tokens,
        return_type: str | None = "logits",
        *,
        loss_per_token: bool = False,
        attention_mask: Tensor | None = None,
    ) -> Any:
        """Logits of one forward pass, the loss of the next tokens (`"loss"`), or `"both"`.

        Args:
            tokens: Text or token ids.
            return_type: What to return.
            loss_per_token: The loss of each token, `batch pos-1`, instead of their mean.
            attention_mask: `batch pos`, 0 at padding.
        """
        return self.run_with_hooks(
            tokens, (), return_type=return_type, loss_per_token=loss_per_token, attention_mask=attention_mask
        )

    @idioms.explained
    def run_with_cache(
        self,
        tokens: Tokens,
        names_filter: sites.SiteFilter = None,
        *,
        attention_mask: Tensor | None = None,
        interventions: Sequence[interventions.Intervention] = (),
    ) -> tuple[outputs.Logits, outputs.ActivationCache]:
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
        with riders.riding(_Fixed(self, _at_sites(interventions), (collector,))):
            logits = self._forward(tokens, attention_mask, interventions)
        assert collector.tape is not None
        values = {name: collector.tape.chunks[name][0] for name in collector.sites}
        cache = outputs.ActivationCache(values, self.cfg.n_layers)
        return outputs.Logits.of(logits, cache), cache

    @idioms.explained
    def run_with_hooks(
        self,
        tokens: Tokens,
        fwd_hooks: Sequence[FwdHook] = (),
        *,
        return_type: str | None = "logits",
        loss_per_token: bool = False,
        attention_mask: Tensor | None = None,
    ) -> Any:
        """One forward pass with interventions, or plain `(site, fn)` hooks, in force; returns what `model(…)` does."""
        ids, specs = self.to_tokens(tokens), bind_hooks(fwd_hooks, self)
        with riders.riding(_Fixed(self, _at_sites(specs), ())):
            logits = self._forward(ids, attention_mask, specs)
        return outputs.returned(return_type, logits, ids, attention_mask, per_token=loss_per_token)

    @idioms.explained
    @contextlib.contextmanager
    def hooks(self, fwd_hooks: Sequence[FwdHook] = ()) -> Iterator[Self]:
        """A block in which interventions, or plain `(site, fn)` hooks, are in force: in forward passes and `generate`.

        For the steps of an episode there is `sonde.InterventionManager`.
        """
        with riders.riding(_Fixed(self, bind_hooks(fwd_hooks, self), ())):
            yield self

    def _forward(self, tokens: Tokens, mask: Tensor | None, specs: Sequence[interventions.Intervention]) -> Tensor:
        ids = self.to_tokens(tokens)
        if mask is None:  # else a row may begin with padding
            self._beginnings.see(ids[:, :2].tolist())
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

    @idioms.explained
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
            model_wiring.check(spec, self.parts)
            if spec.positions is not None and max(spec.positions, default=0) >= self.cfg.n_ctx:
                raise errors.InterventionError(
                    f"position {max(spec.positions)} at {spec.site} is beyond the context of {self.cfg.n_ctx} tokens"
                )

    def _ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        try:
            return tuple(map(operator.index, self._encode(prompt, None) if isinstance(prompt, str) else prompt))
        except TypeError as error:
            raise texts.no_tokens(prompt) from error

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
        self._beginnings.see([tokens])
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


class _Fixed:
    """A rider with fixed content."""

    def __init__(
        self, model: Model, specs: Sequence[interventions.Intervention], recorders: tuple[requests.Recorder, ...]
    ) -> None:
        self.model = model
        self._aboard = riders.InForce(tuple(specs), recorders)

    def board(self, call: riders.Call) -> riders.InForce:
        """The same for every call; a forward pass outside of an episode is step 0."""
        return dataclasses.replace(self._aboard, step=call.step or 0)


def _at_sites(specs: Sequence[interventions.Intervention]) -> list[interventions.Intervention]:
    return [spec for spec in specs if not isinstance(spec, interventions.LayerOrder)]


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
