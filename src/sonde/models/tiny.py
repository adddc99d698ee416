"""Small seeded models made in process: real architectures, random weights, a byte tokenizer.

For tests, examples and documentation. Nothing is downloaded; the same name always gives the same weights. Making one
takes some tens of milliseconds.
"""

from collections.abc import Callable
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB = 256 + len(SPECIAL)
SEED = 20
_GQA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 259,
}


def _gpt2() -> Any:
    import transformers

    return transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=6,
        n_head=4,
        n_positions=2048,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=258,
        pad_token_id=259,
    )


def _neox() -> Any:
    import transformers

    fields = {name: value for name, value in _GQA.items() if name != "num_key_value_heads"}
    return transformers.GPTNeoXConfig(**fields)


def _plain() -> Any:
    from sonde.models import plain

    sizes = {name: _GQA[name] for name in ("vocab_size", "max_position_embeddings", "initializer_range")}
    tokens = {name: _GQA[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return plain.PlainConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **sizes, **tokens)


def _gqa(name: str, **more: Any) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        return getattr(transformers, name)(**_GQA, **more)

    return make


CONFIGS: dict[str, Callable[[], Any]] = {
    "tiny-gpt2": _gpt2,
    "tiny-llama": _gqa("LlamaConfig"),
    "tiny-mistral": _gqa("MistralConfig", sliding_window=16),
    "tiny-qwen2": _gqa("Qwen2Config"),
    "tiny-qwen3": _gqa("Qwen3Config", head_dim=8),
    "tiny-neox": _neox,
    "tiny-gemma": _gqa("Gemma2Config", head_dim=8, query_pre_attn_scalar=8, sliding_window=16),
    "tiny-gemma3": _gqa("Gemma3TextConfig", head_dim=8, query_pre_attn_scalar=8, sliding_window=16),
    "tiny-plain": _plain,
}


def make(name: str) -> tuple[Any, Any]:
    """Network and tokenizer of a tiny model."""
    import torch
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        config = CONFIGS[name]()
        return transformers.AutoModelForCausalLM.from_config(config), tokenizer()


def tokenizer() -> Any:
    """One token per byte, and four special ones; a chat template in the ChatML shape."""
    import tokenizers
    import transformers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens([tokenizers.AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[3],
        additional_special_tokens=[SPECIAL[1]],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
