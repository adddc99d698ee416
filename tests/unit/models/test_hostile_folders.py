"""Model folders made by an attacker: nothing of theirs runs, nothing outside is read, no weight is made up.

Every folder is a working model with one thing wrong. `HOSTILE` must be refused; of `HARMLESS` the right model is loaded, as
transformers has it when nothing is wrong, and what was put in is ignored.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
import safetensors.torch
import torch
import transformers

from sonde.core import errors
from sonde.models import adapters, chat, generation, loading, tiny

MARK = "ran"
CODE = "import os, pathlib\npathlib.Path(os.environ['SONDE_TEST_MARK']).write_text('ran')\n"
CLASSES = (
    "import transformers\nclass Config(transformers.LlamaConfig):\n    pass\n"
    "class Model(transformers.LlamaForCausalLM):\n    config_class = Config\n"
    "class Tokenizer(transformers.PreTrainedTokenizerFast):\n    pass\n"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small honest model folder."""
    folder = tmp_path_factory.mktemp("honest")
    network, tokenizer = tiny.make("tiny-llama")
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, network.eval()


@pytest.fixture
def folder(saved, tmp_path, monkeypatch):
    """A copy of it to spoil; what reaches the network or leaves a mark is told."""
    made = tmp_path / "model"
    made.mkdir()
    for path in saved[0].iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    (made / "evil.py").write_text(CODE + CLASSES)
    monkeypatch.setenv("SONDE_TEST_MARK", str(tmp_path / MARK))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was asked"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))
    return made


def change(folder, name="config.json", /, **fields):
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **fields}))


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def rewrite(folder, tensors, name="model.safetensors"):
    safetensors.torch.save_file(tensors, folder / name, metadata={"format": "pt"})


def shard(folder, name, place=None):
    """The same weights as one shard under an index that gives its name."""
    tensors = weights(folder)
    (folder / "model.safetensors").rename(place or folder / "one.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(tensors, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


class Pickled:
    def __reduce__(self):
        return exec, (CODE,)


def pickled_to(path):
    torch.save({"x": Pickled()}, path)  # noqa: TID251 (made to be refused)


def unknown_type_with_code(folder):
    change(folder, model_type="evil", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})


def code_of_another_repository(folder):
    change(folder, model_type="evil", auto_map={"AutoConfig": "someone/else--evil.Config"})


def pickled_weights(folder):
    (folder / "model.safetensors").unlink()
    pickled_to(folder / "pytorch_model.bin")


def pickled_shards(folder):
    (folder / "model.safetensors").unlink()
    pickled_to(folder / "one.bin")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "one.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def pickle_named_by_the_index(folder):
    pickled_to(folder / "one.bin")
    shard(folder, "one.bin")


def adapter_that_points_elsewhere(folder):
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/else"}))


def shard_above(folder):
    shard(folder, "../one.safetensors", folder.parent / "one.safetensors")


def shard_by_absolute_path(folder):
    place = folder.parent / "one.safetensors"
    shard(folder, str(place), place)


def shard_through_a_link(folder):
    shard(folder, "one.safetensors", folder.parent / "one.safetensors")
    (folder / "one.safetensors").symlink_to(folder.parent / "one.safetensors")


def linked_weights(folder):
    (folder / "model.safetensors").rename(folder.parent / "one.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "one.safetensors")


def linked_tokenizer(folder):
    (folder / "tokenizer.json").rename(folder.parent / "tokenizer.json")
    (folder / "tokenizer.json").symlink_to(folder.parent / "tokenizer.json")


def weights_named_by_the_config(folder):
    change(folder, transformers_weights="../model.safetensors")


def shard_that_is_not_there(folder):
    shard(folder, "two.safetensors")


def tensor_in_two_shards(folder):
    tensors = weights(folder)
    shard(folder, "one.safetensors")
    rewrite(folder, tensors, "two.safetensors")
    index = {key: ("one" if i % 2 else "two") + ".safetensors" for i, key in enumerate(tensors)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def fifty_layers_over_four(folder):
    change(folder, num_hidden_layers=50)


def two_layers_of_four(folder):
    change(folder, num_hidden_layers=2)


def a_weight_less(folder):
    tensors = weights(folder)
    del tensors["model.layers.2.mlp.up_proj.weight"]
    rewrite(folder, tensors)


def a_weight_more(folder):
    rewrite(folder, {**weights(folder), "model.layers.9.mlp.up_proj.weight": torch.ones(2)})


def a_weight_less_and_a_large_one_more(folder):
    a_weight_less(folder)
    rewrite(folder, {**weights(folder), "more": torch.ones(10_000)})


def a_weight_of_another_shape(folder):
    rewrite(folder, {**weights(folder), "model.layers.2.mlp.up_proj.weight": torch.ones(32, 64)})


def whole_numbers_for_weights(folder):
    rewrite(folder, {key: tensor.to(torch.int8) for key, tensor in weights(folder).items()})


def whole_numbers_left_over(folder):
    more = {"model.layers.1.mlp.up_proj.qweight": torch.ones(4, dtype=torch.int32)}
    rewrite(folder, {**weights(folder), **more, "x.scale": torch.ones(4).to(torch.float8_e4m3fn)})


def weight_under_two_names(folder):
    tensors = weights(folder)
    rewrite(folder, {**tensors, "layers.1.mlp.up_proj.weight": -tensors["model.layers.1.mlp.up_proj.weight"]})


def weight_under_a_name_that_is_cut(folder):
    tensors = weights(folder)
    rewrite(folder, {**tensors, "model_lm_head.weight": -tensors["lm_head.weight"]})


def weights_that_are_no_numbers(folder):
    rewrite(folder, {**weights(folder), "model.norm.weight": torch.full((32,), float("nan"))})


def head_left_out_but_untied(folder):
    tensors = weights(folder)
    del tensors["lm_head.weight"]
    rewrite(folder, tensors)


def tied_with_two_heads(folder):
    change(folder, tie_word_embeddings=True)


def no_heads(folder):
    change(folder, num_attention_heads=0)


def heads_below_zero(folder):
    change(folder, num_key_value_heads=-4)


def size_that_is_no_number(folder):
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": NaN}')


def size_beyond_every_memory(folder):
    change(folder, vocab_size=10**12, hidden_size=10**9)


def size_that_overflows(folder):
    change(folder, vocab_size=2**31 - 1, hidden_size=2**31 - 1, head_dim=2**31 - 1)


def size_as_text(folder):
    change(folder, hidden_size="32")


def layers_without_end(folder):
    change(folder, num_hidden_layers=10**9)


def foreign_quantisation(folder):
    change(folder, quantization_config={"quant_method": "evil", "modules_to_not_convert": ["evil"]})


def known_quantisation(folder):
    change(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [8, 8]})


def fused_modules(folder):
    change(folder, fusion_config={"patch_embeddings": True})


def layers_of_different_makes(folder):
    change(folder, per_layer_config={"1": {"num_key_value_heads": 4}})


def config_without_end(folder):
    (folder / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def config_that_waits(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def weights_from_a_device(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


def header_without_end(folder):
    (folder / "model.safetensors").write_bytes((2**63).to_bytes(8, "little") + b"{}")


def tokenizer_class_that_loads_models(folder):
    change(folder, "tokenizer_config.json", tokenizer_class="AutoModelForCausalLM")


def tokenizer_that_multiplies(folder):
    again = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    change(folder, "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [again] * 20})


def token_numbers_without_end(folder):
    token = {
        "content": "<x>",
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": True,
    }
    change(folder, "tokenizer_config.json", added_tokens_decoder={str(10**12): token})


def end_that_is_no_token(folder):
    change(folder, "generation_config.json", eos_token_id="evil")


HOSTILE = {
    unknown_type_with_code: "a folder's own code is never run",
    code_of_another_repository: "a folder's own code is never run",
    pickled_weights: r"pytorch_model\.bin, which can run code",
    pickled_shards: r"one\.bin, which can run code",
    pickle_named_by_the_index: r"'one\.bin', which is no safetensors file",
    adapter_that_points_elsewhere: r"no config\.json",
    shard_above: "no safetensors file in its folder",
    shard_by_absolute_path: "no safetensors file in its folder",
    shard_through_a_link: "leads out of its folder",
    linked_weights: "leads out of its folder",
    linked_tokenizer: "leads out of its folder",
    weights_named_by_the_config: "transformers_weights",
    shard_that_is_not_there: r"two\.safetensors, which is not in",
    tensor_in_two_shards: "is in two files",
    fifty_layers_over_four: r"missing: model\.layers\.4\.self_attn\.q_proj\.weight.* more",
    two_layers_of_four: r"unexpected: model\.layers\.2\.input_layernorm\.weight.* more",
    a_weight_less: r"missing: model\.layers\.2\.mlp\.up_proj\.weight$",
    a_weight_more: r"unexpected: model\.layers\.9\.mlp\.up_proj\.weight$",
    a_weight_less_and_a_large_one_more: r"missing: model\.layers\.2\.mlp\.up_proj\.weight; unexpected: more$",
    a_weight_of_another_shape: r"of another shape: .*model\.layers\.2\.mlp\.up_proj\.weight",
    whole_numbers_for_weights: r"no weights, or quantised ones: lm_head\.weight \(I8\), .* more",
    whole_numbers_left_over: r"model\.layers\.1\.mlp\.up_proj\.qweight \(I32\), x\.scale \(F8_E4M3\);",
    weight_under_two_names: r"layers\.1\.mlp\.up_proj\.weight and model\.layers\.1\.mlp\.up_proj\.weight are one weight",
    weight_under_a_name_that_is_cut: r"lm_head\.weight and model_lm_head\.weight are one weight",
    weights_that_are_no_numbers: "its logits are not finite",
    head_left_out_but_untied: r"missing: lm_head\.weight$",
    tied_with_two_heads: "tie_word_embeddings",
    no_heads: "num_attention_heads .* from 1 to .* got 0",
    heads_below_zero: "num_key_value_heads .* got -4",
    size_that_is_no_number: "NaN is no number",
    size_beyond_every_memory: "hidden_size .* got 1000000000|vocab_size .* got 1000000000000",
    size_that_overflows: "cannot read the checkpoint",
    size_as_text: "hidden_size .* got '32'",
    layers_without_end: "num_hidden_layers .* from 1 to 1,000",
    foreign_quantisation: "quantization_config",
    known_quantisation: "quantization_config",
    fused_modules: "fusion_config",
    layers_of_different_makes: "per_layer_config",
    config_without_end: r"config\.json is no JSON: RecursionError",
    config_that_waits: "is no regular file",
    weights_from_a_device: "leads out of its folder",
    header_without_end: "its header says it has 9,223,372,036,854,775,808 bytes",
    tokenizer_class_that_loads_models: "'AutoModelForCausalLM', which is none",
    tokenizer_that_multiplies: "would make texts .* times longer",
    token_numbers_without_end: "a token of number '1000000000000'",
    end_that_is_no_token: "must be a token's number",
}


def code_for_a_known_type(folder):
    change(folder, auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})


def code_in_the_tokenizer(folder):
    change(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]})


def code_in_the_tokenizer_of_an_unknown_class(folder):
    code_in_the_tokenizer(folder)
    change(folder, "tokenizer_config.json", tokenizer_class="EvilTokenizer")


def code_for_generation(folder):
    change(folder, "generation_config.json", auto_map={"GenerationConfig": "evil.Config"}, custom_generate="evil")
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE + "def generate(model, **_):\n    pass\n")


def code_in_processors(folder):
    for name in ("processor_config", "preprocessor_config", "feature_extractor_config", "video_preprocessor_config"):
        change(folder, f"{name}.json", auto_map={"AutoProcessor": "evil.Config", "AutoImageProcessor": "evil.Config"})


def kernels_of_a_hub(folder):
    change(
        folder,
        use_kernels=True,
        kernel_config={"RMSNorm": "someone/else:RMSNorm"},
        attn_implementation="someone/else",
        _attn_implementation="someone/else",
        _attn_implementation_internal="kernels-community/flash-attn",
        experts_implementation="someone/else",
    )


def pickles_beside_the_weights(folder):
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "added_tokens.pkl"):
        pickled_to(folder / name)


def adapter_beside_the_weights(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/else"}))


def other_tokenizer(folder):
    """A tokenizer outside the folder that gives every byte another number."""
    content = json.loads((folder / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    content["model"]["vocab"] = dict(zip(words, reversed(words.values()), strict=True))
    place = folder.parent / "tokenizer.json"
    place.write_text(json.dumps(content))
    return str(place)


def files_named_by_the_special_tokens(folder):
    change(folder, "special_tokens_map.json", tokenizer_file=other_tokenizer(folder), truncation_side="evil")


def files_named_by_the_special_tokens_of_a_slow_class(folder):
    change(folder, "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    change(folder, "special_tokens_map.json", tokenizer_file=other_tokenizer(folder))


def settings_that_replace_the_configuration(folder):
    content = json.loads((folder / "config.json").read_text())
    inside = {key: value for key, value in vars(transformers.LlamaConfig(**content)).items() if key != "dtype"}
    change(folder, __dict__={**inside, "dtype": None, "_attn_implementation_internal": "someone/else"})


def settings_that_replace_what_configurations_do(folder):
    change(
        folder,
        attribute_map={"num_hidden_layers": "num_attention_heads"},
        sub_configs={"text_config": "evil"},
        get_text_config="evil",
        to_diff_dict="evil",
        to_dict="evil",
        validate_rope="evil",
        _name_or_path="someone/else",
        _auto_class="AutoConfig",
    )


def files_named_by_the_tokenizer(folder):
    secret = other_tokenizer(folder)
    change(
        folder,
        "tokenizer_config.json",
        tokenizer_file=secret,
        vocab_file=secret,
        fast_tokenizer_files=["../tokenizer.json", "tokenizer.5.json"],
        tokenizer_object="evil",
        init_inputs=["evil"],
    )


def results_of_another_shape(folder):
    change(folder, return_dict=False, output_attentions=True, output_hidden_states=True, num_labels=10**12)


HARMLESS = (
    code_for_a_known_type,
    code_in_the_tokenizer,
    code_in_the_tokenizer_of_an_unknown_class,
    code_for_generation,
    code_in_processors,
    kernels_of_a_hub,
    pickles_beside_the_weights,
    adapter_beside_the_weights,
    files_named_by_the_tokenizer,
    files_named_by_the_special_tokens,
    files_named_by_the_special_tokens_of_a_slow_class,
    settings_that_replace_the_configuration,
    settings_that_replace_what_configurations_do,
    results_of_another_shape,
)
TOKENS = torch.arange(12)[None]

# What plain transformers makes of folders that it is told to trust.
TRUSTING = """
import json, os, sys, torch, transformers
for folder in sys.argv[1:]:
    os.environ["SONDE_TEST_MARK"] = folder + ".ran"
    found = {}
    for part in ("ModelForCausalLM", "Tokenizer", "Processor"):
        try:
            found[part] = getattr(transformers, "Auto" + part).from_pretrained(folder, trust_remote_code=True)
        except Exception:
            found[part] = None
    network, tokenizer = found["ModelForCausalLM"], found["Tokenizer"]
    with torch.no_grad():
        told = [
            os.path.exists(folder + ".ran"),
            network and network.eval()(torch.arange(12)[None]).logits.tolist(),
            tokenizer and tokenizer.encode("hello"),
        ]
    print(json.dumps(told))
"""
RUNS = (
    unknown_type_with_code,
    code_for_a_known_type,
    code_in_the_tokenizer,
    code_in_the_tokenizer_of_an_unknown_class,
    code_in_processors,
    code_for_generation,
)
GIVES_ANOTHER_MODEL = (
    fifty_layers_over_four,
    two_layers_of_four,
    a_weight_less,
    a_weight_less_and_a_large_one_more,
    whole_numbers_for_weights,
    weight_under_two_names,
    head_left_out_but_untied,
    files_named_by_the_special_tokens,
    files_named_by_the_special_tokens_of_a_slow_class,
)
READS_WHAT_LIES_OUTSIDE = (
    shard_above,
    shard_by_absolute_path,
    shard_through_a_link,
    linked_weights,
    linked_tokenizer,
)


@pytest.mark.parametrize("spoil", HOSTILE, ids=lambda spoil: spoil.__name__)
def test_a_hostile_folder_is_refused_by_what_is_wrong_with_it(spoil, folder):
    spoil(folder)
    with pytest.raises(errors.ModelError, match=HOSTILE[spoil]):
        loading.load(folder)
    assert not (folder.parent / MARK).exists()


@pytest.mark.parametrize("spoil", HARMLESS, ids=lambda spoil: spoil.__name__)
def test_of_a_folder_with_code_the_right_model_is_loaded_and_the_code_is_not_run(spoil, folder, saved):
    spoil(folder)
    loaded = loading.load(folder)
    loaded.generate("hello", max_new_tokens=1)
    assert not (folder.parent / MARK).exists()
    assert torch.equal(loaded.hf(TOKENS).logits, saved[1](TOKENS).logits)
    assert loaded.tokenizer.encode("hello") == tiny.tokenizer().encode("hello")


@pytest.mark.parametrize("name", list(tiny.CONFIGS))
def test_no_weight_of_any_family_can_be_left_out_unless_it_is_tied(name, tmp_path):
    network, tokenizer = tiny.make(name)
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tensors = weights(tmp_path)
    tied = network.config.tie_word_embeddings
    assert any(key in tensors for key in ("lm_head.weight", "embed_out.weight")) is not tied
    seen = set()
    for key in tensors:
        kind = key.translate(str.maketrans("", "", "0123456789"))  # one layer for all
        if kind not in seen:
            seen.add(kind)
            rewrite(tmp_path, {other: tensor for other, tensor in tensors.items() if other != key})
            with pytest.raises(errors.ModelError, match=key.replace("embed_out", "lm_head").replace(".", r"\.")):
                loading.load(tmp_path)
    rewrite(tmp_path, tensors)
    again = loading.load(tmp_path)
    assert all(torch.equal(one, two) for one, two in zip(again.hf.parameters(), network.parameters(), strict=True))


OLD = {  # what checkpoints of the first years hold besides the weights
    "tiny-llama": lambda layer: {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(4)},
    "tiny-gpt2": lambda layer: {
        f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8),
        f"transformer.h.{layer}.attn.masked_bias": torch.tensor(-1e4),
    },
    "tiny-neox": lambda layer: {
        f"gpt_neox.layers.{layer}.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
        f"gpt_neox.layers.{layer}.attention.masked_bias": torch.tensor(-1e9),
        f"gpt_neox.layers.{layer}.attention.rotary_emb.inv_freq": torch.ones(4),
    },
}


@pytest.mark.parametrize("name", OLD)
def test_old_checkpoints_with_masks_and_frequencies_in_them_load(name, tmp_path):
    network, tokenizer = tiny.make(name)
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tensors = weights(tmp_path)
    for layer in range(network.config.num_hidden_layers):
        tensors |= OLD[name](layer)
    if name == "tiny-gpt2":  # and the first GPT-2 has no prefix either
        tensors = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    rewrite(tmp_path, tensors)
    assert torch.equal(loading.load(tmp_path).hf(TOKENS).logits, network.eval()(TOKENS).logits)


def test_rotary_frequencies_without_end_are_not_made(tmp_path):
    network, tokenizer = tiny.make("tiny-neox")
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    change(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1e9})
    with pytest.raises(errors.ModelError, match=r"buffers that no model needs: .*inv_freq"):
        loading.load(tmp_path)


@pytest.mark.slow
def test_twenty_of_these_folders_do_harm_where_they_are_trusted(saved, tmp_path):
    harmful = [*RUNS, *GIVES_ANOTHER_MODEL, *READS_WHAT_LIES_OUTSIDE]
    names = ["honest", *(spoil.__name__ for spoil in harmful)]
    folders = [shutil.copytree(saved[0], tmp_path / name / name) for name in names]
    for spoil, folder in zip(harmful, folders[1:], strict=True):
        (folder / "evil.py").write_text(CODE + CLASSES)
        spoil(folder)
    done = subprocess.run(
        [sys.executable, "-c", TRUSTING, *map(str, folders)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")},
    )
    (_, logits, tokens), *found = [json.loads(line) for line in done.stdout.splitlines()]
    told = dict(zip(harmful, found, strict=True))
    assert len(told) == 20
    assert [spoil.__name__ for spoil in RUNS if not told[spoil][0]] == []
    assert [spoil.__name__ for spoil in GIVES_ANOTHER_MODEL if told[spoil][1:] == [logits, tokens]] == []
    assert [spoil.__name__ for spoil in READS_WHAT_LIES_OUTSIDE if told[spoil][1:] != [logits, tokens]] == []
    assert set(harmful) <= {*HOSTILE, *HARMLESS}


@pytest.mark.slow
def test_a_saved_plain_model_loads_where_nothing_else_was_imported(tmp_path):
    network, tokenizer = tiny.make("tiny-plain")
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code = f"import sonde; print(sonde.load({str(tmp_path)!r}).cfg.n_layers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


@pytest.mark.slow
def test_the_code_of_a_folder_does_not_run_though_the_user_says_yes(folder):
    unknown_type_with_code(folder)
    code_in_the_tokenizer(folder)
    done = subprocess.run(
        [sys.executable, "-m", "sonde._cli.main", "lab", "chat", "-m", str(folder), "--skip", "1"],
        input="y\nhello\n",
        capture_output=True,
        text=True,
        check=False,
        cwd=folder.parent,
    )
    assert done.returncode != 0
    assert "a folder's own code is never run" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
    assert not (folder.parent / MARK).exists()


def test_the_code_of_a_folder_does_not_run_when_its_tokenizer_is_looked_for(folder, saved):
    code_in_the_tokenizer(folder)
    network, _ = tiny.make("tiny-llama")
    network.name_or_path = network.config.name_or_path = str(folder)
    assert adapters.as_model(network).tokenizer.encode("hello") == tiny.tokenizer().encode("hello")
    assert not (folder.parent / MARK).exists()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": []},
        {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}},
        {"model_type": "bert"},
        {"model_type": "gemma3", "text_config": {"hidden_size": "evil"}, "vision_config": 7},
        {"model_type": "llama", "num_attention_heads": 3, "hidden_size": -1, "tokenizer_class": "evil.Tokenizer"},
        {"model_type": "llama", "quantization_config": {"quant_method": "evil"}},
    ],
)
def test_a_folder_gives_its_tokenizer_whatever_its_model_is(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    code_in_the_tokenizer(folder)
    given = loading.load("tiny-llama", tokenizer=folder).tokenizer
    assert given.encode("hello") == tiny.tokenizer().encode("hello")
    assert not (folder.parent / MARK).exists()


def test_a_configuration_that_is_none_is_refused_where_only_the_tokenizer_is_wanted(folder):
    config_without_end(folder)
    with pytest.raises(errors.ModelError, match="is no JSON"):
        loading.load("tiny-llama", tokenizer=folder)


def test_what_a_folder_says_of_ends_is_taken_over(folder):
    change(folder, "generation_config.json", eos_token_id=[65, 258])
    loaded = loading.load(folder)
    assert generation.end_ids(loaded.hf, loaded.tokenizer) == {65, 258}


def test_a_folder_of_the_hubs_cache_is_read_through_its_links(folder, saved):
    cache = folder.parent / "models--a--b"
    (cache / "snapshots").mkdir(parents=True)
    (cache / "blobs").mkdir()
    snapshot = folder.rename(cache / "snapshots" / "abc")
    for path in list(snapshot.iterdir()):
        path.rename(cache / "blobs" / path.name)
        path.symlink_to(pathlib.Path("../../blobs") / path.name)
    assert torch.equal(loading.load(snapshot).hf(TOKENS).logits, saved[1](TOKENS).logits)


def test_an_id_of_the_hub_is_loaded_from_its_cache_and_no_code_of_it_is_run(folder, saved, monkeypatch):
    import huggingface_hub.constants

    cache = folder.parent / "hub"
    place = cache / "models--some--body"
    (place / "snapshots").mkdir(parents=True)
    (place / "refs").mkdir()
    code_for_a_known_type(folder)
    code_in_the_tokenizer(folder)
    folder.rename(place / "snapshots" / ("a" * 40))
    (place / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    assert torch.equal(loading.load("some/body").hf(TOKENS).logits, saved[1](TOKENS).logits)
    assert not (folder.parent / MARK).exists()


def tokenizer_with(folder, **parts):
    change(folder, "tokenizer.json", **parts)
    return loading.load(folder)


def test_a_regular_expression_that_gives_up_is_an_error_of_the_text(folder):
    pattern = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
    loaded = tokenizer_with(folder, pre_tokenizer=pattern)
    text = "a" * 60 + "!"
    messages = [{"role": "user", "content": text}]
    for use in (
        loaded.to_tokens,
        loaded.generate,
        lambda _: chat.encode(loaded.tokenizer, chat.render(loaded.tokenizer, messages)),
    ):
        with pytest.raises(errors.ModelError, match="cannot encode this text: PanicException"):
            use(text)
    assert loaded.generate("ab", max_new_tokens=1).tokens


TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"added_tokens": [{**TOKEN, "id": 300, "content": "q" * 2_000_000}]}, "adds 1 tokens of 2,000,000 letters"),
        ({"added_tokens": [{**TOKEN, "id": i, "content": str(i)} for i in range(70_000)]}, "adds 70,000 tokens"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 20_000}}, "the normalizer .* 20,001 times longer"),
        (
            {"normalizer": [{"type": "Replace", "pattern": {"Regex": ""}, "content": "aa"}] * 9},
            "the normalizer .* 19,683 times longer",
        ),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": [{}] * 20_000}},
            "the post_processor .* is too large",
        ),
        ({"post_processor": {"type": "TemplateProcessing", "single": [{}] * 11_000}}, "11,000 times longer"),
    ],
    ids=["long token", "many tokens", "prefix", "empty matches", "large template", "long template"],
)
def test_a_tokenizer_that_would_explode_is_refused(folder, parts, told):
    with pytest.raises(errors.ModelError, match=told):
        tokenizer_with(folder, **parts)
