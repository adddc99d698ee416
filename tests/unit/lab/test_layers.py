"""The study of layers on tiny models: what it measures, resumes and writes."""

import json

import numpy as np
import pytest

import sonde
from sonde import experiments
from sonde.core import errors
from sonde.lab import comparing, corruptions
from sonde.lab.layers import pages, settings, stages, study
from sonde.report import page


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with sonde.load("tiny-gpt2") as model:
        chosen = settings.settings_of(model.cfg, texts=3, tokens=16, orders=2, words=2)
        yield experiments.run(study.Layers(model), chosen, run="first", runs_dir=tmp_path_factory.mktemp("runs"))


def test_every_skip_is_measured_against_the_intact_model(found, loaded):
    results = found.results
    assert results["single"]["identity_equal"] is True
    assert [len(results["single"][name]) for name in ("skip", "noise", "swap")] == [6, 6, 5]
    bench = stages.Bench(loaded, settings.LayersSettings(model="tiny-gpt2", texts=3, tokens=16), lambda *told: None)
    judge = comparing.Judge(bench.base.logits, bench.base.ids)
    whole = loaded.run_with_hooks(bench.base.ids, list(corruptions.parse("skip:2", 6).bound(loaded)))
    assert results["single"]["skip"][2]["kl"] == pytest.approx(judge.compare(whole).kl.mean(axis=1).tolist(), abs=1e-5)


def test_the_control_moves_the_stream_as_far_as_the_layer_did(loaded):
    bench = stages.Bench(loaded, settings.LayersSettings(model="tiny-gpt2", texts=2, tokens=16), lambda *told: None)
    before, after = bench.base.streams[2], bench.base.streams[3]
    moved = stages._noisy(bench, 2)
    assert (moved - after).norm(dim=-1).numpy() == pytest.approx((after - before).norm(dim=-1).numpy(), rel=1e-4)


def test_influence_and_cosine_are_those_of_the_definitions(found):
    cosine, influence = (np.array(found.results["shape"][name]) for name in ("cosine", "influence"))
    assert cosine.shape == (7, 7)
    assert np.diag(cosine) == pytest.approx(np.ones(7), abs=1e-5)
    assert cosine == pytest.approx(cosine.T, abs=1e-5)
    assert influence.mean(axis=1) == pytest.approx([1 - cosine[at, at + 1] for at in range(6)], abs=1e-5)


def test_the_first_n_layers_end_in_the_intact_model(found):
    depth = found.results["depth"]
    assert depth["keep"][-1]["kl"] == pytest.approx([0, 0, 0], abs=1e-6)
    assert (len(depth["keep"]), len(depth["drop"])) == (6, 5)
    assert {name: len(said) for name, said in depth["said"].items()} == dict.fromkeys(settings.PROMPTS, 6)


def test_the_same_settings_give_the_same_results_and_nothing_runs_twice(found, tmp_path):
    with sonde.load("tiny-gpt2") as model:
        chosen = settings.settings_of(model.cfg, texts=3, tokens=16, orders=2, words=2)
        again = experiments.run(study.Layers(model), chosen, run="second", runs_dir=tmp_path)
        assert {**again.results, "timing": 0} == {**found.results, "timing": 0}
        (again.folder / "stages" / "windows.json").unlink()
        assert experiments.pending(study.Layers(model), "second", tmp_path) == ["windows"]
        told = []
        experiments.run(
            study.Layers(model), chosen, run="second", runs_dir=tmp_path, on_progress=lambda now: told.append(now.what)
        )
        assert set(told) == {"windows"}
        with pytest.raises(errors.RequestError, match="other settings"):
            experiments.run(
                study.Layers(model), settings.settings_of(model.cfg, texts=2), run="second", runs_dir=tmp_path
            )


def test_the_report_shows_every_part(found, tmp_path):
    written = page.write(pages.report(found.results), tmp_path)
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert figures == {"single-layers", "single-agreement", "methods", "cosine", "influence", "depth"}
    assert "Skipping one layer does most harm" in written.read_text()
    json.dumps(found.results, allow_nan=False)


def test_layers_that_cannot_run_side_by_side_are_left_out_of_the_methods(tmp_path):
    with sonde.load("tiny-gemma") as model:
        chosen = settings.settings_of(model.cfg, texts=2, tokens=8, orders=1, words=1)
        found = experiments.run(study.Layers(model), chosen, runs_dir=tmp_path)
    (window,) = found.results["windows"]["windows"]
    assert window["parallel"] is None
    assert window["skip"] is not None
    assert "parallel" not in found.results["verdict"]["window"]["kl"]
    assert pages.report(found.results).summary


@pytest.mark.parametrize(
    ("chosen", "told"),
    [({"texts": 1}, "texts must be 2 or more, got 1"), ({"tokens": 2}, "tokens must be 8 or more"), ({"sizes": (5,)}, "allows up to 4"), ({"sizes": (1,)}, "a window has two layers")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(loaded, chosen, told):
    with pytest.raises(errors.RequestError, match=told):
        settings.settings_of(loaded.cfg, **chosen)
