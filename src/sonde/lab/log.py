"""What was tried, what was expected, what was found, and in which order?

    with log.Log.of(runs_dir) as book:
        inquiry = book.append("inquiry", None, {"model": "tiny-llama", "task": "arithmetic"})
        guess = book.append("hypothesis", inquiry.id, {"statement": "layer 3 is needed"})
        book.entries(kind="run", inquiry=inquiry.id)

The log of the lab is one SQLite file, `lab.sqlite`, beside the runs. (`index.sqlite` there is only a cache that anybody
may delete; this is the truth, so it is a file of its own.) Its promises:

1. Entries are numbered in one sequence, and an id is a letter for the kind and that number: p14 was written before r15,
   whoever wrote them. An entry may cite only what is in the log already. That is how "predicted before it was measured"
   is a fact about numbers and not about good will.
2. Nothing is ever changed or taken out: triggers refuse it, whichever program asks. A new state is a new entry.
3. Any number of processes may write: each entry is one immediate transaction of a write-ahead log. What `append` has
   returned survives a crash.

A hypothesis is open until a finding about it says supported or refuted. Costs a file sync per entry (0.2 to 10 ms).
"""

import contextlib
import json
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sonde.core import errors
from sonde.store import damage, disk, documents, names, plain

NAME = "lab.sqlite"
FORMAT = 1
#: Kinds of entries and the letters of their ids.
LETTERS: Mapping[str, str] = {
    "inquiry": "q",
    "call": "c",
    "run": "r",
    "sweep": "s",
    "hypothesis": "h",
    "prediction": "p",
    "note": "n",
    "finding": "f",
    "request": "a",
    "answer": "y",
    "usage": "u",
    "end": "e",
}
KINDS: Mapping[str, str] = {letter: kind for kind, letter in LETTERS.items()}
#: What is kept of each example of a run.
EXAMPLE = (
    "example", "prompt", "answer", "completion", "loss", "correct", "intact_completion", "intact_loss", "intact_correct",
)  # fmt: skip
#: What of a run has a column of its own, to be searched quickly; everything is in its body too.
RUN = (
    "model", "task", "corruption", "corruption_kind", "layers", "split", "prediction", "control", "n",
    "kept", "kept_low", "kept_high", "solved_intact", "accuracy", "intact_accuracy", "loss", "intact_loss",
    "loss_delta", "loss_delta_low", "loss_delta_high", "seconds",
)  # fmt: skip
_ID = re.compile(r"([a-z])([1-9][0-9]{0,17})")
_TIMEOUT = 30.0  # seconds to wait for another writer
_TRIES = 60
_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, inquiry TEXT, time TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_kind ON entries (kind);
CREATE INDEX IF NOT EXISTS by_inquiry ON entries (inquiry, kind);
CREATE TABLE IF NOT EXISTS examples (
    run INTEGER NOT NULL REFERENCES entries (seq), example, prompt, answer, completion, loss, correct,
    intact_completion, intact_loss, intact_correct
);
CREATE INDEX IF NOT EXISTS by_run ON examples (run);
CREATE TABLE IF NOT EXISTS runs (
    seq INTEGER PRIMARY KEY REFERENCES entries (seq), inquiry, time, model, task, corruption, corruption_kind, layers,
    split, prediction, control, n, kept, kept_low, kept_high, solved_intact, accuracy, intact_accuracy, loss,
    intact_loss, loss_delta, loss_delta_low, loss_delta_high, seconds
);
CREATE INDEX IF NOT EXISTS by_corruption ON runs (corruption);
CREATE TRIGGER IF NOT EXISTS runs_are_new BEFORE INSERT ON runs
    WHEN EXISTS (SELECT 1 FROM runs WHERE seq = NEW.seq)
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS entries_are_new BEFORE INSERT ON entries
    WHEN EXISTS (SELECT 1 FROM entries WHERE seq = NEW.seq)
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
"""
_GUARD = """
CREATE TRIGGER IF NOT EXISTS {table}_never_{verb} BEFORE {verb} ON {table}
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Attributes:
        seq: Its number in the log.
        kind: What it is; see `LETTERS`.
        inquiry: The inquiry it belongs to, None for an inquiry itself.
        time: When it was written, ISO 8601 in UTC.
        body: What it says.
    """

    seq: int
    kind: str
    inquiry: str | None
    time: str
    body: Mapping[str, Any]

    @property
    def id(self) -> str:
        """How others cite it: r15."""
        return f"{LETTERS[self.kind]}{self.seq}"

    def __getitem__(self, name: str) -> Any:
        """A field of the body; None if it has none of that name."""
        return self.body.get(name)

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON data."""
        return {"id": self.id, "kind": self.kind, "inquiry": self.inquiry, "time": self.time, **self.body}


def number(id: str, kind: str | None = None) -> int:
    """The place in the log of an id.

    Raises:
        SelectorError: It is no id, or one of another kind.
    """
    match = _ID.fullmatch(id)
    if not match or match[1] not in KINDS or (kind is not None and KINDS[match[1]] != kind):
        letters = ", ".join(f"{letter} {name}" for letter, name in KINDS.items())
        expected = f"the id of a {kind}, such as {LETTERS[kind]}12" if kind else f"a letter and a number ({letters})"
        raise errors.SelectorError(f"{id!r} is no id here; expected {expected}; `sonde lab log` lists them")
    return int(match[2])


class Log:
    """The log of a lab; open it as often and from as many processes as you like."""

    def __init__(self, path: Path | str) -> None:
        """Opens the log, making it if there is none.

        Raises:
            StoreError: It cannot be opened or made.
            DamagedError: The file is no log.
            VersionError: A newer Sonde wrote it.
        """
        self.path = Path(path)
        self._lock = threading.RLock()
        with disk.explained(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise errors.DamagedError(
                f"{self.path} is no log of the lab but no regular file: move it away to begin anew"
            )
        with self._explained():
            self._db = sqlite3.connect(self.path, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def of(cls, runs_dir: Path | str | None = None) -> Self:
        """Opens the log beside the runs: `lab.sqlite` in $SONDE_RUNS or ./runs, unless told otherwise."""
        return cls(Path(runs_dir if runs_dir is not None else names.default_runs_dir()) / NAME)

    def close(self) -> None:
        """Closes the file; fine if that was done before."""
        self._db.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the file."""
        self.close()

    def append(
        self,
        kind: str,
        inquiry: str | None,
        body: Mapping[str, Any],
        *,
        cites: Sequence[str] = (),
        examples: Sequence[Mapping[str, Any]] = (),
        check: Callable[[], object] | None = None,
    ) -> Entry:
        """Writes an entry; it is durable when this returns.

        Args:
            kind: What it is; see `LETTERS`.
            inquiry: The inquiry it belongs to.
            body: What it says; anything JSON lacks is marked.
            cites: Ids that must be in the log already.
            examples: For a run: what each example gave.
            check: Called inside the transaction, when nobody else can write; raising takes the entry back.

        Raises:
            SelectorError: Something cited is not in the log.
            StoreError: The log cannot be written.
        """
        data = plain.jsonable(dict(body))
        with self._writing():
            for id in (*cites, *((inquiry,) if inquiry else ())):
                self.get(id)
            if check is not None:
                check()
            stamp = names.timestamp()
            row = (kind, inquiry, stamp, json.dumps(data, ensure_ascii=True))
            assert kind in LETTERS, kind
            made = self._db.execute("INSERT INTO entries (kind, inquiry, time, body) VALUES (?,?,?,?)", row)
            seq = int(made.lastrowid or 0)
            if kind == "run":
                self._insert("runs", [(seq, inquiry, stamp, *(_cell(data.get(name)) for name in RUN))])
            self._insert("examples", [(seq, *(_cell(one.get(name)) for name in EXAMPLE)) for one in examples])
        return Entry(seq, kind, inquiry, stamp, data)

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ",".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608  # question marks

    def get(self, id: str) -> Entry:
        """The entry of an id.

        Raises:
            SelectorError: There is none.
        """
        seq = number(id)
        found = self.read("SELECT * FROM entries WHERE seq = ?", (seq,))
        if not found or LETTERS.get(found[0][1]) != id[0]:
            raise errors.SelectorError(f"there is no {id} in {self.path}; `sonde lab log` lists what is there")
        return _entry(found[0])

    def entries(self, kind: str | None = None, inquiry: str | None = None, *, after: int = 0) -> list[Entry]:
        """Entries in their order, of one kind or one inquiry if asked, from number `after` + 1."""
        given = {name: value for name, value in (("kind", kind), ("inquiry", inquiry)) if value is not None}
        where = " AND ".join(["seq > ?", *(f"{name} = ?" for name in given)])
        rows = self.read(f"SELECT * FROM entries WHERE {where} ORDER BY seq", (after, *given.values()))  # noqa: S608
        return [_entry(row) for row in rows]

    def examples(self, run: str) -> list[dict[str, Any]]:
        """What each example of a run gave."""
        rows = self.read("SELECT * FROM examples WHERE run = ?", (number(run, "run"),))
        return [dict(zip(EXAMPLE, row[1:], strict=True)) for row in rows]

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs one reading statement.

        Raises:
            StoreError: The log cannot be read.
        """
        with self._lock, self._explained("read"):
            return self._db.execute(sql, tuple(values)).fetchall()

    def _prepare(self) -> None:
        """Makes the tables and their guards; waits for another process that does the same."""
        with self._explained():
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA cache_size = -65536")  # KiB: a whole log of ten thousand runs
            _patiently(lambda: self._db.execute("PRAGMA journal_mode = WAL"))
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > FORMAT:
            raise errors.VersionError(
                f"{self.path} has format {version}, this Sonde knows {FORMAT}: install a newer one"
            )
        if version == FORMAT:
            self._check_made_here()
            return
        with self._writing():
            for statement in _made():
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {FORMAT}")
        self._check_made_here()

    def _check_made_here(self) -> None:
        """Refuses a file whose tables, views and triggers are not ours: they could compute without end.

        Raises:
            DamagedError: Some are missing, or others are there.
        """
        wanted = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        with self._explained("read"):
            there = set(self._db.execute(wanted))
        with contextlib.closing(sqlite3.connect(":memory:")) as blank:
            for statement in _made():
                blank.execute(statement)
            expected = set(blank.execute(wanted))
        if there != expected:
            odd = ", ".join(sorted(str(name) for _, name, _ in there ^ expected))
            raise errors.DamagedError(
                f"{self.path} is no log of the lab as it was made: {odd} differ; move it away to begin anew"
            )
        self._db.execute("PRAGMA trusted_schema = OFF")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction that no other writer is inside of."""
        with self._lock, self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _explained(self, doing: str = "write") -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            busy = " for another process; end that one, or try again" if "locked" in str(error) else ""
            raise errors.StoreError(f"cannot {doing} the log {self.path}: {error}{busy}") from error
        except sqlite3.IntegrityError as error:
            raise errors.StoreError(f"{self.path}: {error}; write a new entry that corrects the old one") from error
        except sqlite3.DatabaseError as error:
            raise errors.DamagedError(
                f"{self.path} is no log of the lab: {error}; move it away to begin anew"
            ) from error


def _patiently(action: Callable[[], object]) -> None:
    """Turning on the write-ahead log does not wait for others by itself."""
    for left in reversed(range(_TRIES)):
        try:
            action()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or not left:
                raise
            time.sleep(0.05)


def _made() -> list[str]:
    """The statements that make an empty log."""
    guards = [
        _GUARD.format(table=table, verb=verb)
        for table in ("entries", "runs", "examples")
        for verb in ("UPDATE", "DELETE")
    ]
    return list(_statements(_TABLES + "".join(guards)))


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would end the transaction."""
    whole = ""
    for line in script.splitlines():
        whole += line + "\n"
        if sqlite3.complete_statement(whole):
            yield whole
            whole = ""


def _entry(row: tuple[Any, ...]) -> Entry:
    """An entry as its row tells it.

    Raises:
        DamagedError: The row is none that `append` writes.
    """
    seq, kind, inquiry, stamp, body = row
    try:
        if kind not in LETTERS or not isinstance(inquiry, str | None):
            raise errors.DamagedError("it is of no known kind")
        return Entry(seq, kind, inquiry, str(stamp), body_of(body))
    except errors.DamagedError as error:
        raise errors.DamagedError(f"entry {seq} of the log: {error}; move the log away to begin anew") from error


def body_of(text: Any) -> dict[str, Any]:
    """What an entry says, from its cell.

    Raises:
        DamagedError: The cell holds something else.
    """
    try:
        return documents.parse(str(text).encode("utf-8", "surrogatepass"), "line")
    except damage.UnreadableError as error:
        raise errors.DamagedError(f"what it says {error}") from error


def _cell(value: Any) -> Any:
    """A value as SQLite holds it."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):  # half of a surrogate pair cannot be stored
        return value.encode("utf-8", "replace").decode("utf-8")
    return value if value is None or isinstance(value, int | float) else json.dumps(plain.jsonable(value))
