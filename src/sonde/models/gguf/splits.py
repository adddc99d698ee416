"""How is a text cut up before byte-pair merging? By the name that a GGUF file gives (`tokenizer.ggml.pre`).

A byte-level vocabulary learned its merges on pieces cut by a regular expression of its own; cut otherwise, the same text
gives other tokens. The expressions are those that the models' makers published. Each cuts what the one before it left.
"""

import dataclasses

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_SEED = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)  # fmt: skip
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_TAIL}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A way to cut text.

    Attributes:
        patterns: Regular expressions, applied one after the other.
        whole_words: Whether a piece that is a token is taken as it is, whatever the merges say.
        bos: Whether BOS is put before a text where the file does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    bos: bool = False


_ROWS = {
    "default gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum modern-bert exaone4 trillion granite-docling": Split(
        (_GPT2,)
    ),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Split((r"\p{N}", _GPT2)),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": Split((_LLAMA3,), True, True),
    "dbrx smaug-bpe glm4 chatglm-bpe": Split((_LLAMA3,)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": Split((_QWEN2,)),
    "seed-coder": Split((_SEED,)),
    "tekken": Split((_TEKKEN,), True, True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Split((_GPT4O,)),
    "deepseek-v3 hunyuan-dense joyai-llm": Split(_DEEPSEEK3),
    "deepseek-coder": Split(_DEEPSEEK_CODER),
}
SPLITS = {name: split for names, split in _ROWS.items() for name in names.split()}
