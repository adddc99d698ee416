"""The notebooks run from top to bottom on the data that lies beside them, and are kept without what running leaves behind."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = ("bench", "trajectories", "twenty_questions")
DATA = [path for path in sorted((FOLDER / "data").rglob("*")) if path.is_file()]
TEXTS = [*(FOLDER / f"{name}.ipynb" for name in NAMES), *(path for path in DATA if path.suffix in (".json", ".jsonl"))]
#: Folders of somebody's machine; `/` after a letter or a point is a path within the project, or a fraction.
FOREIGN = re.compile(r"(?<![\w.)\]])/(?:home|root|Users|tmp|var|mnt|opt|srv|work|private)/|[A-Z]:\\\\")
NAMED = re.compile(r"[a-z]+(-[a-z]+)*")
LIMIT = 3_000_000


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def shown(path):
    return str(path.relative_to(FOLDER))


def test_every_notebook_is_known_here():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_without_outputs_and_counts_and_its_cells_have_names(name):
    book = read(name)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not [cell.id for cell in code if cell.outputs or cell.execution_count is not None or cell.metadata]
    ids = [cell.id for cell in book.cells]
    assert len(set(ids)) == len(ids)
    assert not [one for one in ids if not NAMED.fullmatch(one)], "an id that is drawn at random changes for no reason"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_ends_with_at_least_six_open_problems(name):
    last = read(name).cells[-1].source
    assert last.startswith("## Open problems")
    assert len(re.findall(r"^\d+\. \*\*", last, re.MULTILINE)) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_results_are_not_written_into_the_text(name):
    """Decimal fractions, percentages and p-values in prose go stale when the data is made again."""
    prose = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    assert not re.findall(r"\b\d+\.\d+\b|\d+ ?%|p [=<]", prose)


@pytest.mark.parametrize("path", TEXTS, ids=shown)
def test_nothing_names_a_folder_of_a_machine(path):
    text = path.read_text()
    assert not FOREIGN.search(text), FOREIGN.search(text)
    assert str(FOLDER.parent) not in text


@pytest.mark.parametrize("arguments", [("check", "--quiet"), ("format", "--check", "--quiet")], ids=lambda one: one[0])
def test_notebooks_are_linted_like_code(arguments):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, str(FOLDER)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_data_is_small_and_in_plain_formats():
    assert sum(path.stat().st_size for path in DATA) < LIMIT
    assert {path.suffix for path in DATA} == {".json", ".jsonl", ".safetensors"}


@pytest.mark.parametrize("path", [path for path in DATA if path.suffix == ".json"], ids=shown)
def test_the_data_says_which_command_and_seed_made_it(path):
    content = json.loads(path.read_text())
    made_by = content.get("made_by") or content["metadata"]["made_by"]
    assert made_by["command"].startswith("sonde study 20q ")
    assert isinstance(made_by["seed"], int)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom_and_draws_its_pictures(name):
    book = read(name)
    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources=resources).execute()
    for cell in book.cells:
        if cell.cell_type == "code":
            outputs = cell.outputs
            assert not [one for one in outputs if one.get("name") == "stderr"], (cell.id, outputs)
            drawn = re.search(r"^(drawing\.figure|figures\.\w+)\(", cell.source, re.MULTILINE)
            pictures = [one for one in outputs if "image/png" in one.get("data", {})]
            assert len(pictures) == bool(drawn), (cell.id, len(pictures))
