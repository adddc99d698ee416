"""The table of depths: what counts as a behaviour, where it first appears, and the control."""

import json
import shlex

import pytest

import sonde
from sonde import experiments
from sonde.core import errors
from sonde.lab import depths
from sonde.report import page


@pytest.mark.parametrize(
    ("name", "said", "due", "right"),
    [("distance", " 1,100 km by air", True, True), ("distance", " 200 miles", True, False), ("distance", " far away", False, False),
     ("addition", " 5\n", True, True), ("addition", " 9", True, False), ("addition", " 55", True, False), ("addition", " the sum", False, False),
     ("JSON", "}}\n", True, True), ("JSON", ', "zip": 5}} ok', True, True), ("JSON", "}", True, False), ("JSON", ", and so", False, False),
     ("year", " 2008.", True, True), ("year", " 1997", True, False), ("year", " of the", False, False)],
)  # fmt: skip
def test_format_and_answer_are_told_apart(name, said, due, right):
    (prompt,) = [one for one in depths.PROMPTS if one.name == name]
    assert (prompt.holds(depths.FORMAT, said), prompt.holds(depths.RIGHT, said)) == (due, right)


@pytest.mark.parametrize(
    ("answer", "said", "due", "right"),
    [("Paris", " paris, of", True, True), ("Paris", " London", True, False), ("Paris", " 12", False, False), ("12", " 13", True, False),
     ("!?", " !?", True, True), ("!?", " a", False, False), ("", " a", None, None), ("a(b", " a(b", True, True)],
)  # fmt: skip
def test_what_is_due_after_a_prompt_of_ones_own_is_what_its_answer_is_made_of(answer, said, due, right):
    one = depths.prompt_of("x", answer)
    if answer == "a(b":
        assert one.holds(depths.RIGHT, said)
        return
    assert (one.holds(depths.FORMAT, said), one.holds(depths.RIGHT, said)) == (due, right)


def test_the_table_says_where_a_behaviour_first_holds_and_from_where_it_stays():
    def at(echo, due):
        holds = {depths.REPEATS: echo, depths.FORMAT: due, depths.GRAMMATICAL: False, depths.RIGHT: None}
        return {"said": "1" if due else "a", "holds": holds, "shuffled_passes": False}

    columns = [(True, False), (False, True), (False, False), (False, True), (False, True)]
    measured = [{"layers": n, "prompts": [at(*one), at(False, False)]} for n, one in enumerate(columns, 1)]
    prompts = (depths.Prompt(name="a", text="a", due=r"\d"), depths.Prompt(name="b", text="b", due="a"))
    rows = {
        (row["prompt"], row["behaviour"]): row
        for row in depths.table(depths.DepthSettings(model="m", prompts=prompts), measured)
    }
    assert [rows["a", name][key] for name in depths.BEHAVIOURS[:2] for key in ("first", "stays")] == [1, None, 2, 4]
    assert (rows["a", depths.GRAMMATICAL]["first"], rows["a", depths.FORMAT]["chance"]) == (None, 0.0)
    assert (rows["b", depths.FORMAT]["chance"], rows["b", depths.FORMAT]["of"]) == (pytest.approx(2 / 5), 5)
    assert ("a", depths.RIGHT) not in rows


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with sonde.load("tiny-llama") as model:
        chosen = depths.DepthSettings(
            model="tiny-llama", words=6, prompts=(*depths.PROMPTS, depths.prompt_of("Mine is", "yours"))
        )
        runs = tmp_path_factory.mktemp("runs")
        yield experiments.run(depths.Depth(model), chosen, run="first", runs_dir=runs), model, chosen


def test_the_first_n_layers_say_what_the_bare_model_cut_off_there_says(found):
    import torch

    results, model, _ = found[0].results, found[1], found[2]
    layers = model.hf.model.layers
    try:
        model.hf.model.layers = torch.nn.ModuleList(list(layers)[:2])
        ids = torch.tensor([model.tokenizer.encode("Mine is")])
        said = model.hf.generate(ids, max_new_tokens=6, do_sample=False, use_cache=False)[0, ids.shape[1] :]
    finally:
        model.hf.model.layers = layers
    assert results["depths"][1]["prompts"][-1]["said"] == model.tokenizer.decode(said.tolist())


def test_a_stopped_run_measures_only_what_is_missing_and_comes_out_the_same(found):
    before, model, chosen = found
    stages, told = before.folder / "stages", []
    (stages / "depths.json").unlink()
    (stages / "depths" / "00002.json").unlink()
    again = experiments.run(
        depths.Depth(model),
        chosen,
        run="first",
        runs_dir=before.folder.parent,
        on_progress=lambda now: told.append(now.done),
    )
    assert told == [4]  # three were there
    assert {**again.results, "timing": 0} == {**before.results, "timing": 0}
    assert again.run.verify() == []
    other = depths.DepthSettings(model="tiny-llama", words=7)
    with pytest.raises(errors.RequestError, match="other settings"):
        experiments.run(depths.Depth(model), other, run="first", runs_dir=before.folder.parent)


def test_the_command_on_the_page_asks_for_the_same(found):
    _, model, chosen = found
    words = shlex.split(depths.Depth(model).command(chosen))
    assert words == ["sonde", "lab", "depth", "--model", "tiny-llama", "--words", "6", "--prompt", "Mine is", "--answer", "yours"]  # fmt: skip
    alone = depths.DepthSettings(model="tiny-llama", prompts=(depths.prompt_of("x", "a(b c"),))
    assert shlex.split(depths.Depth(model).command(alone))[-5:] == ["--own", "--prompt", "x", "--answer", "a(b c"]


def test_the_report_has_the_table_and_the_picture(found, tmp_path):
    text = page.write(depths.report(found[0].results), tmp_path).read_text(encoding="utf-8")
    assert "notices the format" in text
    assert (tmp_path / "figures" / "depth.png").stat().st_size > 1000
    json.dumps(found[0].results, allow_nan=False)


@pytest.mark.parametrize("wrong", [{"prompts": ()}, {"prompts": (depths.PROMPTS[0],) * 2}, {"words": 1}, {"prompts": (depths.Prompt(name="a", text="a "),)}])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(errors.RequestError):
        depths.DepthSettings(model="m", **wrong)
