"""What happens when somebody types `sonde`?

The verbs are listed and Sonde's own errors become one red line. Costs the import of typer only: a verb's file is
imported when that verb is asked for, and what the verb needs when it runs, so that `sonde --help` stays quick.

Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly. SONDE_DEBUG=1 shows tracebacks.
"""

import importlib
import os
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from sonde._cli import needs, screens
from sonde.core import errors

# What the list of verbs shows: the first line of each verb's own help, without importing its file.
VERBS = {
    "play": "Play many episodes with a model, and record what happens inside.",
    "study": "Whole experiments: play, measure, test, and write a report.",
    "programs": "Does a model track variables? Ask it what small programs compute.",
    "trace": "Trace values through a model. `sonde trace OPTIONS` is short for `sonde trace programs OPTIONS`.",
    "bench": "Models whose circuit is known, and methods measured against them.",
    "circuits": "Find the edges of a model that carry a behaviour.",
    "lab": "Corrupt a model and see what changes: layers skipped, swapped, repeated; activations zeroed or patched.",
    "runs": "List, inspect, check, export and delete recorded runs.",
}


class Verb(typer.core.TyperCommand):
    """A verb in the list; everything but its line is loaded when it is asked for."""

    def load(self) -> Any:
        """The verb itself, from the file that has its name: one command, or a group of them."""
        assert self.name is not None
        alone = typer.Typer(callback=lambda: None, add_completion=False)
        alone.add_typer(importlib.import_module(f"sonde._cli.{self.name}").app)
        found = typer.main.get_group(alone).commands[self.name]
        _ask_first(found, self.name)
        return found

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the verb itself, in which it then runs."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


def _ask_first(command: Any, path: str) -> None:
    """Makes a command, and all below it, ask for its optional packages before it starts."""
    for name, inner in getattr(command, "commands", {}).items():
        _ask_first(inner, f"{path} {name}")
    if command.callback is not None:
        command.callback = needs.asked(path, command.callback)


class _Group(typer.core.TyperGroup):
    """The verbs; Sonde's errors are said in one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, line in VERBS.items():
            self.add_command(Verb(name, help=line))

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that was asked for."""
        try:
            return super().invoke(ctx)
        except errors.SondeError as error:
            if os.environ.get("SONDE_DEBUG", "") not in ("", "0"):
                raise
            typer.secho(f"sonde: {screens.said(error)}", fg="red", err=True)
            # what is also a ValueError was asked for wrongly: a bad name, a request that makes no sense
            raise typer.Exit(2 if isinstance(error, ValueError) else 1) from error


app = typer.Typer(
    cls=_Group,
    name="sonde",
    help="See inside a language-model agent, step by step.\n\n"
    "Record what happens in the model, change it, and measure what caused what. "
    "Every command explains itself: sonde COMMAND --help.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> bool:
    if asked:
        import importlib.metadata

        try:
            version = importlib.metadata.version("sonde")
        except importlib.metadata.PackageNotFoundError:  # run from a source tree
            version = "0+unknown"
        typer.echo(f"sonde {version}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Takes the options that stand before the verb; they act by themselves."""


if __name__ == "__main__":
    app()
