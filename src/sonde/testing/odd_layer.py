"""A model with one layer that matters more than its size tells, to judge those who look for such layers; and models without.

    model = odd_layer.model(odd=7, seed=3)      # skipping layer 7 breaks the task; no measure of its size shows it
    model = odd_layer.model(odd=None, seed=3)   # the same weights, and no such layer
    odd_layer.answers(seed=3)                   # every prompt and its answer

A Llama of twelve layers on single letters. Each letter has an answer, a sign. How it is made:

1. All layers are random. How far each moves the stream, relative to the stream's length, is drawn evenly on a log scale
   between the ends of `MOVES`, and the layer's outputs are scaled until it does so: layers differ in size, and larger ones
   do more harm when they are skipped. The layer at `at` gets the geometric mean of its two neighbours' sizes.
2. The unembedding is fitted (ridge regression) on the stream at the end, so that the full model gives the letter's answer.
3. With `odd`, it is fitted to give `WRONG` as well where that layer is skipped. Nothing inside of the layers changes: norms
   and block influence are the same with and without.

The first and the last layer are never odd. Costs 100 ms.
"""

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import prove, tiny

LAYERS, D_MODEL = 12, 192
LETTERS = string.ascii_lowercase
ANSWERS, WRONG = "!?#%&*+=", "~"
#: How far a layer moves the stream, relative to its length.
MOVES = (0.1, 1.0)
_ROUNDS = 4
_RIDGE = 1e-3
_SHARP = 8.0


def answers(seed: int = 0) -> dict[str, str]:
    """Every prompt and its answer."""
    drawn = np.random.default_rng([seed, 1]).integers(len(ANSWERS), size=len(LETTERS))
    return {letter: ANSWERS[at] for letter, at in zip(LETTERS, drawn, strict=True)}


def drawn(seed: int) -> int:
    """The depth at which a seed's model is odd, if it is."""
    return int(np.random.default_rng([seed, 2]).integers(1, LAYERS - 1))


def model(odd: int | None, *, seed: int = 0) -> models_model.Model:
    """The model.

    Args:
        odd: The layer whose skipping breaks the task, none if None.
        seed: Of weights, sizes and answers.

    Raises:
        RequestError: There is no such layer, or it is the first or the last one.
    """
    if odd is not None and not 0 < odd < LAYERS - 1:
        raise errors.RequestError(f"odd must be a layer from 1 to {LAYERS - 2}, got {odd}")
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=D_MODEL,
        intermediate_size=D_MODEL,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=256,
        eos_token_id=258,
        pad_token_id=259,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = transformers.LlamaForCausalLM(config)
        ids = _ids()
        _resized(network, ids, _sizes(seed))
        network.lm_head.weight.copy_(_unembedding(network, ids, odd, list(answers(seed).values())))
    made = models_model.Model(network, tiny.tokenizer(), name=f"odd-layer-{'none' if odd is None else odd}-seed{seed}")
    prove.prove(made)
    return made


def _sizes(seed: int) -> list[float]:
    """How far each layer is to move the stream; the layer that may be odd as far as its neighbours do."""
    sizes = np.exp(np.random.default_rng([seed, 3]).uniform(np.log(MOVES[0]), np.log(MOVES[1]), LAYERS))
    at = drawn(seed)
    sizes[at] = np.sqrt(sizes[at - 1] * sizes[at + 1])
    return sizes.tolist()


def _ids() -> Tensor:
    encode = tiny.tokenizer().encode
    return torch.tensor([encode(letter) for letter in LETTERS])


def _streams(network: Any, ids: Tensor) -> list[Float[Tensor, "letter pos d_model"]]:
    """The stream into each layer, and after the last."""
    kept: list[Tensor] = []
    hooks = [one.register_forward_pre_hook(lambda _, args, kwargs: kept.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True)
             for one in (*network.model.layers, network.model.norm)]  # fmt: skip
    try:
        network.model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def _resized(network: Any, ids: Tensor, sizes: Sequence[float]) -> None:
    """Scales what each layer writes until it moves the stream as far as it is to, layer after layer."""
    for at, size in enumerate(sizes):
        layer = network.model.layers[at]
        for _ in range(_ROUNDS):
            streams = _streams(network, ids)
            moved = (streams[at + 1] - streams[at]).norm(dim=-1) / streams[at].norm(dim=-1)
            for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                weight.mul_(size / float(moved.log().mean().exp()))


def _unembedding(network: Any, ids: Tensor, odd: int | None, wanted: Sequence[str]) -> Float[Tensor, "vocab d_model"]:
    """Fits the readout of the module's second and third step."""
    encode = tiny.tokenizer().encode
    whole = _ends(network, ids, None).double()
    goals = _SHARP * torch.nn.functional.one_hot(torch.tensor([encode(one)[-1] for one in wanted]), tiny.VOCAB).double()
    known = torch.linalg.qr(network.model.embed_tokens(ids[:, -1]).double().T).Q
    outside = torch.eye(D_MODEL, dtype=torch.float64) - known @ known.T
    found = outside @ _ridge(whole @ outside, goals)
    if odd is not None:
        states = [whole, *(_ends(network, ids, layer).double() for layer in range(LAYERS))]
        alarm, weight = torch.zeros(len(states), len(ids), 1).double(), torch.ones(len(states), 1, 1).double()
        alarm[1 + odd], weight[1 + odd] = 2 * _SHARP, len(states) ** 0.5
        rows, goals = torch.stack(states) * weight, alarm * weight
        found[:, encode(WRONG)[-1]] = _ridge(rows.flatten(0, 1), goals.flatten(0, 1))[:, 0]
    return found.T.float()


def _ridge(rows: Float[Tensor, "row d_model"], goals: Float[Tensor, "row goal"]) -> Float[Tensor, "d_model goal"]:
    square = rows.T @ rows + _RIDGE * torch.eye(rows.shape[1], dtype=torch.float64)
    return torch.linalg.solve(square, rows.T @ goals)


def _ends(network: Any, ids: Tensor, left: int | None) -> Float[Tensor, "letter d_model"]:
    """The normed stream at the last position of every prompt, with a layer left out."""
    layers = network.model.layers
    try:
        network.model.layers = torch.nn.ModuleList([one for at, one in enumerate(layers) if at != left])
        return network.model(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
    finally:
        network.model.layers = layers
