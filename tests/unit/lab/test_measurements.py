"""Measurements that are kept: each task an item, resumed, verified, and refused where tasks or settings are others."""

import dataclasses
import shlex

import pytest

from sonde import experiments
from sonde.core import errors
from sonde.lab import corruptions, measurements, measuring, measuring_texts, tasks, texts


@pytest.fixture(scope="module")
def asked():
    return [dataclasses.replace(tasks.load()[name], examples=tasks.load()[name].examples[:4]) for name in ("capitals", "plurals")]  # fmt: skip


@pytest.fixture(scope="module")
def found(llama, asked, tmp_path_factory):
    chosen = measurements.settings_of(llama, "skip:1", asked, controls=1, examples=3)
    runs = tmp_path_factory.mktemp("runs")
    return experiments.run(measurements.Measure(llama, asked), chosen, run="it", runs_dir=runs), chosen


def test_a_run_has_what_measuring_gives_for_each_task(found, llama, asked):
    skip = corruptions.parse("skip:1", 4)
    direct = [measuring.measure_with_controls(llama, skip, one, examples=range(3), count=1).to_json() for one in asked]
    for one, other in zip(found[0].results["results"], direct, strict=True):
        assert (one["task"], one["flags"]) == (other["task"], other["flags"])
        assert [row["completion"] for row in one["rows"]] == [row["completion"] for row in other["rows"]]
        values, others = ([row["value"]["value"] for row in made["measures"]] for made in (one, other))
        assert values == pytest.approx(others, abs=1e-4)


def test_plain_texts_are_one_item(llama, tmp_path):
    chosen = measurements.settings_of(llama, "skip:1", tokens=8, controls=1, seed=2)
    made = experiments.run(measurements.Measure(llama), chosen, runs_dir=tmp_path)
    skip = corruptions.parse("skip:1", 4)
    direct = measuring_texts.measure_texts(llama, skip, texts.load(), tokens=8, controls=1, seed=2).to_json()
    (one,) = made.results["results"]
    assert [row["spec"] for row in one["measures"]] == [row["spec"] for row in direct["measures"]]
    assert [row["value"]["value"] for row in one["measures"]] == pytest.approx(
        [row["value"]["value"] for row in direct["measures"]], abs=1e-4
    )
    assert made.html is not None


def test_a_stopped_run_measures_only_the_task_that_is_missing(found, llama, asked, monkeypatch):
    before, chosen = found
    stages, measured = before.folder / "stages", []
    (stages / "results.json").unlink()
    (stages / "results" / "00001.json").unlink()
    whole = measuring.measure_with_controls
    monkeypatch.setattr(measuring, "measure_with_controls", lambda *all, **more: measured.append(all[2].name) or whole(*all, **more))  # fmt: skip
    again = experiments.run(measurements.Measure(llama, asked), chosen, run="it", runs_dir=before.folder.parent)
    assert measured == ["plurals"]
    assert {**again.results, "timing": 0} == {**before.results, "timing": 0}
    assert again.run.verify() == []


def test_other_tasks_of_the_same_names_are_not_taken_for_the_same(found, llama, asked):
    before, chosen = found
    others = [dataclasses.replace(one, examples=one.examples[::-1]) for one in asked]
    with pytest.raises(errors.RequestError, match="the settings are for the digest"):
        experiments.run(measurements.Measure(llama, others), chosen, run="it", runs_dir=before.folder.parent)
    changed = measurements.settings_of(llama, "skip:1", others, controls=1, examples=3)
    with pytest.raises(errors.RequestError, match="digest was"):
        experiments.run(measurements.Measure(llama, others), changed, run="it", runs_dir=before.folder.parent)


@pytest.mark.parametrize(
    ("chosen", "told"),
    [({"tokens": 8}, "tasks are measured whole"), ({"examples": 0}, "examples must be 1 or more, got 0"), ({"controls": -1}, "controls must be 0 or more")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(llama, asked, chosen, told):
    with pytest.raises(errors.RequestError, match=told):
        measurements.settings_of(llama, "skip:1", asked, **chosen)


def test_a_layer_that_is_not_there_is_refused_before_a_run_is_made(llama, tmp_path):
    with pytest.raises(errors.InterventionError, match="no layer 7"):
        experiments.run(measurements.Measure(llama), measurements.settings_of(llama, "skip:7"), runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_on_the_page_asks_for_the_same(found, llama, asked):
    words = shlex.split(measurements.Measure(llama, asked).command(found[1]))
    assert words == ["sonde", "lab", "measure", "skip:1", "--task", "capitals", "--task", "plurals", "--model", "tiny-llama",
                     "--examples", "3", "--controls", "1"]  # fmt: skip
