"""`sonde bench leaderboard` as typed, and methods of one's own on the command line."""

import importlib.util
import json
import pathlib
import re

import pytest
from typer import testing

from sonde._cli import main
from sonde.bench import priors
from sonde.circuits import faithfulness, registry


def _load(name):
    """What the tests of published folders share."""
    place = pathlib.Path(__file__).parents[1] / "unit" / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


interpbench = _load("interpbench")
TYPED = testing.CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
MINE = '''
import numpy as np
from sonde.circuits import registry, running_options

@registry.register("typed-mine")
def mine(model, pairs, metric, **options):
    """Late sources first."""
    search = running_options.Search("typed-mine", model, pairs, metric, options)
    shape = search.runner.graph.allowed.shape
    return search.scores(np.arange(1.0, shape[0] + 1)[:, None] * np.ones(shape))
'''


def typed(*words):
    found = TYPED.invoke(main.app, [str(word) for word in words], catch_exceptions=True)
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, " ".join(found.output.split())


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "my_method.py"
    file.write_text(MINE)
    yield file
    registry._methods.pop("typed-mine", None)


def board(runs, *words, run="it"):
    return typed(
        "bench", "leaderboard", "--tracr", "--cases", "3,11,40", "--pairs", 20, "--runs", runs, "--run", run, *words
    )


def test_a_method_of_ones_own_gets_its_row_with_one_command(tmp_path, mine):
    code, text = board(tmp_path, "--methods", "eap,exact-node,random")
    assert code == 0, text
    assert f"3 models of 3 cases, {3 + len(priors.NAMES)} methods. About" in text
    assert "The best that looks at nothing, by nodes:" in text
    code, text = board(tmp_path, "--methods", "eap,exact-node,random", "--method-file", mine)
    assert code == 2, "another run is another board"
    assert "give it another name" in text
    code, text = board(tmp_path, "--methods", "eap,exact-node,random", "--method-file", mine, run="with-mine")
    assert code == 0, text
    assert re.search(r"typed-mine \d\.\d{3} \[", text)
    first, second = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("it", "with-mine"))
    seconds = [{(row["case"], row["method"]): row["seconds"] for row in one["rows"]} for one in (first, second)]
    assert seconds[0].items() <= seconds[1].items(), "what was measured before is taken from the first board"
    asked = {"eap", "exact-node", "random", "typed-mine"}
    assert {one["method"] for one in second["standings"]["methods"]} == {*asked, *priors.NAMES}
    assert (tmp_path / "with-mine" / "figures" / "standings.png").is_file()
    code, text = typed("runs", "verify", "--runs", tmp_path)
    assert (code, text) == (0, "it: whole with-mine: whole")
    assert "leaderboard" in typed("runs", "ls", "--runs", tmp_path)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "eep"], "no method 'eep'"),
        (["--engine", "rey", "--methods", "random"], "no engine 'rey'"),
        (["--from", "nowhere"], "give one of --tracr, --from and --folder"),
        (["--cases", "ioi"], "no number of a compiled case"),
        (["--method-file", "nowhere.py"], "no file nowhere.py"),
    ],
)
def test_what_makes_no_sense_is_refused_with_2(tmp_path, words, said):
    code, text = board(tmp_path, *words)
    assert code == 2, text
    assert said in text


def test_a_folder_without_trained_models_says_how_to_train(tmp_path):
    code, text = typed("bench", "leaderboard", "--from", tmp_path)
    assert code == 2
    assert "sonde bench train core" in text


def test_circuits_take_a_method_file_and_check_minimality_and_completeness(tmp_path, mine, monkeypatch):
    monkeypatch.setattr(faithfulness, "DRAWS", 50)
    code, text = typed("circuits", "methods", "--method-file", mine)
    assert "Late sources first." in text
    small = ["-m", "tiny-llama", "--task", "induction", "--pairs", "12"]
    checks = ["--edges", "12", "--minimality", "3", "--completeness", "2"]
    code, text = typed(
        "circuits",
        "find",
        *small,
        "--method",
        "typed-mine",
        "--method-file",
        mine,
        *checks,
        "--run",
        "o",
        "--runs",
        tmp_path,
    )
    assert code == 0, text
    assert "Minimality: 3 of 12 edges taken out one at a time" in text
    assert "Completeness: over 2 random halves" in text
    found = json.loads((tmp_path / "o" / "checks.json").read_text())
    assert len(found["minimality"]["falls"]) == 3
    assert len(found["completeness"]["gaps"]) == 2
    code, text = typed(
        "circuits", "compare", *small, "--methods", "random", "--method-file", mine, "--run", "c", "--runs", tmp_path
    )
    assert code == 0, text
    assert "typed-mine: CPR" in text


def test_a_folder_of_published_models_makes_a_board_of_those_that_can_be_loaded(tmp_path):
    folder, kinds = tmp_path / "InterpBench", dict(zip((3, 11, 20), ("edges", "pipe", "numbers"), strict=True))
    for case in (*kinds, 15, 40):
        config = interpbench.config_of(case)
        interpbench.converted(folder / str(case), config, interpbench.random_state(config, case))
    for case, how in kinds.items():
        interpbench.broken(folder / str(case), how)
    words = [
        "bench",
        "leaderboard",
        "--folder",
        folder,
        "--methods",
        "random",
        "--pairs",
        10,
        "--runs",
        tmp_path / "runs",
    ]
    code, text = typed(*words)
    assert code == 2, "random weights do no task"
    assert "answers" in text
    code, text = typed(*words, "--least", 0, "--run", "it")
    assert code == 0, text
    assert "2 models of 2 cases (3 left out: they cannot be loaded, see below)" in text
    assert "3 models cannot be loaded and are left out: case 3, case 11, case 20." in text
    assert "Models that cannot be loaded." in text
    results = json.loads((tmp_path / "runs" / "it" / "results.json").read_text())
    assert {row["case"] for row in results["rows"]} == {"15", "40"}
    assert set(results["left_out"]) == {"case 3", "case 11", "case 20"}
    assert "is no regular file" in (tmp_path / "runs" / "it" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_cluster_gives_the_same_figures(tmp_path):
    ray = pytest.importorskip("ray", reason='needs the extra: pip install "sonde[ray]"')
    figures = []
    for engine in ("local", "ray"):
        code, text = board(tmp_path / engine, "--methods", "eap,exact-node", "--engine", engine)
        assert code == 0, text
        rows = json.loads((tmp_path / engine / "it" / "results.json").read_text())["rows"]
        figures.append(
            [(row["case"], row["method"], row["node_auroc"], row["edge_auroc"], row["passes"]) for row in rows]
        )
    ray.shutdown()
    assert figures[0] == figures[1]
