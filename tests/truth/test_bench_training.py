"""A model learns the circuit of its program, and knows it: case 3, and the two IOI programs."""

import numpy as np
import pytest
import torch

from sonde.bench import evaluating, finding, ioi, shipped, training
from sonde.core import errors

RECIPE = training.Recipe(strict=0.4)


@pytest.fixture(scope="module")
def case3(tmp_path_factory):
    folder = shipped.folder_of("3", RECIPE.weight_id, tmp_path_factory.mktemp("results"))
    task = shipped.task_of("3")
    training.train(task, training.shape_of(task, shipped.sizes_of("3")), RECIPE, folder)
    return folder


@pytest.mark.slow
def test_case_3_reaches_999_per_mille_and_nodes_outside_its_circuit_change_nothing(case3):
    subject = shipped.trained("3", RECIPE.weight_id, results=case3.parent.parent)
    with subject.model as _:
        found = evaluating.iit(subject, rows=500)
    assert min(found["accuracy"], found["iia"], found["strict"]) >= 0.999
    for effect in found["effects"]:
        assert (effect["resample"] > 0.5) == bool(effect["program"])
        assert effect["program"] or effect["resample"] < 0.01


@pytest.mark.slow
def test_the_weights_of_another_case_are_refused(case3):
    with pytest.raises(errors.RequestError, match="holds a model of case 3, not of case 11: name another folder"):
        shipped.opened("11", case3 / "seed-0", "case 11")


def sentences(rows=200):
    base, other = ioi.Sentences().pair(np.random.default_rng(0), rows)
    return base, other, torch.zeros(1, rows, 3, dtype=torch.bool)


def test_the_program_of_ioi_answers_the_name_that_is_not_repeated():
    base, other, none = sentences()
    answers = ioi.Program().answers(base, other, none)[0, :, -1]
    repeated = base[:, ioi.THIRD]
    assert bool((answers != repeated).all())
    assert bool(((answers == base[:, ioi.FIRST]) | (answers == base[:, ioi.SECOND])).all())


def test_the_next_word_program_says_the_sentence_and_then_the_same_name():
    base, other, none = sentences()
    next_words = ioi.Program(next_token=True).answers(base, other, none)
    assert torch.equal(next_words[0, :, :-1], base[:, 1:])
    assert torch.equal(next_words[..., -1], ioi.Program().answers(base, other, none)[..., -1])


def test_where_the_next_word_counts_it_follows_from_the_word_and_its_place():
    base, _, none = sentences(2000)
    task = ioi.task(next_token=True)
    answers = task.program.answers(base, base, none)[0]
    for position in ioi.DECIDED[:-1]:
        assert len(answers[:, position].unique()) == 1
    for position in set(range(1, ioi.LENGTH)) - set(ioi.DECIDED):
        assert len(answers[:, position].unique()) > 1
    assert task.counted == list(ioi.DECIDED)
    assert set(task.program.circuit.names) - set(ioi.CIRCUIT.names) == {"input->logits"}


@pytest.mark.parametrize("next_token", [False, True])
def test_names_are_swapped_for_circuit_finders_and_only_the_last_answer_changes(next_token):
    base, _, none = sentences()
    task = ioi.task(next_token=next_token)
    before, after = (task.program.answers(one, one, none)[0, :, task.counted] for one in (base, task.corrupt(base)))
    assert bool((before[:, -1] != after[:, -1]).all())
    assert torch.equal(before[:, :-1], after[:, :-1])


def test_both_ioi_models_are_trained_opened_and_given_to_finders(tmp_path):
    short = training.Recipe(epochs=1, samples=16, batch=8, check=2, rows=4, threshold=None)
    for name in shipped.IOI:
        task = shipped.task_of(name)
        folder = shipped.folder_of(name, short.weight_id, tmp_path)
        training.train(task, training.shape_of(task, shipped.sizes_of(name)), short, folder)
        subject = shipped.trained(name, short.weight_id, results=tmp_path)
        with subject.model as _:
            pairs = finding.pairs_of(subject, n=4)
        assert int(pairs.counted[0].sum()) == len(task.counted)
        assert len(subject.truth) == len(task.program.circuit)


def test_a_next_word_model_that_was_never_trained_names_the_command(tmp_path):
    with pytest.raises(errors.RequestError, match=r"sonde bench train ioi --next-token -s 0\.4"):
        shipped.trained(ioi.NEXT, 510, results=tmp_path)
