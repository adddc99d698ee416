"""`sonde programs`: how well models trace programs, and which programs all of them get right."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

MODEL = "smollm2-135m-instruct"
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
    seed: Annotated[int, typer.Option(min=0, help="Fixes the programs.")] = 0,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Unload a model after each experiment.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where; results/debug_experiments.")] = None,
    stamp: Annotated[str | None, typer.Option(help="Ends the folders' names; one that is there is taken up.")] = None,
) -> None:
    """Ask models what programs compute; score, plot, and show what rules that understand nothing would score.

    Programs are balanced over hops and root line where that applies, and labelled by running them. Each batch is on disk
    before the next begins: the same command with --stamp goes on where it was stopped.
    """
    import datetime

    from sonde.programs import experiments, runner

    kinds = list(experiments.SHIPPED) if kind == "all" else [kind]
    models, lengths = model or [MODEL], _lengths(seq_lens)
    stamp = stamp or datetime.datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
    settings: Any = {"num_seqs": number, "seq_lens": lengths, "seed": seed}
    settings |= {"max_new_tokens": max_new_tokens, "batch_size": batch}
    configs = [experiments.shipped(one, models, **settings) for one in kinds]
    screen = screens.screen()
    screen.print(
        f"{', '.join(kinds)}: {number} programs of each of {len(lengths)} lengths, {len(models)} models.",
        highlight=False,
        markup=False,
    )
    runs = runner.ExperimentRunner(out or runner.FOLDER)
    found = []
    try:
        with screens.stopped(screen, f"the same command and --stamp {stamp}"), screens.bars(screen) as told:
            for config in configs:
                named = _named(told, config.name) if len(configs) > 1 else told
                found.append(runs.run(config, no_cache=no_cache, stamp=stamp, tell=named))
    finally:
        runs.unload_all_models()
    _show(screen, found)


@app.command("seeds", epilog=EXAMPLES)
def seeds(
    model: Models = None,
    max_seeds: Annotated[int, typer.Option(min=1, help="Give a case up after so many seeds.")] = 100,
) -> None:
    """Find programs that all given models answer correctly: 1 to 3 hops, 5 and 17 lines, 17 lines with 3 hops first."""
    from sonde.programs import seeds as searching

    screen = screens.screen()
    with screens.stopped(screen, "the same command (nothing of a search is kept)"), screens.bars(screen) as told:
        found = searching.find_robust_seeds(searching.Search(models=model or [MODEL], max_seeds=max_seeds), tell=told)
    for one in found:
        if one.seed is None:
            text = f"{one.hops} hops, {one.seq_len} lines: none of {one.tried} seeds"
        else:
            text = (
                f"{one.hops} hops, {one.seq_len} lines: seed {one.seed} ({one.tried} tried), answer {one.answer}, root "
                f"on line {one.root_line}\n{one.program}\n"
            )
        screen.print(text, highlight=False, markup=False)


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


def _named(told: Any, name: str) -> Any:
    return lambda doing, done, of: told(f"{name}: {doing}", done, of)


def _show(screen: Any, found: Any) -> None:
    from sonde.programs import heuristics
    from sonde.report import page, terminal, wording

    rows = []
    for result in found:
        rules = result.summary["heuristics"]["overall"]
        for model, one in result.summary["by_model"].items():
            known = one["low"] is not None
            score = wording.Interval(one["accuracy"], one["low"], one["high"]) if known else one["accuracy"]
            rows.append((result.experiment, model, one["n"], score, *(rules[name] for name in heuristics.NAMES)))
    columns = ("experiment", "model", "programs", "accuracy", *heuristics.NAMES)
    screen.print(terminal.table(page.Table(columns, tuple(rows), "95 % intervals over programs.", folded=False)))
    for result in found:
        screen.print(f"Results: {result.folder}", soft_wrap=True, highlight=False, markup=False)
