"""`sonde trace`: through which tokens, layers and heads a value reaches a program's query."""

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from sonde._cli import launch, screens, trace_episode

EXAMPLES = (
    "Examples: sonde trace -m ./my-model --lines 5 --hops 2 -n 50 · sonde trace --component residual_stream,mlp --run mine · "
    "sonde trace --component knockout --window 4 · sonde trace --component residual_stream --together rhs · "
    "sonde trace --program mine.txt --any-root · sonde trace episode RUN 0"
)
PARTS = "residual_stream,attention_heads,mlp"


class _ProgramsUnlessNamed(typer.core.TyperGroup):
    """A group in which `programs` need not be said: `sonde trace -m MODEL` is `sonde trace programs -m MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the command in front if there is none."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["programs", *args])


app = typer.Typer(
    name="trace",
    cls=_ProgramsUnlessNamed,
    help="Trace values through a model. `sonde trace OPTIONS` is short for `sonde trace programs OPTIONS`.",
    epilog=EXAMPLES,
)
app.command("episode", epilog=trace_episode.EXAMPLES)(trace_episode.episode)


@app.command("programs", epilog=EXAMPLES)
def trace_programs(
    model: launch.Model = launch.MODEL,
    lines: Annotated[int, typer.Option(min=1, help="Assignments of a program.")] = 5,
    hops: Annotated[int, typer.Option(min=1, help="Assignments from the query's down to the constant's.")] = 2,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Programs to draw.")] = 50,
    program: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Trace these instead: text files, programs parted by empty lines."),
    ] = None,
    component: Annotated[
        str,
        typer.Option(
            help="What to patch: residual_stream, attention_heads, attention, mlp; or knockout, which forbids attention "
            "between tokens instead. Several with commas."
        ),
    ] = PARTS,
    template: Annotated[
        str,
        typer.Option(help="The prompt: minimal, variable_binding, entity_tracking, or a text file with {code} in it."),
    ] = "variable_binding",
    roles: Annotated[str | None, typer.Option(help="Only these roles, such as rhs_1,query,final.")] = None,
    together: Annotated[
        str | None,
        typer.Option(help="Roles to patch in one run as well, such as rhs (all right-hand sides) or rhs_2,query."),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="For knockout: layers that are cut together.")] = 1,
    layers: Annotated[str | None, typer.Option(help="Only these layers, such as 0,5,10 or 0:30:5.")] = None,
    all_tokens: Annotated[
        bool, typer.Option("--all-tokens", help="Patch all tokens of all pairs, not only those with a role.")
    ] = False,
    any_root: Annotated[
        bool, typer.Option("--any-root", help="Also trace programs with the root on line 1 or 2.")
    ] = False,
    controls: Annotated[bool, typer.Option(help="Also patch pairs in which a constant off the chain differs.")] = True,
    min_pairs: Annotated[
        int | None, typer.Option(min=1, help="Pairs that the model must answer right both ways; 8, or all given files.")
    ] = None,
    backend: Annotated[str, typer.Option(help="sonde, or nnsight to check it.")] = "sonde",
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
    engine: launch.Engine = "local",
) -> None:
    """Trace how the value of a variable reaches the query of a program, by patching activations.

    Each program gets a twin with another root constant. What the twin's run has at one token and layer is put into the
    program's run; if the answer becomes the twin's, that is where the value was. First the model is asked all programs:
    if it cannot do the task, nothing is traced.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.models import loading
    from sonde.programs import causal_runner, causal_settings

    given = _programs(program) if program else _drawn(lines, hops, number, seed, any_root)
    drawn = () if program else ("--lines", str(lines), "--hops", str(hops), "--number", str(number))
    parts = causal_settings.components([part.strip() for part in component.split(",")])
    options: Any = {
        "template": _template(template),
        "roles": _named(roles),
        "together": _named(together),
        "window": window,
        "layers": screens.whole_numbers(layers, "--layers"),
        "positions": "all" if all_tokens else "roles",
        "systematic": not any_root,
        "controls": controls,
        "min_pairs": min_pairs or (min(8, len(given)) if program else 8),
        "seed": seed,
        "backend": backend,
    }
    causal_settings.TraceSettings(**options)
    with loading.load(model, device=device, dtype=dtype) as loaded:
        trace = causal_runner.ProgramsTrace(loaded, given, parts, drawn=drawn)
        settings = trace.settings(**options)
        with screens.bars(screens.screen()) as told:
            trace.prepare(settings, tell=told)
        launch.launch(trace, settings, run=run, runs=runs, engine=engine)


def _drawn(lines: int, hops: int, number: int, seed: int, any_root: bool) -> list[Any]:
    from sonde.programs import causal_asking

    return causal_asking.drawn(lines, hops, number, seed=seed, systematic=not any_root)


def _named(roles: str | None) -> list[str] | None:
    """Roles from `rhs_1,final`."""
    return [role.strip() for role in roles.split(",")] if roles else None


def _programs(files: list[Path]) -> list[str]:
    """Programs from files; the space at the end of a query line, which editors take away, is put back."""
    found = []
    for file in files:
        found += [f"{part.strip()} " for part in _text(file, "--program").split("\n\n") if part.strip()]
    if not found:
        raise typer.BadParameter(f"{', '.join(map(str, files))}: no program in it", param_hint="--program")
    return found


def _template(given: str) -> str:
    """A template by name, or from a file."""
    from sonde.programs import causal_settings, prompts

    if given in causal_settings.TEMPLATES:
        return getattr(prompts, given.upper())
    if not Path(given).is_file():
        raise typer.BadParameter(
            f"{given!r} is none of {', '.join(causal_settings.TEMPLATES)}, and no file", param_hint="--template"
        )
    return _text(Path(given), "--template").removesuffix("\n")


def _text(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}", param_hint=option) from None
