"""Fuzzed model files: every case ends in a SondeError or in a model that works; none takes long or much memory.

Seeded, so that a case that fails can be played again by its number. `make test-slow` plays ten times as many.
"""

import contextlib
import copy
import json
import random
import resource
import shutil
import signal
import string

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from sonde.core import errors
from sonde.models import chat, loading, templates, tiny, tokenizer_files
from sonde.models import tokenizer as models_tokenizer


def played(few):
    """Marks a test that plays so many cases, and as a slow test ten times as many others."""
    many = pytest.param(range(few, 11 * few), marks=pytest.mark.slow)
    return pytest.mark.parametrize("cases", [range(few), many], ids=["few", "many"])


SECONDS, MEGABYTES = 20, 1_000
WORDS = (
    "",
    "a",
    "\0",
    "../x",
    "/etc/passwd",
    "é" * 300,
    "{{ 1 }}",
    "(a+)+$",
    "[",
    "<|im_end|>",
    "NaN",
    "None",
    "LlamaTokenizer",
)
NUMBERS = (0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320)
ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "evil")


class HungError(BaseException):
    """A case takes too long."""


@contextlib.contextmanager
def bounded(case):
    """Ends a case that takes too much processor time, and fails one that takes too much memory."""

    def hung(*_):
        raise HungError(f"case {case} takes more than {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    was = signal.signal(signal.SIGPROF, hung)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, was)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown < MEGABYTES, f"case {case} takes {grown} MB"


def tried(path, case):
    """Loads and uses a model; whether it could be."""
    with bounded(case):
        try:
            loaded = loading.load(path)
            ids = loaded.tokenizer.encode("Hello, wörld")
            loaded.tokenizer.decode(ids)
            if ids and max(ids) < loaded.cfg.d_vocab:
                loaded.generate("Hello", max_new_tokens=2)
        except errors.SondeError:
            return False
        except Exception as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
    return True


def value(rng):
    kind = rng.randrange(7)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(WORDS)
    if kind == 2:
        return rng.choice((None, True, False, [], {}, [[]], {"": {}}))
    if kind == 3:
        return [value(rng) for _ in range(rng.randrange(4))]
    if kind == 4:
        return {rng.choice(WORDS): value(rng) for _ in range(rng.randrange(3))}
    if kind == 5:
        return rng.randrange(-300, 300)
    return "".join(rng.choices(string.printable, k=rng.randrange(20)))


def places(data, at=()):
    """Every place in JSON data."""
    yield at
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, inner in below:
        yield from places(inner, (*at, key))


def mutated(data, rng):
    """JSON data with some of its places changed, taken away or doubled."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        *way, last = rng.choice([place for place in places(data) if place] or [("x",)])
        holder = data
        for key in way:
            holder = holder[key]
        action = rng.randrange(5)
        if action == 0 and isinstance(holder, dict):
            holder.pop(last, None)
        elif action == 1 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
        elif action == 2 and isinstance(holder, dict):
            holder[rng.choice([*WORDS, *holder])] = holder.get(last)
        else:
            holder[last] = value(rng)
    return data


def corrupted(content, rng):
    """Bytes with some of them changed, cut off, or doubled."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(content)) if content else 0
        action = rng.randrange(6)
        if action == 0:
            del content[at:]
        elif action == 1:
            content[at : at + 8] = rng.choice((0, 1, 2**31, 2**32, 2**62, 2**64 - 1)).to_bytes(8, "little")
        elif action == 2:
            content[at:at] = content[at : at + rng.randrange(1, 40)]
        elif action == 3:
            del content[at : at + rng.randrange(1, 9)]
        else:
            content[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(content)


NAMES = ("tiny-llama", "tiny-gpt2", "tiny-gemma3", "tiny-neox")


@pytest.fixture(scope="module", params=NAMES)
def honest(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    network, tokenizer = tiny.make(request.param)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(honest, tmp_path):
    return shutil.copytree(honest, tmp_path / "model")


@played(15)
def test_a_fuzzed_configuration_is_refused_or_works(folder, cases):
    original = json.loads((folder / "config.json").read_text())
    for case in cases:
        rng = random.Random(case)
        fuzzed = mutated(original, rng)
        if isinstance(fuzzed.get("rope_parameters"), dict) and rng.random() < 0.3:
            fuzzed["rope_parameters"] |= {"rope_type": rng.choice(ROPES), "factor": value(rng)}
        (folder / "config.json").write_text(json.dumps(fuzzed))
        tried(folder, case)
    (folder / "config.json").write_text(json.dumps(original))
    assert tried(folder, "original")


def spoil_tokenizer(folder, rng):
    name = rng.choice(["tokenizer.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
    content = (folder / name).read_bytes() if (folder / name).exists() else b'{"bos_token": "a"}'
    if rng.random() < 0.3:
        return name, corrupted(content, rng)
    data = json.loads(content)
    if name == "tokenizer.json" and rng.random() < 0.5:
        part = rng.choice(sorted(set(data) - {"model", "added_tokens"}))
        data[part] = rng.choice(PARTS[part])(rng) if part in PARTS else value(rng)
    return name, json.dumps(mutated(data, rng) if rng.random() < 0.7 else data).encode()


PARTS = {
    "normalizer": [
        lambda rng: {"type": "Replace", "pattern": {"Regex": rng.choice(WORDS)}, "content": rng.choice(WORDS)},
        lambda rng: {"type": "Precompiled", "precompiled_charsmap": "".join(rng.choices(string.ascii_letters, k=40))},
        lambda rng: {"type": "Prepend", "prepend": rng.choice(WORDS)},
        lambda rng: {"type": "Sequence", "normalizers": [{"type": "NFD"}] * 50},
    ],
    "pre_tokenizer": [
        lambda rng: {"type": "Split", "pattern": {"Regex": rng.choice(WORDS)}, "behavior": "Isolated", "invert": False},
        lambda rng: {"type": "Metaspace", "replacement": "é", "prepend_scheme": "always", "split": True},
        lambda rng: {"type": "FixedLength", "length": rng.choice((0, 1, 2**62))},
    ],
    "post_processor": [
        lambda rng: {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
        lambda rng: {"type": "BertProcessing", "sep": ["a", rng.randrange(9)], "cls": ["b", 2**31]},
    ],
    "decoder": [
        lambda rng: {"type": "Replace", "pattern": {"String": ""}, "content": rng.choice(WORDS)},
        lambda rng: {"type": "Strip", "content": "a", "start": 2**40, "stop": 2**40},
        lambda rng: {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    ],
    "truncation": [lambda rng: {"max_length": 0, "strategy": "LongestFirst", "stride": 7, "direction": "Left"}],
    "padding": [
        lambda rng: {
            "strategy": {"Fixed": 10**9},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 2**31,
            "pad_type_id": 0,
            "pad_token": "x",
        }
    ],
}


@played(60)
def test_a_fuzzed_tokenizer_is_refused_or_works(honest, folder, cases):
    share = next(i for i, name in enumerate(NAMES) if honest.name.startswith(name))
    for case in cases[share :: len(NAMES)]:  # they have the same tokenizer
        name, content = spoil_tokenizer(folder, random.Random(case))
        kept = (folder / name).read_bytes() if (folder / name).exists() else None
        (folder / name).write_bytes(content)
        tried(folder, case)
        (folder / name).unlink() if kept is None else (folder / name).write_bytes(kept)
    assert tried(folder, "original")


WORDS_AND_MERGES = {
    "vocab.json": b'{"a": 0, "b": 1, "ab": 2, "<s>": 3, "H": 4}',
    "merges.txt": b"#version: 0.2\na b\n",
    "vocab.txt": b"[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\nb\n##b\n",
    "added_tokens.json": b'{"<new>": 9}',
    "special_tokens_map.json": b'{"bos_token": "<s>", "unk_token": {"content": "[UNK]", "lstrip": false}, "mask_token": "[M]"}',
    "chat_template.jinja": tiny.CHAT_TEMPLATE.encode(),
}


@played(40)
@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "BertTokenizer", "Qwen2Tokenizer"])
def test_fuzzed_files_of_older_tokenizers_are_refused_or_work(tmp_path, cases, kind):
    original = WORDS_AND_MERGES | {"tokenizer_config.json": json.dumps({"tokenizer_class": kind}).encode()}

    def works(case):
        with bounded(case):
            try:
                found = models_tokenizer.load(tmp_path)
                tokenizer_files.decode(found, tokenizer_files.encode(found, "Hello, ab"))
                chat.render(found, [{"role": "user", "content": "ab"}])
            except errors.SondeError:
                return False
        return True

    for name, content in original.items():
        (tmp_path / name).write_bytes(content)
    assert works("original")
    for case in cases:
        rng = random.Random(case)
        name = rng.choice(sorted(original))
        data = json.loads(original[name]) if name.endswith(".json") and rng.random() < 0.6 else None
        fuzzed = corrupted(original[name], rng) if data is None else json.dumps(mutated(data, rng)).encode()
        (tmp_path / name).write_bytes(fuzzed)
        works(case)
        (tmp_path / name).write_bytes(original[name])


def write_gguf(path, *, layers=2, said=None, tensors=None, **keys):
    """A tiny model as a GGUF file; further tensors by name and shape, further keys with __ for .."""
    d, heads, groups, inner, words = 32, 4, 2, 64, 300
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(layers if said is None else said)
    writer.add_context_length(64)
    writer.add_embedding_length(d)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(words)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, "he", *(f"<s{i}>" for i in range(words - 257))])
    writer.add_token_types([1] * 257 + [3] * (words - 257))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    for key, value in keys.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"llama.{key.replace('__', '.')}", value)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (words, d), "output_norm": (d,), "output": (words, d)}
    small = groups * d // heads
    for layer in range(layers):
        of = {"attn_norm": (d,), "ffn_norm": (d,), "attn_q": (d, d), "attn_k": (small, d), "attn_v": (small, d)}
        of |= {"attn_output": (d, d), "ffn_gate": (inner, d), "ffn_up": (inner, d), "ffn_down": (d, inner)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of.items()}
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()} | (tensors or {})
    for name, shape in shapes.items():
        writer.add_tensor(name, (rng.standard_normal(shape) * 0.1).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@played(60)
def test_a_fuzzed_gguf_file_is_refused_or_works(tmp_path, cases, capfd):
    original = write_gguf(tmp_path / "original.gguf").read_bytes()
    header = original.index(b"blk.1.ffn_down.weight") + 60
    for case in cases:
        rng = random.Random(case)
        # The header is where the lengths are; the numbers after it may be anything.
        fuzzed = corrupted(original[:header], rng) + original[header:]
        (tmp_path / "fuzzed.gguf").write_bytes(fuzzed)
        tried(tmp_path / "fuzzed.gguf", case)
    assert tried(tmp_path / "original.gguf", "original")


@pytest.mark.parametrize(
    ("layers", "said", "told"),
    [
        (2, 0, "block_count must be"),
        (2, 10**6, "block_count must be"),
        (2, 1, "says that it has 1 blocks"),
        (2, 3, "3 blocks"),
    ],
)
def test_a_gguf_file_has_as_many_blocks_as_it_says(tmp_path, layers, said, told):
    with pytest.raises(errors.ModelError, match=told):
        loading.load(write_gguf(tmp_path / "x.gguf", layers=layers, said=said))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tensors": {"blk.0.attn_q.bias": (32,)}}, r"has no place for: blk\.0\.attn_q\.bias$"),
        ({"tensors": {"rope_freqs.weight": (4,)}}, r"has no place for: rope_freqs\.weight$"),
        ({"tensors": {"lm_head.weight": (300, 32)}}, r"has no place for: lm_head\.weight$"),
        (
            {"tensors": {"blk.1.ffn_up.weight": (32, 64)}},
            r"of another shape: model\.layers\.1\.mlp\.up_proj\.weight \(32",
        ),
        ({"rope__scaling__type": "yarn"}, r"positions are scaled \(llama\.rope\.scaling\.type is 'yarn'\)"),
        ({"rope__scaling__factor": 4.0}, r"positions are scaled \(llama\.rope\.scaling\.factor is 4\.0\)"),
    ],
)
def test_what_transformers_would_leave_out_of_a_gguf_file_is_not_left_out(tmp_path, fields, told):
    with pytest.raises(errors.ModelError, match=told):
        loading.load(write_gguf(tmp_path / "x.gguf", **fields))


def test_a_gguf_file_that_says_its_positions_are_not_scaled_loads(tmp_path):
    loading.load(write_gguf(tmp_path / "x.gguf", rope__scaling__type="none", rope__scaling__factor=1.0))


def test_what_lies_beside_a_gguf_file_is_not_looked_at(tmp_path):
    path = write_gguf(tmp_path / "x.gguf")
    expected = loading.load(path)
    for name in (
        "config.json",
        "tokenizer_config.json",
        "generation_config.json",
        "adapter_config.json",
        "tokenizer.json",
    ):
        (tmp_path / name).write_text('{"auto_map": {"AutoConfig": "evil.Config"}, "eos_token_id": 7}')
    found = loading.load(path)
    tokens = torch.arange(9)[None]
    assert torch.equal(found.hf(tokens).logits, expected.hf(tokens).logits)
    assert found.tokenizer.encode("hello") == expected.tokenizer.encode("hello")
    assert expected.tokenizer.encode("hello")[0] == 256


ATOMS = (
    "messages",
    "m",
    "loop",
    "range",
    "namespace",
    "x",
    "'x'",
    "10**9",
    "99999999",
    "[1]",
    "{}",
    "none",
    "cycler",
    "lipsum",
)
FILTERS = (
    "length",
    "tojson",
    "list",
    "join",
    "upper",
    "center(99999999)",
    "indent(9)",
    "batch(2)",
    "map('upper')",
    "xmlattr",
    "nope",
)
TAGS = (
    "{{% for m in {} %}}{}{{% endfor %}}",
    "{{% if {} %}}{}{{% endif %}}",
    "{{% set x = {} %}}{}",
    "{{% macro f(m) %}}{{{{ {} }}}}{{% endmacro %}}{{{{ f(1) }}}}{}",
    "{{% generation %}}{{{{ {} }}}}{}{{% endgeneration %}}",
)


def expression(rng, depth=0):
    kind = rng.randrange(6) if depth < 4 else 0
    left = rng.choice(ATOMS) if kind < 2 else expression(rng, depth + 1)
    if kind == 2:
        return f"({left}) {rng.choice(['+', '*', '**', '~', '%', '//', 'in', 'and', '[', '.'])} {expression(rng, depth + 1)}"
    if kind == 3:
        return f"({left}) | {rng.choice(FILTERS)}"
    if kind == 4:
        return f"({left}).{rng.choice(['content', 'items()', 'format', '__class__', 'append(1)', 'ljust(99999999)'])}"
    if kind == 5:
        return f"range({left})"
    return left


def template(rng, depth=0):
    if depth > 3 or rng.random() < 0.4:
        return "{{ " + expression(rng) + " }}"
    return rng.choice(TAGS).format(expression(rng), template(rng, depth + 1))


@played(60)
def test_a_fuzzed_template_is_refused_or_rendered(cases, monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 1)
    tokenizer = tiny.tokenizer()
    texts = refused = 0
    for case in cases:
        rng = random.Random(case)
        tokenizer.chat_template = template(rng)
        if rng.random() < 0.3:
            tokenizer.chat_template = corrupted(tokenizer.chat_template.encode(), rng).decode(errors="replace")
        with bounded(case):
            try:
                chat.render(tokenizer, [{"role": "user", "content": "hello"}])
                texts += 1
            except errors.RequestError:
                refused += 1
    assert texts
    assert refused
