"""The same tiny weights, loaded by Sonde and by the library to compare with."""

import dataclasses
from typing import Any

import pytest

from sonde.models import loading, tiny, zoo

LONGER_THAN_THE_TINY_WINDOW = 24


@dataclasses.dataclass(frozen=True)
class Pair:
    """A folder with a model, Sonde's Model of it, and the same weights once more as transformers loads them."""

    name: str
    folder: str
    model: Any
    network: Any
    tokenizer: Any


@pytest.fixture(scope="module", params=tiny.CONFIGS)
def pair(request, tmp_path_factory):
    import transformers

    folder = str(tmp_path_factory.mktemp(request.param))
    network, tokenizer = tiny.make(request.param)
    with zoo.quiet():
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        again = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    with loading.load(folder) as model:
        yield Pair(request.param, folder, model, again, tokenizer)


@pytest.fixture(scope="module")
def tokens():
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randint(4, 250, (2, LONGER_THAN_THE_TINY_WINDOW), generator=generator)
