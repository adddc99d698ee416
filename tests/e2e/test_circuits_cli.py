"""`sonde circuits` as typed: found, compared, stopped, taken up, and refused."""

import json
import re

import numpy as np
import pytest
from typer import testing

from sonde import store
from sonde._cli import main
from sonde.circuits import faithfulness, graph, mib, scores, search

TYPED = testing.CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
SMALL = ["-m", "tiny-llama", "--task", "induction", "--pairs", "12"]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(faithfulness, "DRAWS", 100)


def typed(*words):
    found = TYPED.invoke(main.app, ["circuits", *(str(word) for word in words)])
    return found.exit_code, " ".join(found.output.split())


def at(folder):
    """The options for a run."""
    return ["--run", folder.name, "--runs", folder.parent]


def scored(folder, method="eap"):
    kept = json.loads((folder / "stages" / f"scores-{method}.json").read_text())
    return scores.Scores.from_json(kept["scores"])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished search by one method."""
    out = tmp_path_factory.mktemp("circuits") / "it"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(faithfulness, "DRAWS", 100)
        code, text = typed("find", *SMALL, "--method", "eap", "--edges", "20", *at(out))
    assert code == 0, text
    return out, text


def test_find_says_how_long_it_takes_and_how_faithful_the_circuit_is_and_keeps_everything(done):
    out, text = done
    for words in (
        "343 edges; 6 pairs score, 6 judge",
        "scores-eap 1 s",
        "CPR",
        "20 of 343 edges",
        "the model without it f =",
    ):
        assert words in text
    circuit = graph.Circuit.from_json(json.loads((out / "circuit.json").read_text()))
    assert len(circuit) == 20
    assert "<svg" in (out / "circuit.svg").read_text()
    assert {path.name for path in (out / "figures").iterdir()} == {"circuit.png", "eap-nodes.png", "faithfulness.png"}
    page = (out / "report.html").read_text()
    assert "Scores by eap" in page
    results = json.loads((out / "results.json").read_text())
    assert [point["share"] for point in results["methods"]["eap"]["points"]] == list(faithfulness.SIZES)
    assert results["pairs"]["scoring"] == results["pairs"]["judging"] == 6


def test_another_circuit_of_the_same_scores_is_taken_without_scoring_again(done, monkeypatch):
    out, _ = done
    before = (out / "stages" / "scores-eap.json").read_bytes()
    monkeypatch.setattr(search.Search, "scored", lambda *_, **__: pytest.fail("scored again"))
    code, text = typed("find", *SMALL, "--method", "eap", "--share", "0.1", "--view", "merged", *at(out))
    assert code == 0, text
    assert "34 of 343 edges" in text
    assert (out / "stages" / "scores-eap.json").read_bytes() == before
    assert "into heads" in (out / "circuit.svg").read_text()


def test_scores_and_circuit_are_also_there_as_mib_writes_them(done):
    out, _ = done
    circuit = graph.Circuit.from_json(json.loads((out / "circuit.json").read_text()))
    found = scored(out)
    read, kept = mib.read(out / "mib.json", circuit.graph)
    assert kept.names == circuit.names
    assert np.array_equal(read.values, found.values, equal_nan=True)


def test_sizes_are_rounded_down_if_that_is_asked_for(tmp_path):
    """343 edges: 0.5 % are 1.715, 5 % 17.15, 20 % 68.6."""
    found = {}
    for sizes in ("round", "floor"):
        out = tmp_path / sizes
        words = ["--method", "random", "--share", "0.2", "--sizes", sizes, *at(out)]
        code, text = typed("find", *SMALL, *words)
        assert code == 0, text
        points = json.loads((out / "results.json").read_text())["methods"]["random"]["points"]
        found[sizes] = [point["n_edges"] for point in points]
        chosen = graph.Circuit.from_json(json.loads((out / "circuit.json").read_text()))
        assert len(chosen) == {"round": 69, "floor": 68}[sizes]
    assert found["floor"] == [int(share * 343) for share in faithfulness.SIZES]
    assert found["round"] == [round(share * 343) for share in faithfulness.SIZES]
    assert "sizes" not in json.loads((tmp_path / "round" / "results.json").read_text())["settings"]
    code, text = typed("find", *SMALL, "--method", "random", "--sizes", "flor", *at(tmp_path / "x"))
    assert code != 0
    assert "sizes must be one of round, floor, got 'flor'; did you mean 'floor'" in text
    code, text = typed("find", *SMALL, "--method", "random", "--sizes", "round", *at(tmp_path / "floor"))
    assert code == 2
    assert "sizes was 'floor', now 'round'" in text


def test_a_note_on_scores_is_shown_and_steps_begin_where_they_are_told_to(tmp_path):
    out = tmp_path / "it"
    words = ["--metric", "kl", "--methods", "eap,eap-ig", "--steps-from", "0", "--steps", "2", *at(out)]
    code, text = typed("compare", *SMALL, *words)
    assert code == 0, text
    assert "Note on eap: kl has its minimum at the clean run" in text
    assert "Note on eap-ig" not in text
    assert "Note on eap: kl has" in (out / "report.html").read_text()
    assert json.loads((out / "results.json").read_text())["settings"]["options"] == {"steps": 2, "steps_from": 0}


def test_an_empty_circuit_is_said_to_be_so_with_the_thresholds_that_are_not_empty(done):
    out, _ = done
    code, text = typed("find", *SMALL, "--method", "eap", "--threshold", "1e9", *at(out))
    assert code == 0, text
    low, high = map(float, re.search(r"Thresholds from (\S+) \(all 343 edges\) to (\S+) \(the best", text).groups())
    assert "The circuit of eap is empty" in text
    found = scored(out)
    assert len(found.circuit(threshold=0.999 * high)) >= 1
    assert len(found.circuit(threshold=low)) == 343


def test_compare_adds_methods_to_a_search_and_shows_them_in_one_table_with_the_control(done):
    out, _ = done
    code, text = typed("compare", *SMALL, "--methods", "eap,hisp,random", *at(out))
    assert code == 0, text
    assert "CPR above the random ranking's by" in text
    assert {"shared.png", "hisp-nodes.png", "random-nodes.png"} <= {path.name for path in (out / "figures").iterdir()}
    assert set(json.loads((out / "results.json").read_text())["methods"]) == {"eap", "hisp", "random"}


def test_a_stopped_search_goes_on_to_the_same_results_and_refuses_other_settings(done, tmp_path, monkeypatch):
    out, values, ran = tmp_path / "it", faithfulness.Judge.values, []

    def stop(self, circuit):
        ran.append(len(circuit))
        if len(ran) == 5:
            raise KeyboardInterrupt
        return values(self, circuit)

    words = ["find", *SMALL, "--method", "eap", "--edges", "20", *at(out)]
    with monkeypatch.context() as patched:
        patched.setattr(faithfulness.Judge, "values", stop)
        code, text = typed(*words)
    assert code == 130, text
    assert "go on with: sonde" in text
    kept = {path.name: path.read_bytes() for path in (out / "stages" / "curve-eap").iterdir()}
    assert len(kept) == 2  # after the ends
    code, text = typed(*words)
    assert code == 0, text
    assert all((out / "stages" / "curve-eap" / name).read_bytes() == content for name, content in kept.items())
    circuit = graph.Circuit.from_json(json.loads((out / "circuit.json").read_text()))
    assert circuit.names == scored(out).circuit(n_edges=20).names
    one, two = (json.loads((folder / "results.json").read_text())["methods"]["eap"] for folder in (out, done[0]))
    assert one["points"] == two["points"]
    assert store.Run.open(out).verify() == []
    code, text = typed(*words, "--seed", "1")
    assert code == 2
    assert "other settings (seed was 0, now 1)" in text
    code, text = typed(*words, "--dtype", "bfloat16")
    assert code == 2
    assert "its weights are of type bfloat16, not float32" in text


def test_pairs_that_changed_under_their_files_name_are_refused(tmp_path):
    file, out = tmp_path / "mine.jsonl", tmp_path / "it"
    for last in "xy":
        lines = [{"clean": f"{a}{b}{c}{a}{b}", "corrupt": f"{a}{b}d{a}{b}", "answer": c, "wrong": "d"}
                 for a, b, c in ("xyz", "klm", "rst", "123", f"uv{last}", "pqo")]  # fmt: skip
        file.write_text("\n".join(map(json.dumps, lines)))
        code, text = typed("find", "-m", "tiny-gpt2", "--task", file, "--method", "eap", *at(out))
        assert code == {"x": 0, "y": 2}[last], text
    assert "gives other pairs than those that the run was started with" in text


def test_pairs_of_ones_own_come_from_a_file(tmp_path):
    file = tmp_path / "mine.jsonl"
    lines = [{"clean": f"{a}{b}{c}{a}{b}", "corrupt": f"{a}{b}d{a}{b}", "answer": c, "wrong": "d"}
             for a, b, c in ("xyz", "klm", "rst", "123", "uvw", "pqo", "xyz")]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, lines)))
    words = [
        "-m",
        "tiny-gpt2",
        "--task",
        file,
        "--method",
        "eap",
        "--no-holdout",
        "--signed",
        *at(tmp_path / "out"),
    ]
    code, text = typed("find", *words)
    assert code == 0, text
    assert "too high" in text
    assert "Left out: 1 (the same pair as an earlier one)." in text
    assert json.loads((tmp_path / "out" / "results.json").read_text())["settings"]["absolute"] is False


def test_too_few_pairs_give_one_sentence_and_no_table(tmp_path):
    words = ["-m", "tiny-llama", "--task", "induction", "--pairs", "4", "--method", "eap", "--minimality", "2"]
    code, text = typed("find", *words, *at(tmp_path / "out"))
    assert code == 0, text
    assert "Too few pairs to tell: 2 judge" in text
    assert "CPR" not in text
    assert "Minimality" not in text
    assert len(scored(tmp_path / "out").graph.sources)


def test_methods_and_tasks_are_listed():
    code, text = typed("methods")
    assert code == 0
    assert "eap-ig" in text
    code, text = typed("tasks")
    assert code == 0
    assert "ioi" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "eap-gi"], "did you mean 'eap-ig'"),
        (["--task", "inductoin"], "did you mean 'induction'"),
        (["--task", "nosuch.jsonl"], "cannot read pairs"),
        (["--metric", "logitdiff"], "did you mean 'logit_diff'"),
        (["--ablation", "means"], "did you mean 'mean'"),
        (["--view", "merge"], "did you mean 'merged'"),
        (["--edges", "5", "--share", "0.1"], "one of --edges, --share and --threshold"),
        (["--edges", "400"], "343 edges"),
        (["--method", "eap", "--option", "stepz=3"], "no option 'stepz'"),
        (["--option", "steps"], "write name=value"),
        (["--task", "ioi"], "does not fit the tokenizer"),
        (["--batch-size", "0"], "--batch-size"),
    ],
)
def test_what_makes_no_sense_is_refused(words, said, tmp_path):
    code, text = typed("find", *SMALL, "--method", "eap", *at(tmp_path / "out"), *words)
    assert code == 2, text
    assert said in text
