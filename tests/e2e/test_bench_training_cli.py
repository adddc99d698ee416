"""`sonde bench train`, `run` and `eval` as typed."""

import json
import shutil

import numpy as np
import pytest
from typer import testing

from sonde._cli import bench
from sonde.bench import shipped
from sonde.core import errors

TYPED = testing.CliRunner(env={"COLUMNS": "220", "NO_COLOR": "1", "TERM": "dumb"})


def typed(command):
    found = TYPED.invoke(bench.app, command.split())
    return found, " ".join(found.output.split())


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SONDE_RUNS", raising=False)
    return tmp_path


def test_the_readmes_commands_work_one_after_the_other(here, monkeypatch):
    from sonde.bench import training

    monkeypatch.setattr(training.Recipe, "steps", property(lambda recipe: recipe.epochs))  # a step stands for an epoch
    found, text = typed("train iit -i 3 --epochs 30 -s 0.4 -iit 1 -b 1 --early-stop")
    assert found.exit_code == 0, text
    assert "Case 3, weights 510, seed 0, at most 30 steps" in text
    assert "3 0 ended" in text
    found, text = typed("run sp -i 3 --siit-weights 510 --lambda-reg 0.5 --epochs 3 --pairs 20 --run sp --out results")
    assert found.exit_code == 0, text
    first, second = (here / place / "sp/case-3-510-seed-0/result.json" for place in ("runs/sp", "results"))
    assert first.read_bytes() == second.read_bytes()
    found, text = typed("run eap -i 3 --siit-weights 510 --integrated-grad-steps=5 --pairs 20")
    assert found.exit_code == 0, text
    found, text = typed("eval iit -i 3 --siit-weights 510 --rows 20 --run it")
    assert found.exit_code == 0, text
    assert len(json.loads((here / "runs/it/iit/case-3-510-seed-0/result.json").read_text())["effects"]) == 10
    found, text = typed("eval gt_node_realism -i 3 --siit-weights 510 --rows 20 --ablation zero")
    assert found.exit_code == 0, text


def test_an_empty_circuit_is_a_warning_with_the_usable_range(here):
    found, text = typed("run acdc -i 3 --tracr --threshold 0.71 --pairs 40 --run it")
    assert found.exit_code == 0, text
    assert "Warning: the circuit of case-3-compiled is empty; thresholds above 0 and up to 0." in text
    assert json.loads((here / "runs/it/acdc/case-3-compiled/circuit.json").read_text())["edges"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run acdc -i 3 --tracr --treshold 0.1", "No such option"),
    ],
)
def test_what_was_typed_wrongly_is_refused_with_2(here, words, said):
    found, text = typed(words)
    assert found.exit_code == 2, text
    assert said in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train iit -i 3 --siit-sampling every", "way must be one of individual, sample_all, all, mixed"),
        ("train iit -i 3 -s 0 -iit 0 -b 0", "nothing to learn"),
        ("run acdc -i 3", "give one of --tracr, --siit-weights, --interp-bench and --folder"),
        ("run acdc --tracr", "name a case with -i"),
        ("eval realism -i 3 --siit-weights 510", "what must be one of iit, iit_acdc"),
        ("eval node_realism -i 3 --siit-weights 510", "node_realism needs a circuit that was found: --circuit FILE"),
        ("eval gt_node_realism -i 3 --siit-weights 510 --circuit log.json", "only node_realism takes a --circuit"),
        ("run eap -i 3 --tracr --steps-from 0", "plain EAP has no steps: give --integrated-grad-steps"),
        ("run sp -i 1 --siit-weights 510 --lambda-reg 0.5", "sonde bench train iit -i 1 -s 0.4"),
        ("run eap -i ioi --siit-weights 510 --integrated-grad-steps=5", "sonde bench train ioi -s 0.4"),
        ("run eap -i ioi --siit-weights 1010", "sonde bench train ioi -s 1 -iit 1 -b 0 --seeds 0"),
        ("run eap -i ioi_next_token --siit-weights 1010", "sonde bench train ioi --next-token -s 1 -iit 1 -b 0"),
        ("run eap -i 3 --siit-weights 10", "sonde bench train iit -i 3 -s 0 -iit 1 -b 0"),
        ("run eap -i 1 --interp-bench --seed 2", "sonde bench train iit -i 1 -s 0.4 -iit 1 -b 1 --seeds 2"),
        ("run eap -i 7 --interp-bench --seed 95", "no embedded model of case 7, seed 95"),
        ("run eap --interp-bench --seed 9", "no embedded model of case 3, seed 9"),
        ("run eap -i 999 --siit-weights 510", "no case 999"),
        ("train iit -i 3 --begin nowhere --seeds 0,4", "nothing to begin seed 0 with"),
        ("train iit -i 3 --begin embedded --seeds 7", "nothing to begin seed 7 with"),
        ("run eap -i ioi --tracr", "ioi has no compiled model"),
        ("train iit -i 27 --epochs 1", "27"),
    ],
)
def test_what_makes_no_sense_or_is_not_there_is_an_error_that_says_what_to_do_and_nothing_is_written(here, words, said):
    (here / "log.json").write_text("{}")
    found, _ = typed(words)
    assert isinstance(found.exception, errors.RequestError)
    assert said in str(found.exception)
    assert [path.name for path in here.iterdir()] == ["log.json"]


@pytest.mark.slow
def test_a_training_can_begin_with_the_weights_of_an_earlier_one(here, monkeypatch):
    from sonde.bench import training

    monkeypatch.setattr(training.Recipe, "steps", property(lambda recipe: recipe.epochs))
    for words in (
        "train iit -i 3 --begin embedded --epochs 1 --lr 0 --batch-size 8 --pool 7 --run begun",
        "train ioi --epochs 1 --lr 0 --batch-size 4 --out first",
        "train ioi --next-token --begin first --epochs 1 --lr 0 --batch-size 4",
    ):
        found, text = typed(words)
        assert found.exit_code == 0, text
    log = json.loads((here / "runs/begun/seed-0/log.json").read_text())
    assert log["begun"] == "case-3/seed-0"
    assert (log["recipe"]["batch"], log["recipe"]["pool"]) == (8, 7)
    assert log["measured"]["accuracy"] > 0.99


def test_a_training_that_diverges_stops_with_a_warning_and_weights_that_can_be_used(here):
    found, text = typed("train iit -i 3 --epochs 1 --lr 1e30 --batch-size 320")
    assert found.exit_code == 1, text
    assert "3 0 diverged" in text
    assert "Lower --lr" in text
    found, text = typed("eval iit -i 3 --siit-weights 510 --rows 10")
    assert found.exit_code == 0, text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", b"junk" * 9, "model.safetensors is damaged"),
        ("log.json", b"{", "log.json is damaged"),
        ("log.json", b"{}", "log.json is no log of a training"),
    ],
)
def test_a_damaged_file_is_named(here, name, content, said):
    place = here / "results/bench/case-4/510/seed-0"
    shutil.copytree(shipped.EMBEDDED / "case-4" / "seed-0", place)
    (place / name).write_bytes(content)
    found, _ = typed("run eap -i 4 --siit-weights 510")
    assert isinstance(found.exception, errors.StoreError)
    assert said in str(found.exception)


@pytest.mark.parametrize("names", [("model.safetensors",), ("model.safetensors", "log.json")])
def test_a_weights_file_of_another_case_is_refused(here, names):
    place = here / "results/bench/case-4/510/seed-0"
    shutil.copytree(shipped.EMBEDDED / "case-4" / "seed-0", place)
    for name in names:
        shutil.copy(shipped.EMBEDDED / "case-3" / "seed-0" / name, place / name)
    found, _ = typed("run eap -i 4 --siit-weights 510")
    assert isinstance(found.exception, errors.RequestError)
    assert "case-4/510/seed-0" in str(found.exception)
    assert "not of case 4" in str(found.exception) or "does not belong to case 4" in str(found.exception)


def test_a_model_on_which_a_finder_cannot_run_is_left_out_of_many_and_if_it_is_the_only_one_that_is_the_error(
    here, monkeypatch
):
    from sonde.bench import finding

    real = finding.run

    def fails(subject, *given, **how):
        if "case-3-" in subject.name:
            raise errors.AnalysisError("no such luck")
        return real(subject, *given, **how)

    monkeypatch.setattr(finding, "run", fails)
    found, text = typed("run sp --interp-bench --edgewise --epochs 1 --pairs 10 --run it")
    assert found.exit_code == 0, text
    assert "Warning: case-3-embedded-seed-0 is left out: no such luck" in text
    results = json.loads((here / "runs/it/results.json").read_text())
    assert results["failed"] == {"case-3-embedded-seed-0": "no such luck"}
    first = dict(reversed(shipped.list_embedded()))
    assert {f"case-{case}-embedded-seed-{seed}" for case, seed in first.items()} == {
        *results["models"],
        *results["failed"],
    }
    found, _ = typed("run sp -i 3 --interp-bench --edgewise --epochs 1 --pairs 10")
    assert isinstance(found.exception, errors.AnalysisError)


def test_a_run_over_many_models_says_how_far_it_is_and_goes_on_where_it_was_stopped(here, monkeypatch):
    from sonde.bench import finding

    command, real, seen = "run sp --interp-bench --edgewise --epochs 1 --pairs 10 --run it", finding.run, []

    def stopped(subject, *given, **how):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(subject.name)
        return real(subject, *given, **how)

    monkeypatch.setattr(finding, "run", stopped)
    found, text = typed(command)
    assert found.exit_code == 130, text
    assert "Stopped. What is finished is kept; go on with:" in text
    assert "models" in text
    assert "3/" in text
    again = []
    monkeypatch.setattr(
        finding, "run", lambda subject, *given, **how: (again.append(subject.name), real(subject, *given, **how))[1]
    )
    found, text = typed(command)
    assert found.exit_code == 0, text
    assert not set(seen) & set(again)
    assert set(json.loads((here / "runs/it/results.json").read_text())["models"]) == {*seen, *again}
    assert all((here / "runs/it/sp-edges" / name / "scores.json").is_file() for name in seen)
    found, _ = typed(command.replace("--pairs 10", "--pairs 12"))
    assert "pairs was 10, now 12" in str(found.exception)


def test_a_note_on_scores_that_mean_nothing_is_shown(here):
    found, text = typed("run eap -i 3 --tracr --metric mse --pairs 10")
    assert found.exit_code == 0, text
    assert "Warning: case-3-compiled: mse has its minimum at the clean run" in text
    assert "these scores are rounding errors. Use eap-ig" in text
    found, text = typed("run eap -i 3 --tracr --pairs 10 --integrated-grad-steps 3 --steps-from 0 --run it")
    assert found.exit_code == 0, text
    assert "rounding errors" not in text
    asked = json.loads((here / "runs/it/eap-ig/case-3-compiled/scores.json").read_text())["settings"]
    assert asked["steps_from"] == 0


def test_node_realism_takes_a_circuit_of_mib(here):
    from sonde.circuits import mib
    from sonde.circuits import scores as circuits_scores

    subject = shipped.embedded("3")
    scores = circuits_scores.Scores(
        graph=subject.truth.graph, method="x", level="node", values=np.ones(len(subject.truth.graph.sources)), metric="",
        ablation="", cost=circuits_scores.Cost(0.0, 0.0, 0.0),
    )  # fmt: skip
    mib.write("mib.json", scores, circuit=subject.truth, d_model=12)
    found, text = typed("eval node_realism -i 3 --interp-bench --circuit mib.json --rows 20 --run mine")
    assert found.exit_code == 0, text
    mine = json.loads((here / "runs/mine/node_realism/case-3-embedded-seed-0/result.json").read_text())
    found, text = typed("eval gt_node_realism -i 3 --interp-bench --rows 20 --run true")
    true = json.loads((here / "runs/true/gt_node_realism/case-3-embedded-seed-0/result.json").read_text())
    assert mine == true
