"""Which layers does a task need? A planner that needs no language model and always decides the same way.

It looks for layers that matter more than their size explains, for layer sets without which the task breaks, and for a layer
set that is enough for it:

1. A sweep skips every layer by itself: one experiment. A layer that does more harm than its norm and block influence explain
   (`outliers`) becomes a hypothesis: on other examples its skip will cost more than the geometric mean of what it cost here
   and what a layer of its size costs at most, and the skips of the layers most like it in size will not.
2. Both ends: only the first layer, then only the last layer runs. If the task survives both, and every single skip, it
   needs no layer in particular.
3. Breaking sets: single layers that break the task come from the sweep, the worst first. In the layers outside of them,
   from the largest set whose removal breaks the task, delta debugging (`minimising`) finds a 1-minimal one, and so on, for up
   to half of the budget.
4. Sufficient set: delta debugging over all layers, for a 1-minimal set that is enough alone.
5. Each becomes a hypothesis with a prediction. When all are registered, each is tested on examples that were not used to
   find it, with other layers as controls: those alike in size for what a sweep found odd, random sets of the same size for
   the others. The lab then decides, about all of them together.

A task works if at least `WORKS` of the solved examples are kept, and is broken if at most `BROKEN` are. While searching,
a set inside a broken one is taken to be broken and one around a working set to work; sets that are reported were all
measured, and so was every set with one layer less. What the budget cuts short is reported as not minimal.

Costs the budget: (1 + controls) experiments for each set reported, the rest for the search.
"""

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from sonde.lab import desk, inquiries, planning, rules
from sonde.lab.planners import minimising

WORKS, BROKEN = 0.8, 0.2
#: The bound that the held-out interval must clear.
BOUND = 0.5
#: Experiments that a hypothesis costs: its test and its controls.
TEST = 1 + rules.CONTROLS
STOPPED = "The budget ended the search before everything was tried."
Layers = tuple[int, ...]
Goal = Literal["odd", "breaking", "sufficient"]
Steps = Generator[planning.Call, desk.Reply, None]


class BudgetSpentError(Exception):
    """There is no further experiment for the search: the budget is spent, or somebody said no."""


@dataclass(frozen=True, slots=True)
class SearchPlanner:
    """The planner; see the module."""

    name: str = "search"
    replays: bool = True

    def steps(self, inquiry: inquiries.Inquiry) -> planning.Steps:
        """The calls of an inquiry."""
        settings = inquiry.settings
        everything = tuple(range(settings.n_layers))
        free = tuple(settings.more.get("layers") or everything)
        search = _Search(free, everything, settings.limits.experiments, settings.task)
        return (yield from search.whole())


@dataclass(slots=True)
class _Search:
    """What is known so far: which of the free layers ran, and what was kept. The other layers always run."""

    all: Layers
    everything: Layers
    budget: int
    task: str
    spent: int = 0
    reserve: int = 0
    known: dict[Layers, float] = field(default_factory=dict)
    runs: dict[Layers, str] = field(default_factory=dict)
    found: list[tuple[Goal, Layers, bool]] = field(default_factory=list)
    bounds: dict[Layers, float] = field(default_factory=dict)
    stopped: str = ""
    refused: str = ""

    def without(self, layers: Iterable[int]) -> Layers:
        left = set(layers)
        return tuple(layer for layer in self.all if layer not in left)

    def whole(self) -> planning.Steps:
        """The plan of the module's docstring."""
        if len(self.all) < 2:
            return "There is only one layer to leave out: nothing to search."
        ends = (self.all[:1], self.all[-1:])
        try:
            singles = yield from self.swept()
            for end in ends:
                yield from self.measure(end)
        except BudgetSpentError:
            if self.found:
                yield from self.confirm()
            return self.refused or "The budget was spent before the search began."
        if not singles and all(self.known[end] > BROKEN for end in ends):
            yield from self.note(
                f"With only layer {ends[0][0]} and with only layer {ends[1][0]} the task is not broken: no layer is "
                "needed in particular, so there is nothing to minimise.",
                ends,
            )
            if self.found:
                yield from self.confirm()
                return "No layer is needed in particular."
            return "Nothing matters: the task survives on either end of the model alone. Nothing is concluded."
        start = self.without(next((end for end in ends if self.known[end] <= BROKEN), ()))
        try:
            yield from self.breaking(start, singles)
        except BudgetSpentError:
            self.stopped = self.refused or STOPPED
        yield from self.sufficient()
        yield from self.confirm()
        return self.stopped or "The search is complete."

    def swept(self) -> Generator[planning.Call, desk.Reply, Layers]:
        """Skips every layer by itself; keeps what stands out, and returns the layers that break the task, the worst first."""
        if not self.budget:
            raise BudgetSpentError
        some = {} if self.all == self.everything else {"layers": list(self.all)}
        reply = yield planning.Call("sweep", {"over": "layers", **some})
        if reply.outcome != "ok":
            self.refused = f"The search ended where a sweep was refused: {reply.result.get('error')}."
            raise BudgetSpentError
        self.spent += 1
        harm = dict[int, tuple[float, float]]()
        odd = {
            one["corruption"]: math.sqrt(one["bound"] * (one["loss_delta"] or one["bound"]))
            for one in reply.result["odd"]
        }
        for layer, row in zip(self.all, reply.result["rows"], strict=True):
            ran, kept = self.without((layer,)), float(row["kept"] or 0.0)
            self.known[ran], self.runs[ran] = kept, row["run"]
            harm[layer] = (kept, -float("inf") if row["loss_delta"] is None else -float(row["loss_delta"]))
            if row["corruption"] in odd:
                self.found.append(("odd", (layer,), True))
                self.bounds[layer,] = odd[row["corruption"]]
        singles = tuple(layer for layer in sorted(harm, key=lambda one: harm[one]) if harm[layer][0] <= BROKEN)
        told = f"{_names(singles)} break{'s' if len(singles) == 1 else ''}" if singles else "no layer breaks"
        stands = [layers for goal, layers, _ in self.found if goal == "odd"]
        odd = _names(tuple(layer for layers in stands for layer in layers)) if stands else "no layer"
        text = f"Skipped alone, {told} {self.task!r} on the exploring examples, the worst first; {odd} stands out from its size."
        yield planning.Call("note", {"text": text, "cites": [reply.result["sweep"]]})
        return singles

    def breaking(self, start: Layers, singles: Layers) -> Steps:
        """Finds disjoint 1-minimal sets whose removal breaks the task."""
        for layer in singles:
            if self.spent + TEST * (len(self.found) + 1) > max(self.budget / 2, self.spent + TEST):
                self.stopped = STOPPED
                break
            self.found.append(("breaking", (layer,), True))
        left = tuple(layer for layer in start if layer not in singles)
        while left and self.spent + TEST * len(self.found) < self.budget / 2:
            self.reserve = TEST * (len(self.found) + 2)  # for this one, and for the sufficient set
            if not (yield from self.fulfils("breaking", left)):
                return
            layers, minimal = yield from self.minimised("breaking", left)
            self.found.append(("breaking", layers, minimal))
            if not minimal:
                return
            done = {layer for goal, found, _ in self.found if goal == "breaking" for layer in found}
            left = self.without(done | set(singles))

    def sufficient(self) -> Steps:
        """Finds a 1-minimal set that is enough alone."""
        self.reserve = TEST * (len(self.found) + 1)
        layers, minimal = yield from self.minimised("sufficient", self.all)
        if layers != self.all:
            self.found.append(("sufficient", layers, minimal))
            return
        reason = "each was tried" if minimal else "as far as the budget went"
        yield from self.note(f"No layer could be left out with the task still working ({reason}).", ())

    def minimised(self, goal: Goal, start: Layers) -> Generator[planning.Call, desk.Reply, tuple[Layers, bool]]:
        """The smallest set found that does it, and whether every smaller neighbour was measured not to."""
        now = start
        try:
            for guess in (True, False):
                search = minimising.ddmin(now)
                try:
                    candidate = next(search)
                    while True:
                        candidate = search.send((yield from self.fulfils(goal, candidate, guess=guess)))
                except StopIteration as end:
                    smallest = end.value
                if not (yield from self.fulfils(goal, smallest)):
                    continue  # a guess was wrong
                now, better = smallest, False
                for one in minimising.smaller(now):
                    better = better or (yield from self.fulfils(goal, one))
                if not better:
                    return now, True
            return self.best(goal, start), False
        except BudgetSpentError:
            self.stopped = self.refused or STOPPED
            return self.best(goal, start), False

    def best(self, goal: Goal, start: Layers) -> Layers:
        """The smallest set that was measured to do it, inside of where the search began."""
        sets = [self.without(ran) if goal == "breaking" else ran for ran, kept in self.known.items()
                if (kept <= BROKEN if goal == "breaking" else kept >= WORKS)]  # fmt: skip
        inside = [one for one in sets if set(one) <= set(start)]
        return min(inside, key=lambda one: (len(one), one), default=start)

    def fulfils(self, goal: Goal, layers: Layers, *, guess: bool = False) -> Generator[planning.Call, desk.Reply, bool]:
        """Whether a set does it: measured, or with `guess` inferred from what is known."""
        ran = self.without(layers) if goal == "breaking" else layers
        if ran == self.all:  # the intact model
            return goal == "sufficient"
        if guess and ran not in self.known:
            if any(kept <= BROKEN and set(ran) <= set(other) for other, kept in self.known.items()):
                return goal == "breaking"
            if any(kept >= WORKS and set(ran) >= set(other) for other, kept in self.known.items()):
                return goal == "sufficient"
        kept = yield from self.measure(ran)
        return kept <= BROKEN if goal == "breaking" else kept >= WORKS

    def measure(self, ran: Layers) -> Generator[planning.Call, desk.Reply, float]:
        """What is kept when only these layers run."""
        if ran not in self.known:
            if self.spent + self.reserve >= self.budget:
                raise BudgetSpentError
            reply = yield planning.Call("run_experiment", {"corruption": self.spelled(ran)})
            if reply.outcome != "ok":
                self.refused = f"The search ended where an experiment was refused: {reply.result.get('error')}."
                raise BudgetSpentError
            self.spent += 1
            self.known[ran], self.runs[ran] = float(reply.result.get("kept") or 0.0), reply.result["run"]
        return self.known[ran]

    def confirm(self) -> Steps:
        """States all hypotheses and predicts before any held-out example is seen; then tests them, and asks for the verdicts."""
        stated, tested = [], []
        for goal, layers, minimal in self.found:
            statement, claim = self.worded(goal, layers, minimal=minimal)
            made = yield planning.Call("propose_hypothesis", {"statement": statement})
            ran = layers if goal == "sufficient" else self.without(layers)
            asked = {"hypothesis": made.result.get("hypothesis", ""), "corruption": self.spelled(ran)}
            asked |= self.expected(goal, layers)
            guess = yield planning.Call("register_prediction", asked)
            if guess.outcome == "ok":
                stated.append((made.result["hypothesis"], guess.result["prediction"], claim))
        for hypothesis, prediction, claim in stated:
            if self.spent + TEST > self.budget:
                yield from self.note(f"No budget is left to test {hypothesis}: it stays open.", ())
                continue
            for control in (False, *([True] * rules.CONTROLS)):
                test = {"prediction": prediction} | ({"control": True} if control else {})
                reply = yield planning.Call("run_experiment", test)
                self.spent += reply.outcome == "ok"
            tested.append((hypothesis, claim))
        for hypothesis, claim in tested:  # all at once: what is supported must survive a correction over all of them
            reply = yield planning.Call("conclude", {"hypothesis": hypothesis, "claim": claim})
            if reply.outcome != "ok":
                yield from self.note(str(reply.result["error"]), ())

    def expected(self, goal: Goal, layers: Layers) -> dict[str, Any]:
        """What is predicted about a set."""
        if goal == "odd":
            value = round(self.bounds[layers], 3)
            return {"measure": "loss_delta", "relation": "above", "value": value, "controls": "alike"}
        return {"measure": "kept", "relation": "below" if goal == "breaking" else "above", "value": BOUND}

    def note(self, text: str, about: Iterable[Layers]) -> Steps:
        """Writes a note that cites runs."""
        yield planning.Call("note", {"text": text, "cites": [self.runs[one] for one in about if one in self.runs]})

    def worded(self, goal: Goal, layers: Layers, *, minimal: bool) -> tuple[str, str]:
        """Hypothesis and claim about a set."""
        names = _names(layers)
        if goal == "odd":
            claim = f"{names[0].upper()}{names[1:]} matters more to {self.task!r} than its norm and block influence explain."
            return claim, claim
        if goal == "breaking":
            statement = f"Without {names} the model cannot do {self.task!r}."
            claim = f"Skipping {names} breaks {self.task!r}."
        else:
            statement = f"The model can do {self.task!r} with {names} alone."
            claim = f"{names[0].upper()}{names[1:]} {'is' if len(layers) == 1 else 'are'} enough for {self.task!r}, all other layers skipped."
        if not minimal:
            return statement, f"{claim} The budget ended before the set was shown to be minimal."
        tried = (
            "no smaller set can be run"
            if len(layers) == 1 and goal == "sufficient"
            else "leaving out any one of them does not do it"
        )
        return statement, claim if len(layers) == 1 and goal == "breaking" else f"{claim} It is 1-minimal: {tried}."

    def spelled(self, ran: Layers) -> str:
        """The shorter spelling of which layers run."""
        left = self.without(ran)
        ran = tuple(layer for layer in self.everything if layer not in left)
        return f"keep:{_commas(ran)}" if len(ran) <= len(left) else f"skip:{_commas(left)}"


def _commas(layers: Layers) -> str:
    return ",".join(map(str, layers))


def _names(layers: Layers) -> str:
    shown = [str(layer) for layer in layers]
    return f"layer {shown[0]}" if len(shown) == 1 else f"layers {', '.join(shown[:-1])} and {shown[-1]}"
