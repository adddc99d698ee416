"""Waves on a Ray cluster of two nodes give what they give in process."""

import pytest
import torch

import sonde
from sonde import experiments, testing
from sonde.agents import playing, presets
from sonde.core import errors
from sonde.studies.twenty_questions import settings, study

ray = pytest.importorskip("ray", reason='needs the extra: pip install "sonde[ray]"')

OPTIONS = {"episodes": 6, "wave": 3, "seed": 2, "capture": "blocks.*.hook_resid_post", "max_steps": 3}


@pytest.fixture(scope="module")
def cluster():
    from ray import cluster_utils

    found = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    found.add_node(num_cpus=1)
    ray.init(address=found.address, log_to_driver=False)
    yield found
    ray.shutdown()
    found.shutdown()


def contents(played):
    return {
        str(path.relative_to(played.run.episodes_dir)): path.read_bytes()
        for path in sorted(played.run.episodes_dir.rglob("*"))
        if path.is_file() and path.suffix != ".json"
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_two_node_cluster_gives_the_same_bytes_as_one_process(cluster, tmp_path):
    told = []
    with experiments.pinned(1):
        here = playing.play("20q:0:6", "tiny-llama", runs_dir=tmp_path / "here", run="it", **OPTIONS)
        there = playing.play(
            "20q:0:6",
            "tiny-llama",
            runs_dir=tmp_path / "there",
            run="it",
            engine="ray",
            on_progress=told.append,
            **OPTIONS,
        )
    assert len(ray.nodes()) == 2
    assert contents(there) == contents(here)
    assert len(contents(here)) >= 12
    assert there.rewards == here.rewards
    assert there.progress.counts == here.progress.counts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_the_study_of_twenty_questions_collects_the_same_on_a_cluster(cluster, tmp_path):
    with sonde.load("tiny-llama") as model, experiments.pinned(1):
        chosen = settings.settings_of(model, episodes=5, steps=2, layers=(1,), wave=3)
        folders = [
            experiments.run(
                study.TwentyQuestions(model), chosen, stages=["collect"], runs_dir=tmp_path / engine, engine=engine
            ).folder
            for engine in ("local", "ray")
        ]
    for name in ("stages/collect.json", "rows.json", "features.safetensors"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def saved(model, folder):
    model.hf.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_workers_play_a_bfloat16_model_and_a_relative_folder_as_they_are_held_here(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with sonde.load("tiny-gpt2") as model:
        model.hf.transformer.ln_f.weight.data *= 1.5
        saved(model, "mine")
    with sonde.load("mine", dtype="bfloat16", max_batch=2) as model, experiments.pinned(1):
        here = playing.play("20q:0:6", model, runs_dir=tmp_path / "here", run="it", **OPTIONS)
        there = playing.play("20q:0:6", model, runs_dir=tmp_path / "there", run="it", engine="ray", **OPTIONS)
    assert contents(there) == contents(here)
    assert there[0].trajectory.get_activation(0, "blocks.1.hook_resid_post").dtype == torch.bfloat16
    assert there.run.manifest["model"] == here.run.manifest["model"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_an_edited_model_and_what_only_this_process_knows_are_refused_by_workers_before_anything_is_written(
    cluster, tmp_path
):
    def refused(model, env="20q", **options):
        with experiments.pinned(1), pytest.raises(errors.SondeError) as found:
            playing.play(env, model, runs_dir=tmp_path / "runs", engine="ray", **options)
        assert not (tmp_path / "runs").exists()
        return f"{type(found.value).__name__}: {found.value}"

    with sonde.load("tiny-llama") as model:
        sonde.register_preset("known-here", testing.ScriptedEnvironment)
        try:
            told = refused(model, "known-here")
        finally:
            presets._presets.pop("known-here")
        assert told.startswith("SelectorError: a worker cannot make the environment 'known-here'")
        model.hf.lm_head.weight.data[0, 0] += 1
        assert "its weights are others" in refused(model)
    with sonde.load("tiny-llama") as model:
        model.tokenizer.chat_template += " "
        assert "its tokenizer or chat template is another" in refused(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_folder_that_is_changed_between_start_and_resume_is_refused(cluster, tmp_path):
    with sonde.load("tiny-llama") as model:
        saved(model, tmp_path / "mine")

    def stop(told):
        raise KeyboardInterrupt

    options = {**OPTIONS, "runs_dir": tmp_path / "runs", "run": "it"}
    with experiments.pinned(1):
        with sonde.load(tmp_path / "mine") as model, pytest.raises(KeyboardInterrupt):
            playing.play("20q:0:6", model, on_progress=stop, **options)
        with sonde.load("tiny-llama") as model:
            model.hf.model.norm.weight.data[0] += 1
            saved(model, tmp_path / "mine")
        with pytest.raises(errors.ModelError, match="not the model that was recorded: its weights are others"):
            playing.resume(tmp_path / "runs" / "it", engine="ray")
        with sonde.load("tiny-llama") as model:
            saved(model, tmp_path / "mine")
        assert playing.resume(tmp_path / "runs" / "it", engine="ray").run.status == "finished"


@pytest.mark.slow
def test_what_cannot_travel_is_refused(cluster, tmp_path):
    with pytest.raises(errors.OpaqueError, match="given as a function"):
        playing.play(testing.ScriptedEnvironment, "tiny-llama", runs_dir=tmp_path, engine="ray")
