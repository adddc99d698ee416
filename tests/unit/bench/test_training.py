"""Training: what fixes it, what it leaves behind, and that it goes on where it was stopped."""

import dataclasses
import json

import pytest
import torch

from sonde.bench import optimising, training
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
    assert files(tmp_path) == {"recipe.json"} | {
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


def test_a_finished_run_is_not_run_again_and_more_seeds_may_join(case3, shape, tmp_path):
    training.train(case3, shape, SHORT, tmp_path)
    before = models(tmp_path)
    found = training.train(case3, shape, dataclasses.replace(SHORT, seeds=(1, 2)), tmp_path)
    assert [one.seed for one in found] == [1, 2]
    assert models(tmp_path).items() >= before.items()


def test_another_recipe_in_the_same_folder_is_refused(case3, shape, tmp_path):
    training.train(case3, shape, SHORT, tmp_path)
    with pytest.raises(errors.RequestError, match=r"rate 0\.005 / 0\.1"):
        training.train(case3, shape, dataclasses.replace(SHORT, rate=0.1), tmp_path)


def test_an_unfinished_run_of_other_seeds_is_refused(case3, shape, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    with pytest.raises(StoppedError):
        training.train(case3, shape, SHORT, tmp_path, tell=stop_at(4))
    with pytest.raises(errors.RequestError, match=r"unfinished run of seeds \[0, 1\]; asked for \[7\]"):
        training.train(case3, shape, dataclasses.replace(SHORT, seeds=(7,)), tmp_path)


def test_a_seed_learns_the_same_beside_others_and_alone(case3, shape, tmp_path):
    training.train(case3, shape, SHORT, tmp_path / "both")
    training.train(case3, shape, dataclasses.replace(SHORT, seeds=(1,)), tmp_path / "one")
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
    run = training._Run(case3, shape, dataclasses.replace(SHORT, separate=True), tmp_path)
    run.learn()
    assert (run.step, run.state.updates, run.losses.shape) == (1, 3, (2, 3))


def test_adam_is_torchs_adam_with_each_row_clipped_by_itself():
    start = torch.randn(2, 5)
    state = optimising.State.fresh(start.clone())
    rows = [torch.nn.Parameter(row.clone()) for row in start]
    peers = [torch.optim.Adam([row], lr=0.01, betas=(0.9, 0.9)) for row in rows]
    for _ in range(5):
        gradient = torch.randn(2, 5) * torch.tensor([[10.0], [0.01]])
        state = state.stepped(gradient, rate=0.01)
        for row, peer, own in zip(rows, peers, gradient, strict=True):
            row.grad = own.clone()
            torch.nn.utils.clip_grad_norm_([row], 0.1)
            peer.step()
    assert torch.allclose(state.weights, torch.stack([row.detach() for row in rows]), atol=1e-5)


def test_the_weight_id_is_that_of_the_published_commands():
    assert training.Recipe(iit=1.0, behaviour=1.0, strict=0.4).weight_id == 510
