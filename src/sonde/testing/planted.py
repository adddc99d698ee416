"""A world whose truth is known: a model in which one direction at one layer decides whether its next message is valid.

    model = planted.model(layer=3)
    played = sonde.play(lambda: planted.PlantedEnvironment(critical_step=4), model, episodes=32)
    u = planted.direction()                     # the direction, at blocks.3.hook_resid_post and later

The model is a GPT-2 of six layers with weights set by hand, in a seeded random basis:

1. Embedding: each observation names two features, such as `red up`; every word has a place of its own in the stream.
2. Layer 0: head 0 reads the last colour, head 1 the last direction, head 2 whether there is a curse. From here on both
   features are linear in the stream at the last prompt token, and their exclusive or is not.
3. Layer `layer`: four neurons compute the exclusive or and write +u or -u; a fifth writes -2.5 u under a curse.
4. Unembedding: the log-odds of `valid` against `invalid` are `gap` times the length along u; in a null model they are 0,
   so that nothing inside the model decides.

All other heads and neurons carry small seeded noise, in directions of their own; it knows the words that were said, but
not the features. In the environment a step changes
nothing later, except the critical one: an invalid message there brings a curse on all later observations. Making the
model takes about 30 ms; it plays some hundreds of steps per second in batches of 16.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.agents import environment, reading
from sonde.agents.twenty_questions import rules
from sonde.core import errors, records
from sonde.models import model as models_model
from sonde.models import prove, tiny

VALID, INVALID = "valid", "invalid"
COLOURS, WAYS, CURSED = ("blue", "red"), ("down", "up"), "cursed"
#: Words that mean nothing: one of them is in every observation that is not cursed.
MOODS = ("calm", "cool", "fair", "mild", "quiet", "soft", "still", "warm")
WORDS = ("<unk>", "system", "user", "assistant", VALID, INVALID, *COLOURS, *WAYS, CURSED, *MOODS)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} {{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
LAYERS, D_MODEL, HEADS, N_CTX = 6, 64, 4, 512
#: The layer whose first three heads read the observation.
READS = 0
#: How far a curse pushes along -u; the exclusive or pushes by 1.
CURSE = 2.5
MAX_OUTPUT_TOKENS = 4
_FEATURES = (
    "bias", "recency", "height", "is_colour", "colour", "is_way", "way", "curse", "assistant", "said",
    "read_colour", "read_way", "read_curse", "decision",
)  # fmt: skip
_BIAS, _WORD_NORM, _NOISE = 8.0, 3**0.5, 0.1
#: What the layer norms multiply with, at the embeddings (all have the same length), once two features are read, and at
#: the end (but for the noise, and a curse).
_FIRST_SCALE, _MIDDLE_SCALE, _LAST_SCALE = (
    (D_MODEL / (_BIAS**2 + 1 + _WORD_NORM**2 + more)) ** 0.5 for more in (0, 2, 3)
)


def direction(seed: int = 0) -> Float[np.ndarray, "d_model"]:
    """The direction that decides, of length 1: valid along it, invalid against it; for the model of the same seed."""
    return _Basis.of(seed).feature("decision").numpy().copy()


def model(layer: int = 3, *, gap: float = 2.5, null: bool = False, seed: int = 0) -> models_model.Model:
    """The model.

    Args:
        layer: The layer that decides, 1 to 5.
        gap: Log-odds of a valid message where the features say so, and minus those where they do not; 2.5 is 92 %.
        null: The unembedding ignores the decision: valid and invalid are equally likely, whatever happens inside.
        seed: Of the basis and the noise.

    Raises:
        RequestError: There is no such layer to decide.
    """
    if not READS < layer < LAYERS:
        raise errors.RequestError(f"the deciding layer must be {READS + 1} to {LAYERS - 1}, got {layer}")
    import transformers

    words = tokenizer()
    config = transformers.GPT2Config(
        vocab_size=len(words),
        n_embd=D_MODEL,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=N_CTX,
        activation_function="relu",
        tie_word_embeddings=False,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = transformers.GPT2LMHeadModel(config)
        _Weights(network, words, _Basis.of(seed)).plant(layer, 0.0 if null else gap)
    name = f"planted-layer{layer}-gap{gap:g}-seed{seed}" + ("-null" if null else "")
    made = models_model.Model(network, words, name=name)
    prove.prove(made)
    return made


def tokenizer() -> Any:
    """One token per word of the planted world, and the special ones of the tiny models."""
    import tokenizers
    import transformers

    vocab = {word: index for index, word in enumerate(WORDS)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=WORDS[0]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens([tokenizers.AddedToken(word, special=True, normalized=False) for word in tiny.SPECIAL])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=tiny.SPECIAL[0],
        eos_token=tiny.SPECIAL[2],
        pad_token=tiny.SPECIAL[3],
        unk_token=WORDS[0],
        additional_special_tokens=[tiny.SPECIAL[1]],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Basis:
    """Directions that a layer norm leaves where they are: orthonormal, and orthogonal to the mean.

    Attributes:
        rows: One direction per row: the features by name, then the noise.
        rng: Draws the noise.
    """

    rows: Tensor
    rng: np.random.Generator

    @classmethod
    def of(cls, seed: int) -> "_Basis":
        rng = np.random.default_rng(seed)
        columns = rng.standard_normal((D_MODEL, D_MODEL))
        columns[:, 0] = 1.0
        rows = np.linalg.qr(columns)[0].T[1:]
        return cls(torch.tensor(rows, dtype=torch.float32), rng)

    def feature(self, name: str) -> Tensor:
        return self.rows[_FEATURES.index(name)]

    def mix(self, **lengths: float) -> Tensor:
        """A vector of so much of each feature."""
        return sum((length * self.feature(name) for name, length in lengths.items()), torch.zeros(D_MODEL))

    def noise(self, *shape: int) -> Tensor:
        """Random numbers, `shape` by direction, in the directions that are no feature's; each row of length about 1."""
        free = self.rows[len(_FEATURES) :]
        drawn = torch.tensor(self.rng.standard_normal((*shape, len(free))), dtype=torch.float32)
        return drawn @ free / len(free) ** 0.5


class _Weights:
    """Sets the weights of a network."""

    def __init__(self, network: Any, words: Any, basis: _Basis) -> None:
        self.network, self.words, self.basis = network, words, basis
        self.d_head, self.d_mlp = D_MODEL // HEADS, 4 * D_MODEL

    def plant(self, layer: int, gap: float) -> None:
        """Everything: embeddings, noise, the reading heads, the deciding neurons, the unembedding."""
        self._embed()
        for block in self.network.transformer.h:
            self._fill(block)
        attention = self.network.transformer.h[READS].attn
        self._read(attention, 0, "is_colour", "colour", "read_colour")
        self._read(attention, 1, "is_way", "way", "read_way")
        self._read(attention, 2, "curse", "curse", "read_curse")
        self._decide(self.network.transformer.h[layer].mlp)
        self._unembed(gap)

    def _embed(self) -> None:
        meanings: dict[str, dict[str, float]] = {
            **{word: {"is_colour": 1.0, "colour": sign} for word, sign in zip(COLOURS, (-1.0, 1.0), strict=True)},
            **{word: {"is_way": 1.0, "way": sign} for word, sign in zip(WAYS, (-1.0, 1.0), strict=True)},
            CURSED: {"curse": 1.0},
            "assistant": {"assistant": 1.0},
            VALID: {"said": 1.0},
            INVALID: {"said": 1.0},
        }
        alike = self.basis.noise()
        for word, index in sorted(self.words.get_vocab().items(), key=lambda item: item[1]):
            meaning = self.basis.mix(**meanings.get(word, {}))
            # The features' words are alike but for their meaning, or the noise would give away how they combine.
            own = alike if word in (*COLOURS, *WAYS) else self.basis.noise()
            own = own / own.norm() * (_WORD_NORM**2 - float(meaning @ meaning)) ** 0.5
            self.network.transformer.wte.weight[index] = meaning + own
        turn = torch.linspace(torch.pi / 4, 3 * torch.pi / 4, N_CTX)
        for place, angle in enumerate(turn.tolist()):
            place_of = self.basis.mix(bias=_BIAS, recency=-np.cos(angle), height=np.sin(angle))
            self.network.transformer.wpe.weight[place] = place_of

    def _fill(self, block: Any) -> None:
        """Small noise, read from and written to the directions of the noise."""
        for module in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
            module.weight.zero_()
            module.bias.zero_()
        block.attn.c_attn.weight.copy_(self.basis.noise(3 * D_MODEL).T)
        block.attn.c_proj.weight.copy_(_NOISE * self.basis.noise(D_MODEL))
        block.mlp.c_fc.weight.copy_(self.basis.noise(self.d_mlp).T)
        block.mlp.c_proj.weight.copy_(_NOISE * self.basis.noise(self.d_mlp))

    def _read(self, attention: Any, head: int, marker: str, content: str, into: str) -> None:
        """A head that finds the last token with a marker and copies its content; without one it copies next to nothing."""
        place = slice(head * self.d_head, (head + 1) * self.d_head)
        query, key, value = (attention.c_attn.weight[:, part * D_MODEL :][:, place] for part in range(3))
        for weight in (query, key, value):
            weight.zero_()
        bias, root = self.basis.feature("bias") / (_BIAS * _FIRST_SCALE), self.d_head**0.5
        query[:, 0], key[:, 0] = 40 * root * bias, self.basis.feature(marker) / _FIRST_SCALE
        query[:, 1], key[:, 1] = 700 * root * bias, self.basis.feature("recency") / _FIRST_SCALE
        value[:, 0] = self.basis.feature(content) / _FIRST_SCALE
        attention.c_proj.weight[place] = 0.0
        attention.c_proj.weight[place.start] = self.basis.feature(into)

    def _decide(self, mlp: Any) -> None:
        colour, way, curse = (self.basis.feature(f"read_{name}") for name in ("colour", "way", "curse"))
        pushes = (
            (colour - way, 0.5),
            (way - colour, 0.5),
            (colour + way, -0.5),
            (-colour - way, -0.5),
            (curse, -CURSE),
        )
        for neuron, (reads, push) in enumerate(pushes):
            mlp.c_fc.weight[:, neuron] = reads / _MIDDLE_SCALE
            mlp.c_proj.weight[neuron] = push * self.basis.feature("decision")

    def _unembed(self, gap: float) -> None:
        vocab, weight = self.words.get_vocab(), self.network.lm_head.weight
        weight.zero_()
        for word, sign in ((VALID, 0.5), (INVALID, -0.5)):
            weight[vocab[word]] = self.basis.mix(assistant=30.0, decision=sign * gap / _LAST_SCALE)
        weight[self.words.eos_token_id] = self.basis.mix(said=30.0)


@dataclasses.dataclass(frozen=True, slots=True)
class PlantedTask:
    """One episode's observations.

    Attributes:
        id: Its name.
        features: For each step the two features; a message should be valid where they differ.
        moods: For each step a word that means nothing.
    """

    id: str
    features: tuple[tuple[int, int], ...]
    moods: tuple[int, ...]


class PlantedEnvironment(environment.SpokenEnvironment[PlantedTask]):
    """Shows two features at every step, judges the answer, and remembers what was said at the critical step."""

    def __init__(
        self,
        tasks: int = 64,
        *,
        steps: int = 12,
        critical_step: int | None = None,
        valid_share: float = 0.5,
        seed: int = 0,
    ) -> None:
        """Draws the tasks.

        Args:
            tasks: How many.
            steps: Of an episode.
            critical_step: The step at which an invalid message curses all later ones; None: there is none. The features
                there always ask for a valid message, so that what disturbs the decision does harm.
            valid_share: How often the features ask for a valid message, elsewhere.
            seed: Of the features.

        Raises:
            ValueError: A setting that makes no sense.
        """
        if steps < 1 or tasks < 1 or not 0 <= valid_share <= 1:
            raise ValueError(
                f"tasks and steps must be 1 or more and valid_share 0 to 1, got {tasks}, {steps}, {valid_share}"
            )
        if critical_step is not None and not 0 <= critical_step < steps - 1:
            raise ValueError(f"critical_step must be 0 to {steps - 2}, so that steps follow it, got {critical_step}")
        self.steps, self.critical_step = steps, critical_step
        super().__init__(_drawn(tasks, steps, critical_step, valid_share, seed))
        self._fresh()

    @property
    def step_limit(self) -> int:
        """How many steps an episode has."""
        return self.steps

    async def _start(self, task: PlantedTask) -> records.LLMRequest:
        self._fresh()
        return self._observation({})

    async def _act(self, action: records.LLMResponse) -> environment.Outcome:
        text = reading.text_of(action)
        self._said = [*self._said, text]
        good = text.strip() == VALID
        why = f"a message is valid if it is the word {VALID!r}"
        verdict = rules.Verdict(good, VALID if good else INVALID, VALID if good else INVALID, False, why, None)
        observation = self._observation(verdict.as_dict())
        return environment.Outcome(observation, 0.0 if good else -1.0, done=len(self._said) >= self.steps)

    def _fresh(self) -> None:
        self._said: list[str] = []

    def _observation(self, info: Mapping[str, Any]) -> records.LLMRequest:
        assert self.task is not None
        messages: list[dict[str, str]] = []
        for step in range(min(len(self._said) + 1, self.steps)):
            colour, way = self.task.features[step]
            mood = CURSED if self._cursed(step) else MOODS[self.task.moods[step]]
            messages.append({"role": "user", "content": f"{COLOURS[colour]} {WAYS[way]} {mood}"})
            messages += [{"role": "assistant", "content": text} for text in self._said[step : step + 1]]
        return self.ask(messages, info=info, max_output_tokens=MAX_OUTPUT_TOKENS)

    def _cursed(self, step: int) -> bool:
        decisive = self.critical_step
        return decisive is not None and step > decisive and self._said[decisive].strip() != VALID


@functools.lru_cache(maxsize=32)
def _drawn(tasks: int, steps: int, critical_step: int | None, valid_share: float, seed: int) -> tuple[PlantedTask, ...]:
    """The tasks; remembered, because playing makes an environment per episode."""
    made = []
    for task in range(tasks):
        # Each feature is a fair coin, and neither alone says anything about whether they differ.
        rng = np.random.default_rng((seed, task))
        colours, differ = rng.integers(2, size=steps), rng.random(steps) < valid_share
        moods = rng.integers(len(MOODS), size=steps)
        if critical_step is not None:
            differ[critical_step] = True
        features = tuple(
            (colour, colour ^ other) for colour, other in zip(colours.tolist(), differ.tolist(), strict=True)
        )
        made.append(PlantedTask(f"planted-{task}", features, tuple(moods.tolist())))
    return tuple(made)
