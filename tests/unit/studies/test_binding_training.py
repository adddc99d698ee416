"""Training the small binding model: programs with true labels, a split that holds, runs that can be taken up."""

import json

import numpy as np
import pytest
import torch

import sonde
from sonde import experiments, store
from sonde.core import errors
from sonde.programs import chains, interpreter
from sonde.studies.binding import language, network, shipped, study, training

GRAMMAR = language.Grammar()
SMALL = training.BindingTrainingSettings(
    grammar=language.Grammar(lines=4, letters=8, max_hops=2),
    shape=network.Shape(layers=2, heads=2, width=16, mlp=16),
    steps=8,
    batch=8,
)


def changed(settings, **values):
    return training.BindingTrainingSettings(**{**settings.to_json(), **values})


def train(settings, folder, **options):
    """Trains as the run `it` of a folder; returns the run."""
    return experiments.run(study.BindingTraining(), settings, run="it", runs_dir=folder, **options).run


def rows_of(run):
    log = json.loads((run.folder / training.MODEL / training.LOG).read_text())
    return [{name: value for name, value in row.items() if name != "seconds"} for row in log]


@pytest.fixture(scope="module")
def programs():
    return language.draw(GRAMMAR, 400, np.random.default_rng(0), easy=0.25)


def test_labels_hops_and_root_lines_are_those_of_the_interpreter(programs):
    answers, hops, roots = programs.answers, programs.hops, programs.roots
    for index in range(0, len(programs), 3):
        source = programs.source(index)
        chain = chains.VariableChain.of(source)
        assert interpreter.answer(source) == answers[index]
        assert (chain.depth, chain.root_line) == (hops[index], roots[index] + 1)


def test_roles_point_at_the_characters_of_the_chain(programs):
    for index in range(0, len(programs), 7):
        text, roles = programs.text(index), programs.roles(index)
        chain = chains.VariableChain.of(programs.source(index))
        rights = [link.right for link in reversed(chain.links)]
        assert [text[roles[f"rhs_{depth}"][0]] for depth in range(1, chain.depth + 1)] == rights
        assert text[roles["query"][0]] == chain.query
        assert text[roles["final"][0]] == ":"


def test_no_name_is_assigned_twice(programs):
    names = programs.tokens[:, 0 : 2 * GRAMMAR.lines : 2]
    assert all(len(set(row)) == GRAMMAR.lines for row in names.tolist())


def test_the_easy_share_has_only_constants_and_one_hop(programs):
    easy = programs[300:]
    assert (easy.parents < 0).all()
    assert (easy.hops == 1).all()
    assert set(programs[:300].hops.tolist()) == {1, 2, 3}


def test_both_sides_of_the_split_are_disjoint_and_twins_stay_on_theirs():
    rng = np.random.default_rng(1)
    for held_out in (False, True):
        some = language.draw(GRAMMAR, 200, rng, held_out=held_out)
        assert (language.is_held_out(GRAMMAR, some.tokens) == held_out).all()
        twins = language.twins(some, rng)
        assert (language.is_held_out(GRAMMAR, twins.tokens) == held_out).all()
        assert (twins.answers != some.answers).all()
        assert ((twins.tokens != some.tokens).sum(axis=1) == 1).all()


def test_the_held_out_programs_are_balanced_over_hops_and_root_lines():
    some = language.balanced(GRAMMAR, 210, np.random.default_rng(0))
    for hops in (1, 2, 3):
        counts = np.bincount(some.roots[some.hops == hops], minlength=9 - hops)
        assert counts.sum() == 70
        assert counts.max() - counts.min() <= 1
        assert len(counts) == 9 - hops


def test_a_distractors_twin_has_the_same_answer():
    some = language.draw(GRAMMAR, 300, np.random.default_rng(2))
    some = some[(some.parents < 0).sum(axis=1) > 1]
    twins, lines = language.distractor_twins(some, np.random.default_rng(3))
    assert (twins.answers == some.answers).all()
    assert (lines != some.roots).all()
    lonely = some[(some.parents < 0).sum(axis=1) == 1]
    assert len(lonely) == 0
    with pytest.raises(errors.RequestError, match="no constant beside its root"):
        language.distractor_twins(_only_one_constant(), np.random.default_rng(3))


def _only_one_constant():
    every = language.draw(GRAMMAR, 2000, np.random.default_rng(4))
    return every[(every.parents < 0).sum(axis=1) == 1]


def test_a_token_is_a_character_and_says_where_it_stands(programs):
    tokenizer = language.tokenizer(GRAMMAR)
    text = programs.text(0)
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert encoded["input_ids"] == programs.tokens[0].tolist()
    assert encoded["offset_mapping"] == [(at, at + 1) for at in range(len(text))]
    assert tokenizer.decode(encoded["input_ids"]) == text
    assert [tokenizer.encode(digit)[0] for digit in "0123456789"] == list(range(10))


@pytest.mark.parametrize("sizes", [(0, 3, 1), (4, 3, 1), (4, 4, 5), (27, 27, 1)])
def test_a_grammar_without_programs_is_refused(sizes):
    with pytest.raises(errors.RequestError, match="1 <= max_hops <= lines <= letters <= 26"):
        language.Grammar(*sizes)


def test_the_quick_way_gives_the_logits_and_gradients_of_the_model(programs):
    tokens = torch.from_numpy(programs.tokens[:16])
    model = network.make(network.Shape(layers=3, heads=4, width=32, mlp=48), GRAMMAR, 0)
    quick, plain = network.answer_logits(model, tokens), model(input_ids=tokens).logits[:, -1]
    torch.testing.assert_close(quick, plain, atol=1e-5, rtol=1e-4)
    weights = list(model.parameters())
    mine = torch.autograd.grad(quick.logsumexp(dim=-1).sum(), weights)
    theirs = torch.autograd.grad(plain.logsumexp(dim=-1).sum(), weights)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("told", [0, 1])
@pytest.mark.parametrize("at", [4, 6])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(told, at, tmp_path, monkeypatch):
    """Also right after a save, when the next thing is to write down the loss of the step before."""
    settings = changed(SMALL, told=told)
    monkeypatch.setattr(training, "SAVE_EVERY", 4)
    monkeypatch.setattr(training, "TESTED", 40)
    monkeypatch.setattr(training, "is_watched", lambda step: step % 2 == 0)
    whole = train(settings, tmp_path / "whole")

    def stop(now):
        if now.done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", on_progress=stop)
    assert store.Run.open(tmp_path / "stopped" / "it").status == "interrupted"
    resumed = train(settings, tmp_path / "stopped")
    for name in ("model/model.safetensors", "model/recipe.json"):
        assert (whole.folder / name).read_bytes() == (resumed.folder / name).read_bytes()
    assert rows_of(whole) == rows_of(resumed)
    assert [row["step"] for row in rows_of(whole)] == [0, 2, 4, 6, 8]
    assert {"balanced", "natural", "digits", "root", "hops"} <= rows_of(whole)[0].keys()
    assert resumed.verify() == []


def test_the_trained_model_is_one_that_sonde_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "TESTED", 40)
    settings = changed(SMALL, steps=1)
    folder = train(settings, tmp_path).folder
    with sonde.load(folder / training.MODEL) as model:
        text = training.tests(settings.grammar)["balanced"].text(0)
        assert model.to_tokens(text).shape == (1, settings.grammar.length)
        _, cache = model.run_with_cache(text, "blocks.1.hook_resid_post")
        assert cache["blocks.1.hook_resid_post"].shape == (1, settings.grammar.length, 16)
    assert shipped.recipe(str(folder)) == settings
    assert [row["step"] for row in shipped.log(str(folder))] == [0, 1]
    assert "held-out programs are right" in (folder / "report.html").read_text()


def test_a_run_with_other_settings_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "TESTED", 40)
    train(changed(SMALL, steps=1), tmp_path)
    with pytest.raises(errors.RequestError, match="seed was 0, now 3"):
        train(changed(SMALL, steps=1, seed=3), tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ""),
        (
            {"seed": 3, "told": 2, "steps": 20, "start": "seed-0@1500"},
            "--seed 3 --steps 20 --told 2 --start seed-0@1500",
        ),
        ({"shape": {"layers": 4}, **training.PLAIN}, "--layers 4 --plain"),
    ],
)
def test_the_command_of_a_training_run_gives_its_settings(values, words):
    settings = training.BindingTrainingSettings(**values)
    assert settings.is_typed
    assert study.BindingTraining().command(settings).split()[4:] == words.split()


def test_settings_that_no_command_gives_are_not_said_to_be_given_by_one():
    assert study.BindingTraining().command(SMALL).startswith("In Python")


def test_batches_come_from_seed_and_step_alone_and_are_training_programs():
    first, again = (training.batch_at(training.BindingTrainingSettings(), 7) for _ in range(2))
    assert first.tokens.tolist() == again.tokens.tolist()
    assert len(first) == 64
    assert not language.is_held_out(GRAMMAR, first.tokens).any()


def test_asking_every_line_gives_what_asking_one_by_one_gives(programs):
    some = programs[:12]
    model = network.make(network.Shape(layers=3, heads=4, width=32, mlp=48), GRAMMAR, 0)
    together = network.every_answer(model, torch.from_numpy(some.tokens))
    for line in range(GRAMMAR.lines):
        tokens = some.tokens.copy()
        tokens[:, -2] = tokens[:, 2 * line]
        alone = network.answer_logits(model, torch.from_numpy(tokens))
        torch.testing.assert_close(together[:, line], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_what_right_hand_sides_say_is_read_after_the_layer_that_was_named(programs, after):
    some = torch.from_numpy(programs.tokens[:12])
    model = network.make(network.Shape(layers=3, heads=4, width=32, mlp=48), GRAMMAR, 0)
    answers, sides = network.every_answer_and_side(model, some, after)
    torch.testing.assert_close(answers, network.every_answer(model, some), atol=1e-5, rtol=1e-4)
    streams = []
    model.model.layers[after - 1].register_forward_hook(lambda *call: streams.append(call[-1]))
    model(input_ids=some)
    expected = model.lm_head(model.model.norm(streams[0]))[:, 1 : 2 * GRAMMAR.lines : 2]
    torch.testing.assert_close(sides, expected, atol=1e-5, rtol=1e-4)


def test_a_line_is_told_only_what_stands_before_it(programs):
    assert (programs.parents < np.arange(GRAMMAR.lines)).all()
    digits = programs.every_line()[0]
    tokens = programs.tokens.copy()
    tokens[:, 2 * GRAMMAR.lines - 1] = 0  # whatever the last line says
    others = language.Programs(GRAMMAR, tokens, programs.parents, programs.query)
    assert (others.every_line()[0][:, :-1] == digits[:, :-1]).all()


def test_telling_the_lines_adds_their_loss_and_reaches_no_later_layer(programs):
    told = training.BindingTrainingSettings(told=2, shape=network.Shape(layers=3, heads=2, width=16, mlp=16))
    plain = changed(told, told=0)
    model = network.make(told.shape, GRAMMAR, 0)
    extra = training.loss_of(told, model, programs[:16]) - training.loss_of(plain, model, programs[:16])
    digits, hops = programs[:16].every_line()
    asked = torch.from_numpy(hops <= GRAMMAR.max_hops)
    sides = network.every_answer_and_side(model, torch.from_numpy(programs.tokens[:16]), 2)[1]
    wanted = torch.from_numpy(digits)[asked]
    torch.testing.assert_close(extra, torch.nn.functional.cross_entropy(sides[asked], wanted))
    reached = torch.autograd.grad(extra, list(model.model.layers[2].parameters()), allow_unused=True)
    assert all(part is None or part.abs().max() < 1e-5 for part in reached)


@pytest.mark.parametrize("changes", [{"told": 7}, {"told": -1}, {"told": 2, "every": False}])
def test_telling_lines_where_that_makes_no_sense_is_refused(changes):
    with pytest.raises(errors.RequestError, match="right-hand sides can be asked after 1 to 6 layers"):
        training.BindingTrainingSettings(**changes)


def test_a_run_can_begin_with_the_weights_of_a_shipped_step(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "TESTED", 40)
    settings = training.BindingTrainingSettings(start="seed-0@1500", told=4, steps=1, rate=0.0, batch=4)
    folder = train(settings, tmp_path).folder
    begun = shipped.at_step("seed-0", 1500).state_dict()
    with sonde.load(folder / training.MODEL) as model:
        for name, value in model.hf.state_dict().items():
            torch.testing.assert_close(value, begun[name])
    assert shipped.log(str(folder))[0]["root"]["later"] > 0.3


@pytest.mark.parametrize(
    ("start", "message"),
    [("seed-0", "such as seed-0@1500"), ("seed-0@7", "no weights of step 7"), ("seed-99@1", "no binding model")],
)
def test_a_beginning_that_is_not_there_is_refused_before_anything_is_written(start, message, tmp_path):
    with pytest.raises(errors.RequestError, match=message):
        train(training.BindingTrainingSettings(start=start), tmp_path)
    with pytest.raises(errors.RequestError, match="another shape"):
        train(changed(SMALL, start="seed-0@1500"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_labels_of_every_line_are_those_of_the_interpreter(programs):
    digits, hops = programs.every_line()
    for index in range(0, len(programs), 20):
        lines = programs.source(index).split("\n")[:-1]
        for at, line in enumerate(lines):
            chain = chains.VariableChain.of("\n".join([*lines, f"#{line[0]}: "]))
            assert (chain.value, chain.depth) == (digits[index, at], hops[index, at])


def test_the_rate_rises_and_falls():
    recipe = training.BindingTrainingSettings(steps=1000, rate=1.0)
    rates = [recipe.rate_at(step) for step in (0, 199, 600, 999)]
    assert rates == pytest.approx([0.005, 1.0, 0.5, 0.00125])
