"""Every request, and every bare forward pass, as a step of its own."""

import pytest
import torch

import sonde

RESID = "blocks.3.hook_resid_post"
PATTERN = "blocks.2.attn.hook_pattern"


async def test_every_client_request_is_a_step(model, kit):
    with sonde.automatic_activation_capture(model, [RESID, PATTERN]) as capture:
        responses = await kit.episode(model, 3)
        trajectory = capture.get_trajectory()
    assert len(trajectory) == 3
    for step, response in enumerate(responses):
        context = torch.tensor(response.prompt_token_ids + response.token_ids[:-1])
        _, cache = model.run_with_cache(context, [RESID, PATTERN])
        assert kit.close(trajectory.get_activation(step, RESID), cache[RESID])
        assert kit.close(trajectory.get_activation(step, PATTERN), cache[PATTERN])


def test_every_prompt_of_a_batched_generate_is_a_step(model):
    with sonde.automatic_activation_capture(model, RESID) as capture:
        answers = model.generate(["abc", "defgh"], max_new_tokens=3)
    trajectory = capture.get_trajectory()
    assert sorted(trajectory.generated(step) for step in range(2)) == sorted(one.tokens for one in answers)
    assert sorted(value.shape[1] for value in trajectory.get_activation_across_trajectory(RESID)) == [5, 7]


def test_a_bare_forward_pass_is_a_step_with_its_batch_axis(model, kit):
    tokens = torch.randint(0, 256, (3, 7))
    with sonde.automatic_activation_capture(model, [RESID, PATTERN]) as capture, torch.no_grad():
        model.hf(tokens)
        model.hf(input_ids=tokens[:1, :4])
    trajectory = capture.get_trajectory()
    assert len(trajectory) == 2
    _, cache = model.run_with_cache(tokens, [RESID, PATTERN])
    for name in (RESID, PATTERN):
        assert torch.equal(trajectory.get_activation(0, name), cache[name])
        assert trajectory.get_activation(0, name, call=1).shape[0] == 1
    assert trajectory.get_activation(1, RESID).shape == (1, 4, 32)


@pytest.mark.parametrize("manual", [False, True])
def test_a_bare_generate_is_one_step_with_all_its_tokens(model, kit, manual):
    tokens = torch.randint(0, 256, (2, 6))
    capture = sonde.ActivationCapture(model, [RESID, PATTERN])
    capture._automatic = not manual
    with capture:
        for _ in range(2):
            if manual:
                capture.start_step()
            out = model.hf.generate(
                tokens, attention_mask=torch.ones_like(tokens), min_new_tokens=5, max_new_tokens=5, do_sample=False
            )
            if manual:
                capture.end_step()
    trajectory = capture.get_trajectory()
    assert len(trajectory) == 2
    _, cache = model.run_with_cache(out[:, :-1], [RESID, PATTERN])
    for step in range(2):
        assert kit.close(trajectory.get_activation(step, RESID), cache[RESID])
        assert kit.close(trajectory.get_activation(step, PATTERN), cache[PATTERN])
        assert trajectory.prompt_length(step) == 6
        assert trajectory.tokens(step).tolist() == out[1, :-1].tolist()


def test_left_padding_is_not_recorded(model, kit):
    tokens = torch.randint(0, 256, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    with sonde.automatic_activation_capture(model, [RESID, PATTERN]) as capture:
        out = model.hf.generate(tokens, attention_mask=mask, min_new_tokens=4, max_new_tokens=4, do_sample=False)
    trajectory = capture.get_trajectory()
    with pytest.raises(sonde.SondeError, match="different lengths: ask for one with call="):
        trajectory.get_activation(0, RESID)
    for row, start in enumerate((2, 0)):
        _, cache = model.run_with_cache(out[row, start:-1], [RESID, PATTERN])
        for name in (RESID, PATTERN):
            assert kit.close(trajectory.get_activation(0, name, call=row), cache[name])
        assert trajectory.positions(0, call=row).tolist() == list(range(9 - start))


def test_a_bare_generate_keeps_what_the_position_filter_says(model):
    tokens = torch.randint(0, 256, (1, 6))
    expected = {"all": range(9), "prompt": range(6), "last_prompt": [5], "generated": [6, 7, 8], "last": [8]}
    for word, positions in expected.items():
        with sonde.automatic_activation_capture(model, [RESID, PATTERN], positions=word) as capture:
            model.hf.generate(tokens, attention_mask=torch.ones_like(tokens), min_new_tokens=4, max_new_tokens=4)
        assert capture.get_trajectory().positions(0).tolist() == list(positions), word
        assert capture.get_trajectory().get_activation(0, PATTERN).shape[2] == len(positions)


async def test_an_automatic_capture_into_a_folder_holds_the_same(model, kit, tmp_path):
    tokens = torch.randint(0, 256, (2, 5))

    async def play():
        model.pool.entries.clear()
        model.hf.generate(tokens, attention_mask=torch.ones_like(tokens), min_new_tokens=3, max_new_tokens=3)
        await kit.episode(model, 2)
        with torch.no_grad():
            model.hf(tokens)
            model.hf(tokens[:1])

    with sonde.automatic_activation_capture(model, RESID) as capture:
        await play()
    with sonde.automatic_activation_capture(model, RESID, folder=tmp_path / "episode") as stored:
        await play()
        stored.record_step_metadata({"last": True})
    loaded = sonde.TrajectoryActivations.load(tmp_path / "episode")
    memory = capture.get_trajectory()
    assert len(loaded) == len(memory) == 5
    assert loaded.step_metadata == [{}, {}, {}, {}, {"last": True}]
    for step in range(5):
        assert torch.equal(loaded.get_activation(step, RESID), memory.get_activation(step, RESID))


def test_nothing_is_recorded_before_or_after_the_block(model):
    with sonde.automatic_activation_capture(model, RESID) as capture:
        model.generate("abc", max_new_tokens=2)
    model.generate("abc", max_new_tokens=2)
    model.hf(torch.tensor([[1, 2]]))
    assert len(capture.get_trajectory()) == 1
