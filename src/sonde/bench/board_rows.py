"""The figures of one method on one model: the rows of a leaderboard, and those that earlier boards have on disk.

    known = board_rows.earlier(runs_dir, {"pairs": 100, "metric": None, "rules": 2})
    known["embedded", "3", 0, "eap"].node_auroc

A board of the same pairs, metric and rules need not measure again what another one measured on the same weights. Costs the reading of
those boards' items.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic

from sonde.core import errors
from sonde.store import documents, layout, schemas

KIND, STAGE = "leaderboard", "rows"
Key = tuple[str, str, int, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method on one model.

    Attributes:
        kind: Where the model is from.
        case: Its case.
        seed: Its seed.
        method: The method.
        digest: Of the model's weights.
        code: Of the file that the method is from; empty for one of the house.
        metric: What the method looked at.
        level: Whether it scored edges or nodes.
        node_auroc: Of heads and MLPs.
        head_auroc: Of heads alone; None where all of them are true, or none is.
        edge_auroc: Of edges, heads whole.
        true_nodes: How many nodes of the circuit are judged.
        left_out: How many are not, because they never matter in an exchange.
        passes: Forward and backward passes over all pairs.
        seconds: On the clock.
    """

    kind: str
    case: str
    seed: int
    method: str
    digest: str
    code: str
    metric: str
    level: str
    node_auroc: float | None
    head_auroc: float | None
    edge_auroc: float | None
    true_nodes: int
    left_out: int
    passes: float
    seconds: float

    @property
    def key(self) -> Key:
        """What there is one of."""
        return self.kind, self.case, self.seed, self.method


class Failure(pydantic.BaseModel):
    """Why a method could not be run on a model."""

    failed: Annotated[str, pydantic.Strict()]


ITEM = schemas.register("row of a leaderboard", schemas.strict(Row, extra="ignore") | Failure)
_FIELDS = tuple(field.name for field in dataclasses.fields(Row))


def of(content: Mapping[str, Any]) -> Row:
    """The row that JSON data holds."""
    return Row(**{name: content[name] for name in _FIELDS})


def rows_of(results: Mapping[str, Any]) -> tuple[Row, ...]:
    """All rows of a board's results."""
    return tuple(map(of, results["rows"]))


def earlier(runs_dir: Path, settings: Mapping[str, Any]) -> dict[Key, Row]:
    """The rows of all boards in a folder of runs that have these settings; of two for the same, that of the later run.

    Args:
        runs_dir: The folder of all runs.
        settings: What rows must have in common.
    """
    return {row.key: row for id in layout.list_runs(runs_dir) for row in _rows(runs_dir / id, settings)}


def _rows(folder: Path, settings: Mapping[str, Any]) -> Iterable[Row]:
    """The rows of one run; none if it is no such board. What is damaged is measured again."""
    with contextlib.suppress(errors.SondeError):
        manifest = documents.read(folder / layout.MANIFEST, "manifest")
        if manifest["kind"] != KIND or not settings.items() <= manifest["settings"].items():
            return
        for path in sorted((folder / "stages" / STAGE).glob("*.json")):
            with contextlib.suppress(errors.SondeError):
                content = documents.kept(path, ITEM)
                if "failed" not in content:
                    yield of(content)
