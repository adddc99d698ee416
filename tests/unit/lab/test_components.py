"""Heads, MLPs and directions in the language of corruptions; patching and probes as experiments."""

import numpy as np
import pytest
import torch

from sonde.core import errors
from sonde.lab import controls, corruptions

HOT, COLD = ["It is hot", "Fire"], ["It is cold", "Ice"]
WHERE = "blocks.2.hook_resid_post"
ALONG = f"@from={'|'.join(COLD)}@to={'|'.join(HOT)}"


@pytest.fixture(scope="module")
def llama():
    import sonde

    with sonde.load("tiny-llama") as model:
        yield model


@pytest.mark.parametrize(
    ("text", "spec"),
    [("zero:a1.h2", "zero:a1.h2"), ("mean:m3, a1.h2,a1.h0", "mean:a1.h0,a1.h2,m3"), ("zero:a2@at=-1", "zero:a2@at=-1"),
     (f"add:{WHERE}@2{ALONG}", f"add:{WHERE}@2.0{ALONG}"), (f"remove:{WHERE}@seed=3@at=-1{ALONG}", f"remove:{WHERE}@seed=3@at=-1{ALONG}"),
     (f"skip:1 + add:{WHERE}@-1{ALONG}", f"skip:1 + add:{WHERE}@-1.0{ALONG}")],
)  # fmt: skip
def test_components_and_directions_are_read_and_spelled(text, spec):
    one = corruptions.parse(text, 4)
    assert one.spec == spec
    assert corruptions.parse(spec, 4) == one


@pytest.mark.parametrize(
    ("text", "message"),
    [("zero:a9.h0", "no layer 9"), ("zero:a1.h0,b2", "'b2' is no component"), ("zero:m1@seed=2", "takes no seed"),
     (f"add:{WHERE}{ALONG}", "how many times"), (f"add:{WHERE}@2@from=a", "between which texts"),
     (f"remove:{WHERE}@2{ALONG}", "takes no std"), (f"add:blocks.*.hook_resid_post@1{ALONG}", "at one Site"),
     ("noise:a1.h0@0.5", "no site|cannot be read|a1.h0")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(text, message):
    with pytest.raises(errors.SondeError, match=message):
        corruptions.parse(text, 4)


def test_a_head_is_set_to_zero_and_the_others_stay(llama):
    ids = llama.to_tokens("Hello")
    specs = list(corruptions.parse("zero:a1.h2", 4).bound(llama))
    name = "blocks.1.attn.hook_z"
    _, before = llama.run_with_cache(ids, [name])
    changed = llama.run_with_hooks(ids, specs)
    by_hand = before[name].clone()
    by_hand[:, :, 2] = 0
    weight = llama.hf.model.layers[1].self_attn.o_proj.weight

    def swap(module, args, output):
        return torch.nn.functional.linear(by_hand.flatten(2), weight)

    hook = llama.hf.model.layers[1].self_attn.o_proj.register_forward_hook(swap)
    with torch.no_grad():
        expected = llama.hf(input_ids=ids).logits
    hook.remove()
    assert torch.allclose(changed, expected, atol=1e-5)
    assert not torch.allclose(changed, llama.run_with_hooks(ids), atol=1e-4)


def test_a_head_that_the_model_does_not_have_is_refused(llama):
    with pytest.raises(errors.InterventionError, match="no head 40"):
        corruptions.parse("zero:a1.h40", 4).bound(llama)


def ends(model, texts):
    return np.stack([model.run_with_cache(text, WHERE)[1][WHERE][0, -1].float().numpy() for text in texts])


def after(model, spec):
    """What a later layer gets once a corruption has acted."""
    ids = model.to_tokens("Hello you")
    _, cache = model.run_with_cache(
        ids, ["blocks.3.hook_resid_pre"], interventions=list(corruptions.parse(spec, 4).bound(model))
    )
    return cache["blocks.3.hook_resid_pre"][0].float().numpy()


def test_a_direction_is_the_difference_of_means_and_is_added_or_removed(llama):
    difference = ends(llama, HOT).mean(axis=0) - ends(llama, COLD).mean(axis=0)
    plain = llama.run_with_cache("Hello you", [WHERE])[1][WHERE][0].float().numpy()
    assert after(llama, f"add:{WHERE}@2{ALONG}") - plain == pytest.approx(
        np.tile(2 * difference, (len(plain), 1)), abs=1e-4
    )
    unit = difference / np.linalg.norm(difference)
    middle = (ends(llama, HOT).mean(axis=0) + ends(llama, COLD).mean(axis=0)) @ unit / 2
    removed = after(llama, f"remove:{WHERE}{ALONG}")
    assert removed @ unit == pytest.approx(np.full(len(plain), middle), abs=1e-3)
    across = np.eye(len(unit)) - np.outer(unit, unit)
    assert removed @ across == pytest.approx(plain @ across, abs=1e-3)


def test_the_control_of_a_direction_moves_as_far_another_way(llama):
    plain = llama.run_with_cache("Hello you", [WHERE])[1][WHERE][0].float().numpy()
    for text in (f"add:{WHERE}@2{ALONG}", f"remove:{WHERE}{ALONG}"):
        (control,) = controls.for_task(llama, corruptions.parse(text, 4), ["Hello"], seed=0, count=1)
        moved, beside = after(llama, text) - plain, after(llama, control.spec) - plain
        assert np.linalg.norm(beside, axis=1) == pytest.approx(np.linalg.norm(moved, axis=1), rel=1e-3)
        cosine = (moved * beside).sum() / np.linalg.norm(moved) / np.linalg.norm(beside)
        assert abs(cosine) < 0.5


def test_components_are_held_against_others_of_their_kind(llama):
    heads = controls.for_task(llama, corruptions.parse("zero:a1.h2,a3.h0,m2", 4), ["Hello"], seed=0, count=5)
    assert len(heads) == 5
    for one in heads:
        assert [name[0] + ("h" if ".h" in name else "") for name in sorted(one.components)] == ["ah", "ah", "m"]
        assert not set(one.components) & {"a1.h2", "a3.h0", "m2"}
        assert one.bound(llama)


def test_a_prediction_about_a_head_is_tested_like_any_other(begun):
    at = begun()
    reply = at.call("run_experiment", {"corruption": "zero:m2"})
    assert (reply.outcome, reply.result["kept"] < 1) == ("ok", True)
    guess = at.call("propose_hypothesis", {"statement": "the MLP of layer 2 is needed"}).result["hypothesis"]
    asked = {"hypothesis": guess, "corruption": "zero:m2", "relation": "below", "value": 0.9}
    prediction = at.call("register_prediction", asked).result["prediction"]
    at.call("run_experiment", {"prediction": prediction})
    drawn = [
        at.call("run_experiment", {"prediction": prediction, "control": True}).result["corruption"] for _ in range(3)
    ]
    assert all(one.startswith("zero:m") and one != "zero:m2" for one in drawn)


def test_pairs_of_a_task_are_patched_with_a_control(begun):
    at = begun()
    reply = at.call("patch_pairs", {"component": "residual_stream", "layers": [0, 7, 8]})
    assert reply.outcome == "ok", reply.result
    (entry,) = at.inquiry.entries("sweep")
    rows = {(row["what"], row["role"]): row for row in entry["rows"]}
    first = rows["r0", "final"]
    assert (first["success"], first["recovery"]) == (1.0, 1.0), "the letter itself is the other prompt"
    assert first["n"] == entry["summary"]["pairs"] >= 2
    assert first["low"] > 0.3
    assert first["control"] <= 0.5, "another letter does not bring about this one's answer"
    assert rows["r8", "final"]["success"] == 1.0
    assert at.inquiry.spent().experiments == 1


def test_pairs_of_texts_are_patched(begun):
    at = begun()
    asked = {"component": "mlp", "layers": [2], "clean": ["xa", "xb", "xc"], "corrupt": ["xd", "xe", "xf"]}
    reply = at.call("patch_pairs", asked)
    assert reply.outcome in ("ok", "invalid"), reply.result
    if reply.outcome == "invalid":
        assert "two are needed" in reply.result["error"]
    assert at.call("patch_pairs", {"component": "mlp", "clean": ["a"]}).outcome == "invalid"


def test_a_probe_finds_what_is_there_and_not_what_is_not(begun):
    at = begun()
    yes, no = ([f"{letter}{end}" for letter in "abcdefghijkl"] for end in ("!", "?"))
    reply = at.call("probe", {"yes": yes, "no": no, "layers": [1, 6]})
    assert reply.outcome == "ok", reply.result
    (entry,) = at.inquiry.entries("sweep")
    for row in entry["rows"]:
        assert (row["auroc"] > 0.9, row["n"]) == (True, 24)
        assert row["p_corrected"] < 0.05
        assert abs(row["shuffled"] - 0.5) < 0.3
        assert {"majority", "random features", "low", "high"} <= row.keys()
    mixed = [f"{letter}." for letter in "abcdefghijklmnopqrstuvwx"]
    other = at.call("probe", {"yes": mixed[::2], "no": mixed[1::2], "layers": [1]})
    assert at.inquiry.book.get(other.result["sweep"])["rows"][0]["p_corrected"] > 0.05
    assert at.call("probe", {"answers": ["!"], "yes": ["x"]}).outcome == "invalid"
