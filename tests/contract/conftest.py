"""What every contract test shares: the tiny models, one per family, and a few plain tools.

The tools come as the fixture `kit`, because test folders are not packages.
"""

import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sonde.core import sites as core_sites
from sonde.models import loading, requests
from sonde.models import model as models_model

FAMILIES = (
    "tiny-gpt2",
    "tiny-llama",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-neox",
    "tiny-gemma",
    "tiny-gemma3",
)
TOLERANCE = 1e-4


class Keeper:
    """A recorder that keeps every value in memory, one record per encoded token."""

    def __init__(self, sites: Sequence[str]) -> None:
        self.sites = tuple(sites)
        self.records: list[dict[str, torch.Tensor]] = []
        self.context = np.zeros(0, dtype=np.int64)
        self.delivered: list[requests.Recorded] = []

    @property
    def key(self) -> int:
        return id(self)

    def deliver(self, recorded: requests.Recorded) -> np.ndarray:
        first = len(recorded.reused)
        assert len(recorded.positions) == len(recorded.tokens)
        fresh: list[dict[str, torch.Tensor]] = [{} for _ in recorded.positions[first:]]
        for name, values in recorded.values.items():
            if core_sites.Site.parse(name).is_query_key:
                values = values.split([first + index + 1 for index in range(len(fresh))])
            for record, value in zip(fresh, values, strict=True):
                record[name] = value
        start = len(self.records)
        self.records += fresh
        self.delivered.append(recorded)
        self.context = np.concatenate([recorded.reused, np.arange(start, len(self.records))])
        return self.context

    def value(self, name: str) -> torch.Tensor:
        """The Site's values over the whole last context, `pos …`; query-by-key ones as `head query key`, 0 beyond."""
        rows = [self.records[index][name] for index in self.context]
        if not core_sites.Site.parse(name).is_query_key:
            return torch.stack(rows)
        square = torch.zeros(rows[0].shape[1], len(rows), len(rows))
        for query, row in enumerate(rows):
            square[:, query, : len(row)] = row.T
        return square


def count_hooks(model: models_model.Model) -> int:
    """Every PyTorch hook on every module of the network."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.hf.modules() for kind in kinds)


def fingerprint(model: models_model.Model) -> tuple[torch.Tensor, int, str, int]:
    """What must be the same before and after anything: logits to the bit, hooks, kernel, depth."""
    with torch.no_grad():
        logits = model.hf(input_ids=torch.arange(40)[None] * 5 % model.cfg.d_vocab, use_cache=False).logits
    return logits, count_hooks(model), model.hf.config._attn_implementation, model.hf.config.num_hidden_layers


def assert_restored(model: models_model.Model, before: tuple[torch.Tensor, int, str, int]) -> None:
    after = fingerprint(model)
    assert torch.equal(after[0], before[0])
    assert after[1:] == before[1:]
    assert not model.gate._stack


def run(model: models_model.Model, batch: Sequence[requests.Request]) -> list[requests.Generation]:
    return model.wait(model.submit(batch), batch)


def greedy(n: int, **more: Any) -> requests.Sampling:
    return requests.Sampling(max_new_tokens=n, **more)


def close(left: Any, right: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two arrays agree, relative to their size."""
    left, right = torch.as_tensor(left), torch.as_tensor(right)
    finite = ~(torch.isneginf(left) & torch.isneginf(right))
    scale = max(1.0, float(right[finite].abs().max())) if bool(finite.any()) else 1.0
    return left.shape == right.shape and bool(((left - right)[finite].abs() <= tolerance * scale).all())


def tokens(seed: int, n: int) -> tuple[int, ...]:
    """Plain bytes, no special token among them."""
    return tuple(torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


def site(model: models_model.Model, kind: str, layer: int = 1) -> str:
    """A Site of a kind that this model has: parallel blocks have no middle, GPT-2 no gate."""
    name = f"blocks.{layer}.{kind}"
    return name if name in model.site_names else f"blocks.{layer}.hook_resid_post"


@pytest.fixture(scope="session")
def kit() -> Any:
    tools = (Keeper, count_hooks, fingerprint, assert_restored, run, greedy, close, tokens, site)
    return types.SimpleNamespace(FAMILIES=FAMILIES, **{tool.__name__: tool for tool in tools})


@pytest.fixture(scope="session", params=FAMILIES)
def loaded(request: pytest.FixtureRequest) -> Iterator[models_model.Model]:
    with loading.load(request.param) as model:
        yield model


@pytest.fixture(scope="session")
def loaded_gpt2() -> Iterator[models_model.Model]:
    with loading.load("tiny-gpt2") as model:
        yield model


@pytest.fixture
def model(loaded: models_model.Model) -> models_model.Model:
    """Every family in turn, with nothing cached."""
    loaded.pool.entries.clear()
    return loaded


@pytest.fixture
def gpt2(loaded_gpt2: models_model.Model) -> models_model.Model:
    """One family, where the family does not matter."""
    loaded_gpt2.pool.entries.clear()
    return loaded_gpt2
