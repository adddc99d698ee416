"""The way of the value through the model: patching by role and layer, its control, and single heads.

1. Held-out programs with the root after line 2, out of reach of the heuristics, per number of hops; the twin has another
   root constant, one that occurs nowhere in the program. Pairs are kept if the model answers both sides rightly.
2. The twin's stream is put into the clean run at each role (root, right-hand sides up the chain, query, final) and
   layer: does the answer become the twin's? The value is where it does.
3. Control: pairs in which a constant off the chain differs, patched at every position and layer. Does the answer become
   that constant?
4. The same for the output of single heads at the role that a transition ends in.

Costs a minute or two for a small model and 200 pairs a hop.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from sonde.analysis import stats
from sonde.analysis.tracing import metrics, sweeps
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.core import errors, progress
from sonde.models import model as models_model
from sonde.studies.binding import language, training

ROWS = 4096
TRIES = 4
FEWEST = 10


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """Pairs ready to be patched.

    Attributes:
        pairs: Clean and counterfactual tokens.
        roles: Positions by role, one for each pair.
        tried: How many pairs were drawn for these; the model answered the others wrongly on one side.
        repeated: In how many of them the clean answer is also the constant of another line.
        crowded: How many programs have all ten digits, so that no constant was new to them: they are left out.
    """

    pairs: tuple[tracing_pairs.TracePair, ...]
    roles: tuple[Mapping[str, tuple[int, ...]], ...]
    tried: int
    repeated: int
    crowded: int = 0

    def places(self, role: str) -> list[int]:
        """The position of a role in each pair."""
        return [one[role][0] for one in self.roles]


def root_pairs(model: models_model.Model, programs: language.Programs, count: int, rng: np.random.Generator) -> Traced:
    """Pairs that differ in the root constant, at most `count`, of those programs that the model gets right."""
    some = programs[(~language.present(programs)).any(axis=1)]
    found = _kept(model, some, language.twins(some, rng), count)
    return dataclasses.replace(found, crowded=len(programs) - len(some))


def control_pairs(
    model: models_model.Model, programs: language.Programs, count: int, rng: np.random.Generator
) -> Traced:
    """Pairs that differ in a constant off the chain; its new value counts as the counterfactual answer.

    The role `distractor` is added.
    """
    programs = programs[(programs.parents < 0).sum(axis=1) > 1]
    some = programs[(~language.present(programs)).any(axis=1)]
    twins, lines = language.distractor_twins(some, rng)
    found = _kept(model, some, twins, count, twins.tokens[np.arange(len(twins)), language.right(lines)])
    places = [int(np.flatnonzero(np.not_equal(pair.clean, pair.counterfactual))[0]) for pair in found.pairs]
    roles = tuple({**one, "distractor": (at,)} for one, at in zip(found.roles, places, strict=True))
    return dataclasses.replace(found, roles=roles, crowded=len(programs) - len(some))


def query_pairs(model: models_model.Model, programs: language.Programs, count: int, rng: np.random.Generator) -> Traced:
    """Pairs that differ in the letter that is asked for, and in the answer; the other answer is one line's only."""
    lines = (programs.query + rng.integers(1, programs.grammar.lines, len(programs))) % programs.grammar.lines
    tokens = programs.tokens.copy()
    tokens[:, -2] = tokens[np.arange(len(programs)), 2 * lines]
    twins = language.Programs(programs.grammar, tokens, programs.parents, lines)
    fine = (twins.hops <= programs.grammar.max_hops) & (twins.answers != programs.answers) & ~language.repeated(twins)
    return _kept(model, programs[fine], twins[fine], count)


def staircase(model: models_model.Model, traced: Traced, *, tell: progress.Tell = progress.silent) -> dict[str, Any]:
    """Success of patching the stream by role and layer, with intervals over pairs.

    `middle` is, by layer, the share of pairs in which at least one right-hand side above the root gives the other answer:
    with three hops there are two, and which of them a value stops at differs from program to program.
    """
    found, table = _swept(model, traced, "residual_stream", tuple(traced.roles[0]), tell)
    names = [name for name in table["roles"] if name.startswith("rhs_") and name != "rhs_1"]
    if names:
        stops = np.stack(
            [
                grid.success[:, [grid.positions.index(one[name][0]) for name in names]].any(axis=1)
                for grid, one in zip(found.grids, traced.roles, strict=True)
            ]
        )
        table["middle"] = [_rate(stops[:, at]) for at in range(stops.shape[1])]
    return table


def heads(model: models_model.Model, traced: Traced, *, tell: progress.Tell = progress.silent) -> dict[str, Any]:
    """Success of patching single heads, by the role they write to."""
    return _swept(model, traced, "attention_heads", tuple(name for name in traced.roles[0] if name != "rhs_1"), tell)[1]


def control(model: models_model.Model, traced: Traced, *, tell: progress.Tell = progress.silent) -> dict[str, Any]:
    """How often patching a distractor's root brings that distractor's value about: by role, and at most anywhere."""
    wanted = sweeps.Settings(batch_rows=ROWS)
    found = sweeps.sweep(model, traced.pairs, "residual_stream", settings=wanted, on_progress=tell)
    every = np.stack([grid.success for grid in found.grids])
    share = every.mean(axis=0)
    layer, position = np.unravel_index(int(share.argmax()), share.shape)
    roles = [{name: one[name] for name in ("distractor", "query", "final")} for one in traced.roles]
    return {
        **_table(found, roles, traced),
        "largest": {"layer": int(found.layers[layer]), "position": int(position), **_rate(every[:, layer, position])},
        "any_cell": _rate(np.array([grid.success.any() for grid in found.grids])),
    }


def _swept(
    model: models_model.Model, traced: Traced, component: sweeps.Component, names: Sequence[str], tell: progress.Tell
) -> tuple[sweeps.Sweep, dict[str, Any]]:
    """A component patched at the positions of some roles, and the table of it."""
    roles = [{name: one[name] for name in names} for one in traced.roles]
    wanted = sweeps.Settings(positions=[[at for (at,) in one.values()] for one in roles], batch_rows=ROWS)
    found = sweeps.sweep(model, traced.pairs, component, settings=wanted, on_progress=tell)
    return found, {**_table(found, roles, traced), "heads": list(found.heads)}


def _table(found: sweeps.Sweep, roles: Sequence[Mapping[str, Sequence[int]]], traced: Traced) -> dict[str, Any]:
    """Success by role with intervals, and recovery without."""
    success, recovery = (metrics.by_role(found, roles, metric) for metric in ("success", "recovery"))
    ends = {"value": success.estimate, "low": success.low, "high": success.high}
    return {
        "roles": list(success.roles),
        "layers": list(found.layers),
        "n": len(traced.pairs),
        "tried": traced.tried,
        "repeated": traced.repeated,
        "crowded": traced.crowded,
        "success": {name: np.round(values, 4).tolist() for name, values in ends.items()},
        "recovery": np.round(recovery.estimate, 4).tolist(),
    }


def _kept(
    model: models_model.Model,
    programs: language.Programs,
    twins: language.Programs,
    count: int,
    expected: Int[np.ndarray, "program"] | None = None,
) -> Traced:
    """Those pairs of which the model answers both sides rightly."""
    right = (training.answers(model.hf, programs) == programs.answers) & (
        training.answers(model.hf, twins) == twins.answers
    )
    fine = np.flatnonzero(right)
    if len(fine) < FEWEST:
        raise errors.AnalysisError(
            f"the model answers both sides of {len(fine)} of {len(programs)} pairs rightly, at least {FEWEST} are needed: "
            "train it for longer before you look for how it does it"
        )
    chosen = fine[:count]
    tried = int(chosen[-1]) + 1 if len(fine) >= count else len(programs)
    others = twins.answers if expected is None else expected
    pairs = tuple(
        tracing_pairs.TracePair(
            tuple(programs.tokens[at].tolist()),
            tuple(twins.tokens[at].tolist()),
            int(programs.answers[at]),
            int(others[at]),
            name=programs.text(at),
        )
        for at in chosen.tolist()
    )
    roles = tuple(programs.roles(at) for at in chosen.tolist())
    return Traced(pairs, roles, tried, int(language.repeated(programs[chosen]).sum()))


def _rate(values: Bool[np.ndarray, "pair"]) -> dict[str, float]:
    found = stats.mean_interval(values.astype(np.float64), np.arange(len(values)))
    return {"value": found.value, "low": found.low, "high": found.high}
