"""One inquiry of the log: its question, its examples, its limits, and what belongs to it.

    inquiry = inquiries.begin(book, settings)
    inquiry = inquiries.opened(book, "q1")
    inquiry.entries("run")               # its runs; after a fork, also those it inherited

An inquiry is one run of the research loop: one model, one task, one planner, one seed, one budget. A fork takes over the
first calls of another inquiry, with all they led to, and goes on from there. Costs a query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sonde import store
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.lab import budget, log


class InquirySettings(core_settings.Settings):
    """How an inquiry is run, as the log has it: what was chosen, and what was drawn from that."""

    model: str = core_settings.field(..., "Name of the model.")
    task: str = core_settings.field(..., "Name of the task.")
    n_layers: int = core_settings.field(..., "Layers of the model.")
    planner: str = core_settings.field("search", "Who decides what is tried.")
    seed: int = core_settings.field(0, "Draws the split, the controls and the planner's choices.")
    limits: budget.Limits = core_settings.field(budget.Limits(), "The budget.")
    explore: tuple[int, ...] = core_settings.field((), "Examples to explore with.")
    held_out: tuple[int, ...] = core_settings.field(
        (), "Examples that only registered predictions and their controls may see."
    )
    approve: bool = core_settings.field(False, "Whether every experiment waits for a person's yes.")
    more: dict[str, Any] = core_settings.field({}, "What else the planner was told.")
    held: dict[str, Any] = core_settings.field({}, "The model's record: see `models.identity`.")

    @classmethod
    def read(cls, body: Any) -> "InquirySettings":
        """Reads what `to_json` wrote, among other things."""
        return cls(**{name: body[name] for name in cls.model_fields if name in body})


@dataclass(frozen=True, slots=True)
class Inquiry:
    """An inquiry in a log.

    Attributes:
        book: The log.
        id: Its id.
        settings: How it is run.
        parts: The inquiries its past comes from, each with the number of its last entry that counts; itself is last.
    """

    book: log.Log
    id: str
    settings: InquirySettings
    parts: tuple[tuple[str, int | None], ...]

    def entries(self, kind: str | None = None, *, own: bool = False) -> list[log.Entry]:
        """Entries in their order; with `own`, without those inherited by a fork."""
        found: list[log.Entry] = []
        for name, last in self.parts[-1:] if own else self.parts:
            found += [one for one in self.book.entries(kind, name) if last is None or one.seq <= last]
        return found

    def spent(self) -> budget.Spent:
        """What it has spent of its budget."""
        return budget.spent(self.book, self.id)

    def append(self, kind: str, body: dict[str, Any], **more: Any) -> log.Entry:
        """Writes an entry of this inquiry; see `Log.append`."""
        return self.book.append(kind, self.id, body, **more)

    def cited(self, id: str, kind: str) -> log.Entry:
        """An entry of this inquiry.

        Raises:
            SelectorError: There is none of that kind and id in it.
        """
        log.number(id, kind)
        entry = self.book.get(id)
        inside = any(entry.inquiry == name and (last is None or entry.seq <= last) for name, last in self.parts)
        if not inside:
            raise errors.SelectorError(
                f"{id} belongs to {entry.inquiry}, not to {self.id}: cite what this inquiry made"
            )
        return entry

    def status(self, hypothesis: str) -> str:
        """Open, supported or refuted: what the last finding about a hypothesis says."""
        return self.states().get(hypothesis, "open")

    def states(self) -> dict[str, str]:
        """The state of every hypothesis."""
        said = {one["hypothesis"]: str(one["status"]) for one in self.findings()}
        return {one.id: said.get(one.id, "open") for one in self.entries("hypothesis")}

    def findings(self) -> list[log.Entry]:
        """The last finding about each hypothesis: what is thought of it now."""
        last = {one["hypothesis"]: one for one in self.entries("finding")}
        return sorted(last.values(), key=lambda one: one.seq)

    def ended(self) -> log.Entry | None:
        """How it ended, None if it did not."""
        ends = self.entries("end", own=True)
        return ends[-1] if ends else None


def begin(
    book: log.Log, settings: InquirySettings, *, parent: str | None = None, at: int = 0, run: store.Run | None = None
) -> Inquiry:
    """Writes a new inquiry into the log.

    Args:
        book: The log.
        settings: How it is run.
        parent: For a fork: the inquiry whose past it takes over.
        at: For a fork: how many of the parent's calls.
        run: The run that it is.

    Raises:
        SelectorError: There is no such parent.
        RequestError: The parent has not so many calls.
    """
    last = None
    if parent is not None:
        calls = forkable(book, parent, at)
        last = calls[at - 1].seq if at else log.number(parent)
    body = settings.to_json() | {"parent": parent, "at": at if parent else None, "last": last}
    if run is not None:
        body |= {"run": run.id, "created": run.manifest["created"]}
    made = book.append("inquiry", None, body, cites=(parent,) if parent else ())
    return opened(book, made.id)


def forkable(book: log.Log, parent: str, at: int) -> list[log.Entry]:
    """The calls of an inquiry, if a fork can take over so many of them.

    Raises:
        SelectorError: There is no such inquiry.
        RequestError: It has not so many calls.
    """
    calls = opened(book, parent).entries("call", own=True)
    if not 0 <= at <= len(calls):
        raise errors.RequestError(f"{parent} has {len(calls)} calls, so a fork begins at 0 to {len(calls)}, got {at}")
    return calls


def of_run(book: log.Log, run: store.Run) -> Inquiry | None:
    """The inquiry that a run is, None if it has not begun; one of a deleted run of that name is another."""
    mine = (run.id, run.manifest["created"])
    found = [one for one in book.entries("inquiry") if (one["run"], one["created"]) == mine]
    return opened(book, found[0].id) if found else None


def opened(book: log.Log, id: str, *, but: str | None = None) -> Inquiry:
    """An inquiry of the log; `last` is the newest one that is not the run `but`.

    Raises:
        SelectorError: There is none.
    """
    if id == "last":
        others = [one.id for one in book.entries("inquiry") if but is None or one["run"] != but]
        if not others:
            raise errors.SelectorError(
                f"there is no inquiry in {book.path} yet; begin one with: sonde lab run --task NAME"
            )
        id = others[-1]
    log.number(id, "inquiry")
    entry = book.get(id)
    parts: list[tuple[str, int | None]] = [(id, None)]
    above = entry
    while above["parent"]:
        parts.insert(0, (above["parent"], above["last"]))
        above = book.get(above["parent"])
    return Inquiry(book, id, InquirySettings.read(entry.body), tuple(parts))


def listed(book: log.Log) -> Sequence[Inquiry]:
    """All inquiries of the log, oldest first."""
    return [opened(book, one.id) for one in book.entries("inquiry")]
