"""One scheduler owns a model: concurrent callers never meet each other's hooks."""

import asyncio
import concurrent.futures
import threading
import time

import pytest
import torch

from sonde.core import errors
from sonde.core import interventions as I
from sonde.models import loading, requests, riders
from sonde.models import model as models_model

SITE = "blocks.1.hook_resid_post"


def _steer(model, strength):
    return I.Steer(site=SITE, direction=torch.ones(model.cfg.d_model), strength=strength)


def _spawn(*functions):
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(timeout=120) for future in [pool.submit(function) for function in functions]]


def test_threads_with_different_interventions_do_not_disturb_each_other(model, kit):
    strengths = [0.0, 2.0, -3.0]
    expected = [model.generate(kit.tokens(1, 8), max_new_tokens=6, interventions=[_steer(model, s)]) for s in strengths]

    def caller(strength):
        return lambda: [
            model.generate(kit.tokens(1, 8), max_new_tokens=6, interventions=[_steer(model, strength)])
            for _ in range(4)
        ]

    for answers, wanted in zip(_spawn(*map(caller, strengths)), expected, strict=True):
        for answer in answers:
            assert answer.tokens == wanted.tokens
            assert kit.close(answer.logprobs, wanted.logprobs)


def test_threads_that_ride_with_different_interventions_see_only_their_own(gpt2, kit):
    """Riders are per thread; bare forward passes of other threads are left alone."""
    ids = torch.tensor([kit.tokens(1, 10)])
    plain = gpt2.run_with_hooks(ids)
    steered = gpt2.run_with_hooks(ids, [_steer(gpt2, 4.0)])
    ready = threading.Barrier(2)

    def rider():
        with riders.riding(models_model._Fixed(gpt2, [_steer(gpt2, 4.0)], ())):
            ready.wait()
            with torch.no_grad():
                return [torch.equal(gpt2.hf(ids, use_cache=False).logits, steered) for _ in range(60)]

    def bystander():
        ready.wait()
        with torch.no_grad():
            return [torch.equal(gpt2.hf(ids, use_cache=False).logits, plain) for _ in range(60)]

    for seen in _spawn(rider, bystander):
        assert all(seen)


def test_a_bare_forward_in_one_thread_is_untouched_while_the_engine_generates_in_another(model, kit):
    ids = torch.tensor([kit.tokens(1, 20)])
    with torch.no_grad():
        plain = model.hf(input_ids=ids, use_cache=False).logits
    done = threading.Event()
    specs = [
        _steer(model, 3.0),
        I.Zero(site="blocks.0.attn.hook_z"),
        I.Knockout(site="blocks.2.attn.hook_attn_scores", keys=(0, 1)),
        I.PathPatch(
            site="blocks.0.hook_mlp_out", values=torch.zeros(model.cfg.d_model), receivers=("blocks.2.attn.hook_q",)
        ),
    ]

    def engine():
        try:
            first = model.generate(kit.tokens(2, 20), max_new_tokens=25, interventions=specs)
            keeper = kit.Keeper([SITE, "blocks.1.attn.hook_pattern"])
            request = requests.Request(
                tokens=kit.tokens(2, 20), sampling=kit.greedy(25), interventions=tuple(specs), recorders=(keeper,)
            )
            (second,) = kit.run(model, [request])
            return first.tokens == second.tokens
        finally:
            done.set()

    def bare():
        seen = []
        with torch.no_grad():
            while not done.is_set() or len(seen) < 5:
                seen.append(torch.equal(model.hf(input_ids=ids, use_cache=False).logits, plain))
        return all(seen)

    assert _spawn(engine, bare) == [True, True]


async def test_tasks_share_batches_and_the_event_loop_is_never_blocked(gpt2, kit):
    ticks, stop = 0, asyncio.Event()

    async def tick():
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            await asyncio.sleep(0.001)

    async def ask(seed):
        request = requests.Request(tokens=kit.tokens(seed, 8), sampling=kit.greedy(40))
        (future,) = gpt2.submit([request])
        return await asyncio.wrap_future(future)

    ticking = asyncio.create_task(tick())
    started = time.monotonic()
    answers = await asyncio.gather(*map(ask, range(4)))
    elapsed = time.monotonic() - started
    stop.set()
    await ticking
    assert ticks >= min(20, 40 * elapsed)
    for seed, answer in enumerate(answers):
        assert gpt2.generate(kit.tokens(seed, 8), max_new_tokens=40).tokens == answer.tokens


def test_one_failing_request_in_a_batch_does_not_fail_the_others(model, kit):
    def fail(value, hook):
        raise RuntimeError("mine alone")

    def request(seed, *specs):
        return requests.Request(tokens=kit.tokens(seed, 6), sampling=kit.greedy(3), interventions=specs)

    good = [request(0), request(2, _steer(model, 1.0))]
    expected = [one.tokens for one in kit.run(model, good)]
    answers = model.submit([good[0], request(1, I.Opaque(fn=fail, site=SITE)), good[1]])
    assert answers[0].result().tokens == expected[0]
    with pytest.raises(RuntimeError, match="mine alone"):
        answers[1].result()
    assert answers[2].result().tokens == expected[1]
    assert kit.count_hooks(model) == 0


def test_a_request_that_cannot_run_is_refused_before_anything_is_queued(gpt2, kit):
    good = requests.Request(tokens=kit.tokens(1, 4), sampling=kit.greedy(2))
    bad = requests.Request(tokens=(), sampling=kit.greedy(2))
    with pytest.raises(errors.RequestError, match="empty"):
        gpt2.submit([good, bad])
    assert not gpt2._scheduler._pending


def test_closing_ends_what_runs_at_its_next_token_and_cancels_what_waits(kit):
    model = loading.load("tiny-gpt2", max_batch=1)
    started = threading.Event()

    def slow(value, hook):
        started.set()
        time.sleep(0.01)

    spec = I.Opaque(fn=slow, site="blocks.0.hook_mlp_out")
    running = requests.Request(tokens=kit.tokens(1, 4), sampling=kit.greedy(1500), interventions=(spec,))
    waiting = requests.Request(tokens=kit.tokens(2, 4), sampling=kit.greedy(1500))
    answers = model.submit([running, waiting])
    assert started.wait(30)
    before = time.monotonic()
    model.close()
    assert time.monotonic() - before < 5
    assert answers[0].result(timeout=1).finish_reason == "cancelled"
    assert answers[1].cancelled()
    with pytest.raises(errors.ModelError, match="closed"):
        model.submit([waiting])


def test_a_closed_model_can_be_closed_again_and_says_so_to_whoever_asks_it():
    model = loading.load("tiny-gpt2")
    model.close()
    model.close()
    for ask in (model.generate, model.run_with_cache, model.run_with_hooks):
        with pytest.raises(errors.ModelError, match="closed: load it again"):
            ask("hello")


def test_a_cancelled_future_never_runs(kit):
    with loading.load("tiny-gpt2", max_batch=1) as model:
        release, calls = threading.Event(), []

        def hold(value, hook):
            release.wait(30)

        def count(value, hook):
            calls.append(hook.step)

        def request(fn):
            spec = I.Opaque(fn=fn, site="blocks.0.hook_mlp_out")
            return requests.Request(tokens=kit.tokens(1, 4), sampling=kit.greedy(1), interventions=(spec,))

        held, unwanted, wanted = model.submit([request(hold), request(count), request(count)])
        assert unwanted.cancel()
        release.set()
        assert held.result(timeout=30).finish_reason == "length"
        wanted.result(timeout=30)
        assert len(calls) == 1
