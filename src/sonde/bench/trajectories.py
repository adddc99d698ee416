"""Which step of an episode decides how it ends, and by which nodes? A game and a compiled player of which both are known.

    case = trajectories.Case(steps=5, key_step=1)
    with case.player() as model:
        played = sonde.play(case.environment, model, episodes=16)      # every reward is 1
    case.truth.step, case.truth.carrier, case.compiled.circuit.names

Every observation is a mark and a colour. The player has one word per step:

| observation | right word | known to come from |
|---|---|---|
| `see blue`, at most steps | `go` | the observation |
| `key red`, at the key step | `red` | the observation |
| `door gold`, at the last step | `red` | what was said at the key step, wherever that was |

The last word decides the reward, 1 or 0. Colours are drawn evenly, so those seen elsewhere say nothing. The player is a compiled
RASP program (`compiling`), its logits spread over the vocabulary:

1. `a0.h0`, `a0.h1`: the word before, and the one before that.
2. `m0`: what the observation asks for, at the end of a prompt; and whether a word is a colour that was said.
3. `a1.h0`, the carrier: at every position, the colour that was said so far.
4. `m1`: the carried colour at a door, else what the observation asks for.

So the key step and no other step before the last one matters for the outcome; the last one rests on the key step alone; and at the end of
the last prompt the key's colour is in the stream from the carrier on, and not before. Ablated, the player says `go`.
Costs milliseconds to make; plays some hundreds of steps per second.
"""

import dataclasses
import functools

import numpy as np

from sonde.agents import environment, reading
from sonde.analysis.tracing import temporal
from sonde.bench import compiling, rasp, words
from sonde.core import errors, records
from sonde.models import model as models_model

COLOURS = ("red", "blue", "green", "gold")
SEE, KEY, DOOR = "see", "key", "door"
GO, ASK, NONE = "go", ">", "none"
VOCABULARY = (*COLOURS, SEE, KEY, DOOR, GO, ASK)
#: Tokens of a step: mark, colour, `>`, and the word that is said.
WIDTH = 4
TEMPLATE = (
    "<bos> {% for message in messages %}{% if message['role'] == 'assistant' %}> {% endif %}{{ message['content'] }} "
    "{% endfor %}{% if add_generation_prompt %}> {% endif %}"
)
#: Logit of the word that the program says, and of `go` without any.
SHARP, DEFAULT = 20.0, 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """What is known of a case.

    Attributes:
        step: The step that decides.
        rests: The pair of steps of which the later one rests on the earlier one; no other does.
        carrier: The head that carries the colour from one to the other.
        site: Where it arrives in the stream, at the last position of the last prompt.
        before: The stream just before, where the colour cannot be known.
        layers: What makes the word of a step: without any of these the key step goes wrong.
        heads: The heads that read the observation.
    """

    step: int
    rests: tuple[int, int]
    carrier: str = "a1.h0"
    site: str = "blocks.1.hook_resid_mid"
    before: str = "blocks.1.hook_resid_pre"
    layers: tuple[int, ...] = (0, 1)
    heads: tuple[str, ...] = ("a0.h0", "a0.h1")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One game: so many steps, with the key at one of them.

    Attributes:
        steps: Of an episode, the door included.
        key_step: Where the key is, from 0.
    """

    steps: int = 5
    key_step: int = 1

    def __post_init__(self) -> None:
        """Refuses games without a step for the key."""
        if not (self.steps >= 2 and 0 <= self.key_step < self.steps - 1):
            raise errors.RequestError(
                f"a game has at least 2 steps, and the key before the last one; got {self.steps} steps, key at {self.key_step}"
            )

    @property
    def name(self) -> str:
        """Such as `courier-5-1`: steps, then the key's."""
        return f"courier-{self.steps}-{self.key_step}"

    @property
    def truth(self) -> Truth:
        """What analyses should find."""
        return Truth(step=self.key_step, rests=(self.key_step, self.steps - 1))

    @property
    def spans(self) -> tuple[temporal.StepSpan, ...]:
        """Where the steps stand in an episode, BOS left out: it belongs to no step, and every head rests there."""
        starts = range(1, 1 + WIDTH * self.steps, WIDTH)
        return tuple(temporal.StepSpan(start, start + WIDTH - 1, start + WIDTH) for start in starts)

    @property
    def compiled(self) -> compiling.Compiled:
        """The player's program as a transformer, with its circuit."""
        return _compiled(self.steps)

    def environment(self, tasks: int = 64, *, seed: int = 0) -> "Courier":
        """The game; its tasks differ in colours."""
        return Courier(self, tasks, seed=seed)

    def player(self) -> models_model.Model:
        """The compiled player as a model that talks."""
        import torch

        from sonde.models import plain

        found = self.compiled
        tokenizer = words.tokenizer(found.vocabulary)
        tokenizer.chat_template = TEMPLATE
        sizes = {**found.config, "d_out": found.config["vocab_size"]}
        network = plain.PlainForCausalLM(plain.PlainConfig(**sizes))
        weights = {name: torch.from_numpy(value) for name, value in found.weights.items()}
        head, bias = torch.zeros(sizes["vocab_size"], sizes["hidden_size"]), torch.zeros(sizes["vocab_size"])
        for row, word in zip(weights["lm_head.weight"], found.outputs or (), strict=True):
            head[found.vocabulary.index(word)] = SHARP * row
        bias[found.vocabulary.index(GO)] = DEFAULT
        network.load_state_dict(weights | {"lm_head.weight": head, "lm_head.bias": bias})
        return models_model.Model(network.eval(), tokenizer, name=self.name)


def family() -> tuple[Case, ...]:
    """The cases by which methods are tried: three lengths, the key early, in the middle and late."""
    return tuple(Case(steps, key) for steps in (4, 6, 8) for key in sorted({0, steps // 2 - 1, steps - 2}))


def program() -> rasp.Variable:
    """What the player says after each token."""
    before, first = (
        rasp.Aggregate(
            rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query, back=back: key == query - back),
            rasp.TOKENS,
            default=NONE,
            name=name,
        )
        for back, name in ((1, "before"), (2, "mark"))
    )
    said = rasp.SequenceMap(_said, rasp.TOKENS, before, name="said")
    asked = rasp.SequenceMap(_asked, first, before, name="asked")
    so_far = rasp.Select(said, rasp.INDICES, lambda key, query: True)
    carried = rasp.Aggregate(so_far, said, default=NONE, name="carried")
    return rasp.SequenceMap(_word, asked, carried, name="word")


def _said(token: rasp.Value, before: rasp.Value) -> rasp.Value:
    return token if token in COLOURS and before == ASK else None


def _asked(mark: rasp.Value, colour: rasp.Value) -> rasp.Value:
    return colour if mark == KEY and colour in COLOURS else DOOR if mark == DOOR else GO


def _word(asked: rasp.Value, carried: rasp.Value) -> rasp.Value:
    return asked if asked != DOOR else carried if carried in COLOURS else GO


@functools.lru_cache(maxsize=16)
def _compiled(steps: int) -> compiling.Compiled:
    return compiling.compile(program(), VOCABULARY, max_length=1 + WIDTH * steps, causal=True)


@dataclasses.dataclass(frozen=True, slots=True)
class CourierTask:
    """One episode's colours.

    Attributes:
        id: Its name.
        colours: What is seen at each step.
    """

    id: str
    colours: tuple[str, ...]


class Courier(environment.SpokenEnvironment[CourierTask]):
    """Shows a mark and a colour at every step, and asks for the key's colour at the door."""

    def __init__(self, case: Case, tasks: int = 64, *, seed: int = 0) -> None:
        """Draws the tasks."""
        rng = np.random.default_rng([seed, case.steps])
        drawn = rng.integers(len(COLOURS), size=(tasks, case.steps))
        super().__init__(
            [CourierTask(f"{case.name}-{at}", tuple(COLOURS[one] for one in row)) for at, row in enumerate(drawn)]
        )
        self.case = case
        self._fresh()

    @property
    def step_limit(self) -> int:
        """How many steps an episode has."""
        return self.case.steps

    async def _start(self, task: CourierTask) -> records.LLMRequest:
        self._fresh()
        return self._observation()

    async def _act(self, action: records.LLMResponse) -> environment.Outcome:
        assert self.task is not None
        self._said = [*self._said, reading.text_of(action).strip()]
        done = len(self._said) >= self.case.steps
        good = done and self._said[-1] == self.task.colours[self.case.key_step]
        return environment.Outcome(self._observation(), float(good), done=done)

    def _fresh(self) -> None:
        self._said: list[str] = []

    def _observation(self) -> records.LLMRequest:
        assert self.task is not None
        messages: list[dict[str, str]] = []
        for step in range(min(len(self._said) + 1, self.case.steps)):
            mark = DOOR if step == self.case.steps - 1 else KEY if step == self.case.key_step else SEE
            messages.append({"role": "user", "content": f"{mark} {self.task.colours[step]}"})
            messages += [{"role": "assistant", "content": text} for text in self._said[step : step + 1]]
        return self.ask(messages, max_output_tokens=1)
