"""What is known of corrupting layers holds here: on a model that was built so, and on the embedded one."""

import statistics

import numpy as np
import pytest
import torch

import sonde
from sonde.lab import comparing, controls, corruptions, measuring, sweeping, tasks, texts

MIDDLE = range(3, 28)


def _only_matters(model, layer):
    """Takes away what every other layer adds to the stream."""
    for index, block in enumerate(model.parts.blocks):
        if index != layer:
            for projection in (block.self_attn.o_proj, block.mlp.down_proj):
                torch.nn.init.zeros_(projection.weight)


def test_the_one_layer_that_matters_is_found_and_its_controls_do_nothing():
    task = tasks.load()["copying"]
    with sonde.load("tiny-llama") as model:
        _only_matters(model, 2)
        found = measuring.measure_with_controls(model, corruptions.parse("skip:2", 4), task, examples=range(4), count=3)
        losses = {row.spec: row.delta for row in found.measures if row.measure == measuring.LOSS and row.delta}
        assert abs(losses.pop("skip:2").value) > 0.05
        assert len(losses) == 3
        assert max(abs(delta.value) for delta in losses.values()) < 1e-4
        base = sweeping.Base(model, sweeping.encode(model, texts.load(), 24))
        judge = comparing.Judge(base.logits, base.ids)
        kl = [judge.compare(base.run(corruptions.parse(f"skip:{layer}", 4).order)).kl.mean() for layer in range(4)]
        assert np.argmax(kl) == 2
        assert sorted(kl)[-2] < 1e-6 < kl[2]


@pytest.fixture(scope="module")
def smollm():
    with sonde.load("smollm2-135m-instruct") as model:
        yield model


@pytest.fixture(scope="module")
def judged(smollm):
    base = sweeping.Base(smollm, sweeping.encode(smollm, texts.load(), 64))
    return base, comparing.Judge(base.logits, base.ids)


@pytest.mark.slow
def test_the_embedded_model_in_its_own_order_is_itself_to_the_bit(smollm):
    ids = smollm.to_tokens("The quick brown fox jumps over the lazy dog.")
    whole = corruptions.make("order", 30, layers=range(30))
    assert torch.equal(smollm.run_with_hooks(ids, list(whole.bound(smollm))), smollm.run_with_hooks(ids))


@pytest.mark.slow
def test_the_embedded_model_needs_its_ends_and_layer_eleven(judged):
    base, judge = judged
    skips = {layer: corruptions.parse(f"skip:{layer}", 30).order for layer in range(30)}
    harm = {
        int(name): float(judge.compare(logits).kl.mean())
        for name, logits in sweeping.sweep(base, {str(layer): order for layer, order in skips.items()})
    }
    worst = sorted(harm, key=lambda layer: -harm[layer])[:4]
    assert {0, 1, 29} <= set(worst)
    assert harm[11] >= 3 * statistics.median(harm[layer] for layer in MIDDLE)


@pytest.mark.slow
def test_in_the_middle_of_the_embedded_model_a_loop_hurts_least_and_a_repeated_layer_most(judged):
    base, judge = judged
    harm = {}
    for method in ("looped-parallel", "parallel", "reverse", "skip", "middle-repeat"):
        harm[method] = float(judge.compare(base.run(corruptions.parse(f"{method}:13-16", 30).order)).kl.mean())
    random = [judge.compare(base.run(corruptions.parse(f"random:13-16@seed={seed}", 30).order)) for seed in range(1, 4)]
    harm["random"] = float(np.mean([one.kl.mean() for one in random]))
    assert max(harm, key=lambda name: harm[name]) == "middle-repeat"
    assert min(harm, key=lambda name: harm[name]) == "looped-parallel"


@pytest.mark.slow
def test_layer_eleven_matters_for_what_it_writes_at_the_first_token(smollm, judged):
    base, judge = judged
    harm = []
    for at in ("0", ",".join(map(str, range(1, 64)))):
        spec = " + ".join(f"zero:blocks.11.{kind}@at={at}" for kind in ("hook_attn_out", "hook_mlp_out"))
        specs = corruptions.parse(spec, 30).bound(smollm)
        harm.append(float(judge.compare(smollm.run_with_hooks(base.ids, list(specs))).kl.mean()))
    assert harm[0] > 5 * harm[1]


@pytest.mark.slow
def test_skipping_layer_eleven_breaks_a_task_that_other_layers_leave_whole(smollm):
    task, skip = tasks.load()["plurals"], corruptions.parse("skip:11", 30)
    others = [one for one in controls.draw(skip, seed=3, count=6) if one.layers[0] in range(12, 27)][:2]
    scores = {
        one.spec: measuring.score_task(smollm, one, task, examples=range(12))
        for one in (corruptions.parse("none", 30), skip, *others)
    }
    assert scores["none"].accuracy >= measuring.ABLE
    assert all(scores[one.spec].accuracy > scores["skip:11"].accuracy for one in others)
