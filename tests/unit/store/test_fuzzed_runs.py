"""Fuzzed run folders: every verb ends in a SondeError or in an answer; none hangs, none takes much memory.

Honest runs are written by the library, spoiled in one or a few places, and their checksums made to fit again, so that what
is spoiled is reached. Seeded: a case that fails can be played again by its number. `make test-slow` plays 2,000 more.
"""

import contextlib
import copy
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import zlib

import numpy as np
import pyarrow.parquet
import pytest
import typer.testing

from sonde import store
from sonde._cli import main
from sonde.core import errors
from sonde.store import documents
from sonde.store import run as run_module

SECONDS, MEGABYTES = 10, 600
SMALL = 1 << 20  # bytes; what is larger was made so by a case
NUMBERS = (0, 1, -1, 2, 7, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e308)
WORDS = ("", "a", "\0", "..", "../x", "/etc/passwd", "\x1b[31m", "\u202e", "\ud800", "é" * 300, "nan", "NaN", "F32", "BF16",
         "BOOL", "open", "closed", "running", "00000000", "ffffffff", "__metadata__", "crc32", "format", "9" * 700)  # fmt: skip
OTHERS = (None, True, False, [], {}, [[]], {"": {}}, {"__type__": "float", "__repr__": "x"}, {"__type__": "float"})
RUNNER = typer.testing.CliRunner()


@pytest.fixture(autouse=True)
def no_more_memory():
    """A case that would fill the machine's memory fails instead."""
    pages = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 4 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


class HungError(BaseException):
    """A case takes too long."""


@contextlib.contextmanager
def bounded(case):
    """Ends a case that takes too much time, even if it only waits, and fails one that takes too much memory."""

    def hung(*_):
        raise HungError(f"case {case} takes more than {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    was = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown < MEGABYTES, f"case {case} takes {grown} MB"


def write_episode(run, rng, *, close):
    writer = run.new_episode(metadata={"task": "20q", "numbers": [1, 2.5, None, float("nan")]})
    for step in range(4):
        rows = {"resid": store.Array.from_numpy(rng.standard_normal((step + 1, 3)).astype("f4"))}
        if step % 2:
            rows["tokens"] = store.Array.from_numpy(np.arange(3, dtype="i8"))
        writer.append_step({"action": f"ask {step}", "score": step / 2, "deep": {"a": [1, {"b": None}]}}, rows)
    if close:
        writer.close({"reward": 0.5, "why": ["x"]})
    else:
        writer.abort()


def write_run(runs_dir, name, kind="demo"):
    rng = np.random.default_rng(0)
    run = store.Run.create(runs_dir, kind=kind, model="tiny-gpt2", settings={"a": 1}, seed=1, id=name)
    for close in (True, True, False):
        write_episode(run, rng, close=close)
    return run


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A folder of runs: one finished, one that was killed, one with kept documents and a run within."""
    runs = tmp_path_factory.mktemp("honest")
    write_run(runs, "finished").finish({"mean": 0.5})
    write_run(runs, "killed")
    study = store.Run.create(runs, kind="study", model="tiny-gpt2", settings={}, seed=0, id="study")
    documents.keep(study.folder / "stages" / "probe.json", {"layer": 3, "auroc": [0.5, 0.7]})
    documents.write_results(study.folder / "results.json", {"auroc": [0.5, 0.7]})
    write_run(study.folder / "games", "collect").finish()
    return runs


def value(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return [value(rng) for _ in range(rng.randrange(4))]
    if kind == 1:
        return {rng.choice(WORDS): value(rng) for _ in range(rng.randrange(3))}
    if kind == 2:
        deep = []
        for _ in range(rng.choice((10, 150, 250, 900))):
            deep = [deep]
        return deep
    return copy.deepcopy(rng.choice((NUMBERS, WORDS, OTHERS)[kind - 3]))


def places(data, at=()):
    """Every place in JSON data."""
    yield at
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, inner in below:
        yield from places(inner, (*at, key))


def mutated(data, rng):
    """JSON data with some of its places changed, taken away, renamed or doubled."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        *way, last = rng.choice([place for place in places(data) if place and len(place) < 30] or [("x",)])
        holder = data
        for key in way:
            holder = holder[key]
        action = rng.randrange(6)
        if action == 0 and isinstance(holder, dict):
            holder.pop(last, None)
        elif action == 1 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
        elif action == 2 and isinstance(holder, dict):
            holder[rng.choice([*WORDS, *holder])] = holder.get(last)
        elif action == 3 and isinstance(holder[last], int):
            holder[last] = holder[last] + rng.choice((-1, 1, 8, 2**32))
        else:
            holder[last] = value(rng)
    return data


def corrupted(content, rng):
    """Bytes with some of them changed, cut off, or doubled."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(content)) if content else 0
        action = rng.randrange(5)
        if action == 0:
            content[at : at + 1] = bytes([rng.randrange(256)])
        elif action == 1:
            del content[at : at + rng.choice((1, 8, len(content)))]
        elif action == 2:
            content[at:at] = content[at : at + rng.randrange(64)]
        elif action == 3:
            content[at:at] = rng.choice((b"[" * 100_000, b"\xff" * 8, b"\0" * 4096, b"\n", b'{"a":'))
        else:
            content[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(content))))
    return bytes(content)


def dumped(data):
    return json.dumps(data, indent=2).encode("ascii")


def sealed_document(data):
    body = dumped(data).removesuffix(b"\n}").removesuffix(b"}")
    return body + b',\n  "crc32": "%08x"\n}\n' % zlib.crc32(body)


def sealed_line(data):
    body = json.dumps(data, separators=(",", ":")).encode("ascii")[:-1]
    return body + b',"crc32":"%08x"}' % zlib.crc32(body)


def spoil_document(path, rng):
    told = json.loads(path.read_bytes())
    told.pop("crc32", None)
    path.write_bytes(sealed_document(mutated(told, rng)))


def spoil_lines(path, rng):
    lines = path.read_bytes().splitlines()
    at = rng.randrange(len(lines))
    told = json.loads(lines[at])
    told.pop("crc32")
    told = mutated(told, rng)
    lines[at] = sealed_line(told if isinstance(told, dict) else {"x": told})
    if rng.random() < 0.2:
        rng.shuffle(lines)
    path.write_bytes(b"\n".join(lines) + b"\n" * rng.choice((1, 1, 1, 0, 2)))
    if (path.parent / "activations.safetensors").exists() and rng.random() < 0.8:
        agree(path.parent, steps_bytes=path.stat().st_size, steps=len(lines))


def agree(episode, **told):
    """Makes episode.json say what the other files are now, unless something else was put there before."""
    path = episode / "episode.json"
    if path.is_symlink() or not path.is_file() or path.stat().st_size >= SMALL:
        return
    known = json.loads(path.read_bytes())
    known.pop("crc32")
    path.write_bytes(sealed_document({**known, **told}))


def spoil_header(path, rng):
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    told = json.loads(data[8:end])
    told = mutated(told, rng)
    text = corrupted(dumped(told), rng) if rng.random() < 0.2 else dumped(told)
    length = rng.choice((len(text), len(text), len(text), 0, 2**63, len(text) + 5)).to_bytes(8, "little")
    path.write_bytes(length + text + data[end:])
    size = 8 + min(int.from_bytes(length, "little"), len(text) + len(data) - end)
    agree(
        path.parent,
        data_bytes=path.stat().st_size,
        data_header_crc32=f"{zlib.crc32(path.read_bytes()[:size]):08x}",
        arrays={
            name: {"dtype": one.get("dtype"), "shape": one.get("shape"), "crc32": "00000000"}
            for name, one in (told.items() if isinstance(told, dict) else ())
            if name != "__metadata__" and isinstance(one, dict)
        },
    )


def spoil_journal(path, rng):
    """Spoils one record and gives it checksums that fit."""
    data = bytearray(path.read_bytes())
    start, starts = 8, []
    while start < len(data):
        starts.append(start)
        head, body = struct.unpack_from("<4xIQ", data, start)
        start += 24 + head + body
    start = rng.choice(starts)
    head, body = struct.unpack_from("<4xIQ", data, start)
    told = json.loads(data[start + 24 : start + 24 + head])
    text = json.dumps(mutated(told, rng), separators=(",", ":")).encode("ascii")
    sizes = (rng.choice((len(text),) * 6 + (2**32 - 1, 0)), rng.choice((body,) * 6 + (2**63, 0, body + 1)))
    prefix = struct.pack("<4sIQI", b"STEP", *sizes, zlib.crc32(text))
    data[start : start + 24 + head] = prefix + struct.pack("<I", zlib.crc32(prefix)) + text
    path.write_bytes(data)


def replace(path, rng, aside):
    """Puts something that is no file in the place of a file or a folder."""
    if path.is_dir():
        path.rename(aside / f"{rng.random()}")
    else:
        path.unlink()
    action = rng.randrange(7)
    if action == 0:
        os.mkfifo(path)
    elif action == 1:
        path.mkdir()
    elif action == 2:
        with path.open("wb") as file:
            file.truncate(1 << rng.randrange(20, 45))
    elif action > 3:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/etc", "..", path.name, "/etc/passwd", "nowhere")))


SPOILERS = {"manifest.json": spoil_document, "episode.json": spoil_document, "probe.json": spoil_document,
            "steps.jsonl": spoil_lines, "activations.safetensors": spoil_header,
            "activations.journal": spoil_journal}  # fmt: skip


def spoil(run, rng, aside):
    """Spoils a run in a few places; returns what was spoiled."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = sorted(path for path in run.rglob("*") if not path.is_symlink() and path.exists())
        files = [path for path in paths if path.is_file() and path.stat().st_size < SMALL]
        folders = [path for path in paths if path.is_dir()]
        path = rng.choice(files if rng.random() < 0.9 or not folders else folders)
        how = rng.random()
        try:
            if path.is_dir() or how < 0.12:
                replace(path, rng, aside)
            elif how < 0.25 or path.name not in SPOILERS:
                path.write_bytes(corrupted(path.read_bytes(), rng))
            else:
                SPOILERS[path.name](path, rng)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError, struct.error):
            continue  # it was spoiled beyond spoiling before
        done.append(str(path.relative_to(run)))
    return done


def command(runs, *words):
    def call():
        done = RUNNER.invoke(main.app, ["runs", *words, "--runs", str(runs)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code in (0, 1, 2), done.output
        assert not {*done.output} & {"\x1b", "\x9b", "\0"}, done.output
        return done

    return call


def each_episode(folder, action):
    def call():
        for run in (folder, folder / "games" / "collect"):
            with contextlib.suppress(errors.SondeError):
                found = store.Run.open(run)
                for id in found.episode_ids():
                    with contextlib.suppress(errors.SondeError):
                        action(found, id)

    return call


def read(found, id):
    episode = found.episode(id)
    assert episode.status in ("open", "closed")
    assert isinstance(episode.reward, int | float | None)
    for array in episode.names:
        episode.array(array).to_numpy(widen=True)
        for step in range(len(episode.steps)):
            episode.rows(array, step)


def resumed(found, id):
    with found.resume_episode(id) as writer:
        writer.append_step({"more": 1}, {"resid": store.Array.from_numpy(np.ones((1, 3), "f4"))})


def verbs(runs, name, out):
    """Everything that reads a run, by name."""

    def taken_up():
        store.Run.take_up(runs, kind="demo", settings={"a": 1}, id=name).finish()

    words = {
        "ls": ("ls",), "ls --json": ("ls", "--json"), "show": ("show", name), "show --json": ("show", name, "--json"),
        "verify": ("verify",), "json": ("export", name, "--to", "json", "--out", str(out / "x.json")),
        "parquet": ("export", name, "--out", str(out / "x"), "--array", "resid"),
        "within": ("export", f"{name}/games/collect", "--out", str(out / "y"), "--array", "tokens"),
    }  # fmt: skip
    return {
        **{verb: command(runs, *said) for verb, said in words.items()},
        "read": each_episode(runs / name, read),
        "resume": each_episode(runs / name, resumed),
        "take up": taken_up,
        "rm": command(runs, "rm", name, "--yes"),
    }


def played(honest, tmp_path, case):
    rng = random.Random(case)
    runs, out = tmp_path / "runs", tmp_path / "out"
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    out.mkdir()
    shutil.copytree(honest, runs)
    name = rng.choice(("finished", "killed", "study"))
    where = runs / name / "games" / "collect" if name == "study" and rng.random() < 0.5 else runs / name
    done = spoil(where, rng, out)
    for verb, call in verbs(runs, name, out).items():
        try:
            with bounded(f"{case} ({verb} after {done} of {name})"):
                call()
        except errors.SondeError:
            assert verb == "take up", (case, verb, done)
        except (Exception, HungError) as error:
            raise AssertionError(
                f"case {case}: {verb} after {done} of {name}: {type(error).__name__}: {error}"
            ) from error
    assert not (runs / name).exists(), (case, done)
    others = [other for other in ("finished", "killed", "study") if other != name]
    assert [row.id for row in store.Index(runs).runs()] == others, (case, done)
    assert [problem for other in others for problem in store.verify_run(runs / other)] == [], (case, done)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "cases", [range(200), pytest.param(range(200, 2_200), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_fuzzed_run_is_listed_refused_and_removed(honest, tmp_path, cases):
    for case in cases:
        played(honest, tmp_path, case)


def test_the_honest_runs_pass_every_verb_and_are_whole(honest, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(honest, runs)
    assert [problem for name in ("finished", "killed", "study") for problem in store.verify_run(runs / name)] == []
    for verb, call in verbs(runs, "finished", tmp_path).items():
        done = call()
        assert done is None or done.exit_code == (2 if verb == "within" else 0), (verb, done.output)
    assert pyarrow.parquet.read_table(tmp_path / "x" / "resid.parquet").num_rows == 30


def test_what_is_spoiled_is_reached(honest, tmp_path):
    """Half of the cases at least spoil what only a schema or a comparison finds: every checksum fits."""
    found = 0
    for case in range(100):
        rng = random.Random(case)
        target = tmp_path / str(case)
        shutil.copytree(honest / "finished", target)
        spoil(target, rng, tmp_path)
        with contextlib.suppress(errors.VersionError):
            problems = [problem.problem for problem in store.verify_run(target)]
            found += any("checksum" not in problem for problem in problems)
        run_module.remove(target)
    assert found > 50
