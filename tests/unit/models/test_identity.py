"""Telling models apart: what a record says, and loading the recorded model again."""

import functools
import hashlib
import json

import pytest
import torch
from safetensors import torch as safetensors

import sonde
from sonde.core import errors
from sonde.models import adapters, identity, loading, tiny


@pytest.fixture
def model():
    with loading.load("tiny-llama") as loaded:
        yield loaded


@pytest.fixture
def folder(tmp_path):
    network, tokenizer = tiny.make("tiny-llama")
    network.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_record_names_what_was_loaded_and_is_plain_data(model):
    held = identity.of(model)
    assert json.loads(json.dumps(held)) == held
    told = {key: held[key] for key in ("name", "source", "dtype", "device", "options")}
    options = {"kv_budget": 4 << 30, "max_batch": 32}
    assert told == {
        "name": "tiny-llama",
        "source": "tiny-llama",
        "dtype": "float32",
        "device": "cpu",
        "options": options,
    }
    assert all(len(held[key]) == 64 for key in ("weights", "network", "tokenizer"))


def test_the_digest_of_the_weights_is_that_of_the_names_types_shapes_and_bytes(model):
    told = hashlib.sha256()
    for name, tensor in sorted([*model.hf.named_parameters(), *model.hf.named_buffers()]):
        content = hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()
        told.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {content}\n".encode())
    assert identity.of(model)["weights"] == told.hexdigest()


def test_the_same_model_loaded_twice_has_one_record_whatever_was_done_with_it(model):
    with loading.load("tiny-llama") as other:
        other.generate("hello", max_new_tokens=3, interventions=[sonde.Zero(site="blocks.0.hook_mlp_out")])
        other.run_with_cache("hello")
        other.tokenizer(["a", "long"], padding=True, truncation=True, max_length=9)
        assert identity.of(other) == identity.of(model)
        with other.packed(), sonde.ActivationCapture(other, "hook_embed"):
            assert identity.of(other) == identity.of(model)


def hooked(model):
    model.hf.model.layers[1].register_forward_hook(lambda module, args, output: output)


def replaced(model):
    model.hf.model.layers[0].mlp.act_fn = torch.nn.ReLU()


def by_hand(model):
    model.hf.model.layers[0].mlp.forward = lambda hidden: hidden


def trains(model):
    model.hf.train()


def one_bit(model):
    model.hf.model.norm.weight.data.view(torch.int32)[3] ^= 1  # leaves no trace in the tensor's version


def a_buffer(model):
    model.hf.model.rotary_emb.inv_freq *= 1.5


def eager(model):
    model.hf.set_attn_implementation("eager")


def epsilon(model):
    model.hf.config.rms_norm_eps = 1e-3


def scaling(model):
    model.hf.model.layers[0].self_attn.scaling = 0.01


def epsilon_of_a_norm(model):
    model.hf.model.norm.variance_epsilon = 0.5


def scale_of_rotations(model):
    model.hf.model.rotary_emb.attention_scaling = 3.0


def function_of_a_module(model):
    mlp = model.hf.model.layers[0].mlp
    del mlp.act_fn
    mlp.act_fn = functools.partial(torch.nn.functional.leaky_relu, negative_slope=0.5)


def ends(model):
    model.hf.generation_config.eos_token_id = 7


def template(model):
    model.tokenizer.chat_template = "{{ messages }}"


def token(model):
    model.tokenizer.add_tokens(["<new>"])


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (one_bit, "weights"),
        (a_buffer, "weights"),
        (hooked, "network"),
        (replaced, "network"),
        (by_hand, "network"),
        (trains, "network"),
        (eager, "network"),
        (epsilon, "network"),
        (scaling, "network"),
        (epsilon_of_a_norm, "network"),
        (scale_of_rotations, "network"),
        (function_of_a_module, "network"),
        (ends, "network"),
        (template, "tokenizer"),
        (token, "tokenizer"),
        (lambda model: model.hf.to(torch.bfloat16), "dtype weights"),
        (lambda model: setattr(model.pool, "budget", 5), "options"),
    ],
)
def test_whatever_changes_the_answers_changes_the_record_and_is_named(model, change, keys):
    before = identity.of(model)
    change(model)
    after = identity.of(model)
    assert [name for name in before if before[name] != after[name]] == keys.split()
    assert len(identity.differences(before, after)) == len(keys.split())
    with pytest.raises(errors.RequestError, match=r"'tiny-llama' is not the model that run x has: its "):
        identity.check(before, after, what="run x")


@pytest.mark.parametrize("change", [scaling, epsilon_of_a_norm, scale_of_rotations, function_of_a_module])
def test_these_settings_of_modules_do_change_the_answers(model, change):
    before = model("hello")
    change(model)
    assert not torch.equal(model("hello"), before)


def test_a_function_that_differs_in_one_setting_is_another(model):
    records = []
    for slope in (0.5, 0.25):
        function_of_a_module(model)
        model.hf.model.layers[0].mlp.act_fn = functools.partial(torch.nn.functional.leaky_relu, negative_slope=slope)
        records.append(identity.of(model)["network"])
    assert records[0] != records[1]


def test_a_forward_method_that_a_whole_class_was_given_is_found(model, monkeypatch):
    before = identity.of(model)
    monkeypatch.setattr(type(model.hf.model.norm), "forward", lambda self, hidden: hidden)
    assert identity.differences(before, identity.of(model)) == ["its config, modules or hooks are others"]


def test_an_edit_that_is_undone_leaves_the_same_record(model):
    before = identity.of(model)
    weight = model.hf.lm_head.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
        assert identity.of(model)["weights"] != before["weights"]
        weight.copy_(kept)
    assert identity.of(model) == before


def test_tied_weights_and_memory_layout_make_no_difference(model):
    before = identity.of(model)["weights"]
    weight = model.hf.lm_head.weight
    weight.data = weight.data.T.contiguous().T
    assert not weight.is_contiguous()
    assert identity.of(model)["weights"] == before
    model.hf.lm_head.weight = model.hf.model.embed_tokens.weight
    tied = identity.of(model)["weights"]
    model.hf.lm_head.weight = torch.nn.Parameter(model.hf.model.embed_tokens.weight.detach().clone())
    assert identity.of(model)["weights"] == tied != before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_recorded_model_is_loaded_again_as_it_was(dtype):
    with loading.load("tiny-llama", dtype=dtype, kv_budget=1 << 20, max_batch=3) as model:
        held = identity.of(model)
    with identity.rebuilt(held) as again:
        assert again.hf.dtype == getattr(torch, dtype)
        assert identity.of(again) == held


def test_a_folder_given_relatively_is_found_from_elsewhere_under_the_name_it_was_given(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with loading.load("model") as model:
        held = identity.of(model)
    monkeypatch.chdir("/")
    with identity.rebuilt(held) as again:
        assert again.cfg.model_name == "model"
        assert again.source == str(folder)


def test_a_folder_that_holds_another_model_by_now_is_refused(folder):
    with loading.load(folder) as model:
        held = identity.of(model)
    file = folder / "model.safetensors"
    weights = safetensors.load_file(file)
    weights["model.norm.weight"][0] += 1e-3
    safetensors.save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(errors.ModelError, match=r"not the model that was recorded: its weights are others \(digest"):
        identity.rebuilt(held)


def test_a_folder_whose_config_says_something_else_by_now_is_refused(folder):
    with loading.load(folder) as model:
        held = identity.of(model)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rms_norm_eps": 0.01}))
    with pytest.raises(errors.ModelError, match="its config, modules or hooks are others"):
        identity.rebuilt(held)


def test_a_model_made_from_an_object_cannot_be_loaded_again_even_under_a_known_name(model):
    network, tokenizer = tiny.make("tiny-llama")
    named = sonde.Model(network, tokenizer, name="tiny-llama")
    adopted = adapters.as_model(tiny.make("tiny-llama")[0], tokenizer=tokenizer)
    for one in (named, adopted):
        assert identity.of(one)["source"] is None
        with pytest.raises(errors.ModelError, match="was made from an object"):
            identity.rebuilt(identity.of(one))
    assert identity.differences(identity.of(named), identity.of(model)) == []


def test_a_record_of_an_earlier_version_is_taken_at_its_word(model):
    with identity.rebuilt({"name": "tiny-llama"}) as again:
        assert again.hf.dtype == torch.float32
    assert identity.differences({"name": "tiny-llama"}, identity.of(model)) == []


def test_a_tokenizer_that_cannot_be_described_has_no_digest(model):
    model.tokenizer = object()
    assert identity.of(model)["tokenizer"] is None


def test_a_closed_model_has_no_record():
    model = loading.load("tiny-llama")
    model.close()
    with pytest.raises(errors.ModelError, match="closed"):
        identity.of(model)
