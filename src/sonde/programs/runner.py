"""How well does a model trace programs? Runs an experiment, batch by batch, and keeps everything.

    runner = ExperimentRunner()
    result = runner.run(quick_experiment("tracking", prompts.MINIMAL, generators.make_range_program, ["tiny-gpt2"]))
    runner.plot("tracking")

1. Make and label the programs: the same for every model.
2. For each model, ask in fixed batches; each batch is on disk before the next begins.
3. Summarise, with intervals and the heuristics' scores, and draw.

An interrupted experiment goes on with `run(config, stamp=…)` at the first batch that is missing, and its results are the
same bytes. Costs the generation; models stay loaded until they are unloaded, or go at once with `no_cache`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.core import errors
from sonde.programs import answering, experiments, parsers, plotting, prompts, results
from sonde.report import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path("results") / "debug_experiments"
Tell = Callable[[str, int, int], Any]


class ExperimentRunner:
    """Runs experiments, and keeps models between them."""

    def __init__(self, output_dir: str | Path = FOLDER, *, opener: answering.Opener = answering.open_model) -> None:
        """Loads nothing yet.

        Args:
            output_dir: Where experiments are kept.
            opener: Gives something to ask for a model's name.
        """
        self.output_dir = Path(output_dir)
        self._opener = opener
        self._loaded: dict[str, answering.Answerer] = {}
        self._results: dict[str, results.ExperimentResult] = {}

    def run(
        self,
        config: experiments.ExperimentConfig,
        *,
        batch_size: int | None = None,
        save: bool = True,
        no_cache: bool = False,
        stamp: str | None = None,
        tell: Tell = lambda doing, done, of: None,
    ) -> results.ExperimentResult:
        """Runs an experiment, or takes it up.

        Args:
            config: What to ask.
            batch_size: Prompts that run together, instead of the config's.
            save: Keep rows, summary and plot in a folder; otherwise they are in the result only.
            no_cache: Unload each model after use; otherwise it stays for the next experiment.
            stamp: Ends the folder's name; the time if left out. An experiment that is there is taken up.
            tell: Told what is being done, how much is done, and of how much.

        Raises:
            RequestError: The settings make no sense, or are not those of the experiment to be taken up.
        """
        if batch_size is not None:
            config = dataclasses.replace(config, batch_size=batch_size)
        made = experiments.items(config)
        if save:
            result = self._saved(config, made, stamp, no_cache=no_cache, tell=tell)
        elif stamp is None:
            rows = self._rows(config, made, None, no_cache=no_cache, tell=tell)
            result = results.ExperimentResult(config.name, tuple(rows), results.summarise(config.name, rows), None)
        else:
            raise errors.RequestError(
                f"save=False keeps nothing that stamp={stamp!r} could take up: leave one of them out"
            )
        self._results[config.name] = result
        if result.folder is not None and not (result.folder / results.PLOT).exists():
            self.plot(config.name)
        return result

    def plot(self, name: str) -> "Figure":
        """Draws accuracy over length with the heuristics beside it, saves it as accuracy_plot.png beside the results, and returns it."""
        return self._drawn(name, results.PLOT, plotting.accuracy_chart(name, self.result(name).rows))

    def plot_heatmap(self, name: str, *, rows: str = "model_id", columns: str = "seq_len") -> "Figure":
        """Draws accuracy by two fields of the rows or their metadata, such as depth and root_line, and saves it."""
        chart = plotting.heatmap_chart(name, self.result(name).rows, rows, columns)
        return self._drawn(name, results.HEATMAP, chart)

    def analyze_errors(self, name: str) -> dict[str, Any]:
        """Counts the wrong answers of each model by kind, with examples; see `plotting.errors_of`."""
        return plotting.errors_of(self.result(name).rows)

    def result(self, name: str) -> results.ExperimentResult:
        """The last result of an experiment: of this runner, else the latest on disk.

        Raises:
            StoreError: There is none.
        """
        return self._results[name] if name in self._results else results.latest(self.output_dir, name)

    def preload_models(self, models: Sequence[str]) -> None:
        """Loads models now; those that are loaded stay."""
        for name in [models] if isinstance(models, str) else models:
            self._answerer(name)

    def unload_model(self, name: str) -> None:
        """Frees a model.

        Raises:
            RequestError: It is not loaded.
        """
        if name not in self._loaded:
            raise errors.RequestError(
                f"{name!r} is not loaded{errors.suggest(name, self._loaded)} Loaded: {self.list_loaded_models()}"
            )
        self._loaded.pop(name).close()

    def unload_all_models(self) -> None:
        """Frees all models."""
        while self._loaded:
            self._loaded.popitem()[1].close()

    def list_loaded_models(self) -> list[str]:
        """The names of the models in memory."""
        return list(self._loaded)

    def _answerer(self, name: str) -> answering.Answerer:
        if name not in self._loaded:
            self._loaded[name] = self._opener(name)
        return self._loaded[name]

    def _check_model(self, name: str, kept: results.Kept) -> None:
        """Only Sonde's own models can say who they are."""
        answerer = self._answerer(name)
        if isinstance(answerer, answering.ModelAnswerer):
            kept.check_model(answerer.held)

    def _saved(
        self,
        config: experiments.ExperimentConfig,
        made: Sequence[experiments.Item],
        stamp: str | None,
        *,
        no_cache: bool,
        tell: Tell,
    ) -> results.ExperimentResult:
        """The experiment in its folder, from there on where it was stopped."""
        folder = results.folder_of(self.output_dir, config.name, stamp)
        kept = results.Kept(folder, config.settings())
        try:
            if (folder / results.SUMMARY).exists() and not kept.batches:
                result = results.finished(folder)
                (folder / results.ROWS).unlink(missing_ok=True)
                return result
            rows = self._rows(config, made, kept, no_cache=no_cache, tell=tell)
            summary = results.summarise(config.name, rows)
            kept.finish(rows, summary)
            return results.ExperimentResult(config.name, tuple(rows), summary, folder)
        finally:
            kept.close()

    def _rows(
        self,
        config: experiments.ExperimentConfig,
        made: Sequence[experiments.Item],
        kept: results.Kept | None,
        *,
        no_cache: bool,
        tell: Tell,
    ) -> list[results.Row]:
        """All rows, those on disk first; fixed batches, because what shares a batch changes the last bits."""
        size = config.batch_size
        cut = [made[at : at + size] for at in range(0, len(made), size)]
        done = list(kept.batches) if kept is not None else []
        rows: list[results.Row] = []
        for number, name in enumerate(config.models):
            if kept is not None and (number + 1) * len(cut) > len(done):
                self._check_model(name, kept)
            for at, batch in enumerate(cut):
                index = number * len(cut) + at
                if index >= len(done):
                    asked = ask(config, name, self._answerer(name), batch)
                    done.append(kept.add(asked) if kept is not None else asked)
                elif kept is not None and [row["program"] for row in done[index]] != [item.program for item in batch]:
                    raise errors.RequestError(
                        f"{kept.folder} was begun with other programs: the generator of that name has changed; run the "
                        "experiment anew, without a timestamp"
                    )
                rows += done[index]
                tell(name, min((at + 1) * size, len(made)), len(made))
            if no_cache and name in self._loaded:
                self.unload_model(name)
        return rows

    def _drawn(self, name: str, file: str, chart: Any) -> "Figure":
        figure = drawing.figure(chart)
        folder = self.result(name).folder
        if folder is not None:
            drawing.save(figure, folder / file)
        return figure


def ask(
    config: experiments.ExperimentConfig, name: str, answerer: answering.Answerer, batch: Sequence[experiments.Item]
) -> list[results.Row]:
    """Asks a model about a batch of programs; one row each."""
    asked = [prompts.asking(config.prompt_template, item.program, item.answer) for item in batch]
    sampling: answering.Sampling = {
        "max_new_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        "seed": config.seed,
    }
    texts = answerer.ask(asked, sampling)
    return [_row(config, name, item, text) for item, text in zip(batch, texts, strict=True)]


def _row(config: experiments.ExperimentConfig, name: str, item: experiments.Item, text: str) -> Mapping[str, Any]:
    parse = config.answer_parser or parsers.parser_for(item.answer)
    said = parse(text)
    return {
        "experiment": config.name,
        "model_id": name,
        "seq_len": item.seq_len,
        "seq_id": item.seq_id,
        "program": item.program,
        "true_answer": item.answer,
        "predicted_answer": said,
        "correct": parsers.is_correct(said, item.answer),
        "raw_output": text,
        "metadata": dict(item.metadata),
    }
