"""`sonde programs`: how well models trace programs, and which programs all of them get right."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import launch, screens

EXAMPLES = (
    "Examples: sonde programs run binding · sonde programs run all -m ./my-model -n 100 --seq-lens 2-17 · "
    "sonde programs seeds -m smollm2-135m-instruct"
)
app = typer.Typer(
    name="programs",
    help="Does a model track variables? Ask it what small programs compute.",
    no_args_is_help=True,
    epilog=EXAMPLES,
)
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="A zoo name, a folder, a GGUF file or a hub id; may be repeated."),
]


@app.command("run", epilog=EXAMPLES)
def run(
    kind: Annotated[str, typer.Argument(help="all, or one of: binding, range, boolean, integer, exception.")] = "all",
    model: Models = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Programs of each length.")] = 20,
    seq_lens: Annotated[str, typer.Option(help="Numbers of assignments, such as 2-17 or 2,5,17.")] = "2-5",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 12,
    batch: Annotated[int, typer.Option(min=1, help="Programs asked about together.")] = 16,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Unload a model after each experiment.")] = False,
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    name: launch.RunName = None,
    runs: launch.RunsDir = None,
    engine: launch.Engine = "local",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", hidden=True, help="Also write results there, as ExperimentRunner does."),
    ] = None,
) -> None:
    """Ask models what programs compute; score, plot, and show what rules that understand nothing would score.

    Programs are balanced over hops and root line where that applies, and labelled by running them. Everything finished is
    kept: the same command with --run NAME goes on where it was stopped. All experiments are a run each, NAME-binding and so on.
    """
    from sonde.programs import answers, experiments
    from sonde.store import names

    kinds, base = list(experiments.SHIPPED) if kind == "all" else [kind], name or names.new_run_id()
    settings: Any = {"num_seqs": number, "seq_lens": _lengths(seq_lens), "seed": seed}
    settings |= {"max_new_tokens": max_new_tokens, "batch_size": batch}
    configs = [experiments.shipped(one, model or [launch.MODEL], **settings) for one in kinds]
    answerers = _answerers(device, dtype)
    try:
        for config in configs:
            asked = answers.Programs(config, answerers, no_cache=no_cache, output_dir=out)
            own = f"{base}-{config.name}" if kind == "all" else base
            launch.launch(asked, config, run=own, runs=runs, engine=engine, again=base)
    finally:
        answerers.close()


@app.command("seeds", epilog=EXAMPLES)
def seeds(
    model: Models = None,
    max_seeds: Annotated[int, typer.Option(min=1, help="Give a case up after so many seeds.")] = 100,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
    engine: launch.Engine = "local",
) -> None:
    """Find programs that all given models answer correctly: 1 to 3 hops, 5 and 17 lines, 17 lines with 3 hops first."""
    from sonde.programs import seeds as searching

    settings = searching.SeedsSettings(models=tuple(model or [launch.MODEL]), max_seeds=max_seeds)
    search = searching.Seeds(settings.models, _answerers(device, dtype))
    try:
        result = launch.launch(search, settings, run=run, runs=runs, engine=engine)
    finally:
        search.answerers.close()
    for one in result.results["cases"]:
        if one["seed"] is not None:
            screens.screen().print(f"\n{one['program']}", highlight=False, markup=False)


def _answerers(device: str, dtype: str) -> Any:
    import functools

    from sonde.programs import answering

    return answering.Answerers(functools.partial(answering.open_model, device=device, dtype=dtype))


def _lengths(text: str) -> list[int]:
    """Lengths from `2-17` or `2,5,17`."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise typer.BadParameter(f"write 2-17 or 2,5,17, got {text!r}", param_hint="--seq-lens")
    return sorted(set(found))
