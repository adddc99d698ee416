"""The log: numbered in one sequence, never changed, shared by processes, searched by any field."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest

from sonde.core import errors
from sonde.lab import budget, exporting, inquiries, log, log_query

SETTINGS = inquiries.InquirySettings(model="m", task="t", n_layers=4, explore=(0, 1), held_out=(2, 3))


def run_of(corruption, kept, **more):
    layers = [int(one) for one in corruption.partition(":")[2].split(",")]
    return {"corruption": corruption, "layers": layers, "kept": kept, "task": "t", "split": "explore", "n": 2, **more}


@pytest.fixture
def inquiry(book):
    return inquiries.begin(book, SETTINGS)


def test_ids_are_a_letter_and_a_place_in_one_sequence(book, inquiry):
    guess = inquiry.append("hypothesis", {"statement": "layer 1 is needed"})
    note = inquiry.append("note", {"text": "hm", "cites": [guess.id]}, cites=(guess.id,))
    assert (inquiry.id, guess.id, note.id) == ("q1", "h2", "n3")
    assert book.get("h2")["statement"] == "layer 1 is needed"


def test_only_what_is_there_already_can_be_cited(inquiry):
    with pytest.raises(errors.SelectorError, match="no r9"):
        inquiry.append("note", {"text": "x"}, cites=("r9",))
    assert inquiry.entries("note") == []


@pytest.mark.parametrize("id", ["", "r", "r0", "x3", "r-1", "r1 ", "'; DROP TABLE entries", "r99999999999999999999"])
def test_what_is_no_id_is_refused_in_words(book, id):
    with pytest.raises(errors.SelectorError, match="no id"):
        book.get(id)


def test_an_id_of_another_kind_is_not_found(inquiry):
    inquiry.append("note", {"text": "x"})
    with pytest.raises(errors.SelectorError, match="no r2"):
        inquiry.book.get("r2")


@pytest.mark.parametrize(
    "statement",
    ["UPDATE entries SET body = '{}'", "DELETE FROM entries", "UPDATE examples SET loss = 0", "DELETE FROM examples",
     "UPDATE runs SET kept = 1", "DELETE FROM runs",
     "INSERT OR REPLACE INTO entries VALUES (1, 'note', NULL, '', '{}')",
     "REPLACE INTO runs (seq, kept) VALUES (2, 1)"],
)  # fmt: skip
def test_no_program_can_change_or_delete_what_is_written(book, inquiry, statement):
    inquiry.append("run", run_of("skip:1", 0.5), examples=[{"example": 0, "loss": 1.0}])
    before = [one.to_json() for one in book.entries()]
    other = sqlite3.connect(book.path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(statement)
    other.close()
    assert [one.to_json() for one in book.entries()] == before


WRITER = """
import sys
from sonde.lab import log
with log.Log(sys.argv[1]) as book:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(60):
        book.append("note", None, {"text": sys.argv[2], "number": number, "cites": []})
"""


def test_two_processes_write_one_log_and_nothing_is_lost(tmp_path):
    path = tmp_path / log.NAME
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name], stdin=-1, stdout=-1, text=True) for name in ("a", "b")]
    for one in writers:
        assert one.stdout.readline() == "ready\n"
    for one in writers:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in writers:
        one.communicate(timeout=60)
        assert one.returncode == 0
    with log.Log(path) as book:
        entries = book.entries("note")
    assert [one.seq for one in entries] == list(range(1, 121))
    for name in "ab":
        assert [one["number"] for one in entries if one["text"] == name] == list(range(60))


def test_a_check_that_fails_takes_the_entry_back(inquiry):
    def refuse():
        raise errors.AnalysisError("no")

    with pytest.raises(errors.AnalysisError):
        inquiry.append("note", {"text": "x"}, check=refuse)
    assert inquiry.append("note", {"text": "y"}).seq == 2


def test_a_file_that_is_no_log_is_named(tmp_path):
    (tmp_path / log.NAME).write_bytes(b"this is not a database, but long enough to look at" * 30)
    with pytest.raises(errors.DamagedError, match="move it away"):
        log.Log.of(tmp_path)


def test_a_log_of_a_newer_format_is_left_alone(tmp_path):
    log.Log.of(tmp_path).close()
    other = sqlite3.connect(tmp_path / log.NAME)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(errors.VersionError, match="format 99"):
        log.Log.of(tmp_path)


def test_texts_of_any_kind_come_back_as_they_were(inquiry):
    text = "naïve 東京 🦊 \x00 ' \" ; --"
    made = inquiry.append("note", {"text": text, "number": float("nan")})
    assert inquiry.book.get(made.id)["text"] == text
    assert inquiry.book.get(made.id)["number"]["__repr__"] == "nan"


@pytest.fixture
def filled(book, inquiry):
    for corruption, kept in (("skip:1", 0.1), ("skip:11", 0.9), ("skip:1,3", 0.2), ("skip:1", 0.3)):
        rows = [
            {"example": at, "completion": f"It is {'Paris' if at else 'Rome'}", "correct": bool(at)} for at in (0, 1)
        ]
        inquiry.append("run", run_of(corruption, kept, extra={"deep": kept * 10}), examples=rows)
    inquiry.append("finding", {"status": "supported", "claim": "Layer 1 it is.", "evidence": ["r2"]})
    return book


@pytest.mark.parametrize(
    ("where", "found"),
    [(["corruption=skip:1"], ["r2", "r5"]), (["layers~1"], ["r2", "r4", "r5"]), (["kept<0.25"], ["r2", "r4"]),
     (["kept>=0.3", "corruption!=skip:1"], ["r3"]), (["corruption~SKIP:1"], ["r2", "r3", "r4", "r5"]),
     (["extra.deep>2.5"], ["r3", "r5"]), (["id=r4"], ["r4"]), (["seq<=3"], ["r2", "r3"]), (["kept>5"], [])],
)  # fmt: skip
def test_runs_are_found_by_any_field(filled, where, found):
    assert [row["id"] for row in log_query.select(filled, "run", where=where)] == found


def test_examples_are_found_by_their_own_fields_and_those_of_their_run(filled):
    rows = log_query.select(
        filled, "example", where=["completion~paris", "corruption=skip:1"], fields=("run", "completion", "kept")
    )
    assert rows == [
        {"run": "r2", "completion": "It is Paris", "kept": 0.1},
        {"run": "r5", "completion": "It is Paris", "kept": 0.3},
    ]


def test_groups_count_and_average(filled):
    rows = log_query.group(filled, "run", by=["corruption"], of=["kept"])
    (one,) = [row for row in rows if row["corruption"] == "skip:1"]
    assert (one["n"], one["kept.mean"], one["kept.least"], one["kept.most"]) == (2, pytest.approx(0.2), 0.1, 0.3)
    assert log_query.group(filled, "example", by=["correct"])[0]["n"] == 4


def test_lists_come_back_as_lists(filled):
    assert log_query.select(filled, "run", where=["id=r4"], fields=("layers",)) == [{"layers": [1, 3]}]
    assert log_query.select(filled, "finding", fields=("evidence",)) == [{"evidence": ["r2"]}]


@pytest.mark.parametrize(
    ("where", "message"),
    [("keppt<0.5", "did you mean 'kept'"), ("kept", "no condition"), ("", "no condition"), ("1=1; DROP TABLE runs", "no condition"),
     ("kept<0.5'; DROP", "kept is compared with a number"), ("kept=half", "compared with a number"), ("kept<nan", "compared with a number"),
     ("extra.deep>much", "compared with a number"), ("n>=1e999", "no number")],
)  # fmt: skip
def test_a_condition_that_makes_no_sense_is_explained(filled, where, message):
    with pytest.raises(errors.SelectorError, match=message):
        log_query.select(filled, "run", where=[where])


def test_a_number_too_large_for_the_database_is_still_a_number(filled):
    assert log_query.select(filled, "run", where=["seq>99999999999999999999999"]) == []
    assert len(log_query.select(filled, "run", where=["seq<99999999999999999999999"])) == 4


def test_values_never_become_sql(filled):
    assert log_query.select(filled, "run", where=["corruption=' OR 1=1 --"]) == []
    assert len(filled.entries("run")) == 4


def test_unknown_kinds_are_suggested(book):
    with pytest.raises(errors.SelectorError, match="did you mean 'run'"):
        log_query.select(book, "runs")


def test_an_inquiry_is_exported_as_markdown_and_json(tmp_path, book, inquiry):
    inquiry.append("run", run_of("skip:1", 0.5, kept_low=0.1, kept_high=0.9, prediction=None, control=None))
    guess = inquiry.append("hypothesis", {"statement": "# not a heading | nor a cell <script>"})
    inquiry.append("note", {"text": "seen", "cites": [guess.id]})
    text = exporting.write(inquiry, tmp_path / "x.md").read_text(encoding="utf-8")
    assert "| r2 | skip:1 | explore |  | 0.50 \\[0.10, 0.90\\] |" in text
    assert "\\# not a heading \\| nor a cell \\<script\\>" in text
    data = json.loads(exporting.write(inquiry, tmp_path / "x.json").read_text(encoding="utf-8"))
    assert data["hypotheses"] == {"h3": "open"}
    assert data["runs"][0]["corruption"] == "skip:1"
    with pytest.raises(errors.RequestError, match=r"\.md or \.json"):
        exporting.write(inquiry, tmp_path / "x.csv")


def test_what_is_spent_is_what_the_log_says(inquiry):
    inquiry.append("run", run_of("skip:1", 0.5, seconds=2.0))
    inquiry.append("run", run_of("skip:1", 0.5, seconds=1.0) | {"split": "all"})
    inquiry.append("usage", {"tokens": 100, "seconds": 0.5, "strikes": 1})
    assert inquiry.spent() == budget.Spent(experiments=1, tokens=100, seconds=3.5, calls=0, no_calls=1)


@pytest.mark.parametrize(
    ("limits", "used", "message"),
    [((0,), (), "budget is zero"), ((2,), (2,), "2 of 2 experiments"), ((9, 50), (1, 60), "tokens"),
     ((9, None, 1.0), (1, 0, 1.5), "seconds"), ((1,), (0, 0, 0.0, 16), "tool calls")],
)  # fmt: skip
def test_a_spent_budget_is_refused_with_the_reason(limits, used, message):
    with pytest.raises(errors.BudgetError, match=message):
        budget.check(budget.Limits(*limits), budget.Spent(*used))


def test_a_budget_must_be_an_amount():
    with pytest.raises(errors.RequestError, match="experiments"):
        budget.Limits(-1)


def test_a_fork_sees_the_past_of_its_parent_up_to_a_call(book, inquiry):
    for number in range(3):
        inquiry.append("note", {"text": str(number), "cites": []})
        inquiry.append("call", {"tool": "note", "arguments": {}, "outcome": "ok", "result": {}, "made": []})
    fork = inquiries.begin(book, SETTINGS, parent=inquiry.id, at=2)
    own = fork.append("note", {"text": "mine", "cites": []})
    inquiry.append("note", {"text": "later", "cites": []})
    assert [one["text"] for one in fork.entries("note")] == ["0", "1", "mine"]
    assert fork.cited("n2", "note")["text"] == "0"
    with pytest.raises(errors.SelectorError, match="belongs to q1"):
        fork.cited("n6", "note")
    again = inquiries.begin(book, SETTINGS, parent=fork.id, at=0)
    assert [one["text"] for one in again.entries("note")] == ["0", "1"]
    assert own.inquiry == fork.id
    with pytest.raises(errors.RequestError, match="3 calls"):
        inquiries.begin(book, SETTINGS, parent=inquiry.id, at=4)


def test_asking_for_an_inquiry_in_an_empty_log_says_how_to_begin_one(book):
    with pytest.raises(errors.SelectorError, match="sonde lab run"):
        inquiries.opened(book, "last")


@pytest.mark.timeout(60)
def test_a_log_with_tables_that_somebody_made_up_is_refused(tmp_path):
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    for number, statement in enumerate(
        (
            f"CREATE VIEW entries AS {endless} SELECT x AS seq, 'note' AS kind, NULL AS inquiry, 't' AS time, '{{}}' AS body FROM n",
            "CREATE TABLE entries (seq)",
        )
    ):
        with contextlib.closing(sqlite3.connect(tmp_path / f"{number}.sqlite")) as db:
            db.execute(statement)
            db.execute("PRAGMA user_version = 1")
            db.commit()
        with pytest.raises(errors.DamagedError, match="no log of the lab"):
            log.Log(tmp_path / f"{number}.sqlite")
    with log.Log(tmp_path / "honest.sqlite"):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "honest.sqlite")) as db:
        db.execute("CREATE TRIGGER more BEFORE INSERT ON entries BEGIN SELECT randomblob(1000000000); END")
        db.commit()
    with pytest.raises(errors.DamagedError, match="more differ"):
        log.Log(tmp_path / "honest.sqlite")


@pytest.mark.timeout(60)
def test_what_is_no_file_is_no_log(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(errors.DamagedError, match="no regular file"):
            log.Log(tmp_path / name)


@pytest.mark.parametrize("body", ["", "[]", "3", "[" * 100_000, '{"a": NaN}'])
def test_an_entry_that_somebody_made_up_is_damage(tmp_path, body):
    with log.Log(tmp_path / "x.sqlite") as book:
        book._db.execute("INSERT INTO entries (kind, inquiry, time, body) VALUES ('note', NULL, 't', ?)", (body,))
        with pytest.raises(errors.DamagedError, match="entry 1 of the log"):
            book.get("n1")
        with pytest.raises(errors.DamagedError, match="entry 1 of the log"):
            book.entries()
        book._db.execute("INSERT INTO entries (kind, inquiry, time, body) VALUES ('evil', NULL, 't', '{}')")
        with pytest.raises(errors.SelectorError):
            book.get("n2")
