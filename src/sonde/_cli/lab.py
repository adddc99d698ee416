"""`sonde lab`: corrupt a model, talk to it, measure what changes; task sets."""

from pathlib import Path
from typing import Annotated

import typer

from sonde._cli import lab_depth, lab_research, launch, screens

EXAMPLES = (
    "Examples: sonde lab chat --skip 11 · sonde lab measure skip:11 --task capitals · sonde lab measure reverse:13-16 · "
    "sonde lab shifts skip:11 'The capital of France is Paris.' · sonde lab tasks check --model smollm2-135m-instruct"
)
SPECS = (
    "What to do: skip:11, keep:0-3,29, keep-first:8, drop-first:2, repeat:5@times=3, swap:3-4, permute:3,5,4, reverse:13-16, "
    "random:13-16@seed=3, parallel:13-16, looped-parallel:13-16, middle-repeat:13-16, order:0,1,1,3, "
    "zero:SITE, mean:SITE, noise:SITE@0.5, patch:SITE@from=TEXT (SITE such as blocks.5.hook_mlp_out; only at some tokens "
    "with @at=0 or @at=1-63). Join with ' + '."
)
app = typer.Typer(
    name="lab",
    help="Corrupt a model and see what changes: layers skipped, swapped, repeated; activations zeroed or patched.",
    no_args_is_help=True,
    epilog=EXAMPLES,
)
task_app = typer.Typer(help="Task sets: prompts with known answers.", no_args_is_help=True, epilog=EXAMPLES)
app.add_typer(task_app, name="tasks")
Spec = Annotated[str, typer.Argument(metavar="CORRUPTION", help=SPECS)]


@app.command("chat", epilog=EXAMPLES)
def chat(
    skip: Annotated[
        list[str] | None, typer.Option("--skip", help="Layers to leave out, such as 11 or 3,11-13.")
    ] = None,
    corrupt: Annotated[list[str] | None, typer.Option("--corrupt", help=SPECS)] = None,
    model: launch.Model = launch.MODEL,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Say this, show the replies, and end.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is: no chat template.")] = False,
    tokens: Annotated[int, typer.Option(min=1, help="Length of a reply.")] = 60,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely words.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Draws the words if the temperature is above 0.")] = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
) -> None:
    """Talk to a corrupted model, with the intact one's answer beside it.

    Each of the two remembers what it said itself. An empty line, or Ctrl-D, ends the talk.
    """
    from sonde._cli import lab_screens
    from sonde.lab import corruptions, talking
    from sonde.models import loading

    screen = screens.screen()
    words = [f"skip:{','.join(skip)}"] if skip else []
    with loading.load(model, device=device, dtype=dtype) as loaded:
        parts = [corruptions.parse(word, loaded.cfg.n_layers) for word in [*words, *(corrupt or ())] or ["none"]]
        chosen = corruptions.joined(parts)
        talk = talking.Talk(loaded, chosen, raw=raw, max_new_tokens=tokens, temperature=temperature, seed=seed)
        if prompt is not None:
            screen.print(lab_screens.beside(talk.say(prompt), chosen.spec))
            return
        screen.print(
            f"{loaded.cfg.model_name}, {loaded.cfg.n_layers} layers; corrupted by {chosen.spec}.", highlight=False
        )
        lab_screens.converse(screen, talk, chosen.spec)


@app.command("measure", epilog=EXAMPLES)
def measure(
    corruption: Spec,
    model: launch.Model = launch.MODEL,
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="Measure this task; may be repeated; 'all' for all.")
    ] = None,
    tasks: Annotated[Path | None, typer.Option("--tasks", metavar="FILE", help="A task file of your own.")] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", "-n", min=1, help="The first so many of a task.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Completions to show side by side, of each task.")] = 3,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=2, help="Of texts: the first so many tokens of each; all if left out.")
    ] = None,
    controls: Annotated[int, typer.Option(min=0, help="How many controls: other layers, or noise of equal size.")] = 3,
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Measure a corruption: on plain texts, or on tasks if some are named.

    Texts: loss, KL from the intact model, agreement of the most likely token, entropy. Tasks: right answers, log-probability
    and loss of the answer. Always beside the intact model and controls of equal size, with 95 % intervals over texts or
    examples. A task that the intact model cannot do is flagged.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.lab import measurements
    from sonde.lab import tasks as lab_tasks
    from sonde.models import loading

    known = lab_tasks.load(tasks) if task or tasks else {}
    if known and tokens is not None:
        raise typer.BadParameter("tasks are measured whole: leave it out, or leave out --task", param_hint="--tokens")
    asked = [lab_tasks.get(known, name) for name in (list(known) if not task or "all" in task else task)]
    with loading.load(model, device=device, dtype=dtype) as loaded, loaded.packed():
        more = {"tokens": tokens, "controls": controls, "seed": seed, "file": str(tasks) if tasks else None}
        settings = measurements.settings_of(loaded, corruption, asked, examples=examples, **more)
        launch.launch(measurements.Measure(loaded, asked, show=show), settings, run=run, runs=runs)


@app.command("shifts", epilog=EXAMPLES)
def shifts(
    corruption: Spec,
    text: Annotated[str, typer.Argument(help="The text to look at.")],
    model: launch.Model = launch.MODEL,
    top: Annotated[int, typer.Option(min=1, help="How many raised and lowered tokens.")] = 10,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
) -> None:
    """Which tokens does a corruption make more or less likely, along a text and in the whole vocabulary?"""
    from sonde._cli import lab_screens
    from sonde.lab import corruptions, measuring_texts
    from sonde.models import loading

    with loading.load(model, device=device, dtype=dtype) as loaded:
        what = corruptions.parse(corruption, loaded.cfg.n_layers)
        found = measuring_texts.likelihood_shifts(loaded, what, text, top=top)
    for table in lab_screens.shifts(found):
        screens.screen().print(table)


@app.command("translate", epilog=EXAMPLES)
def translate(
    model: launch.Model = launch.MODEL,
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of each text.")] = 96,
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """What does the model know at each layer, if read by the best linear guess?

    A linear map per layer, from its stream to the last one, is fitted on four fifths of the texts and judged on the others, in
    turn; beside the logit lens, which reads the stream as it is, and a map fitted on shuffled pairs, which can only know
    averages.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.lab import translating
    from sonde.models import loading

    with loading.load(model, device=device, dtype=dtype) as loaded:
        settings = translating.TranslateSettings(model=loaded.cfg.model_name, tokens=tokens, seed=seed)
        launch.launch(translating.Translate(loaded), settings, run=run, runs=runs)


@task_app.command("check", epilog=EXAMPLES)
def check(
    file: Annotated[Path | None, typer.Argument(help="A task file; the one that comes with Sonde if left out.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Also say which tasks this model can do.")] = None,
    task: Annotated[list[str] | None, typer.Option("--task", "-t", help="Only this task; may be repeated.")] = None,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
) -> None:
    """Check a task file: what is wrong with it, what is there twice, and what a model makes of it."""
    import contextlib

    from sonde._cli import lab_screens
    from sonde.lab import checking
    from sonde.lab import tasks as lab_tasks
    from sonde.models import loading

    screen = screens.screen()
    found, problems = lab_tasks.read(file)
    found = {name: lab_tasks.get(found, name) for name in task} if task else found
    with contextlib.ExitStack() as stack:
        loaded = stack.enter_context(loading.load(model, device=device, dtype=dtype)) if model else None
        if loaded is not None:
            stack.enter_context(loaded.packed())
        screen.print(lab_screens.checked(list(checking.check(found, loaded)), model))
    for problem in problems:
        screen.print(f"Problem: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


@task_app.command("generate", epilog=EXAMPLES)
def generate(
    name: Annotated[str, typer.Argument(help="The task's name, such as opposites; one that is there grows.")],
    about: Annotated[str | None, typer.Argument(help="What the task is, in a sentence; for a new task.")] = None,
    server: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible server; $OPENAI_BASE_URL, or OpenAI itself.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="The server's name for the model.")] = "gpt-4o-mini",
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Examples to have in the end.")] = 30,
    rounds: Annotated[int, typer.Option(min=1, help="Requests at most.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Sent to the server.")] = 0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The task file to add to.")] = Path("tasks.json"),
) -> None:
    """Let a language model write examples of a task, in rounds; check them and leave duplicates out.

    Works with any OpenAI-compatible server; a key is read from $OPENAI_API_KEY. The file is written after every round. Whether
    the answers are right you must check yourself.
    """
    import asyncio

    from sonde.agents import openai_client
    from sonde.lab import generating
    from sonde.lab import tasks as lab_tasks

    screen = screens.screen()
    known = lab_tasks.load(out) if out.exists() else {}
    if name not in known and not about:
        raise typer.BadParameter(f"say what the task {name!r} is, in a sentence", param_hint="ABOUT")
    start = known.get(name) or generating.blank(name, about or "")
    client = openai_client.OpenAIClient(model, base_url=server, max_output_tokens=2000)

    def keep(task: lab_tasks.Task) -> None:
        lab_tasks.write([*(one for one in known.values() if one.name != name), task], out)
        screen.print(f"{len(task.examples)} examples", highlight=False)

    made = asyncio.run(generating.generate(client, start, wanted=number, rounds=rounds, seed=seed, keep=keep))
    for why, count in made.rejected.items():
        screen.print(f"left out {count}: {why}", markup=False, highlight=False, soft_wrap=True)
    screen.print(f"{name}: {len(made.task.examples)} examples in {out} after {made.rounds} rounds.", highlight=False)


lab_depth.register(app)
lab_research.register(app)
