"""Writes small GGUF files: one-layer Llama networks with random weights, and tokenizers of every kind that is read.

The vocabularies are learned from `CORPUS` by plain byte-pair merging across all boundaries, so that wherever a file's
pre-tokenizer cuts, or does not, shows in the tokens.
"""

import collections
import itertools
import pathlib

import gguf
import numpy as np

CORPUS = (
    "The capital of France is Paris. The capital of Spain is Madrid. It's 1234 5678 12 34 12 1 2 3 4 years old, isn't it? I'LL say: 12 + 34 = 46; x1 = 3.14159.\n"
    "def  total(items):\n    return sum(item.price for item in items)  # 100% sure!!\n\n\n"
    "camelCase HTTPServer Élan vital, naïve café, straße; «quoted» text… 你好，世界！ こんにちは 안녕하세요 Привет мир\n"
    "\tTabs\tand   many    spaces     here\r\nemail@example.com https://example.com/a/b?c=d&e=f 😀😃 🇫🇷 ½ ² ٣\n"
    "1234 12345 123456 (12) 12;\n 12;\n fooBar barFoo fooBar barFoo HTTPServer FOOBar; we'LL you'LL she's .rF. 1rF1 -rF- _rF_ +rF+ //\n //\n ;/\n ;/\n"
    "世界世界a1世界a1 Élan éÉlan (foo (foo .bar .bar\n\n\nx\n\n\nx   x   x\t\tx\t\tx 'LLx 'LLx'S x'S aé1é1\n"
)
MERGES = 320
WIDTH = 16
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _UNUSED, BYTE = range(1, 7)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary: itself where it can be printed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def learned(symbols: list[str], count: int) -> list[tuple[str, str]]:
    """The most frequent neighbours, merged one after the other."""
    merges = []
    for _ in range(count):
        pairs = collections.Counter(itertools.pairwise(symbols))
        (left, right), seen = max(sorted(pairs.items()), key=lambda pair: pair[1])
        if seen < 2:
            break
        merges.append((left, right))
        merged, at = [], 0
        while at < len(symbols):
            both = tuple(symbols[at : at + 2]) == (left, right)
            merged.append(left + right if both else symbols[at])
            at += 1 + both
        symbols = merged
    return merges


def sentencepiece() -> list[tuple[str, float, int]]:
    """Tokens, scores and types: specials, bytes, two user-defined, letters, merges."""
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<|turn|>", CONTROL)]
    rows = [(token, -1000.0, kind) for token, kind in special]
    rows += [(f"<0x{byte:02X}>", -1000.0, BYTE) for byte in range(256)]
    rows += [("\n\n", -1000.0, USER_DEFINED), ("   ", -1000.0, USER_DEFINED)]
    text = CORPUS.replace(" ", "▁").replace("\n", "").replace("\r", "").replace("\t", "")
    letters = sorted(letter for letter in set(text) if ord(letter) < 0x1F000)
    merged = dict.fromkeys(left + right for left, right in learned(list(text), MERGES))
    # Letters last, as SentencePiece's own vocabularies have them.
    return rows + [(token, -float(i), NORMAL) for i, token in enumerate([*merged, *letters])]


def byte_level() -> tuple[list[tuple[str, int]], list[str]]:
    """Tokens with types, and merges: specials, one user-defined, bytes, merges."""
    letters = byte_letters()
    rows = [(token, CONTROL) for token in ("<|endoftext|>", "<|begin|>", "<|turn|>")] + [("<think>", USER_DEFINED)]
    merges = learned([letters[byte] for byte in CORPUS.encode()], MERGES)
    # "Hello" comes of no merge: only a tokenizer that takes whole words finds it.
    tokens = dict.fromkeys([*letters, *(left + right for left, right in merges), "Hello"])
    return rows + [(token, NORMAL) for token in tokens], [" ".join(pair) for pair in merges]


def write(path: pathlib.Path, *, model: str, **fields: object) -> pathlib.Path:
    """Writes a file.

    Args:
        path: Where to.
        model: `llama` or `gpt2`.
        **fields: Further keys below `tokenizer.ggml.`: `add_bos_token`, `pre`, …; None leaves a usual one out.
            `chat_template` has no `ggml.` before it.
    """
    architecture = str(fields.pop("architecture", "llama"))
    writer = gguf.GGUFWriter(path, architecture)
    if model == "llama":
        rows = sentencepiece()
        usual: dict[str, object] = {"tokens": [row[0] for row in rows], "scores": [row[1] for row in rows]}
        usual |= {"token_type": [row[2] for row in rows], "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    else:
        typed, merges = byte_level()
        usual = {"tokens": [token for token, _ in typed], "token_type": [kind for _, kind in typed], "merges": merges}
        usual |= {"bos_token_id": 1, "eos_token_id": 0, "pre": "gpt-2"}
    template = fields.pop("chat_template", None)
    if template is not None:
        writer.add_string("tokenizer.chat_template", str(template))
    writer.add_string("tokenizer.ggml.model", model)
    chosen = {name: value for name, value in (usual | fields).items() if value is not None}
    for name, value in chosen.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}.get(type(value), writer.add_array)
        add(f"tokenizer.ggml.{name}", value)
    _network(writer, len(chosen["tokens"]), biased=architecture == "qwen2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _network(writer: gguf.GGUFWriter, tokens: int, *, biased: bool) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_vocab_size(tokens)
    random = np.random.default_rng(0)
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, WIDTH), "attn_v": (WIDTH, WIDTH)}
    shapes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (32, WIDTH), "ffn_up": (32, WIDTH), "ffn_down": (WIDTH, 32)}
    tensors = {f"blk.0.{name}.weight": random.normal(size=shape) / 4 for name, shape in shapes.items()}
    tensors |= {"token_embd.weight": random.normal(size=(tokens, WIDTH))}
    tensors |= {name: np.ones(WIDTH) for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")}
    tensors |= {"output_norm.weight": np.ones(WIDTH)}
    tensors |= {f"blk.0.attn_{name}.bias": random.normal(size=WIDTH) for name in "qkv" if biased}
    for name, values in tensors.items():
        writer.add_tensor(name, values.astype(np.float32))


#: Every kind of file that is compared with llama.cpp.
FILES: dict[str, dict[str, object]] = {
    "llama": {"model": "llama"},
    "llama-without-prefix": {"model": "llama", "add_space_prefix": False, "add_bos_token": True},
    "llama-without-bos": {"model": "llama", "add_space_prefix": True, "add_bos_token": False},
    "llama-bos-and-eos": {"model": "llama", "add_bos_token": True, "add_eos_token": True},
    "gpt-2-with-bos": {"model": "gpt2", "add_bos_token": True},
    "gpt-2-bos-and-eos": {"model": "gpt2", "add_bos_token": True, "add_eos_token": True},
    "gpt-2-with-prefix": {"model": "gpt2", "add_space_prefix": True},
    "llama-bpe-without-bos": {"model": "gpt2", "pre": "llama-bpe", "add_bos_token": False},
    **{
        pre: {"model": "gpt2", "pre": pre}
        for pre in ("gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "seed-coder", "tekken", "gpt-4o", "deepseek-v3")
    },
    "deepseek-coder": {"model": "gpt2", "pre": "deepseek-coder"},
}
