"""SWE-bench instances, read from every form in which SWE-bench 5 gives them out.

    tasks = swebench_verified_tasks("verified.jsonl")

Forms: a JSON list, JSON lines, a Parquet file, a folder of tasks (`task.yaml`, `eval.sh`, `gold.patch`, …), or a dataset
of the hub. Every field is checked here, so that an episode does not end with a fault of its row. Reading costs what the
file takes to read; a file is read once for all environments of a process.
"""

import dataclasses
import functools
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.core import errors

VERIFIED = "SWE-bench/SWE-bench_Verified"
#: Short names of datasets on the hub.
DATASETS = {
    "full": "SWE-bench/SWE-bench",
    "lite": "SWE-bench/SWE-bench_Lite",
    "verified": VERIFIED,
    "multilingual": "SWE-bench/SWE-bench_Multilingual",
}
#: Names the file, folder or dataset to read where none is given.
VARIABLE = "SONDE_SWEBENCH_TASKS"
#: Where an image holds the repository.
REPOSITORY = "/testbed"
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
EVAL_TYPES = ("pass_and_fail", "fail_only")
_TEXTS = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
_GRADING = ("eval_script", "log_parser", "eval_type")
_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
#: The files of a task's folder, by the field that each holds.
_FILES = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}
_DEPRECATED = "deprecated"
Rows = Iterable[tuple[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class SweBenchTask:
    """One instance; the names are SWE-bench's own, but `id` for `instance_id` and small letters.

    Attributes:
        id: Such as `owner__name-123`.
        repo: Such as `owner/name`.
        base_commit: The commit that the issue is about.
        problem_statement: The issue.
        patch: The repair as it was made.
        test_patch: The tests that came with it.
        fail_to_pass: Tests that the repair makes pass.
        pass_to_pass: Tests that must go on passing.
        eval_script: The shell script that judges.
        log_parser: The function of SWE-bench that reads the script's output.
        eval_type: One of `EVAL_TYPES`.
        image: The Docker image that holds the repository under `/testbed`.
        version: The software's version.
    """

    id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    eval_script: str
    log_parser: str
    eval_type: str
    image: str
    version: str

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files that the test patch touches."""
        return files_of(self.test_patch)

    @property
    def own_files(self) -> frozenset[str]:
        """The files that the instance's own repair and its tests touch."""
        return frozenset((*files_of(self.patch), *self.test_files))

    def row(self) -> dict[str, Any]:
        """The instance under SWE-bench's names, as its harness takes it."""
        told = {name: getattr(self, name) for name in (*_TEXTS[1:], *_GRADING, "image", "version")}
        lists = {"FAIL_TO_PASS": list(self.fail_to_pass), "PASS_TO_PASS": list(self.pass_to_pass)}
        return {"instance_id": self.id, **told, **lists}


def swebench_verified_tasks(path: Path | str | None = None) -> list[SweBenchTask]:
    """Reads SWE-bench instances.

    Args:
        path: A file (`.json`, `.jsonl`, `.parquet`), a folder of tasks, or a dataset of the hub, such as `verified` or
            `SWE-bench/SWE-bench_Lite`. Left out: what the variable `SONDE_SWEBENCH_TASKS` names, else SWE-bench Verified
            from the hub.

    Raises:
        ValueError: Names the file, the line or entry, and what is wrong with it.
        MissingExtraError: The package that reads this form is missing.
        EpisodeError: The hub cannot be reached.
    """
    source = str(path if path is not None else os.environ.get(VARIABLE) or VERIFIED)
    place = Path(source)
    if not place.exists():
        return list(_from_hub(_dataset_of(source)))
    stamp = place.stat()
    if place.is_dir():
        return _checked(_folder(place), source)
    return list(_from_file(source, (stamp.st_mtime_ns, stamp.st_size)))


def files_of(patch: str) -> tuple[str, ...]:
    """The files that a patch in git's form names."""
    named = re.findall(r'^diff --git "?a/.+? "?b/(.+?)"?$', patch, re.MULTILINE)
    return tuple(dict.fromkeys(named))


def key_of(instance_id: str) -> str:
    """An instance's id as image names have it."""
    return instance_id.lower().replace("__", "_1776_")


def default_image(instance_id: str) -> str:
    """The image that SWE-bench publishes for an instance."""
    return f"swebench/sweb.eval.x86_64.{key_of(instance_id)}:latest"


@functools.lru_cache(maxsize=8)
def _from_file(source: str, stamp: tuple[int, int]) -> tuple[SweBenchTask, ...]:
    """The instances of a file; the stamp makes a changed file another one."""
    readers: dict[str, Callable[[Path], Rows]] = {".json": _json, ".jsonl": _json, ".parquet": _parquet}
    suffix = Path(source).suffix.lower()
    if suffix not in readers:
        raise ValueError(
            f"{source}: cannot read {suffix or 'a file without an ending'}; write .json, .jsonl or .parquet"
        )
    return tuple(_checked(readers[suffix](Path(source)), source))


@functools.lru_cache(maxsize=4)
def _from_hub(name: str) -> tuple[SweBenchTask, ...]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise errors.MissingExtraError("datasets", extra="swebench", feature="reading SWE-bench from the hub") from None
    try:
        rows = datasets.load_dataset(name, split="test")
    except Exception as error:
        raise errors.EpisodeError(
            f"cannot get {name} from the hub ({type(error).__name__}: {error}); give a file or folder of tasks instead: "
            "swebench_verified_tasks('verified.jsonl'), or sonde play swebench --tasks verified.jsonl"
        ) from error
    return tuple(_checked(((f"{name}, row {number}", dict(row)) for number, row in enumerate(rows)), name))


def _dataset_of(source: str) -> str:
    name = DATASETS.get(source.lower(), source)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or Path(name).suffix in (".json", ".jsonl", ".parquet"):
        raise ValueError(
            f"no such file or folder: {source}; and datasets of the hub are {', '.join(DATASETS)} or OWNER/NAME"
        )
    return name


def _json(path: Path) -> Rows:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    if text.lstrip().startswith("["):
        try:
            return [(f"{path}, entry {number}", row) for number, row in enumerate(json.loads(text))]
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append((f"{path}, line {number}", json.loads(line)))
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from None
    return rows


def _parquet(path: Path) -> Rows:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise errors.MissingExtraError("pyarrow", extra="swebench", feature="reading Parquet files") from None
    try:
        rows: Sequence[Any] = parquet.read_table(path).to_pylist()
    except Exception as error:  # pyarrow has many of its own
        raise ValueError(f"{path} is not a Parquet file: {error}") from None
    return [(f"{path}, row {number}", row) for number, row in enumerate(rows)]


def _folder(place: Path) -> Rows:
    """The tasks of a folder: one that holds `tasks/`, is such a folder, or is a single task; dropped ones are left out."""
    root = place / "tasks" if (place / "tasks").is_dir() else place
    folders = [place] if (place / "task.yaml").is_file() else sorted(path.parent for path in root.glob("*/task.yaml"))
    if not folders:
        raise ValueError(f"no tasks in {place}: expected folders with a file task.yaml")
    for folder in folders:
        row = _task_folder(folder)
        if row.get("split") != _DEPRECATED or folder == place:
            yield str(folder), row


def _task_folder(folder: Path) -> dict[str, Any]:
    import yaml

    try:
        row = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
        tests = json.loads((folder / "tests.json").read_text(encoding="utf-8"))
        if not isinstance(row, dict) or not isinstance(tests, dict):
            raise ValueError("task.yaml and tests.json should each hold an object")
        for field, name in _FILES.items():
            with (folder / name).open(
                encoding="utf-8", newline=""
            ) as file:  # which leaves the line ends of patches alone
                row[field] = file.read()
    except OSError as error:
        raise ValueError(f"{folder}: cannot read {Path(error.filename).name}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{folder} is not a task: {error}") from None
    return {**row, **tests}


def _checked(rows: Rows, source: str) -> list[SweBenchTask]:
    found = [_task(row, where) for where, row in rows]
    if not found:
        raise ValueError(f"{source} holds no instances")
    return found


def _task(row: Any, where: str) -> SweBenchTask:
    if not isinstance(row, Mapping):
        raise ValueError(f"{where}: expected an object, got {type(row).__name__}")
    _check_texts(row, where)
    fails, passes = (_names(row.get(name), f"{where}: {name}") for name in _LISTS)
    if not fails:
        raise ValueError(f"{where}: FAIL_TO_PASS names no test")
    if _assets(row.get("image_assets"), where):
        raise ValueError(
            f"{where}: its patches need binary files beside them (image_assets), which is not supported; leave it out"
        )
    texts = {name: row[name] for name in (*_TEXTS[1:], *_GRADING)}
    image = str(row.get("image") or default_image(row["instance_id"]))
    version = str(row.get("version") or "")
    return SweBenchTask(
        id=row["instance_id"], **texts, fail_to_pass=fails, pass_to_pass=passes, image=image, version=version
    )


def _check_texts(row: Mapping[str, Any], where: str) -> None:
    lacking = _lacking(row, _TEXTS)
    if lacking:
        raise ValueError(f"{where}: lacks a text for {', '.join(lacking)}")
    lacking = _lacking(row, _GRADING)
    if lacking:
        raise ValueError(
            f"{where}: lacks {', '.join(lacking)}, as rows made before SWE-bench 5 do, and without them it cannot be "
            f"judged; take the present rows: dataset {VERIFIED} (or {', '.join(DATASETS)}), or the task folders that "
            "SWE-bench 5 publishes"
        )
    for name, form in (("instance_id", r"[\w.-]+"), ("repo", r"[\w.-]+/[\w.-]+"), ("base_commit", r"[0-9a-f]{7,64}")):
        if not re.fullmatch(form, row[name]):
            raise ValueError(f"{where}: {name} {row[name][:80]!r} is not of the form {form}")
    if row["eval_type"] not in EVAL_TYPES:
        raise ValueError(f"{where}: eval_type {row['eval_type']!r} is none of {', '.join(EVAL_TYPES)}")
    for marker in (START, END):
        lines = sum(marker in line for line in row["eval_script"].split("\n"))
        if lines != 1:
            raise ValueError(f"{where}: eval_script has {lines} lines with {marker!r}, expected one")


def _lacking(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [name for name in names if not isinstance(row.get(name), str) or not row[name].strip()]


def _assets(value: Any, where: str) -> bool:
    """Whether the patches need files that a text patch cannot carry."""
    try:
        value = json.loads(value) if isinstance(value, str) and value.strip() else value
    except ValueError:
        raise ValueError(f"{where}: image_assets is a text but not JSON") from None
    return isinstance(value, Mapping) and any(value.get(name) for name in ("patch", "test_patch"))


def _names(value: Any, where: str) -> tuple[str, ...]:
    """A list of test names, given itself or as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"{where} is a text but not JSON: {value[:60]!r}") from None
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{where} should be a list of test names, got {type(value).__name__}")
    return tuple(value)
