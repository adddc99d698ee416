"""Causal tracing of programs: what is refused, what is traced, what is kept, and what the page says.

A tiny model is made to know some programs by heart, so that there is something to trace.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch

import sonde
from sonde import experiments, store
from sonde.core import errors
from sonde.programs import (
    CausalExperimentRunner,
    CausalTracer,
    causal_asking,
    causal_runner,
    causal_traces,
    generators,
    prompts,
    run_causal_tracing_experiment,
    tracing_report,
)
from sonde.report import page

PROGRAMS = causal_asking.drawn(4, 2, 8, seed=0)
SYSTEMATIC = "a = 4\nb = 7\nc = 2\nd = c\n#d: "
FILES = ["intervention_results.json", "patch_results.json"]


@pytest.fixture(scope="module")
def learned(taught):
    with sonde.load("tiny-llama") as model:
        asked = CausalTracer(model, only_right=False).prepare(PROGRAMS)
        taught(model, (*asked.tasks, *asked.controls))
        yield model


@pytest.fixture(scope="module")
def untaught():
    with sonde.load("tiny-gpt2") as model:
        yield model


@pytest.fixture(scope="module")
def traced(learned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    return run_causal_tracing_experiment(learned, PROGRAMS, run="whole", runs_dir=folder, output_dir=folder / "out")


def test_a_model_that_cannot_do_the_task_is_refused_before_any_sweep(untaught, monkeypatch):
    from sonde.analysis.tracing import sweeps

    monkeypatch.setattr(sweeps, "sweep", lambda *_, **__: pytest.fail("swept"))
    with pytest.raises(errors.RequestError, match=r"0 of 8 clean programs right \(0%, 95 % interval") as error:
        CausalTracer(untaught).trace_residual(PROGRAMS)
    for words in ("line-1 heuristic", "min_pairs=8", "fewer hops", "8: the model answers the clean program wrongly"):
        assert words in str(error.value)


def test_ability_says_how_often_the_model_is_right(learned):
    found = CausalTracer(learned).prepare(PROGRAMS)
    assert (found.ability.programs, found.ability.right, found.ability.both) == (8, 8, 8)
    assert found.ability.low < found.ability.accuracy == found.ability.high == 1
    assert len(found.tasks) == 8
    assert 1 <= len(found.controls) <= 8
    assert found.reasons() == {}


def test_roots_on_the_first_two_lines_are_left_out_unless_asked_for(untaught):
    early = generators.make_variable_binding_program(4, np.random.default_rng(0), hops=2, root_line=1)
    found = CausalTracer(untaught, only_right=False).prepare([early, *PROGRAMS[:2]])
    assert found.reasons() == {"its root stands on line 1 or 2": 1}
    assert [task.index for task in found.tasks] == [1, 2]
    found = CausalTracer(untaught, only_right=False, systematic=False).prepare([early, *PROGRAMS[:2]])
    assert len(found.tasks) == 3
    with pytest.raises(errors.RequestError, match="1: its root stands on line 1 or 2") as error:
        CausalTracer(untaught, only_right=False).prepare([early])
    assert "systematic=False, on the command line --any-root" in str(error.value)


def test_programs_are_drawn_with_roots_out_of_reach_of_the_heuristics():
    drawn = causal_asking.drawn(6, 2, 9, seed=1)
    assert sorted(one[2]["root_line"] for one in drawn) == [3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert {one[2]["depth"] for one in drawn} == {2}
    assert causal_asking.drawn(6, 2, 12, seed=1)[:9] == drawn
    with pytest.raises(errors.RequestError, match=r"at least 4 lines, or allow any root line .*--any-root"):
        causal_asking.drawn(3, 2, 5)


def test_a_patch_of_the_root_at_the_bottom_or_of_the_end_at_the_top_is_the_counterfactual_run(traced):
    trace = traced.traces["residual_stream"]
    success, recovery = trace.by_role("success"), trace.by_role("recovery")
    for role, layer in (("rhs_1", 0), ("final", 4)):
        at = success.roles.index(role), layer
        assert success.estimate[at] == 1
        assert success.n[at] == 8
        assert success.low[at] == pytest.approx(0.6306, abs=1e-3), "exact binomial interval of 8 of 8"
        assert recovery.estimate[at] == pytest.approx(1, abs=1e-3)
    for role, layer in (("rhs_1", 4), ("final", 0), ("distractor_constant", 4)):
        assert recovery.estimate[recovery.roles.index(role), layer] == 0
    assert trace.peak("rhs_1").layer == 0
    assert trace.peak("no such role") is None
    control = trace.by_role("success", control=True)
    assert control.estimate[control.roles.index("changed_constant"), 0] == 0, "the control's twin has the same answer"


def test_every_component_is_patched_as_a_plain_patch_would(learned, traced):
    task = traced.prepared.tasks[0]
    at = task.roles["rhs_2"][-1]
    sites = {"residual_stream": "blocks.2.hook_resid_pre", "mlp": "blocks.2.hook_mlp_out"}
    _, cache = learned.run_with_cache(torch.tensor([task.counterfactual]), list(sites.values()))
    for component, site in sites.items():
        patch = sonde.Patch(site=site, positions=[at], values=cache[site][0, at])
        logits = learned.run_with_hooks(torch.tensor([task.clean]), [patch])[0, -1]
        trace = traced.traces[component]
        for sweep in (trace.sweep, trace.example):
            grid = sweep.grids[0]
            found = grid.answer_logit[2, grid.positions.index(at)]
            assert found == pytest.approx(float(logits[task.answer]), abs=1e-4)


def test_all_right_hand_sides_are_patched_together_as_one_plain_patch_would(learned, tmp_path):
    options = {"together": "rhs", "layers": [0, 2, 4], "roles": ["rhs_2"]}
    runner = CausalExperimentRunner(tmp_path / "out", **options)
    found = runner.run_intervention_experiment(
        learned, PROGRAMS, ["residual_stream", "attention_heads"], runs_dir=tmp_path
    )
    trace, task = found.traces["residual_stream"], found.prepared.tasks[0]
    assert trace.roles == ("rhs_2", "rhs together")
    at = [task.roles["rhs_1"][-1], task.roles["rhs_2"][-1]]
    _, cache = learned.run_with_cache(torch.tensor([task.counterfactual]), ["blocks.2.hook_resid_pre"])
    values = cache["blocks.2.hook_resid_pre"]
    patch = sonde.Patch(site="blocks.2.hook_resid_pre", positions=sorted(at), values=values)
    logits = learned.run_with_hooks(torch.tensor([task.clean]), [patch])[0, -1]
    grid = trace.sweep.grids[0]
    assert grid.answer_logit[1, grid.positions.index(-1)] == pytest.approx(float(logits[task.answer]), abs=1e-4)
    joint = trace.by_role("success")
    assert joint.estimate[joint.roles.index("rhs together")].tolist()[::2] == [1, 0]
    assert joint.n[1].tolist() == [8, 8, 8]
    assert "rhs together" in trace.by_role("success", control=True).roles
    heads = found.traces["attention_heads"]
    assert heads.by_role("recovery").estimate.shape == (2, 2, 4), "layer 4 is the residual stream's only"
    assert "rhs together" in " ".join(tracing_report.sentences(found))
    rows = json.loads((found.folder / "intervention_results.json").read_text())
    assert next(row["together"] for row in rows if row["program_id"] == 0 and "together" in row) == sorted(at)


def test_attention_between_roles_is_forbidden_as_a_plain_knockout_would(learned, tmp_path):
    runner = CausalExperimentRunner(tmp_path / "out", window=2, layers=[0, 1])
    found = runner.run_intervention_experiment(learned, PROGRAMS, "knockout", run="it", runs_dir=tmp_path)
    trace, task = found.traces["knockout"], found.prepared.tasks[3]
    steps = ["rhs_2 -> rhs_1", "query -> rhs_1", "query -> rhs_2", "final -> rhs_1", "final -> rhs_2", "final -> query"]
    assert list(trace.roles[:6]) == steps
    assert "final -> distractor_constant" in trace.roles
    cuts = [
        sonde.Knockout(
            site=f"blocks.{layer}.attn.hook_attn_scores", positions=task.roles["final"], keys=task.roles["rhs_1"]
        )
        for layer in (1, 2)
    ]
    logits = learned.run_with_hooks(torch.tensor([task.clean]), cuts)[0, -1]
    grid = trace.sweep.grids[3]
    assert grid.answer_logit[1, trace.columns(task)["final -> rhs_1"][0]] == pytest.approx(
        float(logits[task.answer]), abs=1e-4
    )
    table = trace.by_role("changed")
    assert table.estimate.shape == (len(trace.roles), 2)
    assert (trace.controls, trace.control_sweep, trace.example) == ((), None, None)
    (row, *_) = json.loads((found.folder / "intervention_results.json").read_text())
    assert row["routes"][:6] == steps
    assert set(found.summary["components"]["knockout"]["by_role"]) == {"changed", "recovery"}
    assert "forbidding" in (tmp_path / "it" / "report.html").read_text()
    only = CausalTracer(learned, roles=["final", "rhs_1"]).trace_knockout(PROGRAMS)
    assert only.roles == ("final -> rhs_1",)
    with pytest.raises(errors.RequestError, match="between two roles"):
        CausalTracer(learned, roles=["final"]).trace_knockout(PROGRAMS)
    with pytest.raises(errors.RequestError, match="backend='sonde' only"):
        CausalTracer(learned, backend="nnsight").trace_knockout(PROGRAMS)


def test_a_run_with_counterfactuals_drawn_otherwise_is_refused(learned, tmp_path):
    first = causal_runner.ProgramsTrace(learned, PROGRAMS, ["mlp"])
    settings = first.settings(layers=[0], roles=["final"])
    experiments.run(first, settings, run="x", runs_dir=tmp_path)
    tracer, prepared = first.prepare(settings)
    tasks = [
        dataclasses.replace(one, pair=dataclasses.replace(one.pair, counterfactual="a = 1")) for one in prepared.tasks
    ]
    first._prepared = tracer, dataclasses.replace(prepared, tasks=tuple(tasks))
    with pytest.raises(errors.RequestError, match="begun with other pairs"):
        experiments.run(first, settings, run="x", runs_dir=tmp_path)


def test_heads_are_traced_by_layer_role_and_head(traced):
    found = traced.traces["attention_heads"].by_role("recovery")
    assert found.estimate.shape == (len(found.roles), 4, 4)
    assert traced.traces["attention_heads"].example is None
    best = traced.traces["attention_heads"].peak("final", "recovery")
    assert best.value == pytest.approx(np.nanmax(found.estimate[found.roles.index("final")]))


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        (["a = 4\nb = = 3\n#b: "], "program 0: line 2 is 'b = = 3'"),
        ([SYSTEMATIC, "a = 4\nb = z\n#b: "], "program 1: line 2: 'z' is used before it has a value"),
        (["a = 4\nb = 3\n#c: "], "program 0: the query #c: asks for a variable that the program does not define"),
        ([("a = 4\nb = 1 // 0\n#b: ", 3)], "program 0: the program does not run: line 2"),
        ([(SYSTEMATIC, 3)], "program 0 gives 2, but its label says 3"),
        ([], "one or more programs"),
        (SYSTEMATIC, "give a list"),
        ([(SYSTEMATIC, "2")], "program 0 must be a text"),
    ],
)
def test_programs_that_are_no_good_are_refused(untaught, programs, words):
    with pytest.raises(errors.RequestError, match=words):
        CausalTracer(untaught, only_right=False).trace_residual(programs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"roles": ["rhs_7"]}, "no token has the role 'rhs_7'"),
        ({"layers": [9]}, "no layer 9 to trace residual_stream at: this model has layers 0 to 6"),
        ({"template": "nothing"}, "exactly one {code}"),
        ({"systematik": True}, "no setting 'systematik'; did you mean 'systematic'"),
        ({"min_pairs": 0}, "min_pairs must be 1 or more"),
        ({"positions": "some"}, "positions must be one of roles, all"),
        ({"backend": "jax"}, "backend must be one of sonde, nnsight"),
        ({"layers": []}, "layers must have 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(untaught, options, words):
    with pytest.raises(errors.RequestError, match=words):
        CausalTracer(untaught, **{"only_right": False, **options}).trace_residual(PROGRAMS[:2])


@pytest.mark.parametrize("component", ["residual", "", ["mlp", "mlp"], []])
def test_components_that_do_not_exist_are_refused(untaught, component, tmp_path):
    with pytest.raises(errors.RequestError, match="component"):
        CausalExperimentRunner(tmp_path).run_intervention_experiment(
            untaught, PROGRAMS[:2], component, runs_dir=tmp_path
        )
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_asked_for_is_patched(untaught):
    tracer = CausalTracer(untaught, only_right=False, roles=["rhs_1", "final"], layers=[0, 3], controls=False)
    trace = tracer.trace_mlp(PROGRAMS[:2])
    assert trace.sweep.layers == (0, 3)
    assert trace.by_role().roles == ("rhs_1", "final")
    assert len(trace.sweep.grids[0].positions) == 2
    assert len(trace.example.grids[0].positions) == len(trace.tasks[0].clean)
    with pytest.raises(errors.RequestError, match="nothing was traced as a control"):
        trace.by_role(control=True)


def test_the_pattern_of_the_seed_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from sonde.programs import CausalExperimentRunner

    program_list = [program for program, *_ in PROGRAMS[:3]]
    runner = CausalExperimentRunner(only_right=False)
    results = runner.run_intervention_experiment(
        model_id="tiny-llama",
        programs=program_list,
        intervention_type="residual_stream",
    )
    assert results.folder.parent.as_posix() == "results/full_token_layer_patching"
    assert sorted(path.name for path in results.folder.iterdir()) == FILES
    with pytest.raises(errors.RequestError, match="cannot do cannot be traced"):
        CausalExperimentRunner().run_intervention_experiment(
            model_id="tiny-llama", programs=program_list, intervention_type="attention_heads"
        )


def test_the_files_hold_every_patched_run_and_their_averages(traced):
    rows = json.loads((traced.folder / "intervention_results.json").read_text())
    kinds = {(row["intervention_type"], row["kind"], row["all_tokens"]) for row in rows}
    assert ("residual_stream", "root", True) in kinds
    assert ("attention_heads", "distractor", False) in kinds
    row = next(row for row in rows if not row["all_tokens"])
    assert row["model_id"] == "tiny-llama"
    assert row["program"] == PROGRAMS[0][0]
    assert row["true_answer"] == PROGRAMS[0][1] != row["counterfactual_answer"]
    assert np.shape(row["recovery"]) == (5, len(row["grid"]["positions"]))
    whole = json.loads((traced.folder / "patch_results.json").read_text())
    assert whole["ability"]["accuracy"] == 1
    told = whole["components"]["residual_stream"]["by_role"]["success"]
    assert told["estimate"][told["roles"].index("rhs_1")][0] == 1
    assert "changed" in whole["components"]["mlp"]["control_by_role"]


def test_a_stopped_trace_goes_on_and_gives_the_same_bytes(learned, tmp_path, monkeypatch):
    monkeypatch.setattr(causal_runner, "SMALL_MODEL", 0)  # two pairs at a time

    def interrupt(now):
        if now.done >= 3:
            raise KeyboardInterrupt

    small = {"intervention_types": ["mlp"], "roles": ["rhs_1"], "layers": [0, 3], "runs_dir": tmp_path}
    small["output_dir"] = tmp_path / "out"
    once = run_causal_tracing_experiment(learned, PROGRAMS, run="once", **small)
    with pytest.raises(KeyboardInterrupt):
        run_causal_tracing_experiment(learned, PROGRAMS, run="twice", on_progress=interrupt, **small)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "twice" / "stages" / "mlp").iterdir()}
    assert len(kept) == 3
    told, swept, real = [], [], CausalTracer.sweep
    monkeypatch.setattr(CausalTracer, "sweep", lambda self, *a, **k: swept.append(a) or real(self, *a, **k))
    run_causal_tracing_experiment(learned, PROGRAMS, run="twice", on_progress=told.append, **small)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "once" / "stages" / "mlp").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "twice" / "stages" / "mlp").iterdir()} == whole
    assert len(swept) == len(whole) - len(kept)
    for name in FILES:
        assert (tmp_path / "out" / "twice" / name).read_bytes() == (once.folder / name).read_bytes()
    assert (told[-1].what, told[-1].done) == ("mlp", told[-1].total)
    assert store.Run.open(tmp_path / "twice").verify() == []


def test_a_run_with_other_settings_is_refused(learned, traced):
    place = {"run": "whole", "runs_dir": traced.folder.parents[1]}
    with pytest.raises(errors.RequestError, match=r"other settings \(min_pairs was 8, now 1; seed was 0, now 1\)"):
        run_causal_tracing_experiment(learned, PROGRAMS, seed=1, min_pairs=1, **place)
    with pytest.raises(
        errors.RequestError, match=r"other settings .components was .*; programs was .*; min_pairs was 8"
    ):
        run_causal_tracing_experiment(learned, PROGRAMS[:7], intervention_types=["mlp"], min_pairs=7, **place)


def test_a_run_of_another_model_of_the_same_name_is_refused(learned, traced):
    weight = learned.hf.model.norm.weight.data
    weight += 1e-3
    try:
        with pytest.raises(errors.RequestError, match=r"'tiny-llama' is not the model .* its weights are others"):
            run_causal_tracing_experiment(learned, PROGRAMS, run="whole", runs_dir=traced.folder.parents[1])
    finally:
        weight -= 1e-3


def test_the_estimate_is_some_seconds(learned):
    tracer = CausalTracer(learned)
    assert 0 < tracer.estimate(tracer.prepare(PROGRAMS), "residual_stream") < 600


def test_the_page_shows_staircase_tokens_roles_heads_and_controls(traced, tmp_path):
    made = tracing_report.report(traced)
    keys = {chart.key for chart in made.all_charts()}
    assert {
        "residual_stream-staircase",
        "residual_stream-tokens",
        "residual_stream-role-success",
        "residual_stream-role-success-control",
        "attention_heads-rhs_1",
        "attention_heads-final",
        "attention_heads-role-recovery",
        "mlp-tokens",
    } <= keys
    assert "8 of 8 clean programs right" in " ".join(made.summary)
    assert "rhs_1 in layer" in " ".join(made.summary)
    text = page.render(made)
    assert "cdn" not in text.split("plotly")[0]
    heat = tracing_report.token_heatmap(traced.traces["residual_stream"])
    task = traced.prepared.tasks[0]
    assert heat.columns[0] == f"{task.roles['rhs_1'][0]} {task.pair.clean_answer} rhs_1", (
        "from the first differing token"
    )
    assert heat.rows == ("4", "3", "2", "1", "0")
    assert heat.cells[-1, 0] == pytest.approx(1, abs=1e-3)
    rows = tracing_report.table(traced).rows
    assert {row[0] for row in rows} == {"residual_stream", "attention_heads", "mlp"}


def test_a_page_of_pairs_without_controls_says_so(untaught, tmp_path):
    found = run_causal_tracing_experiment(
        untaught,
        PROGRAMS[:2],
        runs_dir=tmp_path,
        output_dir=None,
        intervention_types=["residual_stream"],
        only_right=False,
        controls=False,
        positions="all",
    )
    said = " ".join(tracing_report.report(found).summary)
    assert "There are no controls" in said
    assert "finds nothing" in said
    assert found.traces["residual_stream"].example.grids[0].positions[0] == 0


def test_a_template_with_an_example_keeps_its_roles(untaught):
    found = CausalTracer(untaught, prompts.VARIABLE_BINDING, only_right=False).prepare(PROGRAMS[:1])
    task = found.tasks[0]
    assert task.labels[task.roles["rhs_1"][0]] == str(task.pair.clean_answer)
    assert causal_traces.places(task, ["rhs_1"]) == [task.roles["rhs_1"][-1]]
