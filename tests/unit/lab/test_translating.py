"""The best linear guess: exact where the truth is linear, and no better than an average where pairs are shuffled."""

import pytest
import torch

from sonde import experiments
from sonde.core import errors
from sonde.lab import texts, translating


def test_a_linear_truth_is_found_and_shuffled_pairs_give_the_mean():
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(400, 8, generator=generator)
    truth, shift = torch.randn(8, 8, generator=generator), torch.randn(8, generator=generator)
    target = source @ truth + shift
    fresh = torch.randn(50, 8, generator=generator)
    assert torch.allclose(translating.fit(source, target, 1e-9)(fresh), fresh @ truth + shift, atol=1e-4)
    mixed = translating.fit(source, target[torch.randperm(400, generator=generator)], 10.0)
    assert (mixed(fresh) - target.mean(dim=0)).abs().mean() < 0.3 * target.std()


def test_the_translator_beats_its_control_and_the_last_layer_is_read_exactly(llama):
    bench = translating.Bench(llama, texts.load(), tokens=32)
    layers = [bench.layer(at) for at in range(bench.n_layers + 1)]
    assert [one.layer for one in layers] == [0, 1, 2, 3, 4]
    last = layers[-1]
    assert last.lens.value == pytest.approx(0, abs=1e-5)
    assert last.lens_agreement.value == 1
    assert last.translated.value == pytest.approx(0, abs=1e-5)  # the ridge draws towards the stream itself
    for one in layers[2:]:
        assert one.translated.value < one.shuffled.value
    kls = [one.translated.value for one in layers]
    assert kls[-1] < kls[2] < kls[0]
    assert (last.translated.clusters, last.translated.n) == (10, 320)


def test_a_layer_is_the_same_whatever_was_measured_before_it(llama):
    one, other = (translating.Bench(llama, texts.load(), tokens=16, seed=3) for _ in range(2))
    every = [one.layer(at) for at in range(5)]
    assert [other.layer(at) for at in (4, 2, 0)] == [every[4], every[2], every[0]]


def test_too_few_texts_are_refused(llama):
    with pytest.raises(errors.RequestError, match="at least six texts"):
        translating.Bench(llama, {"a": "b"})


def test_with_little_data_the_guess_is_a_multiple_of_the_stream_and_not_an_average():
    generator = torch.Generator().manual_seed(0)
    source, fresh = torch.randn(20, 64, generator=generator), torch.randn(50, 64, generator=generator)
    guess = translating.fit(source, 3 * source + 1, 1e3)(fresh)
    assert torch.allclose(guess, 3 * fresh + 1, atol=1e-3)
    mixed = translating.fit(source, (3 * source + 1)[torch.randperm(20, generator=generator)], 1e3)(fresh)
    assert (mixed - 1).abs().mean() < 1


def test_a_stopped_run_translates_only_what_is_missing_and_shows_every_layer_with_its_interval(llama, tmp_path):
    chosen = translating.TranslateSettings(model="tiny-llama", tokens=16)
    before = experiments.run(translating.Translate(llama), chosen, run="it", runs_dir=tmp_path)
    for chart in translating.figures(before.results):
        assert [one.name for one in chart.series] == ["best linear guess", "logit lens", "control (shuffled pairs)"]
        assert all(len(one.values) == 5 and one.low is not None for one in chart.series)
    (tmp_path / "it" / "stages" / "layers.json").unlink()
    (tmp_path / "it" / "stages" / "layers" / "00003.json").unlink()
    again = experiments.run(translating.Translate(llama), chosen, run="it", runs_dir=tmp_path)
    assert {**again.results, "timing": 0} == {**before.results, "timing": 0}
    assert again.run.verify() == []
    other = translating.TranslateSettings(model="tiny-llama", tokens=32)
    with pytest.raises(errors.RequestError, match="tokens was 16, now 32"):
        experiments.run(translating.Translate(llama), other, run="it", runs_dir=tmp_path)
