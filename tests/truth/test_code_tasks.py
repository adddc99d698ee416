"""The judge is right on every embedded task: the known repair solves it, doing nothing does not."""

import asyncio

import pytest

from sonde.agents.code import bash_agent, environment, judging, tasks

TASKS = tasks.load_tasks()


async def play(env, client):
    """Plays one episode: the reward of its last step, and how many steps it took."""
    async with env:
        now = await env.reset()
        while not now.last():
            now = await env.step(await client(now.observation))
            if not now.last():
                assert now.reward == 0.0
        return now.reward, env.step_count


def test_there_are_enough_tasks_of_every_difficulty():
    assert len(TASKS) >= 22
    assert {task.difficulty for task in TASKS} == set(tasks.DIFFICULTIES)
    assert any(len(task.reference) == 2 for task in TASKS)
    assert all(2 <= len(task.repo) <= 5 for task in TASKS)


async def test_the_reference_solves_every_task_and_doing_nothing_solves_none():
    env, two_at_once = environment.CodeEnvironment(TASKS), asyncio.Semaphore(2)

    async def both(task):
        async with two_at_once:
            solved = await play(env.with_task(task), bash_agent.ReferenceAgent(task))
            idle = await play(env.with_task(task), bash_agent.NoOpAgent())
            return task.id, solved, idle

    results = await asyncio.gather(*map(both, TASKS))
    assert {name: solved for name, solved, _ in results} == {task.id: (1.0, len(task.reference) + 1) for task in TASKS}
    assert {name: idle for name, _, idle in results} == {task.id: (0.0, 1) for task in TASKS}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_what_the_sandbox_is_shown_holds_no_expected_value(task):
    questions, answers = judging.withhold(task)
    assert len(answers) >= 3
    assert "assertEqual" not in "".join(questions)
    assert "assertRaises" not in "".join(questions)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_issue_does_not_hold_a_line_of_the_repair(task):
    for path, text in task.reference.items():
        new = {line.strip() for line in text.splitlines()} - {line.strip() for line in task.repo[path].splitlines()}
        assert new
        assert [line for line in new if len(line) > 8 and line in task.issue] == []
