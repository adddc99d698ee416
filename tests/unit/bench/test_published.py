"""Published InterpBench folders: their layout, read without pickle."""

import importlib.util
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch

from sonde import experiments
from sonde.bench import (
    board_rows,
    cases,
    evaluating,
    finding,
    leaderboard,
    published,
    published_edges,
    published_ioi,
    roster,
    shipped,
)
from sonde.circuits import graph
from sonde.core import errors


def _load(name):
    """A module beside this file."""
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


interpbench = _load("interpbench")


def theirs(case):
    """A case's compiled model as TransformerLens would keep it, with tokens and answers in tracr's order."""
    compiled = cases.get(case).compiled()
    state, sizes = compiled.network().state_dict(), compiled.config
    layers, heads, width = (sizes[name] for name in ("num_hidden_layers", "num_attention_heads", "head_dim"))
    words = (*compiled.vocabulary, "BOS", "PAD")
    order = [words.index(word) for word in _sorted(words, case)]
    outputs = compiled.outputs or (0,)
    answers = [outputs.index(value) for value in sorted(outputs)]
    found = {
        "embed.W_E": state["model.embed_tokens.weight"][order],
        "pos_embed.W_pos": state["model.embed_positions.weight"],
        "unembed.W_U": state["lm_head.weight"][answers].T,
        "unembed.b_U": state["lm_head.bias"][answers],
    }
    for layer in range(layers):
        ours, at = f"model.layers.{layer}", f"blocks.{layer}"
        for letter in "QKV":
            name = f"{ours}.self_attn.{letter.lower()}_proj"
            found[f"{at}.attn.W_{letter}"] = state[f"{name}.weight"].unflatten(0, (heads, width)).transpose(1, 2)
            found[f"{at}.attn.b_{letter}"] = state[f"{name}.bias"].unflatten(0, (heads, width))
        found[f"{at}.attn.W_O"] = state[f"{ours}.self_attn.o_proj.weight"].T.unflatten(0, (heads, width))
        found[f"{at}.attn.b_O"] = state[f"{ours}.self_attn.o_proj.bias"]
        found[f"{at}.attn.mask"] = torch.ones(4, 4)  # TransformerLens keeps its masks as well
        for name, letter in (("fc_in", "in"), ("fc_out", "out")):
            found[f"{at}.mlp.W_{letter}"] = state[f"{ours}.mlp.{name}.weight"].T
            found[f"{at}.mlp.b_{letter}"] = state[f"{ours}.mlp.{name}.bias"]
    config = {
        "n_layers": layers, "n_heads": heads, "d_head": width, "d_model": sizes["hidden_size"],
        "d_mlp": sizes["intermediate_size"], "d_vocab": sizes["vocab_size"], "d_vocab_out": sizes["d_out"],
        "n_ctx": sizes["max_position_embeddings"], "act_fn": "relu", "normalization_type": None,
        "attention_dir": "causal" if compiled.causal else "bidirectional",
    }  # fmt: skip
    return {name: value.contiguous() for name, value in found.items()}, config


def _sorted(words, case):
    """In tracr's order, as read in its code: numbers, then words; in case 30 the numbers are words."""
    if case == 30:
        return sorted(words, key=str)
    numbers, texts = ([word for word in words if isinstance(word, str) == is_text] for is_text in (False, True))
    return [*sorted(numbers), *sorted(texts)]


def written(folder, case, **changes):
    state, config = theirs(case)
    return interpbench.converted(folder / str(case), config | changes, state)


@pytest.mark.parametrize("case", [11, 2, 40, 30, 41])  # words, letters, numbers, numbers as words, numbers below 0
def test_a_published_model_is_the_one_that_was_published(case, tmp_path):
    place = written(tmp_path, case)
    assert published.places(tmp_path) == ({str(case): place}, {})
    subject = published.opened(str(case), place)
    compiled = shipped.compiled(str(case))
    ids = torch.tensor(cases.get(case).compiled().encode_batch(cases.get(case).sample(5)))[:, :4]
    with torch.no_grad():
        assert torch.allclose(subject.model.hf(ids).logits, compiled.model.hf(ids).logits, atol=1e-5)
    assert subject.truth.names == compiled.truth.names
    assert evaluating.iit(subject, rows=40)["accuracy"] > 0.99


def test_a_published_model_is_judged_at_the_greatest_length_only(tmp_path):
    subject = published.opened("11", written(tmp_path, 11))
    assert shipped.task_of("11").inputs.lengths[-1] == 9
    assert subject.task.inputs.lengths == (9,)
    for seed in range(5):
        base, _ = subject.task.inputs.pair(np.random.default_rng(seed), 4)
        assert base.shape == (4, 10)


def test_attention_has_the_scale_of_the_configuration(tmp_path):
    """Published configurations keep the scale of the compiled model, whose heads are wider."""
    config = interpbench.config_of(2) | {"attn_scale": 5.3}
    state = interpbench.random_state(config)
    subject = published.opened("2", interpbench.converted(tmp_path / "2", config, state), least=0.0)
    words = (*cases.get(2).compiled().vocabulary, "BOS", "PAD")
    ids = torch.randint(len(words), (6, 10))
    renamed = torch.tensor([_sorted(words, 2).index(word) for word in words])
    expected = interpbench.forward(config, state, renamed[ids])
    answers = [sorted(cases.get(2).compiled().outputs).index(one) for one in cases.get(2).compiled().outputs]
    with torch.no_grad():
        assert torch.allclose(subject.model.hf(ids).logits, expected[..., answers], atol=1e-4)


def test_edges_have_the_published_names_and_those_inside_a_head_are_left_out():
    low = graph.Graph(2, 4, 4)
    truth = graph.Circuit.of(
        low, ["input->m0", "input->a1.h2<q>", "input->a1.h2<k>", "m0->a1.h2<v>", "a1.h2->m1", "m1->logits"]
    )
    pairs = [list(pair) for pair in interpbench.names_of(truth)]
    for one in (
        ["hook_pos_embed", "blocks.1.hook_q_input[2]"], ["blocks.0.hook_mlp_out", "blocks.1.hook_v_input[2]"],
        ["blocks.1.hook_v_input[2]", "blocks.1.attn.hook_v[2]"], ["blocks.1.attn.hook_v[2]", "blocks.1.attn.hook_result[2]"],
        ["blocks.0.hook_mlp_in", "blocks.0.hook_mlp_out"], ["blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"],
    ):  # fmt: skip
        assert one in pairs
    assert published_edges.circuit(pairs, low).names == truth.names


def test_edges_between_whole_heads_are_read_by_queries_keys_and_values():
    pairs = [["hook_embed", "blocks.0.mlp.hook_post"], ["blocks.0.mlp.hook_post", "blocks.1.attn.hook_result[:, :, 0]"],
             ["blocks.1.attn.hook_z[0]", "blocks.1.hook_resid_post"], ["m0", "a1.h1<k>"]]  # fmt: skip
    assert published_edges.circuit(pairs, graph.Graph(2, 2, 2)).names == (
        "input->m0", "m0->a1.h0<q>", "m0->a1.h0<k>", "m0->a1.h1<k>", "m0->a1.h0<v>", "a1.h0->logits",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([["here", "m0"]], "'here' is no node of this model of 2 layers and 2 heads"),
        ([["blocks.0.attn.hook_result[2]", "m1"]], "is no node"),
        ([["blocks.2.hook_mlp_out", "logits"]], "is no node"),
        ([["m0", "blocks.0.hook_resid_post"]], "is no node"),
        ([["m1", "a0.h0"]], "not computed before"),
        ([["blocks.0.hook_q_input[0]", "m1"]], "read by its head alone"),
        ([["logits", "m1"]], "no edge leads"),
        ([["m1"]], "no pair of names"),
        ([[1, 2]], "no pair of names"),
        ({"m0": "m1"}, "expected a list"),
        ([], "expected a list"),
        ([["blocks.1.hook_mlp_in", "blocks.1.hook_mlp_out"]], "none of the 1 pairs"),
    ],
)
def test_edges_that_cannot_be_are_refused(pairs, said):
    with pytest.raises(errors.RequestError, match=said):
        published_edges.circuit(pairs, graph.Graph(2, 2, 2))


def test_the_documented_lines_turn_pickles_into_what_is_read_here(tmp_path):
    config = interpbench.config_of(3)
    state = interpbench.random_state(config)
    names = ["input->m0", "input->a1.h2<q>", "input->a1.h2<k>", "m0->a1.h2<v>", "a1.h2->logits"]
    truth = graph.Circuit.of(graph.Graph(2, 4, 4), names)
    pickled = interpbench.pickled(tmp_path / "InterpBench" / "3", config, state, interpbench.names_of(truth))
    with pytest.raises(errors.RequestError, match=r"holds pickles .* are not read"):
        published.places(tmp_path / "InterpBench")
    (tmp_path / "convert.py").write_text(interpbench.converter())
    subprocess.run([sys.executable, "convert.py"], cwd=tmp_path, check=True, timeout=120)
    for path in pickled.iterdir():
        if path.suffix in (".pkl", ".pth"):
            path.write_bytes(b"nobody reads this")
    subject = published.opened("3", pickled, least=0.0)
    assert subject.truth.names == truth.names
    assert subject.log["meta"]["iit_weight"] == 1.0
    plain = subject.model.hf.state_dict()
    assert torch.equal(plain["lm_head.weight"], state["unembed.W_U"].T)


def test_pickles_are_not_read(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "ll_model.pth").write_bytes(b"x")
    with pytest.raises(errors.RequestError, match="holds pickles"):
        published.places(tmp_path)
    with pytest.raises(errors.RequestError, match="is no InterpBench folder"):
        published.places(tmp_path / "none")


def test_a_model_of_another_kind_or_case_is_refused(tmp_path):
    for changes, said in (
        ({"normalization_type": "LN"}, "normalization_type is 'LN', expected None"),
        ({"parallel_attn_mlp": True}, "parallel_attn_mlp is True, expected None or False"),
        ({"n_ctx": 3}, "pos_embed.W_pos is"),
        ({"n_layers": 10**5}, "says 100,000 layers, the file has"),
        ({"n_heads": 10**400}, "n_heads is 1000"),
        ({"d_model": True}, "expected a whole number"),
        ({"attn_scale": 0}, "attn_scale is 0"),
        ({"act_fn": ["gelu"]}, "act_fn is"),
    ):
        place = written(tmp_path / next(iter(changes)), 11, **changes)
        with pytest.raises(errors.SondeError, match=said):
            published.opened("11", place)
    place = written(tmp_path / "other", 40)
    with pytest.raises(errors.RequestError, match="another case's"):
        published.opened("11", place)
    for name in ("011", "16", "ioi_hard", "../11", "١١"):
        with pytest.raises(errors.RequestError, match="is no case"):
            published.opened(name, place)


def test_a_model_that_does_not_do_its_task_is_refused_unless_that_is_asked_for(tmp_path):
    place = written(tmp_path, 11)
    weights = safetensors.torch.load_file(place / published.MODEL)
    safetensors.torch.save_file(weights | {"unembed.W_U": -weights["unembed.W_U"]}, place / published.MODEL)
    with pytest.raises(errors.RequestError, match=r"of 200 inputs as case 11 does, expected at least 90%"):
        published.opened("11", place)
    assert published.opened("11", place, least=0.0).task.name == "case 11"


@pytest.fixture(scope="module")
def ioi(tmp_path_factory):
    """A folder of the published IOI model's shape: its vocabulary, its norms, random weights."""
    place = tmp_path_factory.mktemp("InterpBench") / "ioi"
    config = interpbench.config_of_ioi()
    state = interpbench.random_state(config)
    interpbench.converted(place, config, state)
    interpbench.gpt2_tokenizer(place)
    return place, config, state


def test_an_ioi_model_of_gpt2s_vocabulary_and_norms_is_what_was_published(ioi):
    place, config, state = ioi
    subject = published.opened("ioi", place, least=0.0)
    assert {name for name in subject.truth.nodes if name not in ("input", "logits")} == set(published_ioi.NODES)
    base, _ = subject.task.inputs.pair(np.random.default_rng(0), 4)
    with torch.no_grad():
        found = subject.model.hf(base).logits
    assert torch.allclose(found, interpbench.forward(config, state, base), atol=1e-3)
    text = subject.model.tokenizer.decode(base[0])
    assert text.startswith("<|endoftext|>Then, ")
    assert " went to the " in text
    with pytest.raises(errors.RequestError, match=r"answers \d.\d% of 200 inputs as ioi does"):
        published.opened("ioi", place)


def test_finders_run_on_an_ioi_model(ioi, tmp_path):
    subject = published.opened("ioi", ioi[0], least=0.0)
    pairs = finding.pairs_of(subject, n=4)
    changed = (pairs.clean != pairs.corrupt).nonzero()[:, 1]
    assert changed.unique().tolist() == [published_ioi.THIRD]
    found = finding.run(subject, "eap-ig", pairs=4)
    assert 0 <= found.judged["node_auroc"] <= 1
    with pytest.raises(errors.RequestError, match="norms"):
        evaluating.iit(subject, rows=4)


def test_the_program_of_ioi_answers_the_name_that_comes_once_and_its_nodes_can_be_swapped(ioi):
    task = published.opened("ioi", ioi[0], least=0.0).task
    base, other = task.inputs.pair(np.random.default_rng(1), 64)
    none = torch.zeros(1, 64, 4, dtype=torch.bool)
    said = task.program.answers(base, other, none)[0, :, -1]
    first, second, third = base[:, published_ioi.FIRST], base[:, published_ioi.SECOND], base[:, published_ioi.THIRD]
    assert torch.equal(said, torch.where(third == first, second, first))
    elsewhere = task.program.answers(other, base, none)[0, :, -1]
    for index, expected in ((0, elsewhere), (3, elsewhere)):
        mask = none.clone()
        mask[..., index] = True
        assert torch.equal(task.program.answers(base, other, mask)[0, :, -1], expected)
    mask = none.clone()
    mask[..., 2] = True
    swapped = task.program.answers(base, other, mask)[0, :, -1]
    same = (other[:, published_ioi.THIRD] == other[:, published_ioi.FIRST]) == (third == first)
    assert torch.equal(swapped[same], said[same])
    assert bool((swapped[~same] == third[~same]).all())


def test_an_ioi_folder_without_its_tokenizer_or_with_another_says_so(ioi, tmp_path):
    config = interpbench.config_of_ioi(d_vocab=300, d_vocab_out=300, d_mlp=8)
    place = interpbench.converted(tmp_path / "ioi", config, interpbench.random_state(config))
    with pytest.raises(errors.ModelError, match=r"has no tokenizer.json: .*hf download gpt2"):
        published.opened("ioi", place, least=0.0)
    interpbench.gpt2_tokenizer(place, size=2000)
    with pytest.raises(errors.RequestError, match="expected one of GPT-2's 300"):
        published.opened("ioi", place, least=0.0)


def download(folder, ids, ioi, break_at):
    """A folder of models of the published shapes with random weights, some of them broken."""
    for case in ids:
        config = interpbench.config_of(case)
        interpbench.converted(folder / str(case), config, interpbench.random_state(config, case))
    for name in ioi:
        config = interpbench.config_of_ioi()
        interpbench.converted(folder / name, config, interpbench.random_state(config))
        interpbench.gpt2_tokenizer(folder / name)
    for case, how in break_at.items():
        interpbench.broken(folder / str(case), how)
    (folder / "README.md").write_text("Models.")
    (folder / ".cache").mkdir()


SAID = {
    "missing": "has no ll_model.safetensors", "forged": "ll_model_cfg.json", "shapes": "mlp.W_in is",
    "numbers": "not finite", "edges": "is no node of this model", "pipe": "is no regular file", "link": "leads out of its folder",
}  # fmt: skip


def test_broken_folders_are_left_out_and_named(tmp_path):
    ids = (2, 3, 11, 15, 20, 30, 40, 44, 63)
    broken = dict(zip(ids, interpbench.BROKEN, strict=False))
    download(tmp_path / "InterpBench", ids, (), broken)
    (tmp_path / "InterpBench" / "7").mkdir()
    found, left_out = roster.folder_of(tmp_path / "InterpBench", least=0.0)
    assert [entry.case for entry in found] == ["44", "63"]
    assert set(left_out) == {*map(str, broken), "7"}
    for case, how in broken.items():
        assert SAID[how] in left_out[str(case)], how
    with pytest.raises(errors.RequestError, match=r"no published model that can be loaded: 2: has no"):
        roster.folder_of(tmp_path / "InterpBench", cases=["2"])


def test_another_circuit_beside_the_same_weights_is_another_model(tmp_path):
    place = written(tmp_path, 11)
    (before,), _ = roster.folder_of(tmp_path)
    (place / published.EDGES).write_text('[["hook_embed", "blocks.0.hook_mlp_in"], ["m0", "logits"]]')
    (after,), _ = roster.folder_of(tmp_path)
    assert before.digest != after.digest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_download_with_five_broken_models_makes_a_board_of_the_others(tmp_path):
    ids = cases.ids("released")
    assert len(ids) == 84
    broken = dict(zip((3, 25, 60, 93, 113), ("missing", "forged", "edges", "pipe", "link"), strict=True))
    download(tmp_path / "InterpBench", ids, shipped.IOI, broken)
    entries, left_out = roster.folder_of(tmp_path / "InterpBench", least=0.0)
    assert (len(entries), set(left_out)) == (81, set(map(str, broken)))
    chosen = leaderboard.LeaderboardSettings(methods=("eap-ig",), pairs=4)
    found = experiments.run(leaderboard.Leaderboard(entries), chosen, run="it", runs_dir=tmp_path / "runs").results
    assert not found["failed"]
    assert not found["dropped"]
    rows = board_rows.rows_of(found)
    assert len({row.case for row in rows}) == 81
    # At its greatest length, none of this case's nodes matters in 2 % of exchanges.
    assert [row.case for row in rows if row.node_auroc is None] == ["124"]
    assert all(math.isfinite(row.node_auroc) for row in rows if row.case in shipped.IOI)
