"""`sonde study layers`: what each layer does for a model, and whether their order matters."""

from typing import Annotated

import typer

from sonde._cli import launch, screens

EXAMPLES = (
    "Examples: sonde study layers · sonde study layers --model ./my-model --texts 6 --run mine · "
    "sonde study layers --windows 2,4,8 --orders 10"
)


def layers(
    model: launch.Model = launch.MODEL,
    texts: Annotated[int | None, typer.Option(min=2, help="How many of the ten texts; all.")] = None,
    tokens: Annotated[int | None, typer.Option(min=8, help="Tokens of each text; 64.")] = None,
    windows: Annotated[str | None, typer.Option(help="Window sizes, such as 2,4,8.")] = None,
    orders: Annotated[int | None, typer.Option(min=1, help="Random orders of each window; 5.")] = None,
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """What does each layer do for a model, and does their order matter?

    Each layer is skipped and swapped with the next, beside a random change of the stream of the same size. A window in the
    middle is skipped, reversed, shuffled, run side by side, and replaced by its middle layer. How the stream turns from layer
    to layer is compared with what skipping does. And the model is cut off after its first layers, to see what it says then.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.lab.layers import settings, study
    from sonde.models import loading

    with loading.load(model, device=device, dtype=dtype) as loaded:
        sizes = screens.whole_numbers(windows, "--windows")
        chosen = settings.settings_of(loaded.cfg, texts=texts, tokens=tokens, sizes=sizes, orders=orders, seed=seed)
        launch.launch(study.Layers(loaded), chosen, run=run, runs=runs)
