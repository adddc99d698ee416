"""Training: what fixes it, what it leaves behind, and that it goes on where it was stopped."""

import dataclasses
import json

import pytest
import torch

from sonde.bench import batched, optimising, starting, training
from sonde.core import errors

SHORT = training.Recipe(seeds=(0, 1), epochs=1, samples=64 * 6, batch=64, check=3, rows=16, threshold=None)


@pytest.fixture
def shape(case3):
    return dataclasses.replace(
        case3.program.shape, n_heads=2, d_model=6, d_head=2, d_mlp=8, activation="gelu_pytorch_tanh"
    )


class StoppedError(Exception):
    pass


def stop_at(step):
    def tell(doing, done, of):
        if done == step:
            raise StoppedError

    return tell


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def models(folder):
    return {path.parent.name: path.read_bytes() for path in sorted(folder.rglob(training.MODEL))}


def test_a_run_leaves_weights_and_a_log_per_seed(case3, shape, tmp_path):
    found = training.train(case3, shape, SHORT, tmp_path)
    assert files(tmp_path) == {"recipe.json", "training.lock"} | {
        f"seed-{s}/{name}" for s in (0, 1) for name in ("log.json", "model.safetensors")
    }
    log = json.loads((tmp_path / "seed-1" / "log.json").read_text())
    assert [row["step"] for row in log["rows"]] == [3, 6]
    assert found[1].measured == log["measured"]
    assert log["weight_id"] == 510
    assert set(log["places"]) == {"m0", "a1.h0"}


def test_a_stopped_run_ends_with_the_weights_of_one_that_was_not(case3, shape, tmp_path, monkeypatch):
    training.train(case3, shape, SHORT, tmp_path / "whole")
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    with pytest.raises(StoppedError):
        training.train(case3, shape, SHORT, tmp_path / "parts", tell=stop_at(5))
    assert (tmp_path / "parts" / training.STATE).exists()
    training.train(case3, shape, SHORT, tmp_path / "parts")
    assert models(tmp_path / "parts") == models(tmp_path / "whole")


def test_a_run_whose_last_seed_leaves_when_it_is_time_to_save_ends_well(case3, shape, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    found = training.train(case3, shape, SHORT.model_copy(update={"threshold": 0.0}), tmp_path)
    assert [(one.status, one.step) for one in found] == [("reached", 3)] * 2


def test_a_finished_run_is_not_run_again_and_more_seeds_may_join(case3, shape, tmp_path):
    training.train(case3, shape, SHORT, tmp_path)
    before = models(tmp_path)
    found = training.train(case3, shape, SHORT.model_copy(update={"seeds": (1, 2)}), tmp_path)
    assert [one.seed for one in found] == [1, 2]
    assert models(tmp_path).items() >= before.items()


def test_another_recipe_in_the_same_folder_is_refused(case3, shape, tmp_path):
    training.train(case3, shape, SHORT, tmp_path)
    with pytest.raises(errors.RequestError, match=r"rate 0\.01 / 0\.1"):
        training.train(case3, shape, SHORT.model_copy(update={"rate": 0.1}), tmp_path)


def test_an_unfinished_run_of_other_seeds_is_refused(case3, shape, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    with pytest.raises(StoppedError):
        training.train(case3, shape, SHORT, tmp_path, tell=stop_at(4))
    with pytest.raises(errors.RequestError, match=r"unfinished run of seeds \[0, 1\]; asked for \[7\]"):
        training.train(case3, shape, SHORT.model_copy(update={"seeds": (7,)}), tmp_path)


def test_a_seed_learns_the_same_beside_others_and_alone(case3, shape, tmp_path):
    training.train(case3, shape, SHORT, tmp_path / "both")
    training.train(case3, shape, SHORT.model_copy(update={"seeds": (1,)}), tmp_path / "one")
    both, one = (
        training.safetensors.torch.load_file(tmp_path / name / "seed-1" / training.MODEL) for name in ("both", "one")
    )
    assert all(torch.allclose(both[name], one[name], atol=1e-3) for name in both)


def test_a_seed_that_diverges_stops_and_keeps_its_best_weights(case3, shape, tmp_path, monkeypatch):
    class Broken(training._Run):
        def learn(self):
            super().learn()
            if self.step == 4:  # after the measurement at step 3
                self.state = dataclasses.replace(
                    self.state, weights=self.state.weights.index_fill(0, torch.tensor([0]), torch.nan)
                )

    monkeypatch.setattr(training, "_Run", Broken)
    found = training.train(case3, shape, SHORT, tmp_path)
    assert [(one.status, one.step) for one in found] == [("diverged", 3), ("ended", found[1].step)]
    weights = training.safetensors.torch.load_file(found[0].folder / training.MODEL)
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


def test_a_seed_that_collapses_goes_back_to_its_best_weights_at_half_the_rate(case3, shape, tmp_path):
    run = training._Run(case3, shape, SHORT, tmp_path)
    run.learn()
    pupil, best = run.learning[1], torch.zeros_like(run.learning[1].best)
    pupil.best, pupil.score = best, 2.0
    beside = run.state.weights[0].clone()
    run.check()
    assert (pupil.slow, run.learning[0].slow) == (0.5, 1.0)
    assert torch.equal(run.state.weights[1], best)
    assert torch.equal(run.state.weights[0], beside)
    assert not run.state.first[1].any()


def test_separate_steps_take_three_updates_a_batch(case3, shape, tmp_path):
    run = training._Run(case3, shape, SHORT.model_copy(update={"separate": True}), tmp_path)
    run.learn()
    assert (run.step, run.state.updates, run.losses.shape) == (1, 3, (2, 3))


def test_a_loss_without_weight_is_not_computed(case3, shape, tmp_path):
    run = training._Run(case3, shape, SHORT.model_copy(update={"behaviour": 0.0}), tmp_path)
    run.learn()
    assert (run.losses > 0).tolist() == [[True, True, False]] * 2


def test_what_is_begun_with_gives_its_weights_and_fewer_answers_leave_the_others_fresh(case3, shape, tmp_path):
    (one,) = training.train(case3, shape, SHORT.model_copy(update={"seeds": (1,)}), tmp_path)
    stored = training.safetensors.torch.load_file(one.folder / training.MODEL)
    wide = dataclasses.replace(shape, d_out=shape.d_out + 2)
    for size in (shape, wide):
        pupils = training.pupils_of(case3, size, SHORT)
        fresh, begun = (starting.weights(pupils, SHORT.seeds, given) for given in ({}, {1: one.folder}))
        assert torch.equal(fresh[0], begun[0])
        named, drawn = (batched.named(size, row[1]) for row in (begun, fresh))
        assert all(torch.equal(named[name][: len(value)], value) for name, value in stored.items())
        assert torch.equal(named["lm_head.weight"][shape.d_out :], drawn["lm_head.weight"][shape.d_out :])


def test_a_model_of_another_shape_or_with_other_places_cannot_be_begun_with(case3, shape, tmp_path):
    (one,) = training.train(case3, shape, SHORT.model_copy(update={"seeds": (1,)}), tmp_path)
    narrow = training.pupils_of(case3, dataclasses.replace(shape, d_mlp=4), SHORT)
    with pytest.raises(errors.RequestError, match=r"mlp\.fc_in\.weight is \(8, 6\), expected \(4, 6\)"):
        starting.weights(narrow, SHORT.seeds, {1: one.folder})
    moved = training.pupils_of(case3, shape, SHORT.model_copy(update={"same_place": not SHORT.same_place}))
    moved.places = tuple({**dict(places), "m0": "m9"} for places in moved.places)
    with pytest.raises(errors.RequestError, match="its nodes are at"):
        starting.weights(moved, SHORT.seeds, {1: one.folder})


def test_adam_is_torchs_adam_with_each_row_clipped_by_itself():
    start = torch.randn(2, 5)
    state = optimising.State.fresh(start.clone())
    rows = [torch.nn.Parameter(row.clone()) for row in start]
    peers = [torch.optim.Adam([row], lr=0.01, betas=(0.9, 0.99)) for row in rows]
    for _ in range(5):
        gradient = torch.randn(2, 5) * torch.tensor([[10.0], [0.01]])
        state = state.stepped(gradient, rate=0.01)
        for row, peer, own in zip(rows, peers, gradient, strict=True):
            row.grad = own.clone()
            torch.nn.utils.clip_grad_norm_([row], 0.1)
            peer.step()
    assert torch.allclose(state.weights, torch.stack([row.detach() for row in rows]), atol=1e-5)


def test_the_mean_of_the_weights_follows_them_and_forgets_the_start():
    state = optimising.State.fresh(torch.zeros(1, 3))
    for _ in range(1000):
        state = dataclasses.replace(state, weights=torch.ones(1, 3)).stepped(torch.zeros(1, 3), rate=0.0)
    assert torch.allclose(state.mean, torch.ones(1, 3), atol=1e-3)


def test_two_trainings_in_one_folder_are_refused_and_the_first_goes_on(case3, shape, tmp_path):
    def second(doing, done, of):
        if done == 2:
            with pytest.raises(errors.StoreError, match=r"is being trained by another process: wait .* \(--out\)"):
                training.train(case3, shape, SHORT, tmp_path)

    assert len(training.train(case3, shape, SHORT, tmp_path, tell=second)) == 2
    assert len(training.train(case3, shape, SHORT, tmp_path)) == 2, "the lock is gone with the training"


def test_batches_are_taken_in_turn_from_a_pool_and_strict_swaps_are_drawn_anew(case3, shape, tmp_path):
    run = training._Run(case3, shape, SHORT.model_copy(update={"pool": 2}), tmp_path)
    batches = []
    for _ in range(3):
        batches.append(run._batch())
        run.learn()
    assert torch.equal(batches[0].base, batches[2].base)
    assert not torch.equal(batches[0].base, batches[1].base)
    assert not torch.equal(batches[0].luck, batches[2].luck)


def test_the_rate_rises_and_falls_to_nothing():
    recipe = training.Recipe(rate=1.0, epochs=1, samples=2000, batch=1)
    assert recipe.rate_at(0) < 0.02
    assert recipe.rate_at(150) > 0.95
    assert recipe.rate_at(1999) < 1e-5


def test_the_weight_id_is_that_of_the_published_commands():
    assert training.Recipe(iit=1.0, behaviour=1.0, strict=0.4).weight_id == 510


@pytest.mark.parametrize(
    ("given", "said"),
    [({"iit": 0, "behaviour": 0, "strict": 0}, "nothing to learn"), ({"way": "every"}, "way must be one of individual"),
     ({"seeds": ()}, "seeds must have 1 or more"), ({"rate": -1}, "rate must be 0")],
)  # fmt: skip
def test_a_recipe_that_makes_no_sense_is_refused(given, said):
    with pytest.raises(errors.RequestError, match=said):
        training.Recipe(**given)
