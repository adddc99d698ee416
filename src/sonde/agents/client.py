"""An LLM client around a model one can look into.

    client = HookedTransformerLLMClient(model, max_new_tokens=64)
    response = await client(LLMRequest(messages=[{"role": "user", "content": "Hello"}]))

Asynchronous and safe to call from many tasks at once: requests meet in the model's batches, the event loop is never
blocked, cancelling the task ends the generation at the next token. Whatever captures and managers are in force where
the client is called act on the request.
"""

import asyncio
import dataclasses
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sonde.agents import conversations
from sonde.core import errors, interventions, records, sites
from sonde.models import adapters, chat, requests, riders
from sonde.models import model as models_model

_log = logging.getLogger(__name__)
DEFAULT_NEW_TOKENS = 256
SEED_STRIDE = 1_000_003
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "stop", "seed")


@dataclasses.dataclass(frozen=True, slots=True)
class ClientState:
    """What a hook name that is an async function learns.

    Attributes:
        request: The request about to be answered.
        step: Its step in the episode.
        prompt_tokens: Its prompt.
    """

    request: records.LLMRequest
    step: int
    prompt_tokens: tuple[int, ...]


HookName = str | Callable[[str], bool] | Callable[[ClientState], Awaitable[Any]]
Hook = tuple[HookName, Any] | interventions.Intervention
Hooks = Sequence[Hook] | Callable[[ClientState], Awaitable[Sequence[Hook]]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A request ready for the engine.

    Attributes:
        asked: What the engine is asked.
        conversation: The episode it belongs to.
        messages: Its messages.
        prompt: The same, encoded.
        step: Its step in the episode.
    """

    asked: requests.Request
    conversation: conversations.Conversation
    messages: list[dict[str, Any]]
    prompt: chat.Prompt
    step: int


class HookedTransformerLLMClient:
    """Answers requests with a local model."""

    def __init__(
        self,
        model: Any,
        model_name: str | None = None,
        max_new_tokens: int | None = None,
        generation_kwargs: Mapping[str, Any] | None = None,
        *,
        fwd_hooks: Hooks = (),
        **chat_options: Any,
    ) -> None:
        """Wraps a model.

        Args:
            model: A Sonde model, a TransformerLens `TransformerBridge` or an nnsight model.
            model_name: What to call it; its own name if left out.
            max_new_tokens: Tokens to generate at most; as many as fit, up to 256, if left out.
            generation_kwargs: `temperature`, `top_p`, `top_k`, `stop`, `seed`; a request's own settings win. From this
                seed each step of an episode gets its own, which the response names.
            fwd_hooks: Interventions, or `(name, fn)` pairs, that hold for this client only. A name may be a wildcard, a
                predicate on names, or an async function of the `ClientState` that returns names; the whole list may be
                such a function too.
            **chat_options: `tokenizer` and `chat_template` in place of the model's own; `context_policy`: what to do
                when the context is full (`error`, `drop_oldest_turns`, `keep_first_and_last`).
        """
        self.model: models_model.Model = adapters.as_model(model)
        self.model_name = model_name or self.model.cfg.model_name
        self.max_new_tokens = max_new_tokens
        self.generation_kwargs = dict(generation_kwargs or {})
        unknown = set(self.generation_kwargs) - {*SAMPLING_KEYS, "max_new_tokens", "do_sample"}
        if unknown:
            raise errors.RequestError(f"unknown generation settings {sorted(unknown)}; known: {SAMPLING_KEYS}")
        known_options = {"tokenizer", "chat_template", "context_policy"}
        if set(chat_options) - known_options:
            raise TypeError(
                f"unknown options {sorted(set(chat_options) - known_options)}; known: {sorted(known_options)}"
            )
        self.tokenizer = chat_options.get("tokenizer") or self.model.tokenizer
        self.chat_template: str | None = chat_options.get("chat_template")
        self.context_policy: chat.Policy = chat.checked_policy(chat_options.get("context_policy", "error"))
        self.fwd_hooks = fwd_hooks
        self.conversations = conversations.Conversations()

    async def __call__(self, request: records.LLMRequest) -> records.LLMResponse:
        """Answers a request.

        Raises:
            RequestError: The request makes no sense.
            ContextError: It does not fit the context under the client's policy.
        """
        pending = await self.prepare(request)
        try:
            (answer,) = self.model.submit([pending.asked])
            return self.complete(pending, await asyncio.wrap_future(answer))
        except asyncio.CancelledError:
            pending.asked.cancelled.set()
            raise
        finally:
            pending.conversation.busy = False

    async def prepare(self, request: records.LLMRequest, *, forced: tuple[int, ...] = ()) -> Pending:
        """What the engine is to be asked, with what is in force here; for callers who put batches together themselves.

        The conversation is marked busy until `complete` is called or the mark is taken off.

        Args:
            request: The request.
            forced: Tokens to take instead of drawing, as far as they go.
        """
        pending = await self._pending(request, self.model.request, forced=forced)
        if pending.prompt.dropped and not pending.conversation.dropping:
            pending.conversation.dropping = True
            _log.warning(
                "a conversation no longer fits the context of %d tokens: from step %d on, %s leaves out turns (now %d tokens); "
                "each response says how many in dropped_tokens",
                self.model.cfg.n_ctx,
                pending.step,
                self.context_policy,
                pending.prompt.dropped,
            )
        return pending

    async def _pending(
        self, request: records.LLMRequest, ask: Callable[..., requests.Request], **fields: Any
    ) -> Pending:
        messages = chat.normalise(request.messages, request.system_prompt)
        conversation = self.conversations.of(request, messages)
        conversation.busy = True
        try:
            prompt, limit = self._prompt(request, messages, conversation)
            step, known = conversation.step, conversation.known(prompt.whole.tokens)
            hooks = await self._hooks(ClientState(request, step, prompt.tokens))
            asked = ask(
                prompt.tokens,
                self._sampling(request, limit, step),
                tuple(hooks),
                call=riders.Call(conversation.id, step),
                positions=prompt.positions,
                new_start=known,
                persisted=conversation.left_behind(known),
                **fields,
            )
        except BaseException:
            conversation.busy = False
            raise
        return Pending(asked, conversation, messages, prompt, step)

    def complete(self, pending: Pending, generation: requests.Generation) -> records.LLMResponse:
        """Takes the engine's answer into the conversation."""
        conversation = pending.conversation
        conversation.step += 1
        conversation.messages, conversation.chat = pending.messages, pending.prompt.whole
        conversation.reply, conversation.reply_tokens = generation.text, generation.tokens
        conversation.persisted = generation.persisted
        conversation.busy = False
        return _response(generation, pending.prompt, pending.step)

    async def recall(self, request: records.LLMRequest, text: str, tokens: tuple[int, ...]) -> requests.Request:
        """Takes a step that was played before into its conversation; the model does not run.

        Returns what it was asked then.

        Args:
            request: What was asked.
            text: What was answered, and `tokens` the same as sampled.
            tokens: See `text`.
        """
        pending = await self._pending(request, _unridden)
        asked = pending.asked
        end = (asked.positions[-1] + 1 if asked.positions else len(asked.tokens)) + len(tokens)
        generation = requests.Generation(
            text=text,
            tokens=tokens,
            logprobs=(),
            finish_reason="stop",
            prompt_tokens=len(asked.tokens),
            encoded_tokens=0,
            persisted=requests.persisting(asked, end),
        )
        self.complete(pending, generation)
        return asked

    def _prompt(
        self, request: records.LLMRequest, messages: list[dict[str, Any]], conversation: conversations.Conversation
    ) -> tuple[chat.Prompt, int]:
        """The prompt, and how many tokens may follow it."""
        options: Any = {"tools": request.tools, "template": self.chat_template}

        def drop(start: int, stop: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
            kept = chat.render(self.tokenizer, messages[:start] + messages[stop:], **options)
            head = self._head(messages[:start], options)
            return chat.without(whole, kept, head, self.tokenizer)

        n_ctx = self.model.cfg.n_ctx
        limits = (request.max_output_tokens, self.generation_kwargs.get("max_new_tokens"), self.max_new_tokens)
        wanted = next((limit for limit in limits if limit is not None), None)
        room = n_ctx - (1 if wanted is None else wanted)
        if room < 1:
            raise errors.ContextError(
                f"max_new_tokens={wanted} leaves no room for a prompt in the context of {n_ctx}: lower it"
            )
        pieces = chat.render(self.tokenizer, messages, **options)
        whole = conversations.spliced(conversation, pieces, self.tokenizer)
        prompt = chat.fit(messages, whole=whole, drop=drop, room=room, policy=self.context_policy)
        return prompt, min(DEFAULT_NEW_TOKENS, n_ctx - len(prompt.tokens)) if wanted is None else wanted

    def _head(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        """What stands before the first message that may be dropped; some templates cannot say."""
        if not messages:
            return ""
        try:
            return "".join(piece.text for piece in chat.render(self.tokenizer, messages, header=False, **options))
        except errors.RequestError:
            return ""

    def _sampling(self, request: records.LLMRequest, limit: int, step: int) -> requests.Sampling:
        own = {name: self.generation_kwargs[name] for name in SAMPLING_KEYS if name in self.generation_kwargs}
        if self.generation_kwargs.get("do_sample") is False:
            own["temperature"] = 0.0
        asked = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "stop": request.stop_sequences,
            "seed": request.seed,
        }
        # Steps drawn with one seed would all begin with the same random number.
        own["seed"] = own.get("seed", 0) + SEED_STRIDE * step
        own |= {name: value for name, value in asked.items() if value is not None}
        if "stop" in own:
            own["stop"] = (own["stop"],) if isinstance(own["stop"], str) else tuple(own["stop"])
        for name in {"temperature", "top_p"} & own.keys():
            own[name] = float(own[name])
        return requests.Sampling(max_new_tokens=limit, **own)

    async def _hooks(self, state: ClientState) -> list[interventions.Intervention]:
        hooks: Any = self.fwd_hooks
        if callable(hooks):
            hooks = hooks(state)
            hooks = await hooks if inspect.isawaitable(hooks) else hooks
        resolved: list[Any] = []
        for hook in hooks:
            if isinstance(hook, interventions.Intervention):
                resolved.append(hook)
                continue
            name, what = hook
            if inspect.iscoroutinefunction(name):
                name = await name(state)
            known = sites.select(name, self.model.site_names) if name else []
            resolved += [models_model.as_intervention(what).at(one) for one in known]
        return models_model.bind_hooks(resolved, self.model)


def create_hooked_transformer_client_with_chat_template(
    model: Any,
    tokenizer: Any = None,
    model_name: str | None = None,
    max_new_tokens: int | None = None,
    generation_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> HookedTransformerLLMClient:
    """A client that renders chats with a tokenizer's own template.

    Args:
        model: As for the client.
        tokenizer: The tokenizer whose template to use; the model's if left out.
        model_name: As for the client, and the rest likewise.
        max_new_tokens: See the client.
        generation_kwargs: See the client.
        **options: `fwd_hooks`, `chat_template`, `context_policy`.

    Raises:
        RequestError: The tokenizer has no chat template and none is given.
    """
    chosen = tokenizer or adapters.as_model(model).tokenizer
    if not (options.get("chat_template") or getattr(chosen, "chat_template", None)):
        raise errors.RequestError("this tokenizer has no chat template: pass chat_template=…, or use the plain client")
    return HookedTransformerLLMClient(model, model_name, max_new_tokens, generation_kwargs, tokenizer=chosen, **options)


def _unridden(
    tokens: tuple[int, ...],
    sampling: requests.Sampling,
    interventions: tuple[interventions.Intervention, ...],
    *,
    call: riders.Call,
    **fields: Any,
) -> requests.Request:
    """A request that nobody rides along with: it is never run."""
    return requests.Request(
        tokens=tokens, sampling=sampling, interventions=interventions, step=call.step or 0, **fields
    )


def _response(generation: requests.Generation, prompt: chat.Prompt, step: int) -> records.LLMResponse:
    usage = records.Usage(generation.prompt_tokens, len(generation.tokens), generation.encoded_tokens)
    return records.LLMResponse(
        data=(records.TextData(generation.text),),
        usage=usage,
        prompt_token_ids=prompt.tokens,
        token_ids=generation.tokens,
        logprobs=generation.logprobs,
        finish_reason=generation.finish_reason,
        seed=generation.seed,
        dropped_tokens=prompt.dropped,
        step=step,
    )
