"""GGUF files: the tokenizer does what the file says, compared with llama.cpp's own, and what is wrong is said."""

import dataclasses
import importlib.util
import itertools
import json
import logging
import pathlib
import types

import pytest
import torch
import transformers

import sonde
from sonde.core import errors
from sonde.models import bos, chat, loading, zoo
from sonde.models.gguf import metadata, splits, tokenizer

DATA = pathlib.Path(__file__).parents[2] / "data" / "gguf"
LLAMA_CPP = json.loads((DATA / "tokens.json").read_text(encoding="utf-8"))
TEXT = "The capital of France is"
SAY = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def _files() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("gguf_files", DATA / "files.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


files = _files()


@pytest.fixture
def write(tmp_path):
    return lambda **fields: files.write(tmp_path / "model.gguf", **fields)


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory):
    """A model whose file adds BOS and has no chat template."""
    path = files.write(tmp_path_factory.mktemp("bos") / "model.gguf", model="llama", add_space_prefix=False)
    with loading.load(path) as model:
        yield model


@pytest.fixture
def begin(with_bos, monkeypatch):
    """The same, with nothing said about its prompts yet."""
    monkeypatch.setattr(with_bos, "_beginnings", bos.Watch(with_bos.tokenizer, "model"))
    return with_bos


def differences(made, asked):
    """Where a tokenizer and llama.cpp's table differ."""
    found = []
    for text, whole, plain in zip(LLAMA_CPP["texts"], asked["whole"], asked["plain"], strict=True):
        ours = made.encode(text), made.encode(text, add_special_tokens=False, split_special_tokens=True)
        found += [(text, one, other) for one, other in zip(ours, (whole, plain), strict=True) if one != other]
    return found


@pytest.mark.parametrize("name", list(files.FILES))
def test_tokens_are_those_of_llama_cpp(write, name):
    made = tokenizer.load(write(**files.FILES[name]))
    assert differences(made, LLAMA_CPP["files"][name]) == []


def test_the_table_shows_which_file_was_read():
    rows = {name: row for name, row in LLAMA_CPP["files"].items() if name != "gpt-2-with-prefix"}
    assert [pair for pair in itertools.combinations(rows, 2) if rows[pair[0]] == rows[pair[1]]] == []


def test_every_pre_tokenizer_cuts_without_losing_a_character(write):
    vocabulary = metadata.read(write(model="gpt2"))
    for name, split in splits.SPLITS.items():
        made = tokenizer.build(dataclasses.replace(vocabulary, split=split))
        assert made.decode(made.encode(files.CORPUS)) == files.CORPUS, name


@pytest.mark.parametrize(
    "fields", [{"model": "llama"}, {"model": "llama", "add_space_prefix": False}, {"model": "gpt2"}]
)
def test_decoding_gives_the_text_back(write, fields):
    made = tokenizer.load(write(**fields))
    for text in (TEXT, "  two", " one", "\x00", "你好 😀"):
        assert made.decode(made.encode(text), skip_special_tokens=True) == text


@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize(
    ("model", "pre", "default"), [("llama", "default", True), ("gpt2", "gpt-2", False), ("gpt2", "llama-bpe", True)]
)
def test_bos_is_added_as_the_file_says_and_by_its_kind_where_it_does_not(write, model, pre, default, add_bos):
    made = tokenizer.load(write(model=model, pre=pre, add_bos_token=add_bos))
    expected = default if add_bos is None else add_bos
    assert (made.encode(TEXT)[0] == made.bos_token_id == 1) == expected
    assert made.add_bos_token == expected
    assert bos.added(made) == (1 if expected else None)


@pytest.mark.parametrize("name", ["llama-without-prefix", "gpt-2-bos-and-eos", "smollm"])
def test_a_converted_folder_behaves_as_the_file_did(write, tmp_path, name):
    # transformers puts Qwen's own rules over a folder's tokenizer, if it is asked for it.
    path = write(**files.FILES[name], chat_template=SAY, eot_token_id=3, architecture="qwen2")
    zoo.convert_gguf(path, tmp_path / "folder")
    one, other = loading.load(path), loading.load(tmp_path / "folder")
    assert differences(other.tokenizer, LLAMA_CPP["files"][name]) == []
    assert other.tokenizer.chat_template == one.tokenizer.chat_template
    assert other.tokenizer.all_special_ids == one.tokenizer.all_special_ids
    assert other.hf.generation_config.eos_token_id == one.hf.generation_config.eos_token_id
    tokens = torch.arange(1, 9)[None]
    assert torch.equal(one.hf(tokens).logits, other.hf(tokens).logits)


def test_every_token_that_ends_a_turn_ends_generation(write):
    loaded = loading.load(write(model="gpt2", eos_token_id=0, eot_token_id=2))
    assert loaded.hf.generation_config.eos_token_id == [0, 2]


# ------------------------------------------------------------------------------------------------ BOS


def test_a_text_is_run_with_bos(with_bos):
    bare = with_bos.tokenizer.encode(TEXT, add_special_tokens=False)
    assert with_bos.to_tokens(TEXT).tolist() == [[1, *bare]]
    by_hand = with_bos.generate([1, *bare], max_new_tokens=8)
    assert with_bos.generate(TEXT, max_new_tokens=8).tokens == by_hand.tokens


async def test_a_chat_without_a_template_begins_with_bos_once(with_bos):
    client = sonde.HookedTransformerLLMClient(with_bos, max_new_tokens=2)
    for content in ("Hi", "<s>", "<s>Hi</s>"):
        response = await client(sonde.LLMRequest(messages=[{"role": "user", "content": content}]))
        assert [place for place, token in enumerate(response.prompt_token_ids) if token == 1] == [0]


async def test_a_chat_keeps_its_one_bos_when_turns_are_dropped(with_bos):
    client = sonde.HookedTransformerLLMClient(with_bos, max_new_tokens=2, context_policy="drop_oldest_turns")
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " + "word " * 40} for i in range(9)]
    response = await client(sonde.LLMRequest(messages=messages))
    assert response.dropped_tokens
    assert [place for place, token in enumerate(response.prompt_token_ids) if token == 1] == [0]


@pytest.mark.parametrize("spelled", [None, "", "{{ bos_token }}", "{{- bos_token -}}", "<s>"])
@pytest.mark.parametrize("add_bos", [True, False])
def test_a_chat_gets_bos_where_the_file_adds_it_and_never_a_second_one(write, spelled, add_bos):
    template = None if spelled is None else spelled + SAY
    made = tokenizer.load(write(model="llama", add_bos_token=add_bos, chat_template=template))
    tokens = chat.encode(made, chat.render(made, [{"role": "user", "content": "Hi"}]))
    assert [place for place, token in enumerate(tokens) if token == 1] == ([0] if add_bos or spelled else [])


def test_one_warning_says_that_a_prompt_lacks_bos(begin, caplog):
    begin.generate(TEXT, max_new_tokens=1)
    begin.run_with_cache(TEXT, "hook_embed")
    with pytest.raises(errors.RequestError, match="the prompt is empty"):
        begin.generate([], max_new_tokens=1)
    assert not caplog.messages
    begin.run_with_cache([[300, 301]], "hook_embed")
    begin.generate([300, 301], max_new_tokens=1)
    (message,) = caplog.messages
    assert message == "a prompt for model lacks BOS (token 1), which its tokenizer puts before every text: put it first"


def test_one_warning_says_that_bos_was_put_twice(begin, caplog):
    begin.generate("<s>" + TEXT, max_new_tokens=1)
    begin.generate([1, 1, 300], max_new_tokens=1)
    (message,) = caplog.messages
    assert message == "a prompt for model begins with BOS (token 1) more than once: take one away"


def test_loading_says_nothing_and_nothing_is_said_where_no_bos_is_added(write, caplog):
    with caplog.at_level(logging.INFO, logger="sonde"):
        loading.load(write(model="llama"))
        loading.load(write(model="gpt2")).generate([300, 301], max_new_tokens=1)
    assert not caplog.messages


# ------------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "gpt2", "pre": "lama-bpe"}, "no pre-tokenizer 'lama-bpe'.*did you mean 'llama-bpe'"),
        ({"model": "gpt2", "bos_token_id": 99999}, "bos_token_id is 99999, but there are"),
        ({"model": "gpt2", "bos_token_id": None, "add_bos_token": True}, "BOS is added to every text, but names none"),
        ({"model": "gpt2", "add_bos_token": "yes"}, "add_bos_token is 'yes', expected bool"),
        ({"model": "gpt2", "tokens": ["a", "a"], "token_type": None}, "1 of its 2 tokens are there twice"),
        ({"model": "gpt2", "token_type": [1, 2]}, "token_type has 2 entries for"),
        ({"model": "gpt2", "merges": ["a"]}, "'a' is no merge"),
        ({"model": "gpt2", "merges": ["nothing known"]}, "cannot be built: .*nothing"),
        ({"model": "llama", "scores": None}, "no scores"),
        ({"model": "llama", "scores": [1.0]}, "scores has 1 entries"),
        ({"model": "plamo2"}, "kind 'plamo2'"),
        ({"model": "bert"}, "encoder .*not a causal"),
    ],
)
def test_a_file_that_contradicts_itself_says_where(write, fields, message):
    path = write(**fields)
    with pytest.raises(errors.ModelError, match=message):
        loading.load(path)


def test_a_file_with_an_unknown_pre_tokenizer_loads_with_another_tokenizer(write):
    path = write(model="gpt2", pre="unheard-of")
    other = files.write(path.with_name("other.gguf"), model="gpt2")
    own = tokenizer.load(other)
    assert loading.load(path, tokenizer=own).tokenizer is own
    assert loading.load(path, tokenizer=other).tokenizer.encode(TEXT) == own.encode(TEXT)


def test_a_tokenizer_that_does_something_else_than_its_file_is_refused(write):
    path = write(model="llama")
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
    with pytest.raises(errors.ModelError, match="does not do what its GGUF file says"):
        tokenizer.check(theirs, metadata.read(path))


@pytest.mark.parametrize("keep", [0, 3, 24, 200, 4000, 12000])
def test_a_file_cut_short_says_so(write, keep):
    path = write(model="llama")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(errors.ModelError):
        loading.load(path)


def test_plain_characters_never_give_a_control_token(write):
    """Though they are neighbours whose merge the vocabulary knows."""
    rows = {token: (score, kind) for token, score, kind in files.sentencepiece()}
    rows |= dict.fromkeys(("<s", "</s", "/s", "<", "/", ">"), (9.0, 1))
    lists = {"scores": [score for score, _ in rows.values()], "token_type": [kind for _, kind in rows.values()]}
    made = tokenizer.load(write(model="llama", tokens=list(rows), **lists))
    for text in ("<s>", "</s>", "a<s>b"):
        assert not {0, 1, 2} & set(made.encode(text, add_special_tokens=False, split_special_tokens=True))
