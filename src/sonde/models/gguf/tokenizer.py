"""From what a GGUF file says of its tokenizer to a transformers tokenizer that does it.

1. Every token keeps its id. Control and unknown tokens become special ones, found in trusted text only; user-defined
   tokens are found in every text; both are found before anything else, as they are spelled.
2. `llama`: a space becomes "▁", with one more before each text where the file says so; then the neighbours that give the
   token of the highest score are merged until none are left. What has no token is spelled in bytes.
3. `gpt2`: the text is cut by the file's pre-tokenizer, then merged by the file's list.
4. BOS and EOS are added as the file says, also by a chat template that does not spell BOS itself.
5. The result is checked against the file, so that no loader between the two can lose any of it.

No token's text can give a control token by merging: nobody forges a turn with plain characters. Costs about four seconds for
262,144 tokens.
"""

from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import decoders, normalizers, pre_tokenizers

from sonde.core import errors
from sonde.models.gguf import header, metadata

SPACE = "▁"
NEVER_MERGED = (metadata.UNKNOWN, metadata.CONTROL, metadata.BYTE)


def load(path: Path) -> Any:
    """The tokenizer of a file.

    Raises:
        ModelError: It cannot be read or made, or does not do what the file says.
    """
    header.check(path)
    return build(metadata.read(path))


def build(vocabulary: metadata.Vocabulary) -> Any:
    """The tokenizer that a file describes.

    Raises:
        ModelError: It cannot be made, or does not do what the file says.
    """
    try:
        made = _wrapped(_core(vocabulary), vocabulary)
    except Exception as error:  # the library raises bare ones
        raise errors.ModelError(f"the file's tokenizer cannot be built: {error}; pass tokenizer=…") from error
    check(made, vocabulary)
    return made


def check(made: Any, vocabulary: metadata.Vocabulary) -> None:
    """Whether a tokenizer does what a file says.

    Raises:
        ModelError: It does not; the message says where.
    """
    tokens = list(vocabulary.tokens)
    got = made.convert_ids_to_tokens(list(range(len(tokens))))
    wrong = [f"id {i} is {a!r}, expected {b!r}" for i, (a, b) in enumerate(zip(got, tokens, strict=True)) if a != b]
    if len(made) != len(tokens):
        wrong.append(f"it has {len(made)} tokens, expected {len(tokens)}")
    for role, expected in vocabulary.special.items():
        found = getattr(made, f"{role}_token_id")
        wrong += [f"{role} is token {found}, expected {expected}"] if found != expected else []
    marked = [i for i, kind in enumerate(vocabulary.types) if kind in (metadata.CONTROL, metadata.USER_DEFINED)]
    encoded = made.backend_tokenizer.encode_batch([tokens[i] for i in marked], add_special_tokens=False)
    wrong += [
        f"{tokens[i]!r} is encoded as {one.ids}, expected [{i}]"
        for i, one in zip(marked, encoded, strict=True)
        if one.ids != [i]
    ]
    bare = made.encode("a", add_special_tokens=False)
    begin = [vocabulary.special["bos"]] if vocabulary.add_bos else []
    end = [vocabulary.special["eos"]] if vocabulary.add_eos else []
    if made.encode("a") != [*begin, *bare, *end]:
        wrong.append(f"'a' is encoded as {made.encode('a')}, expected {[*begin, *bare, *end]}")
    if wrong:
        raise errors.ModelError(f"the tokenizer does not do what its GGUF file says: {'; '.join(wrong[:5])}")


def fit(network: Any, vocabulary: metadata.Vocabulary) -> None:
    """Tells a network which tokens begin, end and pad a text, as its file does.

    Raises:
        ModelError: The network has no row for a token.
    """
    rows = len(network.get_input_embeddings().weight)
    if rows < len(vocabulary.tokens):
        raise errors.ModelError(f"the GGUF file has {len(vocabulary.tokens)} tokens but {rows} embeddings")
    ends = sorted(vocabulary.ends)
    for config in (network.config, network.generation_config):
        config.bos_token_id, config.pad_token_id = vocabulary.special.get("bos"), vocabulary.special.get("pad")
        config.eos_token_id = ends if len(ends) > 1 else vocabulary.special.get("eos")


def _core(vocabulary: metadata.Vocabulary) -> tokenizers.Tokenizer:
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    if vocabulary.kind == metadata.SENTENCEPIECE:
        unknown = vocabulary.tokens[vocabulary.special["unk"]]
        model = tokenizers.models.BPE(ids, _merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True)
        core = tokenizers.Tokenizer(model)
        prefix = [normalizers.Prepend(SPACE)] if vocabulary.add_space_prefix else []
        core.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
        strip = [decoders.Strip(" ", 1, 0)] if vocabulary.add_space_prefix else []
        steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        core.decoder = decoders.Sequence(steps)
        return core
    assert vocabulary.split is not None
    core = tokenizers.Tokenizer(
        tokenizers.models.BPE(ids, list(vocabulary.merges), ignore_merges=vocabulary.split.whole_words)
    )
    cuts = [pre_tokenizers.Split(tokenizers.Regex(one), "isolated") for one in vocabulary.split.patterns]
    core.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    return core


def _merges(vocabulary: metadata.Vocabulary) -> list[tuple[str, str]]:
    """Every pair of tokens that gives a token, the token with the highest score first."""
    mergeable = {
        token: score
        for token, score, kind in zip(vocabulary.tokens, vocabulary.scores, vocabulary.types, strict=True)
        if kind not in NEVER_MERGED
    }
    ordered = sorted(mergeable, key=mergeable.__getitem__, reverse=True)
    pairs = ((token[:cut], token[cut:]) for token in ordered for cut in range(len(token) - 1, 0, -1))
    return [(left, right) for left, right in pairs if left in mergeable and right in mergeable]


def _wrapped(core: tokenizers.Tokenizer, vocabulary: metadata.Vocabulary) -> Any:
    roles = {f"{role}_token": vocabulary.tokens[i] for role, i in vocabulary.special.items()}
    special = {i for i, kind in enumerate(vocabulary.types) if kind in (metadata.UNKNOWN, metadata.CONTROL)}
    special |= set(vocabulary.special.values())
    marked = special | {i for i, kind in enumerate(vocabulary.types) if kind == metadata.USER_DEFINED}
    core.add_tokens(
        [tokenizers.AddedToken(vocabulary.tokens[i], normalized=False, special=i in special) for i in sorted(marked)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        add_bos_token=vocabulary.add_bos,
        add_eos_token=vocabulary.add_eos,
        chat_template=_template(vocabulary),
        clean_up_tokenization_spaces=False,
        padding_side="left",
        **roles,
    )


def _template(vocabulary: metadata.Vocabulary) -> str | None:
    """The file's chat template, with BOS before it where the file adds it and the template does not."""
    template = vocabulary.chat_template
    if not template or not vocabulary.add_bos:
        return template
    spelled = "bos_token" in template or vocabulary.tokens[vocabulary.special["bos"]] in template
    return template if spelled else "{{ bos_token }}" + template
