"""What did patching one component show? A trace: sweeps of pairs and of their controls, read by role.

    trace = tracer.trace_residual(programs)
    trace.by_role("success")                  # RoleTable: role x layer, with intervals over programs
    trace.by_role("success", control=True)    # the same where only a constant off the chain was changed

Programs differ in length and tokens, so averages go by role and never by position; a role of several tokens is read
at its last. Roles that are patched together have a row of their own, and in knockouts rows are routes: from which role
attention at which is forbidden. Costs one pass over the grids.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde.analysis.tracing import grids, metrics
from sonde.core import errors
from sonde.programs import causal_pairs, causal_settings, tokens

METRICS: tuple[str, ...] = ("success", "recovery", "normalised_logit_difference")
CONTROL_METRICS: tuple[str, ...] = ("success", "changed")  # the others divide by an effect controls lack
KNOCKOUT_METRICS: tuple[str, ...] = ("changed", "recovery")
RHS = "rhs"
DECIMALS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Peak:
    """The layer, and head if there are heads, at which patching a role does most, with interval and n."""

    layer: int
    head: int | None
    value: float
    low: float
    high: float
    n: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One component traced.

    Attributes:
        component: What was patched.
        tasks: The pairs.
        controls: The control pairs.
        sweep: The patched runs of the pairs.
        control_sweep: Those of the controls; None without controls.
        example: All tokens of the first pair; None for heads and knockouts.
        settings: How it was traced.
    """

    component: str
    tasks: tuple[causal_pairs.Task, ...]
    controls: tuple[causal_pairs.Task, ...]
    sweep: grids.Sweep
    control_sweep: grids.Sweep | None
    example: grids.Sweep | None
    settings: causal_settings.TraceSettings
    _tables: dict[tuple[str, bool], metrics.RoleTable] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def roles(self) -> tuple[str, ...]:
        """What was read, from the root to the final token, then distractors, then roles patched together; or routes."""
        if self.component == causal_settings.KNOCKOUT:
            return tuple(dict.fromkeys(name for one in self.tasks for name in routes(one, self.settings.roles)))
        joint = (joint_name(self.settings.together),) if self.settings.together else ()
        return (*chosen(self.settings.roles, self.tasks), *joint)

    def columns(self, task: causal_pairs.Task) -> dict[str, tuple[int, ...]]:
        """Where in a pair's grid each role stands."""
        if self.component == causal_settings.KNOCKOUT:
            return {name: (index,) for index, name in enumerate(routes(task, self.settings.roles))}
        together = self.settings.together
        return dict(task.roles) | ({joint_name(together): (-1,)} if together else {})

    def by_role(self, metric: str = "success", *, control: bool = False) -> metrics.RoleTable:
        """A metric by role and layer (and head), with 95 % intervals over programs.

        Args:
            metric: `success`, `recovery`, `normalised_logit_difference` or `changed`.
            control: Of the controls, where success should be chance.

        Raises:
            RequestError: There are no controls.
        """
        sweep, tasks = (self.control_sweep, self.controls) if control else (self.sweep, self.tasks)
        if sweep is None:
            raise errors.RequestError("nothing was traced as a control: trace with controls=True, and with distractors")
        if (metric, control) not in self._tables:
            names = (*self.roles, causal_pairs.CHANGED) if control else self.roles
            known = [self.columns(one) for one in tasks]
            roles = [{name: one[name] for name in names if name in one} for one in known]
            self._tables[metric, control] = metrics.by_role(sweep, roles, metric)
        return self._tables[metric, control]

    def peak(self, role: str, metric: str = "success", *, control: bool = False) -> Peak | None:
        """Where patching a role does most; the first of equals. None if no pair has the role.

        The highest of many values is too high by selection: the interval is that of one cell.
        """
        table = self.by_role(metric, control=control)
        if role not in table.roles:
            return None
        row = table.roles.index(role)
        values = table.estimate[row].reshape(len(table.layers), -1)
        if not np.isfinite(values).any():
            return None
        layer, head = divmod(int(np.nanargmax(values)), values.shape[1])
        at = (row, layer, head) if table.heads else (row, layer)
        value, low, high = (float(part[at]) for part in (table.estimate, table.low, table.high))
        which = table.heads[head] if table.heads else None
        return Peak(table.layers[layer], which, value, low, high, int(table.n[at]))

    def to_json(self) -> dict[str, Any]:
        """All metrics by role and layer with their intervals and n, of pairs and controls, as JSON data."""
        told: dict[str, Any] = {"layers": list(self.sweep.layers), "heads": list(self.sweep.heads)}
        told |= {"pairs": len(self.tasks), "control_pairs": len(self.controls)}
        shown = KNOCKOUT_METRICS if self.component == causal_settings.KNOCKOUT else METRICS
        told["by_role"] = {one: _table(self.by_role(one)) for one in shown}
        if self.control_sweep is not None:
            told["control_by_role"] = {one: _table(self.by_role(one, control=True)) for one in CONTROL_METRICS}
        return told


def row_of(task: causal_pairs.Task, sweep: grids.Sweep, grid: grids.Grid) -> dict[str, Any]:
    """One traced pair as a row of intervention_results.json: what was asked, and every patched run."""
    pair = task.pair
    return {
        "intervention_type": sweep.component,
        "kind": task.kind,
        "program_id": task.index,
        "program": pair.clean,
        "counterfactual_program": pair.counterfactual,
        "true_answer": pair.clean_answer,
        "counterfactual_answer": pair.counterfactual_answer,
        "tokens": list(task.labels),
        "roles": {role: list(at) for role, at in task.roles.items()},
        "layers": list(sweep.layers),
        "heads": list(sweep.heads),
        "recovery": _plain(grid.recovery),
        "success": grid.success.tolist(),
        "grid": _rounded(grid.to_json()),
    }


def joined(parts: Sequence[grids.Sweep]) -> grids.Sweep | None:
    """Sweeps of the same settings over different pairs as one; None for none."""
    if not parts:
        return None
    pairs = tuple(pair for part in parts for pair in part.pairs)
    return dataclasses.replace(parts[0], pairs=pairs, grids=[grid for part in parts for grid in part.grids])


def sweep_of(tasks: Sequence[causal_pairs.Task], rows: Sequence[Any]) -> grids.Sweep:
    """The sweep that rows of intervention_results.json came from."""
    read = [grids.Grid.from_json(row["grid"]) for row in rows]
    first = rows[0]
    pairs = tuple(one.trace_pair() for one in tasks)
    return grids.Sweep(first["intervention_type"], pairs, tuple(first["layers"]), read, tuple(first["heads"]))


def chosen(roles: Sequence[str] | None, tasks: Sequence[causal_pairs.Task]) -> tuple[str, ...]:
    """The roles to read, in the order of their tokens: the chain from its root up, query, final, distractors."""
    known = {role for one in tasks for role in one.roles}
    depths = sorted(int(role.removeprefix("rhs_")) for role in known if role.startswith("rhs_"))
    order = [
        *map(tokens.rhs, depths),
        tokens.QUERY,
        tokens.FINAL,
        tokens.DISTRACTOR_CONSTANT,
        tokens.DISTRACTOR_REFERENCE,
    ]
    return tuple(role for role in order if role in known and (roles is None or role in roles))


def check_roles(settings: causal_settings.TraceSettings, tasks: Sequence[causal_pairs.Task]) -> None:
    """Refuses roles that no token has.

    Raises:
        RequestError: A role is unknown.
    """
    known = chosen(None, tasks)
    for role in (*(settings.roles or ()), *(one for one in settings.together or () if one != RHS)):
        if role not in known:
            raise errors.RequestError(
                f"no token has the role {role!r}{errors.suggest(role, known)} Roles of these programs: {', '.join(known)}"
            )


def places(task: causal_pairs.Task, roles: Sequence[str] | None) -> list[int]:
    """The positions to patch: the last token of each role."""
    wanted = [role for role in task.roles if roles is None or role in (*roles, causal_pairs.CHANGED)]
    return sorted({task.roles[role][-1] for role in wanted})


def joint_name(together: Sequence[str]) -> str:
    """What roles that are patched together are called."""
    return f"{'+'.join(together)} together"


def group(task: causal_pairs.Task, together: Sequence[str]) -> tuple[int, ...]:
    """All tokens of some roles; those that a program lacks are left out."""
    named = [role for role in task.roles if role in together or (RHS in together and role.startswith(f"{RHS}_"))]
    return tuple(sorted({at for role in named for at in task.roles[role]}))


def routes(task: causal_pairs.Task, roles: Sequence[str] | None) -> dict[str, Any]:
    """Routes (`analysis.tracing.knockout`) from each role of the chain to each before it; and, as a control, to distractors."""
    from sonde.analysis.tracing import knockout

    off = (tokens.DISTRACTOR_CONSTANT, tokens.DISTRACTOR_REFERENCE)
    known = chosen(roles, [task])
    chain = [role for role in known if role not in off]
    steps = [(later, earlier) for at, later in enumerate(chain) for earlier in chain[:at]]
    steps += [(end, one) for end in (tokens.QUERY, tokens.FINAL) if end in chain for one in off if one in known]
    return {
        f"{later} -> {earlier}": knockout.Route(task.roles[later], task.roles[earlier])
        for later, earlier in steps
        if task.roles[later] != task.roles[earlier]
    }


def _table(found: metrics.RoleTable) -> dict[str, Any]:
    """A table with few decimals."""
    arrays = {name: _plain(getattr(found, name)) for name in ("estimate", "low", "high", "n")}
    return {"roles": list(found.roles), "layers": list(found.layers), "heads": list(found.heads), **arrays}


def _plain(values: Any) -> Any:
    """Nested lists with few decimals; None for what is no number."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list):
        return [_plain(one) for one in values]
    return round(values, DECIMALS) if np.isfinite(values) else None


def _rounded(value: Any) -> Any:
    """The same with few decimals; logits are not known better."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, DECIMALS) if isinstance(value, float) else value
