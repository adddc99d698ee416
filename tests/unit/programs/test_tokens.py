"""Roles hold for any tokenizer: by characters, whether a digit is part of a token, a token, or two."""

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from sonde.core import errors
from sonde.models import tiny
from sonde.programs import CounterfactualGenerator, TokenAnalyzer, VariableChain, generators, interpreter, prompts

PROGRAM = "a = 4\nb = 7\nc = a\nd = c\ne = b\n#d: "
TEXTS = [generators.make_variable_binding_program(8, np.random.default_rng(seed))[0] for seed in range(60)]


def fast(core):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")


def merged(size, *, words_apart):
    """Byte-level BPE that has merged what is frequent: ' =', ' 4'; across words too if they are not kept apart."""
    core = tokenizers.Tokenizer(models.BPE(unk_token=None))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words_apart)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    )
    return fast(core)


def words():
    core = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.train_from_iterator(
        [*TEXTS, PROGRAM], trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False)
    )
    return fast(core)


def pieces():
    """SentencePiece's way: spaces become a sign of their own."""
    core = tokenizers.Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=90, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    )
    return fast(core)


def digits_are_two_tokens():
    core = tokenizers.Tokenizer(models.BPE({letter: at for at, letter in enumerate(sorted(alphabet()))}, []))
    core.normalizer = normalizers.Sequence([normalizers.Replace(str(digit), f"{digit}@") for digit in range(10)])
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return fast(core)


def alphabet():
    return pre_tokenizers.ByteLevel.alphabet()


def with_a_beginning():
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)]
    )
    return tokenizer


TOKENIZERS = {
    "bytes": tiny.tokenizer,
    "bytes after a special token": with_a_beginning,
    "merges across words": lambda: merged(290, words_apart=False),
    "merges within words": lambda: merged(420, words_apart=True),
    "words": words,
    "pieces": pieces,
    "digits are two tokens": digits_are_two_tokens,
}


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def tokenizer(request):
    return TOKENIZERS[request.param]()


def covered(roles, role):
    """The characters that a role's tokens stand for."""
    places = sorted({at for position in roles[role] for at in range(*roles.offsets[position])})
    return "".join(roles.text[at] for at in places)


@pytest.mark.parametrize("template", [prompts.MINIMAL, prompts.VARIABLE_BINDING], ids=["bare", "with an example"])
def test_roles_stand_on_their_characters(tokenizer, template):
    roles = TokenAnalyzer(tokenizer).analyze(PROGRAM, template=template)
    assert roles.text.endswith(PROGRAM)
    assert list(roles.ids) == tokenizer.encode(roles.text), "encoded as the model will"
    for role, text in {"rhs_1": "4", "rhs_2": "a", "rhs_3": "c", "query": "d"}.items():
        assert text in covered(roles, role)
    start = len(roles.text) - len(PROGRAM)
    for role, at in {"rhs_1": 4, "rhs_2": 16, "rhs_3": 22, "query": 31}.items():
        expected = [p for p, (a, b) in enumerate(roles.offsets) if a <= start + at < b]
        assert list(roles[role]) == expected
        assert expected
    assert "7" in covered(roles, "distractor_constant")
    assert "b" in covered(roles, "distractor_reference")
    assert roles["final"] == (len(roles.ids) - 1,)


def test_a_digit_of_two_tokens_has_both():
    roles = TokenAnalyzer(digits_are_two_tokens()).analyze(PROGRAM)
    first, second = roles["rhs_1"]
    assert second == first + 1
    assert roles.offsets[first] == roles.offsets[second] == (4, 5)
    assert len(roles["distractor_constant"]) == 2


def test_a_number_of_two_digits_has_all_its_tokens():
    roles = TokenAnalyzer(tiny.tokenizer()).analyze("ab = 42\nc = ab\n#c: ")
    assert covered(roles, "rhs_1") == "42"
    assert len(roles["rhs_1"]) == 2
    assert covered(roles, "rhs_2") == "ab"


def test_a_tokenizer_without_offsets_is_refused():
    slow = transformers.ByT5Tokenizer()
    with pytest.raises(errors.RequestError, match="ByT5Tokenizer does not say at which characters"):
        TokenAnalyzer(slow).analyze(PROGRAM)


def test_a_role_that_no_token_has_is_named():
    roles = TokenAnalyzer(tiny.tokenizer()).analyze("a = 4\n#a: ")
    assert roles.role_of(4) == "rhs_1"
    assert roles.role_of(1) is None
    with pytest.raises(errors.RequestError, match="no token has the role 'rhs_2'"):
        roles["rhs_2"]


def test_a_chain_follows_values_and_not_names():
    chain = VariableChain.of("a = 4\nb = a\na = 9\nc = b\n#c: ")
    assert (chain.names, chain.depth, chain.root_line, chain.value) == (("c", "b", "a"), 3, 1, 4)
    assert [one.line for one in chain.distractors] == [3]
    assert not chain.is_systematic
    assert VariableChain.of("a = 4\nb = 1\nc = 2\nd = c\n#d: ").is_systematic, "the root is after line 2"
    assert not VariableChain.of("a = 4\nb = a\nc = b\nd = c\n#d: ").is_systematic, "deep, but rooted on line 1"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("a = 4\na += 1\n#a: ", "line 2 is 'a \\+= 1'"),
        ("a = b\n#a: ", "line 1: 'b' is used before"),
        ("a = 4\n#b: ", "does not define"),
        ("a = 4", "must be a query"),
    ],
)
def test_what_is_no_binding_program_has_no_chain(program, words):
    with pytest.raises(errors.RequestError, match=words):
        VariableChain.of(program)


def test_a_root_counterfactual_changes_one_constant_and_the_answer(tokenizer):
    made = CounterfactualGenerator(seed=1, tokenizer=tokenizer, template=prompts.VARIABLE_BINDING)
    pairs = []
    for program in TEXTS[:20]:
        try:
            pair = made.root(program)
        except errors.RequestError:  # merges across lines may leave a constant without an equal
            continue
        pairs.append(pair)
        differing = [at for at, (a, b) in enumerate(zip(pair.clean, pair.counterfactual, strict=True)) if a != b]
        assert differing == [VariableChain.of(program).root.start]
        assert interpreter.answer(pair.counterfactual) == pair.counterfactual_answer != pair.clean_answer
        lengths = {len(tokenizer.encode(prompts.filled(made.template, one))) for one in (program, pair.counterfactual)}
        assert len(lengths) == 1
    assert len(pairs) >= 15


def test_a_distractor_counterfactual_changes_a_constant_and_not_the_answer(tokenizer):
    made = CounterfactualGenerator(seed=1, tokenizer=tokenizer)
    for program in TEXTS[:20]:
        chain = VariableChain.of(program)
        if not any(one.is_constant for one in chain.distractors):
            continue
        pair = made.distractor(program)
        assert pair.clean != pair.counterfactual
        assert interpreter.answer(pair.counterfactual) == pair.counterfactual_answer == pair.clean_answer
        assert pair.line not in {one.line for one in chain.links}
        assert len(tokenizer.encode(pair.clean)) == len(tokenizer.encode(pair.counterfactual))


@pytest.mark.parametrize("seq_len", [5, 8, 17])
def test_the_twins_constant_occurs_nowhere_in_the_program(seq_len):
    made, left_out = CounterfactualGenerator(seed=0), 0
    for seed in range(100):
        program, _ = generators.make_variable_binding_program(seq_len, np.random.default_rng(seed))
        chain = VariableChain.of(program)
        if len(chain.constants) == 10:
            left_out += 1
            continue
        assert made.root(program).counterfactual_answer not in chain.constants
        if any(one.is_constant for one in chain.distractors):
            pair = made.distractor(program)
            (new,) = VariableChain.of(pair.counterfactual).constants - chain.constants
            assert pair.counterfactual.split("\n")[pair.line - 1].endswith(f"= {new}")
    assert left_out <= 2


def test_a_program_with_all_ten_digits_has_no_pair_and_says_so():
    program = "\n".join([*(f"{name} = {digit}" for digit, name in enumerate("abcdefghij")), "#d: "])
    for make in (CounterfactualGenerator().root, CounterfactualGenerator().distractor):
        with pytest.raises(errors.RequestError, match="occurs in the program already"):
            make(program)


def test_pairs_depend_on_the_seed_and_not_on_what_was_made_before():
    first, second = CounterfactualGenerator(seed=3), CounterfactualGenerator(seed=3)
    second.pairs(TEXTS[:7])
    assert first.pairs(TEXTS[7:20]) == second.pairs(TEXTS[7:20])
    assert first.pairs(TEXTS[:20]) != CounterfactualGenerator(seed=4).pairs(TEXTS[:20])


def test_large_and_negative_constants_keep_their_digits():
    made = CounterfactualGenerator()
    for right in ("-7", "12", "-123456", "9" * 30):
        pair = made.root(f"a = {right}\n#a: ")
        assert len(pair.counterfactual) == len(pair.clean)
        assert pair.counterfactual_answer != pair.clean_answer


def test_a_program_without_distractors_has_no_control_pair():
    with pytest.raises(errors.RequestError, match="no constant beside"):
        CounterfactualGenerator().distractor("a = 4\nb = a\n#b: ")


def test_a_constant_without_a_twin_of_equal_length_is_refused():
    class OnlyFour:
        """Every digit but 4 is two tokens."""

        def encode(self, text):
            return [0] * (len(text) + sum(text.count(digit) for digit in "012356789"))

    with pytest.raises(errors.RequestError, match="no other constant than '4'"):
        CounterfactualGenerator(tokenizer=OnlyFour()).root("a = 4\n#a: ")
