"""A model in which it is known which layers matter, to judge those who look for them.

    model = layered.model(needed=(2, 5), seed=3)
    model.generate("f", max_new_tokens=1)           # the answer to f, from layered.ANSWERS
    layered.answers(seed=3)                         # every prompt and its answer

A Llama of eight layers on single letters. Each letter has an answer, a sign. How it is made:

1. All layers are random. Those that are not needed write `QUIET` times as much into the stream as they would.
2. The stream at the end is collected for all letters, with all layers, and with each choice of needed layers left out.
3. The unembedding is fitted (ridge regression) so that the full model gives the letter's answer, and a model without any
   of the needed layers gives `WRONG`. So a letter is answered exactly if all needed layers have done their part.

With `needed=()` all layers are quiet and the answer is read off the letter itself: no layer matters. Costs 50 ms.
"""

import itertools
import string
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.core import errors, interventions
from sonde.models import model as models_model
from sonde.models import prove, tiny

LAYERS, D_MODEL = 8, 96
LETTERS = string.ascii_lowercase
ANSWERS, WRONG = "!?#%&*+=", "~"
QUIET = 0.0003
_WRITERS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_RIDGE = 1e-2
_SHARP = 20.0


def answers(seed: int = 0) -> dict[str, str]:
    """Every prompt and its answer."""
    drawn = np.random.default_rng(seed).integers(len(ANSWERS), size=len(LETTERS))
    return {letter: ANSWERS[at] for letter, at in zip(LETTERS, drawn, strict=True)}


def model(needed: Sequence[int] = (2, 5), *, seed: int = 0) -> models_model.Model:
    """The model.

    Args:
        needed: The layers that matter, at most three; none at all if empty.
        seed: Of weights and answers.

    Raises:
        RequestError: There are no such layers, or too many.
    """
    if len(set(needed)) != len(needed) or len(needed) > 3 or not set(needed) <= set(range(LAYERS)):
        raise errors.RequestError(
            f"needed must be up to three different layers from 0 to {LAYERS - 1}, got {list(needed)}"
        )
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
        for at, layer in enumerate(network.model.layers):
            for name, weight in layer.named_parameters():
                if at not in needed and name in _WRITERS:
                    weight.mul_(QUIET)
        name = f"layered-{'-'.join(map(str, needed)) or 'none'}-seed{seed}"
        made = models_model.Model(network, tiny.tokenizer(), name=name)
        network.lm_head.weight.copy_(_unembedding(made, tuple(needed), answers(seed)))
    prove.prove(made)
    return made


def _unembedding(
    made: models_model.Model, needed: tuple[int, ...], wanted: dict[str, str]
) -> Float[Tensor, "vocab d_model"]:
    """Fits the readout of the module's third step."""
    encode = made.tokenizer.encode
    right = [encode(answer)[-1] for answer in wanted.values()]
    states, targets = [_ends(made, wanted, ())], list(right)
    for size in range(1, len(needed) + 1):
        for left in itertools.combinations(needed, size):
            states.append(_ends(made, wanted, left))
            targets += [encode(WRONG)[-1]] * len(right)
    rows = torch.cat(states).double()
    goals = _SHARP * torch.nn.functional.one_hot(torch.tensor(targets), tiny.VOCAB).double()
    square = rows.T @ rows + _RIDGE * torch.eye(D_MODEL, dtype=torch.float64)
    return torch.linalg.solve(square, rows.T @ goals).T.float()


def _ends(made: models_model.Model, prompts: dict[str, str], left: tuple[int, ...]) -> Float[Tensor, "row d_model"]:
    """The normed stream at the last position of every prompt, with some layers left out."""
    order = interventions.LayerOrder(order=tuple(layer for layer in range(LAYERS) if layer not in left))
    ids = torch.tensor([made.tokenizer.encode(prompt) for prompt in prompts])
    layers = made.hf.model.layers
    try:
        made.hf.model.layers = torch.nn.ModuleList([layers[stage[0]] for stage in order.stages])
        return made.hf.model(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
    finally:
        made.hf.model.layers = layers
