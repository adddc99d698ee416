"""What happens when somebody types `sonde`?

The verbs are put together and Sonde's own errors become one red line. Costs the import of typer only: a verb
imports what it needs when it runs, so that `sonde --help` stays quick.

Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly. SONDE_DEBUG=1 shows tracebacks.
"""

import os
from typing import Annotated, Any

import typer
import typer.core

from sonde._cli import bench, circuits, lab, play, programs, runs, study, trace
from sonde.core import errors


class _Group(typer.core.TyperGroup):
    """A group of commands that says Sonde's errors in one line."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that was asked for."""
        try:
            return super().invoke(ctx)
        except errors.SondeError as error:
            if os.environ.get("SONDE_DEBUG", "") not in ("", "0"):
                raise
            line = " ".join(str(error).split())
            typer.secho(f"sonde: {line}", fg="red", err=True)
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
app.command(epilog=play.EXAMPLES)(play.play)
app.add_typer(study.app, name="study")
app.add_typer(programs.app, name="programs")
app.add_typer(trace.app, name="trace")
app.add_typer(bench.app, name="bench")
app.add_typer(circuits.app, name="circuits")
app.add_typer(lab.app, name="lab")
app.add_typer(runs.app, name="runs")


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
