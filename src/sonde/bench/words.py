"""A tokenizer for models whose vocabulary is a list of words: one token per word, spaces between.

    words.tokenizer(("a", "b", 3), bos=True).encode("a 3")    # BOS, a, 3

Ids follow the list; BOS and PAD come last. Costs a millisecond.
"""

from collections.abc import Sequence
from typing import Any

from sonde.bench import rasp

BOS, PAD = "<bos>", "<pad>"


def tokenizer(vocabulary: Sequence[rasp.Value], *, bos: bool = True) -> Any:
    """A transformers tokenizer of the words; with `bos` it puts BOS before every text."""
    import tokenizers
    import transformers

    ids = {str(word): index for index, word in enumerate((*vocabulary, BOS, PAD))}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=PAD))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens([tokenizers.AddedToken(word, special=True, normalized=False) for word in (BOS, PAD)])
    if bos:
        core.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, ids[BOS])]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=BOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )
