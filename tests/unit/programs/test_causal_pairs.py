"""From programs to what is patched: prompts, answer tokens and roles, for tokenizers of several kinds."""

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from sonde.core import errors
from sonde.models import tiny
from sonde.programs import Pair, causal_pairs, prompts

PROGRAM = "a = 4\nb = 7\nc = 2\nd = c\ne = b\n#d: "


def spaced():
    """Words with the space before them are one token, as in GPT-2."""
    core = tokenizers.Tokenizer(models.BPE(unk_token=None))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    text = [f"{name} = {digit}\n#{name}: {digit}\n" for name in "abcde" for digit in range(10)] * 3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core)


def ended():
    """One token per byte, a special token before and another behind every text."""
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", 256), ("<|im_end|>", 258)]
    )
    return tokenizer


TOKENIZERS = {"bytes": tiny.tokenizer, "spaces belong to words": spaced, "special tokens around": ended}


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def tokenizer(request):
    return TOKENIZERS[request.param]()


@pytest.mark.parametrize("template", [prompts.MINIMAL, prompts.VARIABLE_BINDING], ids=["bare", "with an example"])
def test_prompt_and_answer_are_what_the_tokenizer_makes_of_both_together(tokenizer, template):
    task = causal_pairs.PairMaker(tokenizer, template=template).root(0, PROGRAM)
    for ids, answer, said in (
        (task.clean, task.answer, task.pair.clean_answer),
        (task.counterfactual, task.counterfactual_answer, task.pair.counterfactual_answer),
    ):
        program = task.pair.clean if ids is task.clean else task.pair.counterfactual
        whole = tokenizer.encode(prompts.filled(template, f"{program}{said}"))
        assert [*ids, answer] == whole[: len(ids) + 1]
        assert tokenizer.decode([answer]).strip() == str(said)
    assert task.pair.clean_answer == 2
    assert task.roles["final"] == (len(task.clean) - 1,)
    assert [at for at, (a, b) in enumerate(zip(task.clean, task.counterfactual, strict=True)) if a != b] == list(
        task.roles["rhs_1"]
    ), "only the root differs"
    assert "".join(task.labels).rstrip().endswith("#d:")


def test_a_space_that_belongs_to_the_answer_is_not_in_the_prompt():
    task = causal_pairs.PairMaker(spaced()).root(0, PROGRAM)
    assert task.labels[-1] == ":"
    assert task.roles["final"] == (len(task.clean) - 1,)
    task = causal_pairs.PairMaker(tiny.tokenizer()).root(0, PROGRAM)
    assert task.labels[-2:] == (":", " ")


def test_a_control_changes_a_constant_off_the_chain_and_expects_the_same_answer(tokenizer):
    maker = causal_pairs.PairMaker(tokenizer)
    task = maker.root(0, PROGRAM)
    control = maker.control(task)
    assert control.kind == "distractor"
    assert control.clean == task.clean
    assert control.expected == (task.answer, task.answer)
    assert control.counterfactual_answer != task.answer
    (at,) = control.roles[causal_pairs.CHANGED]
    assert [
        p for p, pair in enumerate(zip(control.clean, control.counterfactual, strict=True)) if len(set(pair)) > 1
    ] == [at]
    assert (
        tokenizer.decode([control.counterfactual[at]]).strip()
        == tokenizer.decode([control.counterfactual_answer]).strip()
    )


def test_answers_that_begin_alike_are_left_out_with_the_reason():
    maker = causal_pairs.PairMaker(tiny.tokenizer())
    given = Pair("root", "a = 12\n#a: ", "a = 13\n#a: ", 12, 13, 1)
    with pytest.raises(causal_pairs.Unusable, match="share their first token, '1'"):
        maker.root(0, given)
    task = maker.root(0, Pair("root", "a = 12\n#a: ", "a = 23\n#a: ", 12, 23, 1))
    assert (task.labels[task.roles["rhs_1"][0]], len(task.roles["rhs_1"])) == ("1", 2)
    assert tiny.tokenizer().decode([task.answer]) == "1"


def test_a_constant_of_several_tokens_begins_as_none_of_the_program_does():
    maker = causal_pairs.PairMaker(tiny.tokenizer())
    program = "\n".join([*(f"{name} = {digit}7" for digit, name in enumerate("abcdefg", start=1)), "#c: "])
    for seed in range(5):
        maker = causal_pairs.PairMaker(tiny.tokenizer(), seed=seed)
        task = maker.root(0, program)
        assert tiny.tokenizer().decode([task.counterfactual_answer]) in "89"
        assert tiny.tokenizer().decode([maker.control(task).counterfactual_answer]) in "89"


def test_a_program_that_has_every_constant_of_its_length_is_left_out_with_the_reason():
    program = "\n".join([*(f"{name} = {digit}" for digit, name in enumerate("abcdefghij")), "#d: "])
    with pytest.raises(causal_pairs.Unusable, match="every constant of as many digits stands in the program already"):
        causal_pairs.PairMaker(tiny.tokenizer()).root(0, program)


def test_pairs_tell_whether_an_answer_is_another_lines_too():
    maker = causal_pairs.PairMaker(tiny.tokenizer())
    drawn = [maker.root(0, PROGRAM), maker.root(1, "a = 4\nb = 7\nc = 4\n#c: ")]
    assert [(one.answer_repeats, one.counterfactual_repeats) for one in drawn] == [(False, False), (True, False)]
    given = maker.root(2, Pair("root", "a = 4\nb = 7\n#b: ", "a = 4\nb = 4\n#b: ", 7, 4, 2))
    assert (given.answer_repeats, given.counterfactual_repeats) == (False, True)


def test_a_program_without_other_constants_has_no_control():
    maker = causal_pairs.PairMaker(tiny.tokenizer())
    with pytest.raises(causal_pairs.Unusable, match="no constant off the chain"):
        maker.control(maker.root(0, "a = 4\nb = a\n#b: "))


def test_given_programs_of_different_length_are_refused():
    given = Pair("root", "a = 4\n#a: ", "a = 45\n#a: ", 4, 45, 1)
    with pytest.raises(errors.RequestError, match="clean prompt has 10 tokens and the counterfactual 11"):
        causal_pairs.PairMaker(tiny.tokenizer()).root(0, given)


def test_given_programs_of_equal_answers_are_refused():
    given = Pair("root", "a = 4\nb = 1\n#a: ", "a = 4\nb = 2\n#a: ", 4, 4, 2)
    with pytest.raises(errors.RequestError, match="both give 4"):
        causal_pairs.PairMaker(tiny.tokenizer()).root(0, given)


def test_a_tokenizer_without_offsets_is_refused():
    with pytest.raises(errors.RequestError, match="does not say at which characters"):
        causal_pairs.PairMaker(transformers.ByT5Tokenizer()).root(0, PROGRAM)
