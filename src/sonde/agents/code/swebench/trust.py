"""Whether a log of SWE-bench can be believed: what its own grading does not look at.

SWE-bench reads names of tests and verdicts from text that the judged code had a hand in: a log with forged lines counts.
So beside its report stand reasons not to believe it, each found in what the judged code cannot write:

1. Files that decide how tests run (see `FILES`) are touched by the patch, and not by the instance's own repair.
2. A marker that the judging script writes stands in the log more often than the script writes it.
3. The runner did not say its closing words, or the script did not come to its end.
4. The instance's tests were not put in.

A patch that changes none of these can still lie while the tests run: see `control`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from sonde.agents.code.swebench import instances

EXIT = ">>>>> Test Exit Code"
#: Files that configure tests or builds, or that Python and its test runners run at their start.
FILES = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "tox.toml", "setup.cfg",
    "setup.py", "pyproject.toml", ".coveragerc", "runtests.py", "pyvenv.cfg",
    "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc", "*.egg-link",
)  # fmt: skip
#: Names that stand for a module of the test runner's if a repository has its own.
RUNNERS = ("pytest", "_pytest", "pluggy", "iniconfig", "unittest", "tox", "site", "sitecustomize", "usercustomize")
_METADATA = (".egg-info", ".dist-info")
_OF_GIT = ("index", "objects", "ORIG_HEAD")
_PYTEST = r"\b\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed|deselected)\b.* in [\d.:]+ ?(?:s\b|seconds)"
_CLOSING = {"parse_log_django": r"^Ran \d+ tests? in ", "parse_log_sympy": r"tests finished: "}
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_PYTHON = (
    "pytest", "pytest_options", "pytest_v2", "seaborn", "matplotlib", "astroid", "flask", "marshmallow", "pvlib",
    "pyvista", "sqlfluff", "xarray", "pydicom", "requests", "pylint", "astropy", "scikit", "sphinx",
)  # fmt: skip
_CLOSING |= dict.fromkeys((f"parse_log_{name}" for name in _PYTHON), _PYTEST)


def of_files(changed: Iterable[tuple[str, str]], own: frozenset[str]) -> list[str]:
    """Reasons not to believe a log, from the files that a patch changed in the container.

    Args:
        changed: What became of each (`A` for one that was not there), and its absolute path in the container.
        own: Files that the instance's own repair touches, relative to the repository.
    """
    return [reason for kind, path in changed if (reason := _reason(kind, path, own))]


def _reason(kind: str, path: str, own: frozenset[str]) -> str:
    if path == instances.REPOSITORY:
        return ""
    if not path.startswith(f"{instances.REPOSITORY}/"):
        return f"the patch changed {path}, outside of the repository"
    inside = PurePosixPath(path).relative_to(instances.REPOSITORY)
    parts = inside.parts
    if parts[0] == ".git":
        return "" if len(parts) == 1 or parts[1] in _OF_GIT else f"the patch changed the repository's own {inside}"
    if str(inside) in own:
        return ""
    if any(inside.match(form) for form in FILES) or any(part.endswith(_METADATA) for part in parts):
        return f"the patch touches {inside}, which decides how tests run"
    if kind == "A" and PurePosixPath(parts[-1]).stem in RUNNERS and inside.suffix in (".py", ".so", ""):
        return f"the patch adds {inside}, which can stand in for the test runner"
    return ""


def of_log(log: str, script: str, task: instances.SweBenchTask) -> list[str]:
    """Reasons not to believe a log, from its text.

    Args:
        log: What the script wrote.
        script: The script as it ran, which repeats its commands (`set -x`).
        task: The instance.
    """
    reasons = [
        f"{marker!r} stands {found} times in the log, and the script writes it {wanted} times"
        for marker in (instances.START, instances.END, EXIT)
        if (found := log.count(marker)) != (wanted := _written(script, marker))
    ]
    if not reasons and log.rindex(instances.START) > log.index(instances.END):
        reasons = ["the log's markers are out of order"]
    if reasons:
        return reasons
    before, rest = log.split(instances.START, 1)
    missing = [file for file in task.test_files if not _put_in(before, file, script)]
    reasons += [f"the instance's tests were not put into {file}" for file in missing]
    closing = _CLOSING.get(task.log_parser)
    section = _COLOURS.sub("", rest.split(instances.END, 1)[0])
    if closing and not re.search(closing, section, re.MULTILINE):
        reasons.append("the tests were not run to their end: the runner's closing line is missing")
    return reasons


def reinstall(log: str) -> str:
    """How the re-installation of the package went: `done`, `failed: why`, or empty if the script makes none."""
    before = log.split(instances.START, 1)[0]
    runs = re.split(r"^\++ (?=.*\bpip3? install\b)", before, flags=re.MULTILINE)[1:]
    for run in runs:
        said = run.split("\n+ ", 1)[0]
        if re.search(r"^Successfully installed|^Requirement already satisfied", said, re.MULTILINE) is None:
            wrong = re.findall(r"^\s*ERROR: (.+)", said, re.MULTILINE) or said.strip().split("\n")[-1:]
            return f"failed: {wrong[0].strip()[:300]}"
    return "done" if runs else ""


def unbuilt(changed: Sequence[tuple[str, str]]) -> list[str]:
    """The files of a patch that only a re-installation brings into force: sources of compiled code."""
    sources = (
        ".pyx", ".pxd", ".pxi", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".f", ".f90", ".rs", ".go", ".java", ".in",
    )  # fmt: skip
    inside = [path.removeprefix(f"{instances.REPOSITORY}/") for _, path in changed]
    return [path for path in inside if path.endswith(sources)]


def _written(script: str, marker: str) -> int:
    """How often a script writes a marker: `: marker` is repeated by the shell, `echo marker` is repeated and said."""
    lines = [line.strip() for line in script.split("\n") if marker in line]
    return sum(2 if line.startswith("echo ") else 1 for line in lines)


def _put_in(before: str, file: str, script: str) -> bool:
    """Whether the script put one of the instance's test files in, where it says so."""
    says: Callable[[str], bool] = lambda form: re.search(form, script, re.MULTILINE) is not None  # noqa: E731
    if not says(r"^git apply (?:-v|--verbose)\b"):
        return True
    applied = rf"^Applied patch (?:{re.escape(file)}|\"{re.escape(file)}\"|.*=> .*) cleanly\."
    return re.search(applied, before, re.MULTILINE) is not None
