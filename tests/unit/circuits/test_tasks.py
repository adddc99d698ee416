"""Generators of prompts, and what they drop."""

import collections
import json

import pytest
import tokenizers
import torch
import transformers

import sonde
from sonde.circuits import tasks
from sonde.circuits.tasks import agreement, docstring, greater_than, ioi, jsonl
from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import plain


def with_words(*texts):
    """A model whose tokenizer has a token for every word, with and without a space before it."""
    words = " ".join(texts).replace(",", " , ").replace(".", " . ").split()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    spelled = [*alphabet, *(form for word in words for form in (f"Ġ{word}", word))]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(spelled))}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=alphabet[0]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    config = plain.PlainConfig(vocab_size=len(vocabulary), hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core)
    return models_model.Model(plain.PlainForCausalLM(config), tokenizer, name="worded")


@pytest.fixture(scope="module")
def tiny():
    return sonde.load("tiny-llama")


@pytest.fixture(scope="module")
def worded():
    return with_words(
        *ioi.TEMPLATES, ioi.NAMES, ioi.PLACES, ioi.OBJECTS, *agreement.STRUCTURES, agreement.NOUNS, "is was has are were",
        "have def self param", docstring.WORDS, docstring.FUNCTIONS, *docstring.PURPOSES, *docstring.HINTS,
    )  # fmt: skip


def decoded(model, row):
    return model.tokenizer.decode([token for token in row.tolist() if token >= 0])


def test_the_word_lists_are_large_enough_and_hold_nothing_twice():
    for words, least in ((ioi.NAMES, 80), (ioi.PLACES, 20), (ioi.OBJECTS, 20), (greater_than.EVENTS, 20)):
        counts = collections.Counter(words.split())
        assert len(counts) >= least
        assert counts.most_common(1)[0][1] == 1
    assert len(set(ioi.TEMPLATES)) >= 15


def test_ioi_swaps_the_second_mention_and_nothing_else(worded):
    made, report = tasks.get("ioi")(worded, n=64, seed=1)
    assert len(made) == report.kept == 64
    assert len(set(made.clusters)) == 16
    different = (made.clean != made.corrupt).sum(dim=1)
    assert set(different.tolist()) == {1}
    orders = set()
    for row in range(len(made)):
        clean = made.clean[row, : int(made.ends[row]) + 1].tolist()
        answer, wrong = int(made.answers[row, 0]), int(made.wrongs[row, 0])
        assert (clean.count(answer), clean.count(wrong)) == (1, 2)
        corrupt = made.corrupt[row].tolist()
        assert (corrupt.count(answer), corrupt.count(wrong)) == (2, 1)
        orders.add(clean.index(answer) < clean.index(wrong))
    assert orders == {True, False}


def test_ioi_can_put_three_other_names(worded):
    made, _ = tasks.get("ioi")(worded, n=16, corruption="others")
    assert set((made.clean != made.corrupt).sum(dim=1).tolist()) == {3}
    with pytest.raises(errors.RequestError, match="expected 'swap' or 'others'"):
        tasks.get("ioi")(worded, n=4, corruption="none")


def test_agreement_changes_the_subject_and_nothing_else(worded):
    made, _ = tasks.get("agreement")(worded, n=32)
    assert set((made.clean != made.corrupt).sum(dim=1).tolist()) == {1}
    sides = {(decoded(worded, made.answers[row]), decoded(worded, made.wrongs[row])) for row in range(32)}
    assert sides == {(" is was has", " are were have"), (" are were have", " is was has")}


def test_docstring_asks_for_the_next_argument(worded):
    made, _ = tasks.get("docstring")(worded, n=16)
    for row in range(16):
        clean, corrupt = made.clean[row].tolist(), made.corrupt[row].tolist()
        answer = int(made.answers[row, 0])
        assert clean.count(answer) == 1
        assert answer not in corrupt
        assert sum(a != b for a, b in zip(clean, corrupt, strict=True)) == 1 + docstring.BEHIND


def test_greater_than_fits_a_tokenizer_of_single_digits(tiny):
    made, report = tasks.get("greater-than")(tiny, n=8)
    assert report.dropped == {}
    for row in range(8):
        text = decoded(tiny, made.clean[row, : int(made.ends[row]) + 1])
        year = next(part for part in text.split() if part.isdigit() and len(part) == 4)
        ten, possible = int(year[2]), year[3] != "9"  # 1729: no later year begins with 172
        assert decoded(tiny, made.answers[row]) == "".join(str(digit) for digit in range(ten + 1, 10))
        assert decoded(tiny, made.wrongs[row]) == "".join(str(digit) for digit in range(ten if possible else ten + 1))


def test_induction_keeps_every_token_and_changes_what_follows(tiny):
    made, _ = tasks.get("induction")(tiny, n=32, length=8, again=3)
    special = set(tiny.tokenizer.all_special_ids)
    for row in range(32):
        clean, corrupt = made.clean[row].tolist(), made.corrupt[row].tolist()
        assert sorted(clean) == sorted(corrupt)
        assert clean[8:] == corrupt[8:]
        assert not special & set(clean)
        for tokens, expected in ((clean, made.answers), (corrupt, made.wrongs)):
            assert tokens[tokens.index(tokens[-1]) + 1] == int(expected[row, 0])


@pytest.mark.parametrize("task", ["induction", "greater-than"])
def test_the_seed_fixes_the_pairs(tiny, task):
    one, same, other = (tasks.get(task)(tiny, n=6, seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(one.clean, same.clean)
    assert torch.equal(one.corrupt, same.corrupt)
    assert one.labels == same.labels
    assert one.clean.shape != other.clean.shape or not torch.equal(one.clean, other.clean)


@pytest.mark.parametrize("task", ["ioi", "docstring", "agreement"])
def test_a_tokenizer_that_fits_nothing_is_told_why(tiny, task):
    with pytest.raises(
        errors.RequestError, match=r"does not fit the tokenizer of tiny-llama.*not one token after a sp"
    ):
        tasks.get(task)(tiny, n=4)


def test_an_unknown_task_gets_a_suggestion_and_too_few_pairs_an_error(tiny):
    with pytest.raises(errors.RequestError, match=r"no task 'inductoin'; did you mean 'induction'\?"):
        tasks.get("inductoin")
    with pytest.raises(errors.RequestError, match="n is 0, expected at least 1"):
        tasks.get("induction")(tiny, n=0)
    with pytest.raises(errors.RequestError, match="again is 9 with length 12"):
        tasks.get("induction")(tiny, n=1, again=9)


def written(folder, *lines):
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return str(path)


def test_pairs_come_from_a_file_in_texts_or_ids(tiny, tmp_path):
    path = written(
        tmp_path,
        {"clean": "ab", "corrupt": "ac", "answer": "x", "wrong": ["y", "z"]},
        "",
        {"clean": [5, 6, 7], "corrupt": [5, 6, 8], "answer": 9, "name": "ids", "cluster": "k"},
    )
    made, report = tasks.get(path)(tiny)
    assert made.labels == ("line 1", "ids")
    assert made.clusters == ("line 1", "k")
    assert decoded(tiny, made.clean[0, :2]) == "ab"
    assert decoded(tiny, made.wrongs[0]) == "yz"
    assert made.answers[1].tolist() == [9]
    assert report.kept == 2


def test_pairs_of_a_file_that_do_not_fit_are_dropped_and_reported(tiny, tmp_path):
    good = {"clean": "ab", "corrupt": "ac", "answer": "x", "wrong": "y"}
    path = written(
        tmp_path, good, {**good, "corrupt": "abc"}, {**good, "corrupt": "ab"}, {**good, "wrong": "xy"},
        {**good, "corrupt": "ad", "answer": [400]},
    )  # fmt: skip
    made, report = tasks.get(path)(tiny)
    assert len(made) == 1
    assert report.dropped == {
        "clean and corrupt differ in their number of tokens": 1,
        "clean and corrupt are the same tokens": 1,
        "an answer begins with the same token as a wrong one": 1,
        "an answer is no token of this model, which has 260": 1,
    }
    assert "1 dropped: clean and corrupt differ in their number of tokens (such as 'line 2')" in str(report)
    assert json.loads(json.dumps(report.to_json()))["kept"] == 1


def test_bad_lines_are_named_with_what_is_wrong(tmp_path):
    good = {"clean": "ab", "corrupt": "ac", "answer": "x"}
    path = written(
        tmp_path, good, "{oops", "[1]", {"clean": "a", "corrupt": "b"}, {**good, "clean": 3}, {**good, "anwser": "x"},
        {**good, "answer": []}, {**good, "wrong": None},
    )  # fmt: skip
    with pytest.raises(errors.RequestError) as caught:
        jsonl.read(path)
    message = str(caught.value)
    assert message.startswith(f"7 bad lines in {path}: line 2: not JSON (")
    for part in (
        "line 3: a JSON list, expected an object", "line 4: no 'answer'", "line 5: 'clean' is 3, expected a text",
        "line 6: unknown field 'anwser'; did you mean 'answer'?", "and 2 more",
    ):  # fmt: skip
        assert part in message


def test_a_file_that_is_not_there_or_empty_is_an_error(tmp_path):
    with pytest.raises(errors.RequestError, match="cannot read pairs from"):
        jsonl.read(tmp_path / "none.jsonl")
    with pytest.raises(errors.RequestError, match="holds no pairs"):
        jsonl.read(written(tmp_path, ""))


def test_some_pairs_of_a_file_are_drawn_by_the_seed(tiny, tmp_path):
    path = written(tmp_path, *[{"clean": [1, n], "corrupt": [2, n], "answer": 3} for n in range(50)])
    one, same, other = (tasks.get(path)(tiny, n=5, seed=seed)[0] for seed in (0, 0, 1))
    assert one.labels == same.labels
    assert one.labels != other.labels
    assert len(one) == 5
