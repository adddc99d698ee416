"""`sonde trace` as typed: a model that knows some programs by heart is traced, stopped, and traced on."""

import json

import pytest
from typer import testing

import sonde
from sonde import store
from sonde._cli import main
from sonde.programs import CausalTracer, causal_asking, causal_runner
from sonde.testing import scripted

TYPED = testing.CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
DRAWN = ["--lines", "4", "--hops", "2", "-n", "8", "--template", "minimal"]


def at(folder):
    """The options for a run."""
    return ["--run", folder.name, "--runs", folder.parent]


def typed(*words):
    found = TYPED.invoke(main.app, ["trace", *(str(word) for word in words)])
    return found.exit_code, found.output


@pytest.fixture(scope="module")
def learned(tmp_path_factory, taught):
    """The folder of a tiny model that knows the programs of DRAWN."""
    folder = tmp_path_factory.mktemp("model") / "learned"
    with sonde.load("tiny-llama") as model:
        asked = CausalTracer(model, only_right=False).prepare(causal_asking.drawn(4, 2, 8, seed=0))
        taught(model, (*asked.tasks, *asked.controls))
        model.hf.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
    return folder


def test_a_trace_says_how_well_the_model_does_how_long_it_takes_and_what_it_found(learned, tmp_path):
    out = tmp_path / "out"
    parts = ["--component", "residual_stream,attention_heads", "--roles", "rhs_1,final"]
    code, text = typed("-m", learned, *DRAWN, *parts, *at(out))
    assert code == 0, text
    for words in ("8 of 8 clean programs right", "line-1 heuristic", "About", "control success", "rhs_1"):
        assert words in text
    page = (out / "report.html").read_text()
    assert "Causal trace of" in page
    figures = {path.name for path in (out / "figures").iterdir()}
    assert {"residual_stream-tokens.png", "residual_stream-role-success.png", "attention_heads-final.png"} <= figures
    whole = json.loads((out / "results.json").read_text())
    assert set(whole["components"]) == {"residual_stream", "attention_heads"}


def test_knockouts_and_tokens_patched_together_are_within_reach_and_layers_fit_every_component(learned, tmp_path):
    parts = ["--component", "residual_stream,mlp,knockout", "--layers", "0:5:2", "--together", "rhs", "--window", "2"]
    code, text = typed("-m", learned, *DRAWN, *parts, "--roles", "rhs_1,rhs_2,final", *at(tmp_path / "out"))
    assert code == 0, text
    for words in (
        "rhs together",
        "final -> rhs_1",
        "attention forbidden",
        "Attention knockout, 8 programs: forbidding",
    ):
        assert words in text
    whole = json.loads((tmp_path / "out" / "results.json").read_text())["components"]
    assert {name: one["layers"] for name, one in whole.items()} == {
        "residual_stream": [0, 2, 4],
        "mlp": [0, 2],
        "knockout": [0, 2],
    }


def test_a_stopped_trace_says_how_to_go_on_and_does_and_refuses_other_settings(learned, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    words = [
        "-m",
        learned,
        *DRAWN,
        "--component",
        "mlp",
        "--layers",
        "0,2",
        "--roles",
        "rhs_1",
        "--no-controls",
        *at(tmp_path / "out"),
    ]
    with monkeypatch.context() as patched:
        patched.setattr(causal_runner.causal_traces, "row_of", stop)
        code, text = typed(*words)
    assert code == 130, text
    assert "go on with: sonde" in text
    code, text = typed(*words)
    assert code == 0, text
    assert (tmp_path / "out" / "report.html").exists()
    kept = (tmp_path / "out" / "results.json").read_bytes()
    code, other = typed(*words, "--layers", "0,1")
    assert code == 2
    assert "other settings (layers was [0, 2], now [0, 1])" in " ".join(other.split())
    assert (tmp_path / "out" / "results.json").read_bytes() == kept


def test_a_model_that_cannot_do_the_task_is_refused(tmp_path):
    code, text = typed("-m", "tiny-llama", *DRAWN, *at(tmp_path / "out"))
    assert code == 2
    assert "0 of 8 clean programs right" in text
    assert "fewer hops" in text
    assert not (tmp_path / "out").exists()


def test_programs_of_ones_own_are_traced(learned, tmp_path):
    known = causal_asking.drawn(4, 2, 8, seed=0)
    file = tmp_path / "mine.txt"
    file.write_text("\n\n".join(program.rstrip() for program, *_ in known[:2]) + "\n")
    words = ["-m", learned, "--template", "minimal", "--component", "mlp", "--layers", "1", "--no-controls"]
    code, text = typed(*words, "--program", file, *at(tmp_path / "out"), "--all-tokens", "--roles", "rhs_1,final")
    assert code == 0, text
    assert "2 of 2 clean programs right" in text
    assert "There are no controls" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--component", "residual"], "no component 'residual'"),
        (["--component", "mlp,"], "no component ''"),
        (["--template", "nosuch"], "is none of minimal"),
        (["--layers", "a"], "write 0,5,10"),
        (["--layers", "0,99"], "no layer 99"),
        (["--layers", "4", "--component", "residual_stream,mlp"], "no layer 4 to trace mlp at"),
        (["--together", "rhs_9"], "no token has the role 'rhs_9'"),
        (["--component", "knockout", "--backend", "nnsight"], "knockouts run with backend='sonde' only"),
        (["--roles", "rhs_9"], "no token has the role 'rhs_9'"),
        (["--backend", "jax"], "backend must be"),
        (
            ["--lines", "3", "--hops", "2"],
            "at least 4 lines, or allow any root line (systematic=False, on the command line --any-root)",
        ),
        (["--program", "nosuch.txt"], "cannot read nosuch.txt"),
    ],
)
def test_what_makes_no_sense_is_refused(words, said, tmp_path):
    code, text = typed("-m", "tiny-llama", *DRAWN, *at(tmp_path / "out"), *words)
    assert code == 2, text
    assert said in " ".join(text.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("a = 4\nb = = 3\n#b:", "program 0: line 2 is 'b = = 3'"),
        ("a = 4\nb = 3\n#c:", "asks for a variable that the program does not define"),
        ("a = 4\nb = 3", "the last line of a program must be a query"),
        ("\n\n", "no program in it"),
    ],
)
def test_programs_that_are_no_good_are_refused(program, said, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text(program)
    code, text = typed("-m", "tiny-llama", "--program", file, *at(tmp_path / "out"))
    assert code == 2, text
    assert said in " ".join(text.split())


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    how = {"episodes": 1, "runs_dir": folder, "generation": {"max_new_tokens": 4}, "max_steps": 3}
    with sonde.load("tiny-llama") as model:
        sonde.play(scripted.ScriptedEnvironment, model, run="it", **how)
        changed = [sonde.Zero(site="blocks.1.hook_mlp_out")]
        sonde.play(scripted.ScriptedEnvironment, model, run="changed", interventions=changed, **how)
    return folder


def test_an_episode_is_traced_over_time(played):
    words = ["episode", "it", "0", "--layers", "2", "--runs", played, "--run", "traced"]
    code, text = typed(*words)
    assert code == 0, text
    assert "rests most on step" in text
    folder = played / "traced"
    told = json.loads((folder / "results.json").read_text())
    assert len(told["values"]) == 3
    assert told["layers"] == [2]
    assert told["values"][0][1] > 0
    assert told["values"][1][0] is None
    page = (folder / "report.html").read_bytes()
    assert {path.name for path in (folder / "figures").iterdir()} == {"influence-values.png", "influence-drop.png"}
    assert typed(*words)[0] == 0
    assert (folder / "report.html").read_bytes() == page
    assert store.Run.open(folder).verify() == []
    code, text = typed(*words, "--controls", "1")
    assert code == 2
    assert "other settings (controls was 5, now 1)" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["it", "7"], "no episode '7'"),
        (["it", "x"], "no episode 'x'"),
        (["nosuch", "0"], "nosuch"),
        (["it", "0", "--layers", "99"], "layers (99,) do not exist"),
        (["it", "0", "--replacement", "noise"], "replacement must be one of mean, zero, got 'noise'"),
        (["changed", "0"], "was played under 1 interventions"),
    ],
)
def test_an_episode_that_cannot_be_traced_is_refused(played, words, said):
    code, text = typed("episode", *words, "--runs", played, "--run", "none")
    assert code in (1, 2), text
    assert said in " ".join(text.split())
    assert not (played / "none").exists()
