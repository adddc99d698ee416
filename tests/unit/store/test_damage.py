"""One flipped byte or a cut file is found and named, whichever file it is in."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sonde import store
from sonde.core import errors

MANY = settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)
CLOSED = ["episode.json", "steps.jsonl", "activations.safetensors"]
OPEN = ["episode.json", "steps.jsonl", "activations.journal"]


def flip(path, at, mask):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= mask
    path.write_bytes(data)
    return at % len(data)


def check_found(folder, name):
    problems = store.verify_episode(folder)
    assert problems
    assert {problem.file.name for problem in problems} == {name}
    return problems


@pytest.mark.parametrize("name", CLOSED)
@MANY
@given(at=st.integers(0, 10**6), mask=st.integers(1, 255))
def test_a_flipped_byte_in_a_closed_episode_is_found(closed, name, at, mask):
    good = (closed / name).read_bytes()
    flip(closed / name, at, mask)
    check_found(closed, name)
    (closed / name).write_bytes(good)
    assert store.verify_episode(closed) == []


@pytest.mark.parametrize("name", OPEN)
@MANY
@given(at=st.integers(0, 10**6), mask=st.integers(1, 255))
def test_a_flipped_byte_in_an_open_episode_is_found(crashed, name, at, mask):
    good = (crashed / name).read_bytes()
    flip(crashed / name, at, mask)
    check_found(crashed, name)
    (crashed / name).write_bytes(good)


def test_a_flipped_byte_is_found_all_over_every_file(closed, crashed):
    for folder, names in ((closed, CLOSED), (crashed, OPEN)):
        for name in names:
            good = (folder / name).read_bytes()
            for at in [*range(0, len(good), 7 if name == "episode.json" else 2), len(good) - 1]:
                flip(folder / name, at, 0x01)
                assert store.verify_episode(folder), (name, at)
                (folder / name).write_bytes(good)


@pytest.mark.parametrize("kind", ["closed", "crashed"])
def test_damaged_rows_are_named_by_array_and_step(kind, request):
    folder = request.getfixturevalue(kind)
    reader = store.EpisodeReader.open(folder)
    needle = bytes(reader.array("resid").rows(*[reader.rows("resid", 2)[i] for i in (0, -1)]).data)
    path = folder / ("activations.safetensors" if kind == "closed" else "activations.journal")
    flip(path, path.read_bytes().index(needle), 0xFF)
    (problem,) = store.EpisodeReader.open(folder).verify()
    assert (problem.file, problem.array, problem.step) == (path, "resid", 2)
    assert "array 'resid', step 2" in str(problem)
    if kind == "crashed":
        with pytest.raises(errors.DamagedError, match="array 'resid', step 2"):
            store.EpisodeReader.open(folder).array("resid")
        with pytest.raises(errors.DamagedError, match="array 'resid', step 2"):
            store.EpisodeWriter.resume(folder).close()


def test_a_damaged_step_is_named_when_the_episode_is_opened(closed):
    path = closed / "steps.jsonl"
    flip(path, path.read_bytes().index(b"ask 2"), 0x02)
    with pytest.raises(errors.DamagedError, match=r"steps\.jsonl, step 2: the checksum .*restore it"):
        store.EpisodeReader.open(closed)


def test_damage_in_several_places_is_all_listed(closed):
    flip(closed / "steps.jsonl", 5, 1)
    flip(closed / "activations.safetensors", -1, 1)
    assert {problem.file.name for problem in store.verify_episode(closed)} == {"steps.jsonl", "activations.safetensors"}


@pytest.mark.parametrize("name", CLOSED)
@MANY
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_closed_episode_whose_file_was_cut_says_so(closed, name, share):
    good = (closed / name).read_bytes()
    (closed / name).write_bytes(good[: int(len(good) * share)])
    check_found(closed, name)
    with pytest.raises(errors.DamagedError, match=name):
        store.EpisodeReader.open(closed)
    (closed / name).write_bytes(good)


@pytest.mark.parametrize("name", CLOSED)
def test_something_appended_to_a_closed_episode_is_found(closed, name):
    with (closed / name).open("ab") as file:
        file.write(b"x")
    check_found(closed, name)


@pytest.mark.parametrize("name", ["steps.jsonl", "activations.safetensors"])
def test_a_missing_file_is_named(closed, name):
    (closed / name).unlink()
    check_found(closed, name)
    with pytest.raises(errors.DamagedError, match=f"{name}: the file is missing"):
        store.EpisodeReader.open(closed)


def test_a_journal_that_lacks_promised_steps_is_damage(crashed):
    path = crashed / "activations.journal"
    good = path.read_bytes()
    for size in range(0, len(good), 7):
        path.write_bytes(good[:size])
        check_found(crashed, path.name)
        with pytest.raises(errors.DamagedError, match=path.name):
            store.EpisodeReader.open(crashed)


def test_what_a_kill_can_leave_behind_is_no_damage_and_can_be_resumed(crashed, tmp_path, steps_into):
    lines = (crashed / "steps.jsonl").read_bytes()
    start = lines.rindex(b"\n", 0, -1) + 1
    for size in range(start, len(lines) - 1):  # the last line torn anywhere, its record complete in the journal
        folder = tmp_path / "copy"
        shutil.copytree(crashed, folder)
        (folder / "steps.jsonl").write_bytes(lines[:size])
        assert len(store.EpisodeReader.open(folder).steps) == 3
        assert store.verify_episode(folder) == []
        if size % 10 == 0:
            with store.EpisodeWriter.resume(folder) as writer:
                steps_into(writer, 2)
            reader = store.EpisodeReader.open(folder)
            assert [step["index"] for step in reader.steps] == list(range(5))
            assert reader.verify() == []
        shutil.rmtree(folder)


def test_a_torn_record_is_dropped_on_resume(crashed, steps_into):
    with (crashed / "activations.journal").open("ab") as file:
        file.write(b"STEP\x10\x00\x00\x00torn")
    assert store.verify_episode(crashed) == []
    with store.EpisodeWriter.resume(crashed) as writer:
        steps_into(writer, 1)
    assert store.EpisodeReader.open(crashed).verify() == []


def test_a_step_that_only_lacks_its_newline_is_kept(crashed, steps_into):
    path = crashed / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert len(store.EpisodeReader.open(crashed).steps) == 4
    with store.EpisodeWriter.resume(crashed) as writer:
        steps_into(writer, 1)
    assert len(store.EpisodeReader.open(crashed).steps) == 5
    assert store.verify_episode(crashed) == []


def test_steps_cut_away_from_an_open_episode_are_missed(crashed):
    path = crashed / "steps.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(errors.DamagedError, match="cut short"):
        store.EpisodeReader.open(crashed)


def test_a_line_taken_out_or_doubled_is_found(closed):
    path = closed / "steps.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong in (lines[:1] + lines[2:], lines[:2] + lines[1:], [lines[1], lines[0], *lines[2:]]):
        path.write_bytes(b"".join(wrong))
        check_found(closed, "steps.jsonl")


@pytest.mark.parametrize("reseal", [True, False])
def test_a_newer_format_is_refused_with_the_version_that_wrote_it(closed, reseal):
    from sonde.store import documents

    path = closed / "episode.json"
    content = json.loads(path.read_text())
    content |= {"format": 7, "versions": {"sonde": "9.9"}}
    if reseal:
        del content["crc32"]
        documents.write(path, content)
    else:
        path.write_text(json.dumps(content))
    with pytest.raises(errors.VersionError, match=r"format 7, written by sonde 9.9.*upgrade"):
        store.EpisodeReader.open(closed)
    if not reseal:
        check_found(closed, "episode.json")


def test_a_run_names_damage_in_its_manifest_and_in_its_episodes(tmp_path, steps_into):
    run = store.Run.create(tmp_path, kind="test")
    for _ in range(2):
        with run.new_episode() as writer:
            steps_into(writer, 2)
    assert run.verify() == []
    flip(run.folder / "episodes" / "00001" / "activations.safetensors", -1, 1)
    good = (run.folder / "manifest.json").read_bytes()
    for at in range(len(good)):
        flip(run.folder / "manifest.json", at, 0x01)
        problems = run.verify()
        assert [problem.file.parent.name for problem in problems] == [run.id, "00001"]
        with pytest.raises((errors.DamagedError, errors.VersionError)):
            store.Run.open(run.folder)
        (run.folder / "manifest.json").write_bytes(good)
