"""A sanity check: a small model that this module trains to repeat, whose induction heads are then to be found.

    model = induction_model.train(seed=0)                      # a minute on one core; nothing is shipped
    scores = induction_model.prefix_matching(model)            # attention to what followed last time, layer by head
    pairs = induction_model.pairs(model, n=64)

1. A random block of distinct tokens is repeated until the row is full; blocks have different lengths, so that no fixed
   distance gives the answer away.
2. A Llama of two layers learns to predict each token that has been seen before: AdamW, warm-up, linear decay.
3. A head does induction if it attends to what followed the previous occurrence of the current token. Textbook heads look at
   the very next token; a model is as free to look one or two places further, if its first layer has brought the answer
   there. The prefix-matching score of a head is its mean attention to the best of these places, on fresh rows.

Training takes about 45 CPU-seconds.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from sonde.circuits import pairs as circuits_pairs
from sonde.circuits.tasks import induction
from sonde.core import progress
from sonde.models import model as models_model
from sonde.models import tiny

VOCAB, WIDTH = 64, 32
SHORTEST, LONGEST = 6, 16
BEHIND = 3  # places from the token that followed on at which a head may look for it
BATCH = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """How the model is made.

    Attributes:
        steps: Training steps; 0 leaves it as it was born, which makes a control.
        rate: Learning rate at its highest.
        heads: Heads in each of the two layers.
        d_model: Width of the stream.
    """

    steps: int = 800
    rate: float = 3e-3
    heads: int = 4
    d_model: int = 64


def train(*, seed: int = 0, recipe: Recipe | None = None, tell: progress.Tell | None = None) -> models_model.Model:
    """Trains the model; the same seed gives the same weights on the same machine."""
    recipe = recipe or Recipe()
    network, generator = _network(recipe, seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
    network.train()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min((step + 1) / 50, 2 * (recipe.steps - step) / recipe.steps, 1.0)
        rows, gaps = repeated(BATCH, generator)
        optimizer.zero_grad()
        _loss(network, rows, gaps).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if tell is not None:
            tell("training", step + 1, recipe.steps)
    optimizer.zero_grad()
    return models_model.Model(network.eval(), tiny.tokenizer(), name="induction")


def repeated(n: int, generator: torch.Generator) -> tuple[Int[Tensor, "row pos"], Int[Tensor, "row pos"]]:
    """Rows in which a block of distinct tokens is repeated, and for each token how far back it was before, or 0."""
    blocks = torch.randint(SHORTEST, LONGEST + 1, (n, 1), generator=generator)
    tokens = torch.rand(n, VOCAB, generator=generator).argsort(dim=1)
    positions = torch.arange(WIDTH)
    return tokens.gather(1, positions % blocks), torch.where(positions >= blocks, blocks, 0)


def accuracy(model: models_model.Model, *, n: int = 128, seed: int = 1_000) -> float:
    """How often the model says what followed last time, on fresh rows."""
    rows, gaps = repeated(n, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        said = model.hf(input_ids=rows[:, :-1], use_cache=False).logits.argmax(dim=-1)
    return float((said == rows[:, 1:])[gaps[:, :-1] > 0].float().mean())


def prefix_matching(model: models_model.Model, *, n: int = 64, seed: int = 1_000) -> Float[np.ndarray, "layer head"]:
    """Mean attention from a repeated token to what followed its previous occurrence, at the best of `BEHIND` places."""
    found = [
        _attention(model, n, seed, lambda position, gap, further=further: position - gap + 1 + further)
        for further in range(BEHIND)
    ]
    return np.max(found, axis=0)


def pairs(model: models_model.Model, *, n: int = 64, seed: int = 0) -> circuits_pairs.Pairs:
    """Pairs of the induction task of the lengths that the model knows."""
    return induction.make(model, n=n, seed=seed, length=12, again=6)[0]


def _attention(
    model: models_model.Model, n: int, seed: int, goal: Callable[[Tensor, Tensor], Tensor]
) -> Float[np.ndarray, "layer head"]:
    """Mean attention from repeated tokens to a goal that follows from their position and the length of the block."""
    rows, gaps = repeated(n, torch.Generator().manual_seed(seed))
    _, cache = model.run_with_cache(rows, "blocks.*.attn.hook_pattern")
    row, position = (gaps > 0).nonzero(as_tuple=True)
    found = [
        cache[f"blocks.{layer}.attn.hook_pattern"][row, :, position, goal(position, gaps[row, position])].mean(dim=0)
        for layer in range(model.cfg.n_layers)
    ]
    return torch.stack(found).double().numpy()


def _network(recipe: Recipe, seed: int) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=recipe.d_model,
        intermediate_size=2 * recipe.d_model,
        num_hidden_layers=2,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=4 * WIDTH,
        initializer_range=recipe.d_model**-0.5,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config)


def _loss(network: Any, rows: Int[Tensor, "row pos"], gaps: Int[Tensor, "row pos"]) -> Float[Tensor, ""]:
    """Cross-entropy of the tokens that follow from earlier ones."""
    known = gaps[:, :-1] > 0
    logits = network(input_ids=rows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits[known], rows[:, 1:][known])
