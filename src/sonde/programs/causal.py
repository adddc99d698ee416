"""Through which tokens and layers does a value reach the query? Causal tracing of programs that a model can do.

    tracer = CausalTracer(model, template=prompts.VARIABLE_BINDING)
    trace = tracer.trace_residual(programs)
    trace.by_role("success")               # role x layer, with intervals

1. Make pairs of the programs and ask the model all of them; if it cannot do the task, that is an error
   (`causal_asking`).
2. Patch: in the clean run, one activation is replaced by that of the counterfactual run, for each layer and role
   (`analysis.tracing.sweeps`). If the answer becomes the counterfactual's, that activation carried the value.
3. Do the same with the controls, in which only a constant off the chain differs.

The component `knockout` patches nothing: it forbids attention between tokens of the clean run (`analysis.tracing.knockout`).

Costs what `CausalTracer.estimate` says. To keep what is traced on disk use `causal_runner`.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from sonde.core import errors, progress
from sonde.programs import causal_asking, causal_pairs, causal_settings, causal_traces, prompts

Program = causal_asking.Program


class CausalTracer:
    """Traces values through a model."""

    def __init__(self, model: Any, template: str = prompts.MINIMAL, **options: Any) -> None:
        """Runs nothing yet.

        Args:
            model: A `sonde.Model`.
            template: The prompt, with `{code}`.
            **options: Other fields of `TraceSettings`: systematic, min_pairs, controls, seed, positions, roles, …
        """
        self.model = model
        self.settings = causal_settings.TraceSettings(model=model.cfg.model_name, template=template, **options)

    @classmethod
    def of(cls, model: Any, settings: causal_settings.TraceSettings) -> "CausalTracer":
        """A tracer with settings that are made already."""
        tracer = cls(model)
        tracer.settings = settings
        return tracer

    def trace_residual(
        self, programs: Sequence[Program], *, on_progress: progress.Tell | None = None
    ) -> causal_traces.Trace:
        """Patches the residual stream going into each layer, and after the last; see `prepare` and `trace`."""
        return self.trace(self.prepare(programs), "residual_stream", on_progress=on_progress)

    def trace_heads(
        self, programs: Sequence[Program], *, on_progress: progress.Tell | None = None
    ) -> causal_traces.Trace:
        """Patches what each attention head writes."""
        return self.trace(self.prepare(programs), "attention_heads", on_progress=on_progress)

    def trace_mlp(
        self, programs: Sequence[Program], *, on_progress: progress.Tell | None = None
    ) -> causal_traces.Trace:
        """Patches what each MLP writes."""
        return self.trace(self.prepare(programs), "mlp", on_progress=on_progress)

    def trace_knockout(
        self, programs: Sequence[Program], *, on_progress: progress.Tell | None = None
    ) -> causal_traces.Trace:
        """Forbids attention from each role of the chain at each before it, in the clean programs; nothing is patched."""
        return self.trace(self.prepare(programs), "knockout", on_progress=on_progress)

    def prepare(self, programs: Sequence[Program], *, tell: progress.Tell = progress.silent) -> causal_asking.Prepared:
        """Makes the pairs and asks the model all of them.

        Args:
            programs: Texts, (text, answer), (text, answer, metadata), or Pairs.
            tell: Called with what is being done, how much, and of how much.

        Raises:
            RequestError: A program is no good, no pair is left, or the model cannot do the task.
        """
        return causal_asking.prepare(self.model, programs, self.settings, tell=tell)

    def trace(
        self, prepared: causal_asking.Prepared, component: str, *, on_progress: progress.Tell | None = None
    ) -> causal_traces.Trace:
        """Patches one component in all pairs and controls, and at all tokens of the first pair.

        Raises:
            RequestError: The component, or a layer, is unknown.
        """
        (name,) = causal_settings.components(component)
        self.check([name])
        controls = () if name == causal_settings.KNOCKOUT else prepared.controls
        both = (self.sweep(part, name, on_progress=on_progress) for part in (prepared.tasks, controls))
        sweep, control_sweep = both
        example = None
        if name not in causal_settings.WITHOUT_EXAMPLE:
            example = self.sweep(prepared.tasks[:1], name, everywhere=True, on_progress=on_progress)
        return causal_traces.Trace(name, prepared.tasks, controls, sweep, control_sweep, example, self.settings)

    def sweep(
        self,
        tasks: Sequence[causal_pairs.Task],
        component: causal_settings.Component,
        *,
        everywhere: bool = False,
        on_progress: progress.Tell | None = None,
    ) -> Any:
        """Patches one component in some pairs; None for no pairs.

        Args:
            tasks: The pairs.
            component: What to patch.
            everywhere: At all tokens, whatever the settings say.
            on_progress: Called with what is being done, how much, and of how much.
        """
        if not tasks:
            return None
        if component == causal_settings.KNOCKOUT:
            return self._cut(tasks, on_progress)
        wide = everywhere or self.settings.positions == "all"
        at = None if wide else [causal_traces.places(one, self.settings.roles) for one in tasks]
        together = self.settings.together if not everywhere else None
        groups = None
        if together:
            found = [causal_traces.group(one, together) for one in tasks]
            groups = [[one] if one else [] for one in found]
        return self._swept(tasks, component, at, on_progress, groups)

    def estimate(self, prepared: causal_asking.Prepared, component: causal_settings.Component) -> float:
        """Seconds that tracing a component will take at most, from the time of one token in one pair.

        The root's token is timed: the later a token stands, the less of the prompt has to be run again.
        """
        first, every = prepared.tasks[0], (*prepared.tasks, *prepared.controls)
        if component == causal_settings.KNOCKOUT:
            begun = time.monotonic()
            self._cut([first], None)
            return (time.monotonic() - begun) * len(prepared.tasks)
        root = first.roles["rhs_1"][-1]
        both = self._seconds(first, component, []), self._seconds(first, component, [root])
        start, each = both[0], max(both[1] - both[0], 0.0)
        everywhere = len(first.clean) - root  # before the root both programs are equal, and nothing is run
        if self.settings.positions == "all":
            return (start + each * everywhere) * len(every)
        count = sum(len(causal_traces.places(one, self.settings.roles)) for one in every)
        return start * (len(every) + 1) + each * (count + (0 if component == "attention_heads" else everywhere))

    def check(self, components: Sequence[causal_settings.Component]) -> None:
        """Refuses layers that the model does not have in any of the components, and knockouts by nnsight.

        Raises:
            RequestError: There is such a layer or component.
        """
        causal_settings.check_layers(self.settings.layers, components, self.model.cfg.n_layers)
        if causal_settings.KNOCKOUT in components and self.settings.backend != "sonde":
            raise errors.RequestError(f"knockouts run with backend='sonde' only, got {self.settings.backend!r}")

    def told(self, task: causal_pairs.Task, component: causal_settings.Component) -> dict[str, Any]:
        """What the columns of a pair's grid are, where they are not tokens, as JSON data."""
        if component == causal_settings.KNOCKOUT:
            return {"routes": list(causal_traces.routes(task, self.settings.roles))}
        together = self.settings.together
        return {"together": list(causal_traces.group(task, together))} if together else {}

    def _seconds(self, task: causal_pairs.Task, component: causal_settings.Component, positions: list[int]) -> float:
        start = time.monotonic()
        self._swept([task], component, positions, None)
        return time.monotonic() - start

    def _swept(
        self,
        tasks: Sequence[causal_pairs.Task],
        component: causal_settings.Component,
        positions: Any,
        on_progress: progress.Tell | None,
        together: Any = None,
    ) -> Any:
        from sonde.analysis.tracing import sweeps

        chosen: Any = {"layers": self._layers(component), "positions": positions, "together": together}
        pairs = [one.trace_pair() for one in tasks]
        settings = sweeps.Settings(**chosen, backend=self.settings.backend)
        return sweeps.sweep(self.model, pairs, component, settings=settings, on_progress=on_progress)  # type: ignore[arg-type]

    def _cut(self, tasks: Sequence[causal_pairs.Task], on_progress: progress.Tell | None) -> Any:
        """Knockouts of all routes; in each grid columns count the routes of its own pair."""
        from sonde.analysis.tracing import knockout

        routes = [causal_traces.routes(one, self.settings.roles) for one in tasks]
        if not all(routes):
            raise errors.RequestError(
                f"a knockout forbids attention between two roles of the chain, and roles={self.settings.roles} leaves none: "
                "name two or more, or none for all"
            )
        chosen = knockout.Settings(layers=self._layers(causal_settings.KNOCKOUT), window=self.settings.window)
        pairs = [one.trace_pair() for one in tasks]
        found = knockout.sweep(self.model, pairs, routes, settings=chosen, on_progress=on_progress).sweep
        grids = [dataclasses.replace(one, positions=tuple(range(len(one.positions)))) for one in found.grids]
        return dataclasses.replace(found, grids=grids)

    def _layers(self, component: causal_settings.Component) -> list[int] | None:
        """The layers that were asked for and that the component has."""
        many = causal_settings.layers_of(component, self.model.cfg.n_layers)
        return None if self.settings.layers is None else [one for one in self.settings.layers if one < many]
