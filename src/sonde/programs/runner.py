"""How well models trace programs: runs experiments, keeps models open between them, and draws.

    runner = ExperimentRunner()
    result = runner.run(quick_experiment("tracking", prompts.MINIMAL, generators.make_range_program, ["tiny-gpt2"]))
    runner.plot("tracking")

Every experiment is a run (`answers`), resumed by `run(config, run=NAME)`; its results are also written under the names of
`outcomes`. Costs the generation; models stay open until they are unloaded, or go at once with `no_cache`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde import experiments as kernel
from sonde.core import errors
from sonde.programs import answering, answers, experiments, outcomes, plotting
from sonde.report import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path("results") / "debug_experiments"


class ExperimentRunner:
    """Runs experiments, and keeps models between them."""

    def __init__(self, output_dir: str | Path = FOLDER, *, opener: answering.Opener = answering.open_model) -> None:
        """Loads nothing yet.

        Args:
            output_dir: Where results are written beside the run, each in a folder of the experiment's and the run's name.
            opener: Gives something to ask for a model's name.
        """
        self.output_dir, self._answerers = Path(output_dir), answering.Answerers(opener)
        self._results: dict[str, outcomes.ExperimentResult] = {}

    def run(
        self,
        config: experiments.ExperimentConfig,
        *,
        batch_size: int | None = None,
        save: bool = True,
        no_cache: bool = False,
        **place: Any,
    ) -> outcomes.ExperimentResult:
        """Runs an experiment, or resumes it.

        Args:
            config: What to ask.
            batch_size: Prompts that run together, instead of the config's.
            save: Make a run, and write results; otherwise they are in the result only.
            no_cache: Unload each model after use; otherwise it stays for the next experiment.
            **place: Of `experiments.run`: `run`, `runs_dir`, `engine`, `on_progress`.

        Raises:
            RequestError: The settings make no sense, or are not those of the run.
        """
        if batch_size is not None:
            given = {name: getattr(config, name) for name in type(config).model_fields}
            config = experiments.ExperimentConfig(**{**given, "batch_size": batch_size})
        asked = answers.Programs(config, self._answerers, no_cache=no_cache, output_dir=self.output_dir)
        if save:
            kernel.run(asked, config, **place)
            result = asked.found
        elif place:
            raise errors.RequestError(
                f"save=False keeps nothing that {next(iter(place))}= could be for: leave one of them out"
            )
        else:
            result = asked.unsaved()
        self._results[config.name] = result
        return result

    def plot(self, name: str) -> "Figure":
        """Draws accuracy over length with the heuristics beside it, saves it as accuracy_plot.png beside the results, and returns it."""
        return self._drawn(name, outcomes.PLOT, plotting.accuracy_chart(name, self.result(name).rows))

    def plot_heatmap(self, name: str, *, rows: str = "model_id", columns: str = "seq_len") -> "Figure":
        """Draws accuracy by two fields of the rows or their metadata, such as depth and root_line, and saves it."""
        chart = plotting.heatmap_chart(name, self.result(name).rows, rows, columns)
        return self._drawn(name, outcomes.HEATMAP, chart)

    def analyze_errors(self, name: str) -> dict[str, Any]:
        """Counts the wrong answers of each model by kind, with examples; see `plotting.errors_of`."""
        return plotting.errors_of(self.result(name).rows)

    def result(self, name: str) -> outcomes.ExperimentResult:
        """The last result of an experiment: of this runner, else the latest on disk.

        Raises:
            StoreError: There is none.
        """
        return self._results[name] if name in self._results else outcomes.latest(self.output_dir, name)

    def preload_models(self, models: Sequence[str]) -> None:
        """Loads models now; those that are loaded stay."""
        for name in [models] if isinstance(models, str) else models:
            self._answerers(name)

    def unload_model(self, name: str) -> None:
        """Frees a model.

        Raises:
            RequestError: It is not loaded.
        """
        loaded = self.list_loaded_models()
        if name not in loaded:
            raise errors.RequestError(f"{name!r} is not loaded{errors.suggest(name, loaded)} Loaded: {loaded}")
        self._answerers.close(name)

    def unload_all_models(self) -> None:
        """Frees all models."""
        self._answerers.close()

    def list_loaded_models(self) -> list[str]:
        """The names of the models in memory."""
        return self._answerers.names()

    def _drawn(self, name: str, file: str, chart: Any) -> "Figure":
        figure = drawing.figure(chart)
        folder = self.result(name).folder
        if folder is not None:
            drawing.save(figure, folder / file)
        return figure
