"""Corruptions by name and by spelling: what they run, and what they refuse."""

import pytest
import torch

import sonde
from sonde.core import errors
from sonde.core import interventions as I
from sonde.lab import controls, corruptions, orders

TOKENS = [(13 * i * i + 7) % 256 for i in range(24)]
SPECS = [
    "none", "skip:2", "skip:0,2-4", "keep:0,5", "keep-first:3", "drop-first:2", "repeat:1@times=3", "repeat:1-2", "swap:1-2",
    "swap:1,4", "permute:1,3,2", "reverse:1-4", "random:1-4@seed=3", "parallel:1-4", "looped-parallel:1-3@times=2",
    "looped-parallel:1-3", "middle-repeat:1-4", "order:0,1,1,3", "zero:blocks.2.hook_mlp_out", "zero:blocks.*.hook_mlp_out",
    "mean:blocks.2.hook_attn_out@at=-1", "noise:blocks.2.hook_resid_post@0.5", "noise:blocks.2.hook_resid_post@0.25@seed=4@at=0,1",
    "patch:blocks.2.hook_resid_post@at=-1@from=a @ b + c", "skip:2 + noise:blocks.0.hook_mlp_out@0.1",
]  # fmt: skip
ORDERS = {
    "skip:0,2-4": [1, 5],
    "keep:0,5": [0, 5],
    "keep-first:3": [0, 1, 2],
    "drop-first:2": [2, 3, 4, 5],
    "repeat:1@times=3": [0, 1, 1, 1, 2, 3, 4, 5],
    "swap:1,4": [0, 4, 2, 3, 1, 5],
    "permute:1,3,2": [0, 1, 3, 2, 4, 5],
    "permute:4,1": [0, 4, 2, 3, 1, 5],
    "reverse:1-4": [0, 4, 3, 2, 1, 5],
    "parallel:1-4": [0, (1, 2, 3, 4), 5],
    "looped-parallel:1-3": [0, (1, 2, 3), (1, 2, 3), (1, 2, 3), 4, 5],
    "looped-parallel:1-3@times=2": [0, (1, 2, 3), (1, 2, 3), 4, 5],
    "middle-repeat:1-4": [0, 3, 3, 3, 3, 5],
    "middle-repeat:1-3": [0, 2, 2, 2, 4, 5],
    "order:0,1,1,3": [0, 1, 1, 3],
}
REFUSED = {
    "skpi:3": "did you mean 'skip'",
    "skip:6": "no layer 6: this model has layers 0 to 5",
    "skip:0-999999999": "layers 0 to 5",
    "skip": "write skip:1-3",
    "skip:x": "'x' is no layer",
    "skip:1,1": "named twice",
    "skip:0-5": "at least one of the 6 layers must stay",
    "keep-first:0": "from 1 to 6",
    "keep-first:7": "from 1 to 6",
    "drop-first:6": "must stay",
    "swap:1": "name two layers",
    "swap:1-3": "name two layers",
    "reverse:1": "at least two",
    "parallel:1,3": "neighbouring",
    "repeat:1@times=0": "times must be 1 to 100",
    "repeat:1@times=100000": "times must be 1 to 100",
    "skip:1@seed=3": "takes no seed",
    "skip:1@sede=3": "did you mean 'seed'",
    "random:1-2@seed=x": "expected a number",
    "noise:blocks.1.hook_mlp_out": "say how much",
    "noise:blocks.1.hook_mlp_out@nan": "say how much",
    "zero:blocks.1.hook_mlpout": "did you mean 'blocks.1.hook_mlp_out'",
    "zero:blocks.6.hook_mlp_out": "layers 0 to 5",
    "patch:blocks.1.hook_mlp_out": "say from which text",
    "patch:blocks.*.hook_mlp_out@from=x": "for one Site",
    "patch:blocks.1.hook_mlp_out@at=-1,-2@from=x": "one position if that is negative",
    "skip:1 + swap:2-3": "only one part",
    "zero:blocks.1.hook_mlp_out@at=5-2": "no range of positions",
    "zero:blocks.1.hook_mlp_out@at=0-99999999": "no range of positions",
    "zero:blocks.1.hook_mlp_out@at=1-x": "expected a number",
    "": "no corruption ''",
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_spelling_is_read_back_as_the_same_corruption(spec):
    read = corruptions.parse(spec, 6)
    assert read.spec == spec
    assert corruptions.parse(read.spec, 6) == read


@pytest.mark.parametrize("spec", ORDERS)
def test_a_name_means_this_order_of_layers(spec):
    order = corruptions.parse(spec, 6).order
    assert order is not None
    assert list(order.order) == ORDERS[spec]


@pytest.mark.parametrize("spec", REFUSED)
def test_what_makes_no_sense_is_refused_with_what_to_write(spec):
    with pytest.raises(ValueError, match=REFUSED[spec]):
        corruptions.parse(spec, 6)


def test_a_corruption_by_name_equals_the_one_that_is_spelled():
    assert corruptions.make("skip", 6, layers=[4, 2]) == corruptions.parse("skip:2,4", 6)
    assert corruptions.make("noise", 6, site="blocks.1.hook_mlp_out", std=0.5).spec == "noise:blocks.1.hook_mlp_out@0.5"


def test_a_random_order_is_fixed_by_its_seed_and_never_the_own_one():
    drawn = [tuple(orders.stages("random", 8, (2, 3, 4), seed=seed)) for seed in range(30)]
    assert drawn == [tuple(orders.stages("random", 8, (2, 3, 4), seed=seed)) for seed in range(30)]
    assert tuple(range(8)) not in drawn
    assert len(set(drawn)) == 5


def test_parallel_averages_the_window():
    order = corruptions.parse("parallel:1-2", 4).order
    assert (order.order, order.combine) == ((0, (1, 2), 3), "mean")


def test_a_sum_and_a_mean_of_layers_are_told_apart_wherever_they_are_stored():
    added, averaged = (I.LayerOrder(order=(0, (1, 2), 3), combine=how) for how in ("sum", "mean"))
    assert added.digest == I.LayerOrder(order=(0, (1, 2), 3)).digest != averaged.digest
    assert I.from_json(averaged.to_json()).digest == averaged.digest


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-neox", "tiny-gemma"])
def test_naming_all_layers_in_their_order_changes_no_bit(name):
    with sonde.load(name) as model:
        whole = corruptions.make("order", model.cfg.n_layers, layers=range(model.cfg.n_layers))
        assert torch.equal(model.run_with_hooks(TOKENS, list(whole.bound(model))), model.run_with_hooks(TOKENS))


@pytest.mark.parametrize("spec", ["repeat:1@times=3", "looped-parallel:1-2", "middle-repeat:0-2", "skip:2"])
def test_generating_with_a_cache_equals_encoding_everything_again(llama, spec):
    specs = corruptions.parse(spec, 4).bound(llama)
    answer = llama.generate(TOKENS, max_new_tokens=6, interventions=specs)
    whole = llama.run_with_hooks([*TOKENS, *answer.tokens], list(specs))[0].log_softmax(dim=-1)
    expected = [float(whole[len(TOKENS) - 1 + at, token]) for at, token in enumerate(answer.tokens)]
    assert answer.logprobs == pytest.approx(expected, abs=1e-4)
    assert answer.tokens == tuple(int(one) for one in whole[len(TOKENS) - 1 : -1].argmax(dim=-1))


def test_a_patch_takes_the_values_of_its_text(llama):
    site = "blocks.1.hook_resid_post"
    (patch,) = corruptions.parse(f"patch:{site}@at=-1@from=other words", 4).bound(llama)
    _, source = llama.run_with_cache("other words", site)
    _, changed = llama.run_with_cache("some longer text", site, interventions=[patch])
    _, intact = llama.run_with_cache("some longer text", site)
    assert torch.allclose(changed[site][0, -1], source[site][0, -1])
    assert torch.equal(changed[site][0, :-1], intact[site][0, :-1])


def test_a_corruption_for_another_depth_is_refused(llama):
    with pytest.raises(errors.InterventionError, match="is for 6 layers and tiny-llama has 4"):
        corruptions.parse("skip:1", 6).bound(llama)


@pytest.mark.parametrize(
    "spec", ["skip:11", "skip:3,9,20", "reverse:13-16", "swap:3-4", "keep:0,5,29", "permute:3,5,4"]
)
def test_a_control_does_the_same_to_as_many_other_layers(spec):
    corruption = corruptions.parse(spec, 30)
    drawn = controls.draw(corruption, seed=1, count=4)
    assert drawn == controls.draw(corruption, seed=1, count=4)
    assert len({one.spec for one in drawn} - {spec}) == 4
    for one in drawn:
        assert (one.kind, len(one.layers)) == (corruption.kind, len(corruption.layers))
        assert one.kind == "keep" or not set(one.layers) & set(corruption.layers)


def test_controls_end_when_there_are_no_other_layers_left():
    assert len(controls.draw(corruptions.parse("skip:1", 4), count=9)) == 3
    assert controls.draw(corruptions.parse("order:1,0", 4), count=2) == []
    assert [one.kind for one in controls.draw(corruptions.parse("keep-first:2", 6), count=2)] == ["keep", "keep"]


def test_noise_of_matched_size_is_as_large_as_what_the_corruption_changes(llama):
    site = "blocks.1.hook_mlp_out"
    prompts = ["one text", "and another one"]
    (noise,) = controls.for_task(llama, corruptions.parse(f"zero:{site}", 4), prompts, seed=0, count=1)
    sizes = [llama.run_with_cache(prompt, site)[1][site][0].square().mean() for prompt in prompts]
    assert noise.kind == "noise"
    assert noise.std == pytest.approx(float(torch.stack(sizes).mean().sqrt()), rel=1e-3)


@pytest.mark.parametrize(
    "spec",
    ["zero:blocks.1.hook_attn_out@at=0 + zero:blocks.1.hook_mlp_out@at=0", "skip:2 + zero:blocks.1.hook_mlp_out",
     "noise:blocks.1.hook_mlp_out@0.5 + mean:blocks.2.hook_attn_out", "skip:2 + noise:blocks.1.hook_mlp_out@0.5",
     "order:0,1,2,3 + zero:blocks.1.hook_mlp_out"],
)  # fmt: skip
def test_what_is_joined_is_controlled_part_by_part(llama, spec):
    corruption = corruptions.parse(spec, 4)
    drawn = controls.for_task(llama, corruption, ["one text", "and another one"], seed=0, count=3)
    assert drawn == controls.for_task(llama, corruption, ["one text", "and another one"], seed=0, count=3)
    assert len({one.spec for one in drawn} - {corruption.spec}) == 3
    for one in drawn:
        for part, control in zip(corruption.parts, one.parts, strict=True):
            if part.kind in controls.MATCHED:
                assert (control.kind, control.site, control.positions) == ("noise", part.site, part.positions)
                alone = controls.matched(llama, part, ["one text", "and another one"])
                assert control.std == alone.std
            elif part.kind == "order":
                assert control == part
            else:
                assert control.kind == part.kind
                assert (control.layers, control.site) != (part.layers, part.site)


def test_a_position_that_no_prompt_has_is_no_reason_to_fail(llama):
    far = corruptions.parse("zero:blocks.1.hook_mlp_out@at=0,50", 4)
    near = corruptions.parse("zero:blocks.1.hook_mlp_out@at=0", 4)
    assert controls.matched(llama, far, ["one text"]).std == controls.matched(llama, near, ["one text"]).std
    assert controls.matched(llama, corruptions.parse("zero:blocks.1.hook_mlp_out@at=50", 4), ["one text"]).std < 1e-9


def test_positions_are_spelled_as_ranges():
    spec = "zero:blocks.1.hook_mlp_out@at=0,2-4,-2,-1"
    assert corruptions.parse(spec, 6).positions == (0, 2, 3, 4, -2, -1)
    assert corruptions.parse("zero:blocks.1.hook_mlp_out@at=0,2,3,4,-2,-1", 6).spec == spec
