"""Which runs are on disk, what is in them, and are they whole?

`sonde runs ls | show | rm | verify | export`: looks at run folders only, never at a model. Costs one stat per file
to list, one read of everything to verify.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens
from sonde.core import errors

app = typer.Typer(name="runs", help="List, inspect, check, export and delete recorded runs.", no_args_is_help=True)

RunsDir = Annotated[
    Path | None,
    typer.Option("--runs", metavar="DIR", help="The folder of all runs; $SONDE_RUNS or ./runs if not given."),
]
RunId = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, its beginning, its folder, or 'last'; for a run within it, RUN/PATH."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]


@app.command("ls")
def list_runs(runs: RunsDir = None, as_json: AsJson = False) -> None:
    """List all runs, oldest first.

    Example: sonde runs ls --runs ./runs
    """
    from sonde import store

    index = store.Index(runs)
    rows = index.runs()
    if as_json:
        typer.echo(json.dumps(_rows_json(rows), indent=2))
        return
    if not rows:
        typer.echo(
            f"No runs in {screens.said(index.runs_dir)} yet. Make one with `sonde play 20q`, or store.Run.create(kind=...)."
        )
        return
    _rows_table("run", rows)


@app.command()
def show(run: RunId, runs: RunsDir = None, as_json: AsJson = False) -> None:
    """Show one run: its manifest, its episodes, and the runs within it, such as the games of a study.

    Example: sonde runs show last · sonde runs show last/games/collect
    """
    from sonde import store

    found = store.Run.open(_find(run, runs))
    episodes, inner = [_episode(found, id) for id in found.episode_ids()], store.runs_within(found.folder)
    if as_json:
        told = {"manifest": found.manifest, "folder": str(found.folder), "episodes": episodes}
        typer.echo(json.dumps(told | {"runs": _rows_json(inner)}, indent=2))
        return
    about = [
        (key, value if isinstance(value, str) else json.dumps(value))
        for key, value in found.manifest.items()
        if value not in (None, {}, "")
    ]
    _table(("", ""), [*about, ("folder", str(found.folder))])
    if inner:
        _rows_table("run within", inner)
        typer.echo(f"See one of them: sonde runs show {screens.said(_word_for(inner[0], run))}")
    elif not episodes:
        typer.echo("No episodes.")
    if not episodes:
        return
    cells = [
        (
            *(episode["id"], episode["status"], str(episode.get("steps", "")), _number(episode.get("reward"))),
            *(str(len(episode.get("arrays", {}))), _size(episode["bytes"])),
        )
        for episode in episodes
    ]
    _table(("episode", "status", "steps>", "reward>", "arrays>", "size>"), cells)


@app.command("rm")
def remove(
    run: RunId,
    runs: RunsDir = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a run with all its episodes and the runs within it.

    Example: sonde runs rm 20260101-120000 --yes
    """
    from sonde.store import layout
    from sonde.store import run as run_module

    folder = _find(run, runs)
    if not yes:
        count = len(layout.all_episodes(folder))
        typer.confirm(
            f"Delete run {screens.said(folder.name)} with {count} episode{'s' * (count != 1)} for good?", abort=True
        )
    run_module.remove(folder)
    typer.echo(f"Deleted {screens.said(folder.name)}.")


@app.command()
def verify(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run's id, or nothing for all runs.")] = None,
    runs: RunsDir = None,
) -> None:
    """Read everything and compare all checksums; name what is damaged (exit code 1).

    Example: sonde runs verify last
    """
    from sonde import store

    folders = [row.folder for row in store.Index(runs).runs()] if run is None else [_find(run, runs)]
    broken = 0
    for folder in folders:
        problems: list[Any] = []
        try:
            problems = store.verify_run(folder)
            told = f"{len(problems)} damaged" if problems else "whole"
        except errors.VersionError as error:  # which must not hide the other runs
            problems, told = [error], "cannot be judged"
        broken += bool(problems)
        typer.echo(f"{screens.said(folder.name)}: {told}")
        for problem in problems:
            typer.secho(f"  {screens.said(problem)}", fg="red", err=True)
    if not folders:
        typer.echo("No runs to verify.")
    if broken:
        raise typer.Exit(1)


@app.command()
def export(
    run: RunId,
    out: Annotated[Path, typer.Option("--out", "-o", help="File (json, swebench) or folder (parquet) to write.")],
    to: Annotated[
        str, typer.Option("--to", help="json, parquet, or swebench: predictions for its harness.")
    ] = "parquet",
    array: Annotated[list[str] | None, typer.Option("--array", help="Also export this array; repeatable.")] = None,
    runs: RunsDir = None,
) -> None:
    """Write a run's steps, and arrays if asked, for other tools.

    Example: sonde runs export last --to parquet --out tables --array blocks.0.hook_resid_post
    """
    from sonde import store

    if to not in ("json", "parquet", "swebench"):
        raise errors.RequestError(f"cannot export to {to!r}: choose json, parquet or swebench")
    if to != "parquet" and array:
        raise errors.RequestError("arrays go to Parquet only: leave out --array, or use --to parquet")
    found = store.Run.open(_find(run, runs))
    inner = store.runs_within(found.folder)
    if inner and not found.episode_ids():
        told = ", ".join(_word_for(row, run) for row in inner)
        raise errors.RequestError(f"run {run} has no episodes of its own, only runs within it: export one of {told}")
    if to == "swebench":
        from sonde.agents.code.swebench import predictions

        files = [predictions.written(found, out)]
    else:
        files = [store.export_json(found, out)] if to == "json" else store.export_parquet(found, out, array or [])
    for file in files:
        typer.echo(f"Wrote {screens.said(file)}")


def _find(word: str, runs: Path | None) -> Path:
    """Returns the folder of a run given by its id, its beginning, 'last' or its path, and the path of one within."""
    from sonde import store

    index = store.Index(runs)
    typed, top = Path(word).resolve(), index.runs_dir.resolve()
    # A folder's path, as a shell completes it. Unlike Path.exists, os.path.exists bears names of any length.
    if typed != top and typed.is_relative_to(top) and os.path.exists(typed):  # noqa: PTH110
        word = typed.relative_to(top).as_posix()
    word, _, path = (word, "", "") if word.startswith("/") else word.rstrip("/").partition("/")
    folder = _find_outer(word, index)
    if not path:
        return folder
    inner = {row.id: row.folder for row in store.runs_within(folder)}
    if path not in inner:
        hint = errors.suggest(path, inner) or f"; see `sonde runs show {word}`"
        raise errors.RequestError(f"no run {path!r} within {folder}{hint}")
    return inner[path]


def _word_for(inner: Any, run: str) -> str:
    """Returns what to type for a run within another, given what was typed for that one."""
    return f"{run.rstrip('/')}/{inner.id}"


def _find_outer(word: str, index: Any) -> Path:
    rows = index.runs()
    folder, ids = index.runs_dir, [row.id for row in rows]
    close = [id for id in ids if word and id.startswith(word)]
    if word in ids:
        return folder / word
    if word == "last" and rows:
        return max(rows, key=lambda row: (row.created, row.id)).folder
    if len(close) == 1:
        return folder / close[0]
    if len(close) > 1:
        raise errors.RequestError(
            f"{word!r} could be any of {len(close)} runs: {', '.join(close[:5])}; type more of it"
        )
    hint = errors.suggest(word, ids) or "; see `sonde runs ls`"
    raise errors.RequestError(f"no run {word!r} in {folder}{hint}")


def _episode(found: Any, id: str) -> dict[str, Any]:
    """Returns one episode's line of `show`; a damaged one is shown as such rather than hiding the rest."""
    folder = found.folder / "episodes" / id
    line: dict[str, Any] = {"id": id, "bytes": _bytes(folder)}
    try:
        episode = found.episode(id)
    except errors.SondeError as error:
        return line | {"status": "damaged", "error": str(error)}
    arrays = {name: {"dtype": episode.dtype(name), "shape": list(episode.shape(name))} for name in episode.names}
    about = {"metadata": episode.metadata, "reward": _finite(episode.reward), "arrays": arrays}
    return line | {"status": episode.status, "steps": sum("amends" not in step for step in episode.steps)} | about


def _bytes(folder: Path) -> int:
    """Returns how many bytes the files of an episode take; 0 for a folder elsewhere, or one that may not be read."""
    if folder.is_symlink():
        return 0
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.is_file())
    except OSError:
        return 0


def _rows_json(rows: list[Any]) -> list[dict[str, Any]]:
    names = ("id", "created", "kind", "model", "status", "episodes", "steps", "bytes")
    return [{name: getattr(row, name) for name in names} | {"folder": str(row.folder)} for row in rows]


def _rows_table(title: str, rows: list[Any]) -> None:
    """Prints one line per run."""
    cells = [
        (row.id, row.created[:16].replace("T", " "), row.kind, row.model, row.status, row.episodes, row.steps)
        for row in rows
    ]
    cells = [(*map(str, line), _size(row.bytes)) for line, row in zip(cells, rows, strict=True)]
    _table((title, "created (UTC)", "kind", "model", "status", "episodes>", "steps>", "size>"), cells)


def _finite(value: float | None) -> float | str | None:
    return value if value is None or abs(value) < float("inf") else repr(value)


def _number(value: float | str | None) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else value


def _size(count: int | float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _table(titles: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    """Prints a table; a title that ends in '>' makes its column right-aligned."""
    import rich.box
    import rich.table
    import rich.text

    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_header=any(titles))
    for title in titles:
        table.add_column(title.rstrip(">"), justify="right" if title.endswith(">") else "left", overflow="fold")
    for line in lines:
        table.add_row(*(rich.text.Text(screens.said(cell)) for cell in line))  # Text: brackets in names are not markup
    width = None if sys.stdout.isatty() else 200
    screens.screen(width=width, highlight=False).print(table)
