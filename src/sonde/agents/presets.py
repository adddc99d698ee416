"""Environments by name, and parts of their tasks by selector.

    env = sonde.make("20q")            # all tasks
    env = sonde.make("20q:5")          # the sixth
    env = sonde.make("20q:0:10")       # the first ten; also `20q:5:` and `20q::10`
    env = sonde.make("code:roman")     # one task by its id, or all of one `repo`, where tasks have that
    env = sonde.make("20q@2/8")        # the third of eight parts
    env = sonde.make("20q:0:40@1/4")   # selectors apply from left to right

Costs nothing until `make` is called; a preset imports what it needs then.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde.core import errors

Factory = Callable[..., Any]
_PART = re.compile(
    r":(?P<start>[0-9]*):(?P<stop>[0-9]*)|:(?P<index>[0-9]+)(?![\w.-])|@(?P<shard>[0-9]+)/(?P<shards>[0-9]+)"
    r"|:(?P<called>[A-Za-z][\w.-]*(?:/[\w.-]+)?)"
)
_FORMS = "NAME, NAME:5, NAME:0:10, NAME:5:, NAME::10, NAME:TASK, NAME@2/8, or several of them, as in NAME:0:40@1/4"


@dataclasses.dataclass(frozen=True, slots=True)
class Preset:
    """A registered environment.

    Attributes:
        name: What `make` calls it.
        factory: Makes it; takes its options as keywords.
        summary: One line about it.
        source: Where its tasks come from, if not with it.
    """

    name: str
    factory: Factory
    summary: str
    source: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Info:
    """What there is to know before playing.

    Attributes:
        name: The preset or selection asked about.
        summary: One line about it.
        task_ids: Its tasks, in order; empty if they come from somewhere that was not named.
        source: Where they come from, if not with it.
    """

    name: str
    summary: str
    task_ids: tuple[str, ...]
    source: str = ""


_presets: dict[str, Preset] = {}


def register_preset(name: str, factory: Factory, *, summary: str = "", source: str = "", replace: bool = False) -> None:
    """Makes an environment known by name.

    Args:
        name: Letters, digits, `-`, `_`, `.` and `/`.
        factory: Makes the environment; keyword options of `make` are handed to it.
        summary: One line about it.
        source: Where its tasks come from, if not with it; `info` then reads them only if told where they are.
        replace: Take the place of a preset of that name.

    Raises:
        SelectorError: The name is taken, or would be read as a selector.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w./-]*", name):
        raise errors.SelectorError(f"a preset name is letters, digits, '-', '_', '.' and '/', got {name!r}")
    if name in _presets and not replace:
        raise errors.SelectorError(f"there is a preset {name!r} already: choose another name or pass replace=True")
    _presets[name] = Preset(name, factory, summary, source)


def list_presets() -> list[str]:
    """The names `make` knows."""
    return sorted(_presets)


def make(selection: str, **options: Any) -> Any:
    """An environment by name, with the tasks that the selectors choose.

    Args:
        selection: A preset's name and selectors: see the module.
        **options: Handed to the environment, such as `seed` or `step_limit`.

    Raises:
        SelectorError: The preset is unknown, an option is wrong, a selector does not parse, or it selects no task (also
            a ValueError).
    """
    preset, parts = _parsed(selection)
    try:
        env = preset.factory(**options)
    except (TypeError, ValueError) as error:
        if isinstance(error, errors.SondeError):
            raise
        raise errors.SelectorError(f"{preset.name!r} cannot be made: {error}") from error
    if not parts:
        return env
    if not hasattr(env, "with_tasks"):
        raise errors.SelectorError(f"{preset.name!r} has no list of tasks to select from: leave out the selectors")
    return env.with_tasks(_selected(list(env.tasks), parts, selection))


def info(selection: str, **options: Any) -> Info:
    """Summary and tasks of a preset or selection."""
    preset, _ = _parsed(selection)
    if preset.source and not options:
        return Info(selection, preset.summary, (), preset.source)
    env = make(selection, **options)
    return Info(selection, preset.summary, tuple(getattr(env, "task_ids", ())), preset.source)


def _parsed(selection: str) -> tuple[Preset, list[re.Match[str]]]:
    head = re.match(r"[^:@]*", selection)
    name = head.group() if head else ""
    if name not in _presets:
        known = ", ".join(list_presets())
        raise errors.SelectorError(f"no preset {name!r}{errors.suggest(name, _presets)} Known: {known}.")
    parts: list[re.Match[str]] = []
    at = len(name)
    while at < len(selection):
        part = _PART.match(selection, at)
        slices_meet = bool(parts) and part is not None and _is_slice(parts[-1]) and _is_slice(part)
        if part is None or slices_meet:
            raise errors.SelectorError(f"cannot read {selection[at:]!r} in {selection!r}: write {_FORMS}")
        parts.append(part)
        at = part.end()
    return _presets[name], parts


def _is_slice(part: re.Match[str]) -> bool:
    return part["shard"] is None and part["called"] is None


def _called(tasks: Sequence[Any], name: str, selection: str) -> list[Any]:
    """The task of that id, or the tasks of that repository.

    Raises:
        SelectorError: There is neither.
    """
    found = [task for task in tasks if name in (task.id, getattr(task, "repo", None))]
    if not found:
        repos = {task.repo for task in tasks if isinstance(getattr(task, "repo", None), str)}
        near = errors.suggest(name, {task.id for task in tasks} | repos)
        raise errors.SelectorError(
            f"{selection!r}: there is no task {name!r} among the {len(tasks)}{near}; write {_FORMS}"
        )
    return found


def _selected(tasks: Sequence[Any], parts: Sequence[Mapping[str, Any] | re.Match[str]], selection: str) -> list[Any]:
    whole = len(tasks)
    for part in parts:
        if part["shard"] is not None:
            shard, shards = int(part["shard"]), int(part["shards"])
            if shard >= shards:
                raise errors.SelectorError(f"{selection!r}: parts count from 0, so @k/n needs k below n")
            tasks = tasks[len(tasks) * shard // shards : len(tasks) * (shard + 1) // shards]
        elif part["called"] is not None:
            tasks = _called(tasks, part["called"], selection)
        elif part["index"] is not None:
            tasks = tasks[int(part["index"]) :][:1]
        else:
            start, stop = (int(part[name]) if part[name] else None for name in ("start", "stop"))
            tasks = tasks[start:stop]
    if not tasks:
        raise errors.SelectorError(f"{selection!r} selects none of the {whole} tasks")
    return list(tasks)


def _twenty_questions(**options: Any) -> Any:
    from sonde.agents.twenty_questions import environment

    return environment.TwentyQuestionsEnvironment(**options)


def _code(**options: Any) -> Any:
    from sonde.agents.code import environment

    return environment.CodeEnvironment(**options)


def _swebench(
    tasks: str | None = None,
    *,
    image: str | None = None,
    judge_network: bool = False,
    judge_seconds: float | None = None,
    logs: str | None = None,
    **options: Any,
) -> Any:
    from sonde.agents.code.swebench import environment, instances, judge

    judging = judge.Judge(
        image=image, network=judge_network, seconds=judge.SECONDS if judge_seconds is None else judge_seconds, logs=logs
    )
    return environment.SweBenchEnv(instances.swebench_verified_tasks(tasks), judge=judging, **options)


register_preset("20q", _twenty_questions, summary="Twenty Questions: guess an object by asking yes/no questions.")
register_preset("code", _code, summary="Code repair: make a small repository's tests pass, by shell commands.")
register_preset(
    "swebench",
    _swebench,
    summary="SWE-bench: repair real repositories, each in its own Docker container.",
    source="a file, folder or dataset of the hub (option tasks)",
)
