"""What a worker process makes of a model that another process holds; the cluster itself is in tests/e2e/test_ray.py."""

import json
import os
import subprocess
import sys

import pytest
import torch
import transformers

import sonde
from sonde import testing
from sonde.agents import cluster, playing
from sonde.core import errors
from sonde.models import families, identity, tiny

#: Reads records, one per line, and says of each what a worker makes of it.
WORKER = """
import json, sys
from sonde.agents import cluster
from sonde.core import errors
for line in sys.stdin:
    try:
        model = cluster._model(json.dumps(json.loads(line)))
        print("plays", model.cfg.model_name, model.hf.dtype, flush=True)
    except errors.SondeError as error:
        print(type(error).__name__, str(error).replace("\\n", " "), flush=True)
"""
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def saved(folder, name="tiny-llama"):
    network, tokenizer = tiny.make(name)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def worker():
    """A process of its own, in another folder, that answers what it would play."""
    with subprocess.Popen([sys.executable, "-c", WORKER], cwd="/", text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdin is not None

        def ask(model):
            process.stdin.write(json.dumps(identity.of(model)) + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield ask
        process.stdin.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_process_plays_the_model_as_it_is_held_here(worker, dtype):
    with sonde.load("tiny-gpt2", dtype=dtype) as model:
        assert worker(model) == f"plays tiny-gpt2 torch.{dtype}"


def test_another_process_finds_a_folder_that_was_named_relatively(worker, tmp_path, monkeypatch):
    saved(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    with sonde.load("mine") as model:
        assert worker(model) == "plays mine torch.float32"


def edited(model):
    model.hf.model.norm.weight.data[0] += 1


def templated(model):
    model.tokenizer.chat_template += " "


def hooked(model):
    model.hf.model.layers[0].register_forward_hook(lambda module, args, output: None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (edited, "its weights are others"),
        (templated, "chat template is another"),
        (hooked, "its config, modules or hooks"),
    ],
)
def test_another_process_refuses_a_model_that_it_cannot_rebuild_and_says_why(worker, change, told):
    with sonde.load("tiny-llama") as model:
        change(model)
        answer = worker(model)
    assert answer.startswith("ModelError a worker cannot play the model that is held here: ")
    assert told in answer


def test_a_model_made_under_another_default_type_is_refused(worker):
    torch.set_default_dtype(torch.float64)  # random weights are drawn in it
    try:
        model = sonde.load("tiny-llama")
    finally:
        torch.set_default_dtype(torch.float32)
    with model:
        assert "its weights are others" in worker(model)


def test_a_family_that_was_registered_here_is_refused_by_name(worker, tmp_path, monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", families.FAMILIES)
    llama, tokenizer = tiny.make("tiny-llama")
    sizes = {name: getattr(llama.config, name) for name in SIZES}
    transformers.OlmoForCausalLM(transformers.OlmoConfig(**sizes)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(errors.FamilyError):
        sonde.load(tmp_path)
    families.register(families.Family(name="olmo", model_types=("olmo",)))
    with sonde.load(tmp_path) as model:
        assert "no family row for model type 'olmo'" in worker(model)


async def refused(model, tmp_path, env="20q", **options):
    """What `play` says on this side; Ray is not reached."""
    with pytest.raises(errors.SondeError) as found:
        await playing.play_async(env, model, engine="ray", runs_dir=tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()
    return found.value


async def test_what_cannot_travel_is_refused_by_name_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_remote", lambda *_: pytest.fail("Ray was asked"))
    network, tokenizer = tiny.make("tiny-llama")
    model = sonde.Model(network, tokenizer, name="tiny-llama")  # the name alone would be another object on a worker
    with sonde.load("tiny-llama") as good:
        assert "made from an object" in str(await refused(model, tmp_path))
        assert "given as a function" in str(await refused(good, tmp_path, testing.ScriptedEnvironment))
        with sonde.InterventionManager(good):
            assert "in force here" in str(await refused(good, tmp_path))
