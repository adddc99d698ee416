"""What is there to repair? Small Python repositories with a bug, an issue in a user's words, and hidden tests.

    task = load_tasks()[0]
    task.issue                     # what the agent is told
    task.repo["intervals.py"]      # what it finds
    task.reference                 # what it never sees: the repaired files, and `task.hidden`

A task is a folder: `task.json` (id, title, difficulty, issue), `repo/` with at least one test file that fails,
`hidden/` with the tests that judge, `reference/` with the whole text of every file a repair changes. Standard library
only. Reading all embedded tasks takes some milliseconds; nothing is executed here.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sonde.agents.sandbox import hidden_tests
from sonde.core import errors

EMBEDDED = Path(__file__).parent / "repositories"
DIFFICULTIES = ("trivial", "easy", "medium", "hard")
_FIELDS = ("id", "title", "difficulty", "issue")


@dataclasses.dataclass(frozen=True, slots=True)
class CodeTask:
    """One repository to repair.

    Attributes:
        id: Its name.
        title: One line.
        difficulty: One of `DIFFICULTIES`.
        issue: What a user complains about.
        repo: The files the agent finds: path to text.
        hidden: The tests that judge.
        reference: The files of `repo` that a repair changes, repaired.
    """

    id: str
    title: str
    difficulty: str
    issue: str
    repo: Mapping[str, str]
    hidden: Mapping[str, str]
    reference: Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuses a task that cannot be played.

        Raises:
            ValueError: Names the task and what is wrong.
        """
        problem = _problem(self)
        if problem:
            raise ValueError(f"task {self.id!r}: {problem}")


def load_tasks(folder: Path | str | None = None) -> list[CodeTask]:
    """All tasks in a folder, in the order of their names.

    Args:
        folder: Holds one folder per task; the embedded ones if left out.

    Raises:
        ValueError: There is none, or one is not as it should be.
    """
    root = EMBEDDED if folder is None else Path(folder)
    found = sorted(path.parent for path in root.glob(f"*/{hidden_tests.TASK_FILE}"))
    if not found:
        raise ValueError(f"no tasks in {root}: expected folders with a file task.json")
    return [load_task(path) for path in found]


def load_task(folder: Path | str) -> CodeTask:
    """Reads one task.

    Args:
        folder: The task's own folder; a bare name stands for an embedded task.

    Raises:
        ValueError: Names the task and what is missing or wrong.
    """
    if isinstance(folder, str) and "/" not in folder and not Path(folder).exists():
        known = sorted(path.name for path in EMBEDDED.iterdir())
        if folder not in known:
            raise ValueError(f"no task {folder!r}{errors.suggest(folder, known)}")
        folder = EMBEDDED / folder
    folder = Path(folder)
    if EMBEDDED not in folder.parents:
        hidden_tests.remembered.cache_clear()  # this one may be new, and lie where commands could see it
    described = _described(folder)
    repo, hidden, reference = (_files(folder, part) for part in ("repo", hidden_tests.HIDDEN, "reference"))
    return CodeTask(**{name: described[name] for name in _FIELDS}, repo=repo, hidden=hidden, reference=reference)


def _described(folder: Path) -> dict[str, Any]:
    try:
        described = json.loads((folder / hidden_tests.TASK_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"task {folder.name!r}: cannot read task.json in {folder}: {error.strerror}") from None
    except ValueError as error:  # JSON and Unicode errors both
        raise ValueError(f"task {folder.name!r}: task.json is not JSON: {error}") from None
    wrong = [name for name in _FIELDS if not isinstance(described, dict) or not isinstance(described.get(name), str)]
    if wrong:
        raise ValueError(f"task {folder.name!r}: task.json lacks a text for {', '.join(wrong)}")
    return described


def _files(folder: Path, part: str) -> dict[str, str]:
    files = {}
    for path in sorted((folder / part).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            try:
                files[path.relative_to(folder / part).as_posix()] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"task {folder.name!r}: {path} is not UTF-8 text") from None
    return files


def _problem(task: CodeTask) -> str:
    empty = [name for name in ("id", "issue", "repo", "hidden", "reference") if not getattr(task, name)]
    if empty:
        return f"nothing in {', '.join(empty)}"
    if task.difficulty not in DIFFICULTIES:
        return f"difficulty {task.difficulty!r} is none of {', '.join(DIFFICULTIES)}"
    for path in (*task.repo, *task.hidden, *task.reference):
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            return f"{path!r} is not a path inside the repository"
    if not any(PurePosixPath(path).match("test*.py") for path in task.repo):
        return "the repository has no visible test: expected a file test_*.py"
    unknown = sorted(set(task.reference) - set(task.repo))
    if unknown:
        return f"the reference changes {unknown[0]!r}, which the repository does not have"
    return ""
