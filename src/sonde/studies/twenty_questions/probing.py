"""Does the model know that it is about to break the rules: at which layer, at which step?

1. Map: every layer x pooling x (all steps, each step).
2. Headline, before speaking: the layer is chosen on training episodes, at the last prompt token.
3. The same after speaking, for what it is worth: the message is in view then.
4. The same for one step: step and layer are chosen on training episodes.
"""

from collections.abc import Callable
from typing import Any

from sonde.analysis import baselines, examples, probes
from sonde.core import errors
from sonde.studies.twenty_questions import rows as study_rows
from sonde.studies.twenty_questions import settings as study_settings

BEFORE = "last_prompt"
AFTER = tuple(name for name, moment in examples.POOLINGS.items() if moment == "after")


def probe(
    rows: study_rows.Rows, settings: study_settings.Settings, tell: Callable[[str, int, int], Any]
) -> dict[str, Any]:
    """The map and the headlines, as JSON data.

    Raises:
        AnalysisError: One class only, too few episodes for the folds.
    """
    table = rows.examples
    steps = sorted(set(table.steps.tolist()))
    cells = {
        examples.Cell(layer, pooling, step): features
        for (layer, pooling), features in rows.features.items()
        for step in (None, *steps)
    }
    found = probes.sweep(cells, table, settings.probes, progress=lambda done, of: tell("probe: map", done, of))
    layers = {cell: values for cell, values in cells.items() if cell.step is None}
    headlines = {
        "before": {cell: values for cell, values in layers.items() if cell.pooling == BEFORE},
        "after": {cell: values for cell, values in layers.items() if cell.pooling in AFTER},
        "step": {cell: values for cell, values in cells.items() if cell.pooling == BEFORE and cell.step is not None},
    }
    told: dict[str, Any] = {}
    for name, chosen in headlines.items():
        try:
            result = probes.nested(
                chosen, table, settings.probes, progress=lambda done, of, n=name: tell(f"probe: {n}", done, of)
            )
            told[name] = {**result.to_json(), "claim_p": claim_p(result)}
        except errors.AnalysisError as error:
            if name != "step":  # single steps may be too thin, which is a result; all steps together may not
                raise
            told[name] = {"skipped": str(error)}
    return {"sweep": found.to_json(), "nested": told, "layer": told["before"]["modal"]["layer"]}


def claim_p(result: probes.Nested) -> float:
    """The p-value of the claim as a whole: above chance, and above everything that is known anyway."""
    known = [gain for name, gain in result.gains.items() if name in baselines.KNOWN]
    if result.scored.auroc.value <= 0.5 or any(gain.difference.value <= 0 for gain in known):
        return 1.0
    return max(result.p, *(gain.adjusted for gain in known))
