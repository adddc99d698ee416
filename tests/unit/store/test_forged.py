"""What a stranger put into a run folder is refused with a word, never believed and never followed."""

import dataclasses
import json
import os
import socket
import sqlite3
import subprocess
import sys
import zlib

import numpy as np
import pytest

from sonde import store
from sonde.core import errors
from sonde.store import contents, documents, files, layout, schemas
from sonde.store import run as run_module


@pytest.fixture
def runs(tmp_path):
    """A folder with an honest run, `good`, and one to forge, `bad`; each has a closed and an open episode."""
    for name in ("good", "bad"):
        run = store.Run.create(tmp_path / "runs", kind="demo", model="tiny-gpt2", id=name)
        with run.new_episode() as writer:
            for step in range(3):
                writer.append_step({"action": "ask"}, {"resid": store.Array.from_numpy(np.full((2, 4), step, "f4"))})
            writer.close({"reward": 1.0})
        writer = run.new_episode()
        writer.append_step({"action": "ask"}, {"resid": store.Array.from_numpy(np.ones((2, 4), "f4"))})
        writer.abort()
    return tmp_path / "runs"


def reseal(path, **changes):
    """Changes a document and gives it a checksum that fits."""
    told = {**documents.read(path), **changes}
    documents.write(path, {name: value for name, value in told.items() if value is not ...})


def refused(action):
    with pytest.raises(errors.DamagedError) as caught:
        action()
    return str(caught.value)


def check_only_the_bad_one_suffers(runs):
    rows = {row.id: row for row in store.Index(runs).runs()}
    assert (rows["good"].status, rows["good"].steps) == ("interrupted", 4)
    assert store.verify_run(runs / "good") == []
    problems = store.verify_run(runs / "bad")
    assert problems
    assert all(problem.file.is_relative_to(runs / "bad") for problem in problems)
    return rows["bad"]


def test_a_sealed_manifest_that_says_nothing_is_damage(runs):
    documents.write(runs / "bad" / "manifest.json", {"format": 1})
    assert check_only_the_bad_one_suffers(runs).status == "damaged"
    assert "no manifest" in refused(lambda: store.Run.open(runs / "bad"))
    run_module.remove(runs / "bad")
    assert layout.list_runs(runs) == ["good"]


@pytest.mark.parametrize(
    "changes",
    [{"id": "../x"}, {"id": 3}, {"status": "finished\x1b[31m"}, {"seed": True}, {"seed": 1.5}, {"kind": None}, {"model": []},
     {"settings": "x"}, {"created": ...}, {"format": True}, {"format": 0}, {"format": "1"}, {"versions": [1]}],
)  # fmt: skip
def test_a_manifest_of_wrong_types_is_damage(runs, changes):
    reseal(runs / "bad" / "manifest.json", **changes)
    assert check_only_the_bad_one_suffers(runs).status == "damaged"
    refused(lambda: store.Run.open(runs / "bad"))


@pytest.mark.parametrize(
    "changes",
    [{"steps": -1}, {"steps": 2}, {"steps": 4}, {"steps": True}, {"steps": 2**70}, {"steps_bytes": -1}, {"data_bytes": 0},
     {"data_bytes": 7}, {"data_header_crc32": "x"}, {"data_header_crc32": 5}, {"arrays": {}}, {"arrays": []}, {"status": "shut"},
     {"status": []}, {"summary": None}, {"metadata": []}, {"id": 3}, {"created": 3}, {"steps": ...}],
)  # fmt: skip
def test_an_episode_of_wrong_numbers_is_damage(runs, changes):
    episode = runs / "bad" / "episodes" / "00000"
    reseal(episode / contents.NAME, **changes)
    check_only_the_bad_one_suffers(runs)
    assert store.verify_episode(episode)
    refused(lambda: store.EpisodeReader.open(episode))
    refused(lambda: list(store.Run.open(runs / "bad").episodes()))


def forge_line(path, number, change):
    lines = path.read_bytes().splitlines()
    told = documents.unseal_line(lines[number], "step")
    del told["crc32"]
    change(told)
    lines[number] = documents.seal_line(told)[:-1]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.mark.parametrize("id", ["00000", "00001"])
@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.update(index=True),
        lambda told: told.update(index=7),
        lambda told: told.update(step=[]),
        lambda told: told.update(record=[-1, 3]),
        lambda told: told.update(record=[0]),
        lambda told: told["arrays"].update(resid=[2, 0, "00000000"]),
        lambda told: told["arrays"].update(resid=[0, 10**12, "00000000"]),
        lambda told: told["arrays"].update(resid=[-2, 2, "00000000"]),
        lambda told: told["arrays"].update(resid=[0, 2, "0x000000"]),
        lambda told: told["arrays"].update(other=[0, 2, "00000000"]),
        lambda told: told.pop("arrays"),
    ],
)
def test_a_step_of_wrong_numbers_is_damage(runs, id, change):
    episode = runs / "bad" / "episodes" / id
    path = forge_line(episode / "steps.jsonl", 0, change)
    if id == "00000":
        reseal(episode / contents.NAME, steps_bytes=path.stat().st_size)
    check_only_the_bad_one_suffers(runs)
    refused(lambda: store.EpisodeReader.open(episode))
    if id == "00001":
        refused(lambda: store.EpisodeWriter.resume(episode))


def forge_header(episode, change):
    """Writes another header before the data, and says so in episode.json with checksums that fit."""
    path = episode / "activations.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    told = json.loads(data[8:end])
    told = change(told) or told
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    header = len(text).to_bytes(8, "little") + text
    path.write_bytes(header + data[end:])
    arrays = {name: {**one, "crc32": "00000000"} for name, one in told.items() if name != "__metadata__"} if isinstance(
        told, dict) else {}  # fmt: skip
    arrays = {name: {key: one[key] for key in ("dtype", "shape", "crc32")} for name, one in arrays.items()}
    reseal(episode / contents.NAME, data_bytes=len(header) + len(data) - end,
           data_header_crc32=f"{zlib.crc32(header):08x}", arrays=arrays)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["resid"].update(shape=[2**40, 4]),
        lambda told: told["resid"].update(shape=[-6, -4]),
        lambda told: told["resid"].update(shape=[2**62, 0]),
        lambda told: told["resid"].update(shape=[2**32, 2**32, 0]),
        lambda told: told["resid"].update(shape=[]),
        lambda told: told["resid"].update(shape=[1] * 40 + [24]),
        lambda told: told["resid"].update(dtype="F128"),
        lambda told: told["resid"].update(dtype="F64"),
        lambda told: told["resid"].update(data_offsets=[-8, 88]),
        lambda told: told["resid"].update(data_offsets=[8, 104]),
        lambda told: told["resid"].update(data_offsets=[0, 2**63]),
        lambda told: told.update(more={"dtype": "F32", "shape": [6, 4], "data_offsets": [0, 96]}),
        lambda told: b"[" * 100_000,
        lambda told: b"[]",
        lambda told: b"\xff\xfe",
    ],
)
def test_a_header_whose_arrays_do_not_fill_the_file_is_damage(runs, change):
    episode = runs / "bad" / "episodes" / "00000"
    forge_header(episode, change)
    check_only_the_bad_one_suffers(runs)
    refused(lambda: store.EpisodeReader.open(episode))


def test_an_honest_header_written_again_is_whole(runs):
    episode = runs / "bad" / "episodes" / "00000"
    before = documents.read(episode / contents.NAME)["arrays"]
    forge_header(episode, lambda told: None)
    reseal(episode / contents.NAME, arrays=before)
    assert store.verify_run(runs / "bad") == []


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"format": 1, "a": ' + b"[" * 300 + b"]" * 300,
        b'{"format": 1, "a": NaN',
        b'{"format": 1, "a": 1e999',
        b'{"format": 1, "a": ' + b"9" * 5000,
        b'{"format": 1, "a": "\xff"',
        b"[1",
        b"",
    ],
)
def test_json_that_is_none_of_ours_is_damage_although_it_is_sealed(runs, text):
    path = runs / "bad" / "manifest.json"
    path.write_bytes(text + b',\n  "crc32": "%08x"\n}\n' % zlib.crc32(text))
    assert check_only_the_bad_one_suffers(runs).status == "damaged"
    refused(lambda: store.Run.open(runs / "bad"))


def put(path, what):
    """Puts something in the place of a file or a folder."""
    if what == "socket":
        held = socket.socket(socket.AF_UNIX)
        os.chdir(path.parent)  # a socket's path may have 107 letters
        held.bind(path.name)
        held.close()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "sparse":
        with path.open("wb") as file:
            file.truncate(100 << 30)
    else:
        path.symlink_to(what)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["pipe", "socket", "folder", "sparse", "/dev/zero", "/dev/null", "self", "elsewhere"])
@pytest.mark.parametrize(
    "name",
    ["manifest.json", "episodes/00000/episode.json", "episodes/00000/steps.jsonl", "episodes/00000/activations.safetensors",
     "episodes/00001/steps.jsonl", "episodes/00001/activations.journal"],
)  # fmt: skip
def test_nothing_but_a_regular_file_is_opened(runs, name, what, monkeypatch):
    monkeypatch.chdir(runs)
    path = runs / "bad" / name
    honest = runs / "good" / name
    kept = {file: file.read_bytes() for file in sorted((runs / "good").rglob("*.*")) if file.is_file()}
    path.unlink()
    put(path, {"self": path.name, "elsewhere": honest}.get(what, what))
    row = check_only_the_bad_one_suffers(runs)
    assert row.status == ("damaged" if name == "manifest.json" else "interrupted")
    for id in ("00000", "00001"):
        if id in name:
            refused(lambda id=id: store.Run.open(runs / "bad").episode(id))
            with pytest.raises(errors.StoreError):
                store.Run.open(runs / "bad").resume_episode(id)
    run_module.remove(runs / "bad")
    assert {file: file.read_bytes() for file in kept} == kept


@pytest.mark.parametrize("name", ["episodes", "episodes/00000"])
def test_a_folder_linked_from_elsewhere_is_damage(runs, name):
    path, honest = runs / "bad" / name, runs / "good" / name
    path.rename(path.with_name(".aside"))
    path.symlink_to(honest, target_is_directory=True)
    assert check_only_the_bad_one_suffers(runs).status == "damaged"
    assert [problem.problem for problem in store.verify_run(runs / "bad")] == [files.LINK]
    refused(lambda: store.Run.open(runs / "bad").episode("00000"))
    refused(lambda: store.Run.open(runs / "bad").resume_episode("00000"))
    run_module.remove(runs / "bad")
    assert store.verify_run(runs / "good") == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", [".", "episodes", "episodes/00000", "manifest.json", "episodes/00001/steps.jsonl"])
def test_what_may_not_be_read_is_damage_and_hides_nothing(runs, name):
    path = runs / "bad" / name
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        row = check_only_the_bad_one_suffers(runs)
        assert row.status == ("interrupted" if name.startswith("episodes/") else "damaged")
        with pytest.raises(errors.StoreError):
            list(store.Run.open(runs / "bad").episodes())
    finally:
        path.chmod(mode)


def test_a_run_that_is_itself_a_link_is_fine(runs, tmp_path):
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "linked").symlink_to(runs / "good", target_is_directory=True)
    assert [row.status for row in store.Index(tmp_path / "others").runs()] == ["interrupted"]
    assert store.verify_run(tmp_path / "others" / "linked") == []
    assert len(store.Run.open(tmp_path / "others" / "linked").episode("00000").steps) == 3


def test_a_link_anywhere_in_a_run_is_named(runs):
    (runs / "bad" / "report.html").symlink_to("/etc/passwd")
    os.mkfifo(runs / "bad" / "results.json")
    found = {problem.file.name: problem.problem for problem in store.verify_run(runs / "bad")}
    assert found == {"report.html": files.LINK, "results.json": "is not a regular file"}


def test_a_large_file_that_is_no_document_is_not_read(runs):
    with (runs / "bad" / "results.json").open("wb") as file:
        file.write(b'{"rows": [')
        file.truncate(100 << 30)
    assert store.verify_run(runs / "bad") == []


@pytest.mark.parametrize("id", ["", ".", "..", "../..", "a/b", "\0", "x" * 300, "\ud800"])
def test_an_episode_cannot_be_named_out_of_its_run(runs, id):
    with pytest.raises(errors.StoreError):
        store.Run.open(runs / "good").episode(id)


def test_thousands_of_folders_in_each_other_are_listed_and_removed(runs):
    here = os.open(runs / "bad", os.O_RDONLY)
    try:
        for _ in range(3000):
            os.mkdir("d", dir_fd=here)
            here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
            os.close(above)
    finally:
        os.close(here)
    assert {row.id for row in store.Index(runs).runs()} == {"good", "bad"}
    assert [problem.problem for problem in store.verify_run(runs / "bad")] == ["cannot be read: File name too long"]
    run_module.remove(runs / "bad")
    assert sorted(path.name for path in runs.iterdir() if "sqlite" not in path.name) == ["good"]


def test_an_index_that_somebody_made_up_is_done_without(runs):
    honest = store.Index(runs).runs()
    path = runs / "index.sqlite"
    for statement in (
        "CREATE VIEW runs AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        "CREATE TABLE runs (id)",
        "CREATE TABLE other (id)",
    ):
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute(statement)
            db.execute("PRAGMA user_version = 2")
        db.close()
        assert store.Index(runs).runs() == honest
        assert store.Index(runs).runs() == honest
    for what in ("pipe", "folder", "/dev/zero", "elsewhere"):
        path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        put(path, what)
        assert store.Index(runs).runs() == honest


def test_a_run_whose_name_is_no_text_is_listed(runs):
    (runs / "bad").rename(runs / os.fsdecode(b"\xff\x1b[31m"))
    for _ in range(2):
        assert sorted(row.id for row in store.Index(runs).runs()) == ["good", "\udcff\x1b[31m"]


def sonde(*words):
    done = subprocess.run(
        [sys.executable, "-m", "sonde._cli.main", *words], capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_nothing_in_a_run_reaches_the_terminal_as_a_command(runs):
    evil = "\x1b]0;pwned\x07\x9b31m\u202e[red]"
    reseal(runs / "bad" / "manifest.json", kind=evil, settings={evil: evil})
    (runs / "bad").rename(runs / os.fsdecode(b"bad\xff\x1b[31m\n"))
    forge_line(runs / os.fsdecode(b"bad\xff\x1b[31m\n") / "episodes" / "00001" / "steps.jsonl", 0,
               lambda told: told["arrays"].update({evil: [0, 1, "00000000"]}))  # fmt: skip
    for words in (["ls"], ["show", "bad"], ["verify"], ["export", "bad", "--out", "x"], ["rm", "bad", "--yes"]):
        code, out = sonde("runs", *words, "--runs", str(runs))
        assert code == (1 if words[0] in ("verify", "export") else 0), out
        assert not {*out} & {*b"\x1b\x07\x9b"} - {0x9B}, words
        assert b"Traceback" not in out
        assert not {*out.decode()} & {"\x9b", "\u202e", "\x1b"}


def test_every_kind_of_document_has_a_limit():
    assert {"manifest", "episode", "step", "record", "header", "document"} <= set(schemas._kinds)
    assert all(0 < kind.limit <= 1 << 28 for kind in schemas._kinds.values())


def test_a_document_longer_than_its_kind_may_be_is_damage(runs, monkeypatch):
    schemas.register("small thing", schemas.Document, limit=100)
    documents.write(runs / "small.json", {"format": 1, "text": "x" * 100})
    assert "more than the 100" in refused(lambda: documents.read(runs / "small.json", "small thing"))


def test_a_step_longer_than_a_line_may_be_is_refused_and_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.setattr("sonde.store.steplog.LINE_LIMIT", 1000)
    with store.EpisodeWriter.create(tmp_path / "e") as writer:
        with pytest.raises(errors.StoreError, match="give its numbers as arrays"):
            writer.append_step({"text": "x" * 1000})
        writer.append_step({"text": "x"})
    assert store.verify_episode(tmp_path / "e") == []


@pytest.mark.parametrize("shape", [(1,) * 40, (2**21, 0)])
def test_a_shape_that_could_not_be_read_back_is_not_written(tmp_path, shape):
    with (
        store.EpisodeWriter.create(tmp_path / "e") as writer,
        pytest.raises(errors.StoreError, match="expected at most"),
    ):
        writer.append_step({}, {"x": store.Array("F32", shape, b"" if 0 in shape else bytes(4))})


def test_a_torn_line_ends_what_is_read_and_a_whole_one_of_another_kind_is_damage(tmp_path):
    kind = schemas.register(
        "numbered thing", schemas.strict(dataclasses.make_dataclass("Thing", [("n", int)]), extra="ignore")
    )
    path = tmp_path / "things.jsonl"
    good = documents.seal_line({"n": 1}) + documents.seal_line({"n": 2})
    path.write_bytes(good + b'{"n": 3')
    found, end = documents.whole_lines(path, kind)
    assert ([one["n"] for one in found], end) == ([1, 2], len(good))
    path.write_bytes(good + b'{"n":3,"crc32":"00000000"}\n')
    assert documents.whole_lines(path, kind)[1] == len(good)
    path.write_bytes(good + documents.seal_line({"m": 3}))  # else a newer version's rows would be cut off
    assert "is no numbered thing" in refused(lambda: documents.whole_lines(path, kind))


@pytest.mark.parametrize(
    ("told", "reward"),
    [(1, 1.0), (True, 1.0), (2**32, 2.0**32), (10**400, None), ("x", None), ([], None), ({"__type__": "float"}, None),
     ({"__type__": "float", "__repr__": "x"}, None), ({"__type__": "float", "__repr__": "inf"}, float("inf"))],
)  # fmt: skip
def test_a_reward_is_a_float_or_none_whatever_is_said(runs, told, reward):
    reseal(runs / "good" / "episodes" / "00000" / contents.NAME, reward=told)
    found = store.Run.open(runs / "good").episode("00000").reward
    assert found == reward
    assert type(found) is type(reward)
