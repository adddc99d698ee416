"""Rules of the house that can be read off the source text."""

import ast
import pathlib
import re
import subprocess
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted(path for path in (ROOT / "src").rglob("*.py") if "repositories" not in path.parts)
LONGEST_FILE = 600

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"torch.load", "torch.save", "torch.hub.load", "pandas.read_pickle", "pd.read_pickle"}

# Letters in brackets keep these patterns from finding themselves.
MACHINE_PATHS = re.compile(r"(?<![\w.~}$-])/(?:roo[t]|hom[e]|User[s]|wor[k]|op[t]|mn[t]|sr[v])/[\w.-]+")
REGISTRY_HOSTS = re.compile(
    r"py[p]i\.org|python[h]osted\.org|download\.py[t]orch\.org|index[-_]ur[l]|find-link[s]|fil[e]://", re.IGNORECASE
)
ADDRESSES = re.compile(r"(?<![\d.])(?!127\.0\.0\.1|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
TOO_BIG_TO_BE_TEXT = 1_000_000
GENERATED = {".venv", "site", "runs", "build", "dist", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis"}


def relative(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def kept_files() -> list[pathlib.Path]:
    """Files under version control or about to be; in an unpacked archive, all but the generated ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not GENERATED & set(path.relative_to(ROOT).parts)]
    return [path for path in paths if path.is_file() and path.stat().st_size < TOO_BIG_TO_BE_TEXT]


def unsafe_uses(tree: ast.AST) -> list[str]:
    """Each import or call in a module that could execute what it reads."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            if node.module.split(".")[0] in UNSAFE_MODULES or names & UNSAFE_CALLS:
                found.append(f"from {node.module} import ...")
        elif isinstance(node, ast.Call):
            if ast.unparse(node.func) in UNSAFE_CALLS:
                found.append(ast.unparse(node.func))
            allowed = [word.value for word in node.keywords if word.arg == "allow_pickle"]
            if any(not (isinstance(value, ast.Constant) and value.value is False) for value in allowed):
                found.append("allow_pickle")
    return found


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from dill import loads", "import torch\ntorch.load('x')", "from torch import save",
     "np.load('x', allow_pickle=True)"],
)  # fmt: skip
def test_the_search_for_unsafe_reading_finds(code):
    assert unsafe_uses(ast.parse(code))


def test_nothing_in_sonde_reads_or_writes_pickle():
    found = {relative(path): unsafe_uses(ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {path: uses for path, uses in found.items() if uses} == {}


READERS = {f"src/sonde/models/{name}.py" for name in ("checkpoint", "gguf/network", "tokenizer_files")}
PYTHON = [path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]


def trusting_reads(tree: ast.AST) -> list[str]:
    """Each call that could run the code of a model folder."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("from_pretrained")
    ]
    return [ast.unparse(call) for call in calls if "trust_remote_code=False" not in ast.unparse(call)]


def test_the_search_for_trusting_reads_finds():
    assert trusting_reads(ast.parse("transformers.AutoConfig.from_pretrained(folder, dtype=x)"))
    assert not trusting_reads(ast.parse("AutoConfig.from_pretrained(folder, trust_remote_code=False)"))


def test_model_folders_are_read_in_one_place_and_nowhere_is_their_code_trusted():
    calls = {relative(path): trusting_reads(ast.parse(path.read_text(encoding="utf-8"))) for path in PYTHON}
    assert {path for path, found in calls.items() if found} <= READERS
    elsewhere = [path for path in SOURCES if "from_pretrained(" in path.read_text(encoding="utf-8")]
    assert {relative(path) for path in elsewhere} == READERS
    notebooks = [path.name for path in (ROOT / "notebooks").rglob("*.ipynb") if "from_pretrained(" in path.read_text()]
    assert notebooks == []


def test_every_source_file_is_short_enough_to_read():
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {path: length for path, length in lengths.items() if length >= LONGEST_FILE} == {}


def test_every_module_opens_with_a_docstring():
    silent = [
        relative(path)
        for path in SOURCES
        if (tree := ast.parse(path.read_text(encoding="utf-8"))).body and not ast.get_docstring(tree)
    ]
    assert silent == []


@pytest.mark.parametrize("text", ["see /" + "root/x", "at /" + "home/ann/x", "--index" + "-url", "10.1" + ".2.3"])
def test_the_search_for_machine_names_finds(text):
    assert any(pattern.search(text) for pattern in (MACHINE_PATHS, REGISTRY_HOSTS, ADDRESSES))


def test_no_file_names_a_machine_path_or_a_registry_host():
    found = []
    for path in kept_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for pattern in (MACHINE_PATHS, REGISTRY_HOSTS, ADDRESSES):
            found += [f"{relative(path)}: {match.group()}" for match in pattern.finditer(text)]
    assert found == []


def test_every_extra_that_a_message_recommends_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {
        extra.strip()
        for path in SOURCES
        for group in re.findall(r"sonde\[([a-z][a-z, ]*)\]", path.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert named <= set(extras)


def test_every_pin_is_exact():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    loose = [
        line for line in lines if line and not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.!]+", line)
    ]
    assert loose == []
