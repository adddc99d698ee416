"""The uses that Sonde is made for, each as a person would write it down."""

import asyncio
import dataclasses
import functools
import shutil

import pytest
import torch
from transformers import PreTrainedTokenizerBase

import sonde
from sonde import *  # noqa: F403 - one example does this
from sonde import (
    ActivationCapture,
    HookedTransformerLLMClient,
    InterventionManager,
    TrajectoryActivations,
    automatic_activation_capture,
    check_for_errors,
    classify_action,
    compare_trajectories,
    compute_mean_activations,
    create_attention_knockout_hook,
    create_hooked_transformer_client_with_chat_template,
    create_mean_ablation_hook,
    create_path_patching_hook,
    create_zero_ablation_hook,
    extract_file_context,
    is_success,
    run_and_cache_episode,
    run_episode,
    run_episode_with_intervention,
    testing,
    visualize_attention,
)
from sonde.testing import ScriptedEnvironment

pytestmark = pytest.mark.filterwarnings("error")
ROUNDS = 8


def scripted_tasks():
    """With a reward that any change of the text moves: what a tiny model writes has hardly a vowel."""
    return [
        dataclasses.replace(task, score=lambda text: sum(map(ord, text)) / 1e5) for task in testing.scripted_tasks()
    ]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The examples write to relative paths."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def model():
    with sonde.load("tiny-gpt2") as loaded:
        yield loaded


@pytest.fixture
def client(model):
    return HookedTransformerLLMClient(model=model, model_name="tiny-gpt2", generation_kwargs={"temperature": 1.0})


@pytest.fixture
def env(request):
    """Eight steps, so that there is a step 5: a scripted task, or a real environment, where a tiny model wins nothing."""
    kind = getattr(request, "param", "scripted")
    if kind != "scripted":
        return sonde.make(f"{kind}:0:1", step_limit=ROUNDS, max_output_tokens=5)
    task = scripted_tasks()[0]
    return ScriptedEnvironment([dataclasses.replace(task, turns=task.turns * 2)], max_output_tokens=5)


NEEDS_BUBBLEWRAP = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: apt install bubblewrap")
CODE = pytest.param("code", marks=NEEDS_BUBBLEWRAP)
everywhere = pytest.mark.parametrize("env", ["scripted", "20q", CODE], indirect=True)
#: Where whole attention patterns are kept, prompts stay short.
in_games = pytest.mark.parametrize("env", ["scripted", "20q"], indirect=True)


@pytest.mark.parametrize("preset", ["20q", CODE])
def test_basic_example_in_real_environments(preset, model, client):
    async def main():
        async with sonde.make(f"{preset}:0:1", step_limit=4, max_output_tokens=5) as env:
            with ActivationCapture(model, "blocks.*.hook_resid_post") as capture:
                ts = await env.reset()
                while not ts.last():
                    capture.start_step()
                    action = await client(ts.observation)
                    capture.end_step()
                    ts = await env.step(action)
            return capture.get_trajectory()

    trajectory = asyncio.run(main())
    lengths = [len(trajectory.tokens(step)) for step in range(len(trajectory))]
    assert len(lengths) == 4
    assert sorted(set(lengths)) == lengths, "the conversation grows at every step"
    _, cache = model.run_with_cache(trajectory.tokens(3), "blocks.2.hook_resid_post")
    kept = trajectory.get_activation(3, "blocks.2.hook_resid_post")
    assert torch.allclose(kept, cache["blocks.2.hook_resid_post"], atol=1e-4)


def test_basic_example(capsys):
    async def main():
        # Load model
        model = sonde.load("tiny-gpt2")
        client = HookedTransformerLLMClient(model=model, model_name="tiny-gpt2")

        # Run agent and capture activations
        tasks = scripted_tasks()[:1]

        async with ScriptedEnvironment(tasks=tasks) as env:
            with ActivationCapture(model) as capture:
                ts = await env.reset()
                while not ts.last():
                    capture.start_step()
                    action = await client(ts.observation)
                    capture.end_step()
                    ts = await env.step(action)

            # Analyze trajectory
            trajectory = capture.get_trajectory()
            print(f"Captured {len(trajectory)} steps")
            trajectory.save("./activations/episode_001")

    asyncio.run(main())
    assert capsys.readouterr().out == "Captured 4 steps\n"
    assert len(TrajectoryActivations.load("./activations/episode_001")) == 4


def test_client():
    model = sonde.load("tiny-gpt2")
    client = HookedTransformerLLMClient(
        model=model,
        model_name="tiny-gpt2",
        max_new_tokens=1024,
        generation_kwargs={"temperature": 0.7},
    )
    request = sonde.LLMRequest(messages=[{"role": "user", "content": "hi"}], max_output_tokens=4)
    assert len(asyncio.run(client(request)).token_ids) <= 4


def test_client_with_chat_template(model):
    tokenizer = model.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    client = create_hooked_transformer_client_with_chat_template(
        model=model,
        tokenizer=tokenizer,
        model_name="tiny-gpt2",
        max_new_tokens=2040,
    )
    request = sonde.LLMRequest(messages=[{"role": "user", "content": "hi"}], max_output_tokens=4)
    assert asyncio.run(client(request)).prompt_token_ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")


@in_games
async def test_activation_capture(model, client, env):
    with ActivationCapture(model) as capture:
        # Filter which hooks to capture (optional)
        # capture = ActivationCapture(model, hook_filter=lambda name: "attn" in name)

        async with env:
            ts = await env.reset()
            while not ts.last():
                capture.start_step()
                action = await client(ts.observation)
                capture.end_step()

                # Optionally record metadata
                capture.record_step_metadata({"step_reward": ts.reward})

                ts = await env.step(action)

    # Get trajectory
    trajectory = capture.get_trajectory()

    # Access specific activations
    attn_pattern_step_5 = trajectory.get_activation(5, "blocks.0.attn.hook_pattern")

    # Get activations across trajectory
    all_layer0_resid = trajectory.get_activation_across_trajectory("blocks.0.hook_resid_post")

    # Save for later
    trajectory.save("./activations/episode_001")

    # Load later
    loaded = TrajectoryActivations.load("./activations/episode_001")

    length = len(trajectory.tokens(5))
    assert attn_pattern_step_5.shape == (1, 4, length, length)
    assert torch.allclose(attn_pattern_step_5.sum(-1), torch.ones(1, 4, length), atol=1e-5)
    assert len(all_layer0_resid) == ROUNDS
    assert torch.equal(loaded.get_activation(5, "blocks.0.attn.hook_pattern"), attn_pattern_step_5)
    assert loaded.step_metadata[0]["step_reward"] is None


@in_games
async def test_automatic_capture(model, client, env):
    with automatic_activation_capture(model) as capture:
        # Activations are captured automatically during each client call
        async with env:
            ts = await env.reset()
            while not ts.last():
                response = await client(ts.observation)
                ts = await env.step(response)

        trajectory = capture.get_trajectory()
    assert len(trajectory) == ROUNDS


@everywhere
async def test_intervention_manager(model, client, env):
    manager = InterventionManager(model)

    # Ablate attention heads
    manager.add_intervention(
        hook_name="blocks.0.attn.hook_result",
        hook_fn=create_zero_ablation_hook(heads=[0, 1, 2]),
        description="Ablate heads 0-2 in layer 0",
        apply_at_steps=[5, 6, 7],  # Optional: only at specific steps
    )

    # Run with interventions
    with ActivationCapture(model, "blocks.0.attn.hook_result") as capture, manager:
        async with env:
            ts = await env.reset()
            step_count = 0
            while not ts.last():
                capture.start_step()
                action = await client(ts.observation)
                capture.end_step()
                ts = await env.step(action)

                step_count += 1
                manager.increment_step()  # Track which step we're on

    assert step_count == ROUNDS
    for step in range(step_count):
        heads = capture.get_trajectory().get_activation(step, "blocks.0.attn.hook_result").abs().sum((0, 1, 3))
        assert (heads == 0).tolist() == [step in (5, 6, 7)] * 3 + [False]


def test_zero_ablation(model):
    # Ablate specific positions
    hook = create_zero_ablation_hook(positions=[10, 11, 12])
    _, cache = model.run_with_cache(
        range(20), "blocks.1.hook_mlp_out", interventions=[hook.at("blocks.1.hook_mlp_out")]
    )
    assert cache["blocks.1.hook_mlp_out"][0].abs().sum(-1).eq(0).nonzero().flatten().tolist() == [10, 11, 12]

    # Ablate specific attention heads
    hook = create_zero_ablation_hook(heads=[0, 1])
    _, cache = model.run_with_cache(range(20), "blocks.1.attn.hook_z", interventions=[hook.at("blocks.1.attn.hook_z")])
    assert cache["blocks.1.attn.hook_z"][0].abs().sum((0, 2)).eq(0).tolist() == [True, True, False, False]


def test_path_patching(model):
    clean_tokens, corrupted_tokens = torch.arange(30, 40)[None], torch.arange(50, 60)[None]

    # Run clean and corrupted inputs
    clean_cache, _ = model.run_with_cache(clean_tokens)
    corrupted_cache, _ = model.run_with_cache(corrupted_tokens)

    # Patch clean activations into corrupted run
    hook = create_path_patching_hook(
        clean_activation=clean_cache["blocks.0.hook_resid_post"],
        positions=[5, 6, 7],
    )
    site = "blocks.0.hook_resid_post"
    _, patched = model.run_with_cache(corrupted_tokens, site, interventions=[hook.at(site)])
    assert torch.equal(patched[site][:, 5:8], clean_cache[site][:, 5:8])
    assert torch.equal(patched[site][:, :5], corrupted_cache[site][:, :5])


def test_mean_ablation(model):
    dataset = ["some text", "and some more"]

    # Compute mean activation over dataset
    mean_cache = compute_mean_activations(model, dataset)

    hook = create_mean_ablation_hook(
        mean_activation=mean_cache["blocks.0.hook_resid_post"],
        positions=[10, 11, 12],
    )
    site = "blocks.0.hook_resid_post"
    _, changed = model.run_with_cache(range(20), site, interventions=[hook.at(site)])
    assert torch.equal(changed[site][0, 10:13], mean_cache[site].expand(3, -1))


def test_attention_knockout(model):
    # Prevent position 20 from attending to positions 0-10
    hook = create_attention_knockout_hook(
        source_positions=[20],
        target_positions=list(range(11)),
    )
    site = "blocks.0.attn.hook_pattern"
    _, changed = model.run_with_cache(range(25), site, interventions=[hook.at("blocks.0.attn.hook_attn_scores")])
    assert changed[site][0, :, 20, :11].eq(0).all()
    assert torch.allclose(changed[site][0, :, 20].sum(-1), torch.ones(4))


@in_games
async def test_use_case_1_attention_head_analysis_across_trajectories(model, client, env):
    with ActivationCapture(model) as capture:
        # Run agent episode
        await run_episode(env, client, capture)

    trajectory = capture.get_trajectory()

    # Analyze attention patterns across all steps
    first_token = []
    for step in range(len(trajectory)):
        attn = trajectory.get_activation(step, "blocks.5.attn.hook_pattern")
        # Analyze attention to specific tokens, copy behavior, etc.
        first_token.append(attn[0, :, -1, 0].mean().item())
    assert len(first_token) == ROUNDS
    assert all(0 < value < 1 for value in first_token)


def test_use_case_2_identifying_critical_decision_points(model, client, env):
    threshold = 1e-6

    baseline_trajectory = run_episode(env, client)

    # Test interventions at each step
    critical_steps = []
    for step in range(len(baseline_trajectory)):
        manager = InterventionManager(model)
        manager.add_intervention(
            hook_name="blocks.3.hook_resid_post",
            hook_fn=create_zero_ablation_hook(positions=[10, 11]),
            apply_at_steps=[step],
        )

        perturbed_reward = run_episode_with_intervention(env, client, manager)

        if abs(perturbed_reward - baseline_trajectory.reward) > threshold:
            critical_steps.append(step)
    assert critical_steps
    assert abs(run_episode(env, client) - baseline_trajectory.reward) < threshold


def test_use_case_3_circuit_discovery_in_multi_step_reasoning(model, client, env):
    success_task, failure_task = scripted_tasks()[:2]

    # Compare successful vs failed trajectories
    success_cache = run_and_cache_episode(env, client, success_task)
    failure_cache = run_and_cache_episode(env, client, failure_task)

    # Systematically patch components from success to failure
    recovered = {}
    for layer in range(model.cfg.n_layers):
        for step in range(len(failure_cache)):
            hook = create_path_patching_hook(
                clean_activation=success_cache.get_activation(step, f"blocks.{layer}.hook_resid_post"),
                positions=None,
            )

            # Test if this component recovers successful behavior
            manager = InterventionManager(model)
            manager.add_intervention(f"blocks.{layer}.hook_resid_post", hook, apply_at_steps=[step])
            patched = run_episode_with_intervention(env.with_task(failure_task), client, manager)
            recovered[layer, step] = patched - failure_cache
    assert len(recovered) == model.cfg.n_layers * 3
    assert any(effect != 0 for effect in recovered.values())


async def test_use_case_4_temporal_information_flow_analysis(model, client, env):
    # Capture activations with detailed metadata
    with ActivationCapture(model) as capture:
        async with env:
            ts = await env.reset()
            while not ts.last():
                capture.start_step()
                action = await client(ts.observation)
                capture.end_step()

                # Record what the agent was doing
                capture.record_step_metadata(
                    {
                        "action_type": classify_action(action),
                        "error_present": check_for_errors(ts.observation),
                        "file_context": extract_file_context(ts.observation),
                    }
                )

                ts = await env.step(action)

    trajectory = capture.get_trajectory()
    notes = trajectory.step_metadata
    assert [note["error_present"] for note in notes] == [True, False, True, False] * 2
    assert notes[1]["file_context"] == ["src/parser.py"]
    assert {note["action_type"] for note in notes} <= {"message", "question", "empty", "command", "edit", "read"}


@in_games
def test_use_case_5_comparative_analysis_of_different_models(env):
    models = [
        sonde.load("tiny-gpt2"),
        sonde.load("tiny-llama"),
        sonde.load("tiny-neox"),
    ]

    trajectories = []
    for model in models:
        client = HookedTransformerLLMClient(model=model, model_name=model.cfg.model_name)

        with ActivationCapture(model) as capture:
            # Run same task
            trajectory = run_episode(env, client, capture)
            trajectories.append(trajectory)

    # Compare attention patterns, activation magnitudes, etc.
    comparison = compare_trajectories(trajectories)
    assert [row["label"] for row in comparison.rows] == ["tiny-gpt2", "tiny-llama", "tiny-neox"]


def test_advanced_example_finding_code_understanding_circuits(capsys):
    threshold = head_threshold = 1e-6
    environment = functools.partial(ScriptedEnvironment, max_output_tokens=5)
    drawn = []

    async def find_code_understanding_circuits():
        model = sonde.load("tiny-gpt2")
        client = HookedTransformerLLMClient(model=model, model_name="tiny-gpt2", generation_kwargs={"temperature": 1.0})

        # 1. Collect baseline trajectory on a task
        tasks = scripted_tasks()
        success_task = [t for t in tasks if is_success(t)][0]  # noqa: RUF015 - as people write it

        with ActivationCapture(model) as capture:
            baseline_reward = await run_episode(environment([success_task]), client, capture)

        baseline_trajectory = capture.get_trajectory()

        # 2. For each layer and step, ablate and measure impact
        impact_matrix = torch.zeros(model.cfg.n_layers, len(baseline_trajectory))

        for layer in range(model.cfg.n_layers):
            for step in range(len(baseline_trajectory)):
                manager = InterventionManager(model)
                manager.add_intervention(
                    hook_name=f"blocks.{layer}.hook_resid_post",
                    hook_fn=create_mean_ablation_hook(),
                    apply_at_steps=[step],
                )

                with manager:
                    perturbed_reward = await run_episode(environment([success_task]), client)

                impact_matrix[layer, step] = abs(baseline_reward - perturbed_reward)

        # 3. Identify critical (layer, step) pairs
        critical_components = (impact_matrix > threshold).nonzero()

        print(f"Found {len(critical_components)} critical components")

        # 4. Drill down to attention heads in critical layers
        for layer, step in critical_components[:2]:  # Top 2
            for head in range(model.cfg.n_heads):
                manager = InterventionManager(model)
                manager.add_intervention(
                    hook_name=f"blocks.{layer}.attn.hook_result",
                    hook_fn=create_zero_ablation_hook(heads=[head]),
                    apply_at_steps=[step.item()],
                )

                with manager:
                    head_reward = await run_episode(environment([success_task]), client)

                if abs(baseline_reward - head_reward) > head_threshold:
                    print(f"Critical: Layer {layer}, Step {step}, Head {head}")

                    # Visualize attention pattern
                    attn_pattern = baseline_trajectory.get_activation(step, f"blocks.{layer}.attn.hook_pattern")
                    drawn.append(visualize_attention(attn_pattern[:, head, :, :]))

    # Run analysis
    asyncio.run(find_code_understanding_circuits())
    out = capsys.readouterr().out
    assert out.startswith("Found ")
    assert not out.startswith("Found 0")
    assert out.count("Critical: Layer") == len(drawn) > 0


@in_games
async def test_memory_optimization(model, client, env):
    # Only capture specific hooks
    capture = ActivationCapture(
        model,
        hook_filter=lambda name: "attn.hook_pattern" in name or "hook_resid" in name,
    )
    step = saved = 0
    with capture:
        ts = await env.reset()
        while not ts.last():
            capture.start_step()
            action = await client(ts.observation)
            capture.end_step()
            ts = await env.step(action)

            # Clear trajectory periodically
            if len(capture.step_activations) > 2:
                trajectory = capture.get_trajectory()
                trajectory.save(f"./checkpoints/step_{step}")
                capture.clear()
                saved += len(trajectory)
            step += 1
    assert saved == 6
    for name in (2, 5):
        part = TrajectoryActivations.load(f"./checkpoints/step_{name}")
        assert len(part) == 3
        last = part.get_activation(2, "blocks.2.hook_resid_post")
        _, cache = model.run_with_cache(part.tokens(2), "blocks.2.hook_resid_post")
        assert torch.allclose(last, cache["blocks.2.hook_resid_post"], atol=1e-4)


def test_speed_optimization():
    # Use smaller models for initial exploration
    model = sonde.load("tiny-gpt2", device="cpu")

    # Reduce max_new_tokens during ablation studies
    client = HookedTransformerLLMClient(model=model, max_new_tokens=256)

    # Use torch.no_grad() (already done in client, but good to remember)
    with torch.no_grad():
        request = sonde.LLMRequest(messages=[{"role": "user", "content": "hi"}])
        assert asyncio.run(client(request)).usage.generated_tokens <= 256
