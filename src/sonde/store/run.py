"""What is a run, and which episodes does it have?

A run is a folder with a manifest and its episodes. It appears as a whole, so that nobody ever sees one without a
manifest. Costs a few small files per run.
"""

import contextlib
import errno
import os
import platform
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sonde.core import errors
from sonde.store import (
    damage,
    disk,
    documents,
    files,
    folders,
    journal,
    layout,
    names,
    plain,
    reader,
    rows,
    verify,
    writer,
)


class Run:
    """One configured, seeded execution on disk; use `create` or `open`, not the constructor."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self._held = contextlib.ExitStack()
        self._next: int | None = None  # the number of the next episode, once it was looked for

    @classmethod
    def create(
        cls,
        runs_dir: Path | str | None = None,
        *,
        kind: str,
        model: Mapping[str, Any] | str | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
        id: str | None = None,
    ) -> "Run":
        """Makes a new run folder with its manifest.

        Args:
            runs_dir: The folder of all runs; $SONDE_RUNS or ./runs if not given.
            kind: What sort of run it is, for example the study's name.
            model: What is known about the model, or just its name.
            settings: Whatever configures the run; what JSON lacks is stored as its repr, marked.
            seed: What fixes the result.
            id: A name of your own; by default one that sorts by time and is unique.

        Raises:
            StoreError: The id is taken or no safe folder name, or the folder cannot be written.
        """
        parent = Path(runs_dir if runs_dir is not None else names.default_runs_dir()).resolve()
        name = names.check(id if id is not None else names.new_run_id(), what="run id")
        manifest = {
            "format": documents.FORMAT,
            "id": name,
            "created": names.timestamp(),
            "kind": kind,
            "model": plain.jsonable({"name": model} if isinstance(model, str) else dict(model or {})),
            "settings": plain.jsonable(dict(settings or {})),
            "seed": seed,
            "versions": _versions(),
            "status": "running",
        }
        _place(parent / name, manifest)
        return cls(parent / name, manifest)

    @classmethod
    def take_up(
        cls,
        runs_dir: Path | str | None = None,
        *,
        kind: str,
        model: Mapping[str, Any] | str | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
        id: str | None = None,
    ) -> "Run":
        """Opens the run of that id if it is the same in kind and settings; makes it if there is none. See `create`.

        Whether it is the same model, whoever made the record of it must say.

        Raises:
            RequestError: The run of that id is of another kind, or has other settings.
        """
        parent = Path(runs_dir if runs_dir is not None else names.default_runs_dir())
        if id is None or not os.path.lexists(parent / names.check(id, what="run id") / layout.MANIFEST):
            return cls.create(parent, kind=kind, model=model, settings=settings, seed=seed, id=id)
        found = cls.open(parent / id)
        if found.manifest["kind"] != kind:
            raise errors.RequestError(
                f"run {id} is of kind {found.manifest['kind']!r}, not {kind!r}: give this one another name"
            )
        known, asked = found.manifest["settings"], plain.jsonable(dict(settings or {}))
        different = [key for key in asked if known.get(key) != asked[key]]
        if different:
            told = "; ".join(f"{key} was {known.get(key)!r}, now {asked[key]!r}"[:200] for key in different)
            raise errors.RequestError(f"run {id} was started with other settings ({told}): give it another name")
        return found

    @classmethod
    def open(cls, folder: Path | str) -> "Run":
        """Opens a run folder.

        Raises:
            StoreError: There is no run here.
            DamagedError: The manifest is damaged, or the episodes lie elsewhere.
            VersionError: A newer Sonde wrote it.
        """
        with disk.explained(Path(folder), doing="open"):
            folder = Path(folder).resolve()
        if not os.path.lexists(folder / layout.MANIFEST):
            raise errors.StoreError(f"no run at {folder}: {layout.MANIFEST} is missing")
        manifest = documents.read(folder / layout.MANIFEST, "manifest")
        layout.check(folder)
        return cls(folder, manifest)

    @property
    def id(self) -> str:
        """The run's id."""
        return self.manifest["id"]

    @property
    def episodes_dir(self) -> Path:
        """Where the episodes' folders are."""
        return self.folder / layout.EPISODES

    @property
    def status(self) -> str:
        """`running` while somebody is at work on it, else `finished`, `failed` or `interrupted`."""
        return state(self.folder, self.manifest["status"])

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Makes this process the only one at work on the run, for a block; the run is `running` meanwhile.

        Raises:
            StoreError: Another process is at work on it, or the folder cannot be written.
        """
        with disk.explained(self.folder), disk.AppendFile(self.folder / layout.LOCK):
            if self.manifest["status"] == "failed":
                self._write(
                    {name: value for name, value in self.manifest.items() if name != "error"} | {"status": "running"}
                )
            yield

    def table(self, name: str, kind: str) -> rows.Table:
        """Opens a table of the run for appending: rows of one kind, durable one by one. Close it after use."""
        return rows.Table(self.folder / "tables" / f"{names.check(name, what='table')}.jsonl", kind)

    def seal(self, paths: Iterable[Path]) -> None:
        """Puts checksums of files of the run where `verify` finds them."""
        from sonde.store import seals

        seals.add(self.folder, paths)

    def new_episode(
        self, id: str | None = None, *, metadata: Mapping[str, Any] | None = None, overwrite: bool = False
    ) -> writer.EpisodeWriter:
        """Starts an episode.

        Args:
            id: Its name; by default the next number, `00000`, `00001`, ...
            metadata: About the episode.
            overwrite: Replace an episode of that id.

        Raises:
            StoreError: The id is taken or no safe folder name.
        """
        folder = self.episodes_dir
        if id is not None:
            names.check(id, what="episode id")
            return writer.EpisodeWriter.create(folder / id, metadata=metadata, overwrite=overwrite)
        if self._next is None:
            self._next = max((int(name) for name in self.episode_ids() if name.isdecimal()), default=-1) + 1
        while True:
            target = folder / f"{self._next:05d}"
            self._next += 1
            try:
                return writer.EpisodeWriter.create(target, metadata=metadata)
            except errors.StoreError:
                if not target.exists():  # else another process took that number
                    raise

    def episode_ids(self) -> list[str]:
        """Returns the ids of all episodes, sorted."""
        return layout.list_episodes(self.folder)

    def episode(self, id: str) -> reader.EpisodeReader:
        """Opens one episode for reading.

        Raises:
            StoreError: There is none of that id.
            DamagedError: It is damaged, or lies elsewhere.
        """
        folder = self.episode_folder(id)
        if not folder.is_dir():
            raise errors.StoreError(f"no episode {id!r} in run {self.id}{errors.suggest(id, self.episode_ids())}")
        return reader.EpisodeReader.open(folder)

    def episode_folder(self, id: str) -> Path:
        """Returns where an episode is, or would be. Costs one look, however many episodes there are.

        Raises:
            StoreError: No episode can have that id.
            DamagedError: A link stands there.
        """
        folder = self.episodes_dir / id
        if id in ("", ".", "..") or len(Path(id).parts) != 1 or "\0" in id:
            raise errors.StoreError(f"no episode {id!r} in run {self.id}{errors.suggest(id, self.episode_ids())}")
        with disk.explained(folder, doing="open"):
            if folder.is_symlink():
                raise damage.Damage(folder, files.LINK).error()
        return folder

    def resume_episode(self, id: str) -> writer.EpisodeWriter:
        """Continues an episode whose writer stopped before closing it."""
        names.check(id, what="episode id")
        return writer.EpisodeWriter.resume(self.episode_folder(id))

    def episodes(self) -> Iterator[reader.EpisodeReader]:
        """Opens all episodes one after the other, in the order of their ids."""
        for id in self.episode_ids():
            yield self.episode(id)

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Marks the run finished, with results worth keeping in the manifest; clears what killed writers left over."""
        ended = {"status": "finished", "finished": names.timestamp(), "summary": plain.jsonable(dict(summary or {}))}
        manifest = {**self.manifest, **ended}
        with disk.explained(self.folder, doing="finish"):
            for id in layout.list_episodes(self.folder):
                folders.tidy(self.episode_folder(id))
            self._write(manifest)

    def fail(self, error: str) -> None:
        """Marks the run failed and says why; taking it up again clears that."""
        with disk.explained(self.folder):
            self._write({**self.manifest, "status": "failed", "error": plain.jsonable(error[:2000])})

    def _write(self, manifest: dict[str, Any]) -> None:
        documents.write(self.folder / layout.MANIFEST, manifest)
        self.manifest = manifest

    def verify(self) -> list[damage.Damage]:
        """Reads everything on disk and returns what is damaged."""
        return verify.verify_run(self.folder)

    def __enter__(self) -> Self:
        """Locks the run, and returns it."""
        self._held = contextlib.ExitStack()
        self._held.enter_context(self.lock())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Marks the run finished, unless the block failed or did so itself."""
        with self._held:
            if kind is None and self.manifest["status"] != "finished":
                self.finish()


def state(folder: Path, status: str) -> str:
    """Returns the status of a run in truth: `running` while somebody is at work on it, else what its manifest says.

    One whose manifest says `running`, and at which nobody is, is `interrupted`.
    """
    if status not in ("running", "finished", "failed"):
        return status
    if disk.is_locked(folder / layout.LOCK):
        return "running"
    if status != "running":
        return status
    held = any(disk.is_locked(episode / journal.NAME) for episode in layout.all_episodes(folder))
    return "running" if held else "interrupted"


def remove(folder: Path) -> None:
    """Deletes a run with all its episodes and runs within; it is out of sight at once, even if deleting is interrupted.

    Raises:
        StoreError: It is not a run, or one of its episodes is being written.
    """
    folder = folder.absolute()
    if folder.name not in layout.list_runs(folder.parent):
        raise errors.StoreError(f"no run at {folder}")
    if state(folder, "running") == "running":
        raise errors.StoreError(f"run {folder.name} is being written by another process; stop that first")
    with disk.explained(folder, doing="remove"):
        if folder.is_symlink():
            folder.unlink()
            return
        hidden = folder.with_name(f".{secrets.token_hex(8)}.old")
        folder.rename(hidden)
        disk.remove_tree(hidden)


def _versions() -> dict[str, str | None]:
    packages = {name: documents.package_version(name) for name in ("torch", "transformers")}
    return {"sonde": documents.sonde_version(), "python": platform.python_version(), **packages}


def _place(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Makes the run folder beside its place and renames it there."""
    new = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.new")
    with disk.explained(folder, doing="make"):
        disk.make_dirs(folder.parent)
        (new / layout.EPISODES).mkdir(parents=True)
        try:
            documents.write(new / layout.MANIFEST, manifest)
            new.rename(folder)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise errors.StoreError(f"there is a run {folder.name} at {folder.parent} already") from error
            raise
        disk.fsync_dir(folder.parent)
