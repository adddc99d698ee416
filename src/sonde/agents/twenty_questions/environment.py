"""Twenty Questions as an environment: find the secret by yes/no questions, in twenty steps at most.

    env = TwentyQuestionsEnvironment(["dog", "sofa"], seed=0)
    async with env:
        ts = await env.reset()
        ts = await env.step(await client(ts.observation))

As published, a step costs 1 and the winning one 0. Unlike there, the rules stay in the chat at every step, together
with a short finished game: small models ask next to no valid question without one. The verdict on the last message,
with its reason, is `observation.metadata["info"]`. With the rules oracle a step costs well under a millisecond.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from sonde.agents import environment
from sonde.agents.twenty_questions import llm, objects, rules
from sonde.core import errors, records

RULES = (
    "You are playing Twenty Questions. I am thinking of an everyday object. Ask exactly one yes/no question per message "
    "to find out what it is. I answer Yes, No, I don't know or Invalid question. You win by asking for the object "
    "itself. Guess it only when you are sure."
)
START = "New game. Ask your first question."
EXAMPLE = (
    ("Is it alive?", rules.NO),
    ("Is it found in a kitchen?", rules.YES),
    ("Is it made of metal?", rules.YES),
    ("Is it a spatula?", "Yes, you won! " + START),  # not in the table: to copy it never wins
)
MAX_OUTPUT_TOKENS = 24
LONGEST_KEPT = 4000
CUT = " […]"
VERSION = 1


@runtime_checkable
class Oracle(Protocol):
    """Anything that judges a message about a secret, at once or as a coroutine."""

    def judge(self, message: str, thing: objects.Thing) -> Any:
        """A `rules.Verdict`, or an awaitable of one."""
        ...


class TwentyQuestionsEnvironment(environment.TaskEnvironment[objects.Thing]):
    """Plays Twenty Questions; a task is an object."""

    def __init__(
        self,
        objects: Sequence[str | objects.Thing] | None = None,
        oracle: str | Oracle = "rules",
        *,
        oracle_model: str | None = None,
        step_limit: int = 20,
        system_prompt: str | None = None,
        **options: Any,
    ) -> None:
        """Sets up the game.

        Args:
            objects: Secrets, by name or as a `Thing`; the whole table if left out. Things outside the table need a
                model or an oracle of your own.
            oracle: `rules`, `llm`, or an object with `judge(message, thing)`.
            oracle_model: The model of `llm`, on an OpenAI-compatible server.
            step_limit: Questions per game.
            system_prompt: In place of the rules' text.
            **options: `seed` of the order of secrets; `max_output_tokens` that requests ask for.

        Raises:
            ValueError: An unknown object or oracle, or a setting that makes no sense.
        """
        unknown = set(options) - {"seed", "max_output_tokens"}
        if unknown:
            raise TypeError(f"unknown options {sorted(unknown)}; known: ['max_output_tokens', 'seed']")
        if step_limit < 1:
            raise ValueError(f"step_limit must be 1 or more, got {step_limit}")
        super().__init__(_secrets(objects), seed=options.get("seed"))
        self.oracle = _oracle(oracle, oracle_model)
        if isinstance(self.oracle, rules.RulesOracle):
            _refuse_strangers(self.tasks)
        self.step_limit = step_limit
        self.system_prompt = RULES if system_prompt is None else system_prompt
        self.max_output_tokens = options.get("max_output_tokens", MAX_OUTPUT_TOKENS)
        self._fresh()

    def snapshot(self) -> dict[str, Any]:
        """The game under way, or just over, as JSON data.

        Raises:
            EpisodeError: There is none.
        """
        if self.task is None:
            raise errors.EpisodeError("no episode to put away: call reset() first")
        return {
            "version": VERSION,
            "task_id": self.task.id,
            "episode": self._episode,
            "turns": [list(turn) for turn in self._turns],
            "info": dict(self._info),
            "reward": self._reward,
            "over": self._over,
        }

    async def restore(self, snapshot: Mapping[str, Any]) -> records.TimeStep[records.LLMRequest]:
        """Goes on from a snapshot; returns the TimeStep it was taken at.

        Raises:
            EpisodeError: The snapshot is of another version, or of an object this environment does not play.
        """
        if snapshot.get("version") != VERSION:
            raise errors.EpisodeError(f"a snapshot of version {snapshot.get('version')!r}, expected {VERSION}")
        await self._take_up(snapshot["task_id"])
        self.seek(snapshot["episode"])
        self._turns = [(said, answer) for said, answer in snapshot["turns"]]
        self._info, self._reward, self._over = dict(snapshot["info"]), snapshot["reward"], snapshot["over"]
        self.step_count = len(self._turns)
        self.actions = [_response(said) for said, _ in self._turns]
        if not self._turns:
            return records.TimeStep(records.StepType.FIRST, None, None, self._observation())
        kind = records.StepType.LAST if self._over else records.StepType.MID
        return records.TimeStep(kind, self._reward, 0.0 if self._over else 1.0, self._observation())

    async def _start(self, task: objects.Thing) -> records.LLMRequest:
        self._fresh()
        return self._observation()

    async def _act(self, action: records.LLMResponse) -> environment.Outcome:
        assert self.task is not None
        text = "".join(getattr(part, "content", "") for part in action.data)
        verdict = self.oracle.judge(text, self.task)
        verdict = await verdict if inspect.isawaitable(verdict) else verdict
        done = verdict.won or self.step_count + 1 >= self.step_limit
        answer = verdict.answer
        if verdict.won:
            answer = f"Yes, you won! It is: {self.task.name}."
        elif done:
            answer = f"{verdict.answer}. The game is over, your questions are used up. It was: {self.task.name}."
        # Shown to a model again and again, a message without end would push the rules out of its context.
        cut = len(text) > LONGEST_KEPT
        self._turns = [*self._turns, (text[:LONGEST_KEPT] + CUT if cut else text, answer)]
        self._info = {**verdict.as_dict(), "cut": cut}
        self._reward = 0.0 if verdict.won else -1.0
        return environment.Outcome(self._observation(), self._reward, done=done)

    def _fresh(self) -> None:
        self._turns: list[tuple[str, str]] = []
        self._info: dict[str, Any] = {}
        self._reward: float | None = None

    def _observation(self) -> records.LLMRequest:
        """System prompt, example game and the game so far, every time."""
        messages = [{"role": "system", "content": self.system_prompt}, {"role": "user", "content": START}]
        for said, answer in (*EXAMPLE, *self._turns):
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": answer}]
        return self.ask(messages, info=self._info, max_output_tokens=self.max_output_tokens)


def _secrets(wanted: Sequence[str | objects.Thing] | None) -> Sequence[objects.Thing]:
    if wanted is None:
        return objects.things()
    if isinstance(wanted, str):
        raise ValueError(f"objects must be a list of names, got the string {wanted!r}: write [{wanted!r}]")
    return [objects.thing(one) if isinstance(one, str) else one for one in wanted]


def _refuse_strangers(things: Sequence[objects.Thing]) -> None:
    known = set(objects.things())
    strangers = [one.name for one in things if one not in known]
    if strangers:
        raise ValueError(
            f"the rules oracle knows only its table, not {strangers[:3]}: give oracle='llm', or an oracle of your own"
        )


def _oracle(oracle: str | Oracle, model: str | None) -> Oracle:
    if not isinstance(oracle, str):
        return oracle
    if oracle == "rules":
        if model is not None:
            raise ValueError(f"oracle_model={model!r} needs oracle='llm'")
        return rules.RulesOracle()
    if oracle != "llm":
        near = errors.suggest(oracle, ("rules", "llm"))
        raise ValueError(f"no oracle {oracle!r}{near}: 'rules', 'llm', or an object with judge(message, thing)")
    if model is None:
        raise ValueError("oracle='llm' needs oracle_model, the name of a model on an OpenAI-compatible server")
    from sonde.agents import openai_client  # only this oracle needs it

    return llm.LLMOracle(openai_client.OpenAIClient(model))


def _response(text: str) -> records.LLMResponse:
    return records.LLMResponse(data=(records.TextData(text),), usage=records.Usage(0, 0))
