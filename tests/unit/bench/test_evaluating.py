"""Subjects, finders on them, and evaluations; IOI as a program."""

import json
import shutil

import numpy as np
import pytest
import torch

from sonde.bench import batched, evaluating, finding, high, ioi, shipped, sizes, suite, training
from sonde.circuits import graph
from sonde.core import errors

RECIPE = training.Recipe(seeds=(0,), epochs=1, samples=64 * 4, batch=64, check=4, rows=16, threshold=None)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Case 3, hardly trained."""
    folder = tmp_path_factory.mktemp("results")
    task = shipped.task_of("3")
    training.train(task, training.shape_of(task, sizes.of(3)), RECIPE, shipped.folder_of("3", 510, folder))
    return folder


def test_a_trained_subject_is_the_model_that_was_trained(results):
    subject = shipped.trained("3", 510, results=results)
    assert set(subject.truth.nodes) - {"input", "logits"} == set(subject.log["places"].values())
    assert (subject.model.cfg.n_layers, subject.model.cfg.d_model) == (2, 12)


def test_weights_that_were_never_trained_name_the_command_that_trains_them(tmp_path):
    with pytest.raises(errors.RequestError, match=r"sonde bench train iit -i 7 -s 0\.4 -iit 1 -b 1"):
        shipped.trained("7", 510, results=tmp_path)
    with pytest.raises(errors.RequestError, match=r"sonde bench train ioi -s 0\.4"):
        shipped.trained("ioi", 510, results=tmp_path)


def test_a_weights_file_of_another_case_is_refused(results):
    with pytest.raises(errors.RequestError, match="holds a model of case 3, not of case 7"):
        shipped.opened("7", shipped.folder_of("3", 510, results) / "seed-0", "x")


@pytest.mark.parametrize("case", ["1000", "three", "27"])
def test_a_case_that_does_not_exist_is_refused(case):
    with pytest.raises(errors.RequestError, match=case):
        shipped.task_of(case)


def test_every_case_with_trained_sizes_fits_its_circuit():
    for case in (2, 3, 4, 13, 113, 124):
        task = high.of_case(shipped.cases.get(case))
        pupils = training.pupils_of(task, training.shape_of(task, sizes.of(case)), training.Recipe(seeds=(0, 1, 2)))
        assert len(pupils.places) == 3


def test_the_effects_of_all_nodes_are_shares(results):
    found = evaluating.iit(shipped.trained("3", 510, results=results), rows=60)
    assert [row["node"] for row in found["effects"]] == list(graph.Graph(2, 4, 4).sources[1:])
    assert all(0 <= row[name] <= 1 for row in found["effects"] for name in ("resample", "mean", "zero"))


def test_the_divergence_form_of_an_effect_is_zero_where_nothing_moves_and_absent_for_numbers(results, tmp_path):
    found = evaluating.iit(shipped.trained("3", 510, results=results), rows=40)
    assert all(row["kl"] is None for row in found["effects"])
    task = shipped.task_of("40")
    training.train(task, training.shape_of(task, sizes.of(40)), RECIPE, shipped.folder_of("40", 510, tmp_path))
    subject = shipped.trained("40", 510, results=tmp_path)
    assert all(row["kl"] >= 0 for row in evaluating.iit(subject, rows=40)["effects"])
    bench = evaluating.Bench(subject, rows=20)
    assert float(bench.divergence(bench.logits).max()) == 0
    mine, other = (one[:, task.counted] for one in (bench.logits, bench.without(["m0"], bench.there)))
    expected = torch.nn.functional.kl_div(
        other.log_softmax(-1), mine.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    assert torch.allclose(bench.divergence(bench.without(["m0"], bench.there)), expected, atol=1e-6)


def test_a_circuit_of_everything_is_wholly_realistic(results):
    subject = shipped.trained("3", 510, results=results)
    found = evaluating.realism(subject, graph.Circuit.full(subject.truth.graph), rows=60)
    assert (found["outside"], found["realism"]) == ([], 1.0)
    with pytest.raises(errors.RequestError, match="did you mean 'mean'"):
        evaluating.realism(subject, ablation="meen", rows=20)
    with pytest.raises(errors.RequestError, match="another model"):
        evaluating.realism(subject, graph.Circuit.full(graph.Graph(1, 1, 1)), rows=20)


def test_a_compiled_model_has_no_training_to_evaluate():
    with pytest.raises(errors.RequestError, match="is compiled"):
        evaluating.iit(shipped.compiled("3"), rows=20)


def test_overlap_counts_heads_whole():
    whole = graph.Graph(2, 2, 2)
    truth = graph.Circuit.of(whole, ["input->a0.h0<q>", "a0.h0->logits"])
    found = graph.Circuit.of(whole, ["input->a0.h0<v>", "a0.h0->logits", "input->m1"])
    rates = evaluating.overlap(found, truth)
    assert (rates["node_tpr"], rates["edge_tpr"], rates["node_fpr"]) == (1.0, 1.0, pytest.approx(1 / 5))


def test_acdc_on_the_compiled_case_3_finds_true_nodes_and_gives_all_that_is_kept():
    found = finding.run(shipped.compiled("3"), "acdc", pairs=40, tau=0.001)
    assert found.judged["node_auroc"] == 1.0
    assert found.judged["edge_fpr"] == 0
    assert list(found.files()) == ["scores", "circuit", "result"]
    assert found.files()["result"] == found.judged


def test_the_ioi_program_names_the_other_name_and_swaps_as_its_nodes_say():
    base, other = ioi.Sentences().pair(np.random.default_rng(0), 200)
    none, every = torch.zeros(1, 200, 3, dtype=torch.bool), torch.eye(3, dtype=torch.bool)[:, None].expand(3, 200, 3)
    plain = ioi.Program().answers(base, other, none)[0, :, -1]
    names = base[:, [ioi.FIRST, ioi.SECOND]]
    assert bool(((plain[:, None] == names).sum(1) == 1).all())
    assert bool((plain != base[:, ioi.THIRD]).all())
    duplicate, inhibition, mover = ioi.Program().answers(base, other, every)[:, :, -1]
    assert torch.equal(duplicate, inhibition)
    assert torch.equal(mover, ioi.Program().answers(other, other, none)[0, :, -1])
    flipped = ioi.Program().answers(ioi.swapped_names(base), other, none)[0, :, -1]
    assert torch.equal(flipped, base[:, ioi.THIRD])


def test_models_that_are_good_enough_are_collected_and_outdated_ones_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "TRIES", ((1.0, 1),))
    recipe = training.Recipe(seeds=(0,), epochs=1, samples=32, batch=32, check=1, rows=8, threshold=None)
    for case in (3, 53):
        suite.attempt(case, 0, recipe, tmp_path)
    kept = tmp_path / "kept"
    assert shipped.collect(tmp_path, kept, least=2.0) == 0
    assert shipped.collect(tmp_path, kept, least=0.0) == 2
    path = kept / "case-3" / "seed-0" / training.LOG
    log = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            log | {"program": "older", "measured": log["measured"] | {"accuracy": 1.0, "iia": 1.0, "strict": 1.0}}
        )
    )
    shipped.collect(tmp_path, kept, least=0.0, only=["3"])
    assert json.loads(path.read_text()) == log


@pytest.mark.parametrize("change", ["program", "places"])
def test_a_model_of_an_older_program_or_of_other_places_is_refused_by_name_and_not_listed(
    results, tmp_path, monkeypatch, change
):
    place = tmp_path / "case-3" / "seed-0"
    shutil.copytree(shipped.folder_of("3", 510, results) / "seed-0", place)
    monkeypatch.setattr(shipped, "EMBEDDED", tmp_path)
    assert (shipped.list_embedded(), shipped.list_outdated()) == ([("3", 0)], [])
    log = json.loads((place / training.LOG).read_text())
    places = {"m0": "m0", "a1.h0": "a1.h1" if log["places"]["a1.h0"] == "a1.h0" else "a1.h0"}
    log |= {"program": "0123456789ab"} if change == "program" else {"places": places}
    (place / training.LOG).write_text(json.dumps(log))
    assert (shipped.list_embedded(), shipped.list_outdated()) == ([], [("3", 0)])
    with pytest.raises(
        errors.RequestError, match=r"case-3/seed-0 was trained .*so its true circuit is not known any more"
    ):
        shipped.embedded("3")


def test_ioi_models_have_the_published_size():
    shape = training.shape_of(ioi.task(), ioi.SIZES)
    found = batched.run(shape, batched.draw(shape, [0]), ioi.Sentences().pair(np.random.default_rng(0), 2)[0])
    assert found.logits.shape == (1, 1, 2, ioi.LENGTH + 1, len(ioi.NAMES))
