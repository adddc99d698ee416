"""`sonde bench cases` as typed: the list, a group, one case, and what is refused."""

import pytest
from typer import testing

from sonde._cli import bench
from sonde.core import errors

TYPED = testing.CliRunner(env={"COLUMNS": "220", "NO_COLOR": "1", "TERM": "dumb"})


def typed(*words):
    found = TYPED.invoke(bench.app, [str(word) for word in words])
    return found, " ".join(found.output.split())


def test_the_list_has_every_case():
    found, text = typed("cases")
    assert found.exit_code == 0, text
    assert "129 cases, and two of IOI." in text
    assert "ioi_next_token ioi released cls yes 42 tokens, 15 long a1.h1 a2.h1 a4.h1" in text
    assert "share-of-x core reg yes 4 tokens, 5 long m0 a1.h0" in text


def test_a_group_is_listed_alone():
    found, text = typed("cases", "--group", "core")
    assert found.exit_code == 0, text
    assert "32 cases." in text
    assert "is-prime" not in text


def test_a_case_is_shown_with_its_program_examples_and_circuit_and_drawn(tmp_path):
    found, text = typed("cases", 3, "--out", tmp_path / "new" / "case.svg")
    assert found.exit_code == 0, text
    for words in (
        "Case 3, share-of-x: The share of the token x",
        "is_x = Map(lambda one: int(one == 'x'), tokens) # numerical, in m0",
        "x a x b -> 1 0.5 0.6667 0.5",
        "m0->a1.h0<v>",
    ):
        assert words in text
    assert "a1.h0" in (tmp_path / "new" / "case.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ioi", "ioi_next_token"])
def test_ioi_is_shown_with_its_nodes_and_drawn(name, tmp_path):
    found, text = typed("cases", name, "--out", tmp_path / "case.svg")
    assert found.exit_code == 0, text
    assert f"Case {name}: " in text
    assert "a4.h1 name mover" in text
    assert ("input->logits" in text.split("Circuit: ")[0]) == (name == "ioi_next_token")
    assert "a4.h1" in (tmp_path / "case.svg").read_text(encoding="utf-8")


def test_a_circuit_is_drawn_in_the_results_folder_if_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed("cases", 4)[0].exit_code == 0
    assert (tmp_path / "results" / "cases" / "4.svg").exists()


def test_what_makes_no_sense_is_refused(tmp_path):
    found, _ = typed("cases", 16)
    assert isinstance(found.exception, errors.RequestError)
    assert "no case 16" in str(found.exception)
    assert isinstance(typed("cases", "--group", "cores")[0].exception, errors.RequestError)
    assert "write a number, as in `sonde bench cases`, or ioi" in str(typed("cases", "3x")[0].exception)
    for words, message in (
        (("cases", 3, "--out", tmp_path / "case.txt"), "is no .svg or .png file"),
        (("cases", "--out", tmp_path / "case.svg"), "name a case to draw its circuit"),
        (("cases", 3, "--grup", "core"), "No such option"),
    ):
        found, text = typed(*words)
        assert found.exit_code == 2
        assert message in text


@pytest.mark.slow
def test_a_circuit_is_drawn_as_png_too(tmp_path):
    assert typed("cases", 97, "--out", tmp_path / "case.png")[0].exit_code == 0
    assert (tmp_path / "case.png").stat().st_size > 1000
