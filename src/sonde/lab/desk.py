"""What happens when a tool is called? Checked, done, and written down, whoever calls.

    at = desk.Desk(experiments, inquiry)
    reply = at.call("run_experiment", {"corruption": "skip:3"})
    reply.outcome, reply.result

1. Arguments are checked (`schemas`); a call that makes no sense comes back as `invalid` with the reason.
2. The budget and the rules are checked; what they forbid comes back as `refused` with the reason.
3. With approval, an experiment comes back as `pending` until somebody said yes to exactly that call, then it is done.
4. What was made is in the log, then the call with its reply. Asking again for what this inquiry has made already gives
   what is there and costs nothing, so a run that was killed in between is taken up without doing anything twice.
5. After a test, what is supported already is held against Holm's correction again (`correcting`), and withdrawn if it
   does not survive.

Held-out examples are seen by registered predictions and by their controls, and by nothing else. Costs what the
experiment costs; the other tools cost a query.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sonde.analysis import stats
from sonde.core import errors
from sonde.lab import budget, correcting, experiments, inquiries, log, log_query, rules, schemas, surveys, tools

Outcome = Literal["ok", "refused", "invalid", "pending"]
SHOWN_ROWS = 40
_ROW = ("corruption", "what", "role", "run", "kept", "loss_delta", "success", "recovery", "auroc", "control", "bound")
#: Numbers of a run that a planner is shown.
SHOWN = (
    "kept",
    "kept_low",
    "kept_high",
    "accuracy",
    "intact_accuracy",
    "loss_delta",
    "loss_delta_low",
    "loss_delta_high",
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a call.

    Attributes:
        outcome: `ok`, `refused` by budget or rules, `invalid`, or `pending`: waiting for a yes.
        result: What to tell the planner.
        made: Ids of new entries.
    """

    outcome: Outcome
    result: dict[str, Any]
    made: tuple[str, ...] = ()

    def text(self) -> str:
        """The reply as JSON for a language model."""
        return json.dumps({"outcome": self.outcome, **self.result}, ensure_ascii=False)


class Desk:
    """Where the tools are used, for one inquiry."""

    def __init__(self, bench: experiments.Experiments, inquiry: inquiries.Inquiry) -> None:
        """Takes what measures, and the inquiry it is for.

        Raises:
            RequestError: The inquiry is about another model; says what differs.
        """
        bench.check(inquiry.settings.held, what=inquiry.id)
        self.bench, self.inquiry = bench, inquiry
        self._controls: dict[str, list[Any]] = {}
        self._do: dict[str, Callable[[Any], Reply]] = {
            "run_experiment": self._run,
            **{name: functools.partial(self._survey, name) for name in surveys.SURVEYS},
            "compare": self._compare,
            "aggregate": self._aggregate,
            "note": self._note,
            "propose_hypothesis": self._propose,
            "register_prediction": self._register,
            "conclude": self._conclude,
        }

    def call(self, tool: str, arguments: Any) -> Reply:
        """Does what a call asks for, and writes the call down.

        Args:
            tool: Name of the tool.
            arguments: Its arguments, as a mapping or as JSON text.
        """
        given: Any = {}
        try:
            asked = schemas.read(tools.get(tool).arguments, arguments)
            given = schemas.write(asked)
            limits, used = self.inquiry.settings.limits, self.inquiry.spent()
            if used.calls >= limits.calls:
                budget.check(limits, used)
            reply = self._withdrawn(self._do[tool](asked))
        except (errors.BudgetError, errors.AnalysisError) as error:
            reply = Reply("refused", {"error": str(error)})
        except (errors.RequestError, errors.InterventionError, errors.SelectorError, errors.SiteError) as error:
            reply = Reply("invalid", {"error": str(error)})
            given = given or {"text": str(arguments)[:500]}
        if reply.outcome != "pending":
            body = {"tool": tool[:80], "arguments": given, "outcome": reply.outcome, "result": reply.result}
            self.inquiry.append("call", body | {"made": list(reply.made)})
        return reply

    def _run(self, asked: tools.RunExperiment) -> Reply:
        split: Literal["explore", "held_out"] = "explore"
        number: int | None = None
        if asked.prediction is not None:
            split, spec = "held_out", self.inquiry.cited(asked.prediction, "prediction")["corruption"]
            if asked.corruption is not None and self.bench.parse(asked.corruption).spec != spec:
                raise errors.RequestError(
                    f"{asked.prediction} is about {spec}, not {asked.corruption}: leave `corruption` out"
                )
        elif asked.corruption is None or asked.control:
            raise errors.RequestError(
                "say what to measure: a corruption, or a prediction (with control=true for its control)"
            )
        else:
            spec = self.bench.parse(asked.corruption).spec
        if asked.prediction is not None and asked.control:
            number, spec = self._next_control(asked.prediction)
        key = {"corruption": spec, "split": split, "prediction": asked.prediction, "control": number}
        known = [one for one in self.inquiry.entries("run") if all(one[name] == value for name, value in key.items())]
        if known:
            return _shown(known[0], again=True)
        budget.check(self.inquiry.settings.limits, self.inquiry.spent())
        waiting = self._approval(schemas.write(asked), spec, split)
        return waiting or self._measured(spec, split, key)

    def _survey(self, tool: str, asked: Any) -> Reply:
        """Many measurements as one experiment; what was measured before is shown again."""
        arguments = schemas.write(asked)
        known = [one for one in self.inquiry.entries("sweep") if (one["tool"], one["arguments"]) == (tool, arguments)]
        if known:
            return Reply("ok", _surveyed(known[0]) | {"measured_before": True}, (known[0].id,))
        budget.check(self.inquiry.settings.limits, self.inquiry.spent())
        waiting = self._approval({"tool": tool, **arguments}, tool, "explore")
        if waiting:
            return waiting
        body = surveys.SURVEYS[tool](self.bench, self.inquiry, asked)
        made = self.inquiry.append("sweep", {"tool": tool, "arguments": arguments} | body)
        return Reply("ok", _surveyed(made), (made.id,))

    def _withdrawn(self, reply: Reply) -> Reply:
        """The reply, and which hypotheses are no longer supported after it."""
        if not any(log.LETTERS["run"] == one[:1] or log.LETTERS["finding"] == one[:1] for one in reply.made):
            return reply
        made = correcting.withdraw(self.inquiry)
        result = reply.result | ({"open_again": [one["hypothesis"] for one in made]} if made else {})
        return Reply(reply.outcome, result, (*reply.made, *(one.id for one in made)))

    def _measured(self, spec: str, split: str, key: dict[str, Any]) -> Reply:
        settings = self.inquiry.settings
        found = self.bench.measure(
            self.bench.parse(spec), settings.held_out if split == "held_out" else settings.explore
        )
        cites = (key["prediction"],) if key["prediction"] else ()
        return _shown(self.inquiry.append("run", found.body | key, cites=cites, examples=found.examples))

    def _next_control(self, prediction: str) -> tuple[int, str]:
        """Number and spelling of the next control that was not measured yet; of the last one if all were."""
        drawn = self._drawn(prediction)
        if not drawn:
            raise errors.RequestError(f"{prediction}: this corruption has no random control; use one that names layers")
        done = {one["control"] for one in self.inquiry.entries("run") if one["prediction"] == prediction}
        left = [number for number in range(len(drawn)) if number not in done] or [len(drawn) - 1]
        return left[0], drawn[left[0]].spec

    def _drawn(self, prediction: str) -> list[Any]:
        """The controls of a prediction, the same whenever they are asked for."""
        if prediction not in self._controls:
            entry, settings = self.inquiry.cited(prediction, "prediction"), self.inquiry.settings
            corruption = self.bench.parse(entry["corruption"])
            self._controls[prediction] = (
                self.bench.alike(corruption, settings.explore, count=rules.CONTROLS)
                if entry["controls"] == "alike"
                else self.bench.controls(corruption, settings.held_out, seed=settings.seed, count=rules.CONTROLS)
            )
        return self._controls[prediction]

    def _approval(self, arguments: dict[str, Any], spec: str, split: str) -> Reply | None:
        """None if it may be done; otherwise what to wait for."""
        if not self.inquiry.settings.approve:
            return None
        requests = [one for one in self.inquiry.entries("request", own=True) if one["arguments"] == arguments]
        open_ones = [one for one in requests if answer_to(self.inquiry, one.id) is None]
        answers = [answer_to(self.inquiry, one.id) for one in requests]
        if not open_ones and answers and answers[-1] is False:
            raise errors.AnalysisError(f"{spec} was not approved ({requests[-1].id}); try something else")
        if not open_ones and answers and answers[-1]:
            return None
        if not open_ones:
            body = {"arguments": arguments, "corruption": spec, "split": split}
            open_ones = [self.inquiry.append("request", body)]
        todo = f"waiting for a yes: sonde lab approve {open_ones[0].id}; then make the same call again"
        return Reply("pending", {"request": open_ones[0].id, "corruption": spec, "split": split, "todo": todo})

    def _compare(self, asked: tools.Compare) -> Reply:
        runs = [self.inquiry.cited(one, "run") for one in (asked.first, asked.second)]
        rows = [{row["example"]: row for row in self.inquiry.book.examples(one.id)} for one in runs]
        shared = sorted(rows[0].keys() & rows[1].keys())
        name = {"kept": "correct", "loss_delta": "loss"}[asked.measure]
        if asked.measure == "kept":
            shared = [index for index in shared if rows[0][index]["intact_correct"]]
        shared = [index for index in shared if all(side[index][name] is not None for side in rows)]
        if len(shared) < 2:
            raise errors.RequestError(
                f"{asked.first} and {asked.second} share {len(shared)} examples; compare needs two"
            )
        first, second = (np.array([float(side[index][name]) for index in shared]) for side in rows)
        found = stats.paired(first, second, np.array(shared))
        ends = {"difference": found.effect.value, "low": found.effect.low, "high": found.effect.high, "p": found.p}
        numbers = {name: round(value, 4) for name, value in ends.items()}
        about = f"{asked.measure} of {runs[0]['corruption']} minus {runs[1]['corruption']}"
        return Reply("ok", {"about": about, **numbers, "examples": len(shared)})

    def _aggregate(self, asked: tools.Aggregate) -> Reply:
        here = [] if asked.everywhere else [f"inquiry={self.inquiry.id}"]
        book, where = self.inquiry.book, [*asked.where, *here]
        if asked.by:
            rows = log_query.group(book, asked.kind, by=asked.by, of=asked.of, where=where)
        else:
            rows = log_query.select(book, asked.kind, where=where, fields=("id", *asked.of), limit=SHOWN_ROWS + 1)
        more = {"left_out": len(rows) - SHOWN_ROWS if asked.by else "more"} if len(rows) > SHOWN_ROWS else {}
        return Reply("ok", {"rows": rows[:SHOWN_ROWS], **more})

    def _note(self, asked: tools.Note) -> Reply:
        made = self.inquiry.append("note", {"text": asked.text, "cites": list(asked.cites)}, cites=asked.cites)
        return Reply("ok", {"note": made.id}, (made.id,))

    def _propose(self, asked: tools.ProposeHypothesis) -> Reply:
        if asked.rival_of is not None:
            self.inquiry.cited(asked.rival_of, "hypothesis")
        body = {"statement": asked.statement, "rival_of": asked.rival_of}
        return self._once("hypothesis", body, cites=(asked.rival_of,) if asked.rival_of else ())

    def _register(self, asked: tools.RegisterPrediction) -> Reply:
        spec = self.bench.parse(asked.corruption).spec
        self.inquiry.cited(asked.hypothesis, "hypothesis")
        if self.inquiry.status(asked.hypothesis) != "open":
            raise errors.AnalysisError(f"{asked.hypothesis} is concluded already; propose a new hypothesis")
        if asked.controls == "alike":
            self.bench.alike(self.bench.parse(spec), self.inquiry.settings.explore, count=1)
        body = {name: getattr(asked, name) for name in ("hypothesis", "measure", "relation", "value", "controls")}
        body |= {"corruption": spec, "task": self.inquiry.settings.task}

        def unseen() -> None:
            for one in self.inquiry.entries("run"):
                if one["corruption"] == spec and one["split"] == "held_out":
                    raise errors.AnalysisError(
                        f"{spec} was measured on the held-out examples already ({one.id}): a prediction comes before its run"
                    )

        return self._once("prediction", body, cites=(asked.hypothesis,), check=unseen)

    def _conclude(self, asked: tools.Conclude) -> Reply:
        self.inquiry.cited(asked.hypothesis, "hypothesis")
        if self.inquiry.status(asked.hypothesis) != "open":
            raise errors.AnalysisError(
                f"{asked.hypothesis} is concluded already: {self.inquiry.status(asked.hypothesis)}"
            )
        predictions = [one for one in self.inquiry.entries("prediction") if one["hypothesis"] == asked.hypothesis]
        needed = {one.id: len(self._drawn(one.id)) for one in predictions}
        decided = rules.decide(self.inquiry, asked.hypothesis, needed=needed)
        body = {
            "hypothesis": asked.hypothesis,
            "claim": asked.claim,
            "status": decided.status,
            "why": decided.why,
            "evidence": decided.evidence,
            "tests": [one.to_json() for one in decided.tests],
            **decided.chance.to_json(),
        }
        made = self.inquiry.append("finding", body, cites=(asked.hypothesis, *decided.evidence))
        return Reply("ok", {"finding": made.id, "status": decided.status, "why": decided.why}, (made.id,))

    def _once(self, kind: str, body: dict[str, Any], **more: Any) -> Reply:
        """Writes an entry, unless this inquiry has the same one already."""
        same = [one for one in self.inquiry.entries(kind) if all(one[name] == value for name, value in body.items())]
        made = same[0] if same else self.inquiry.append(kind, body, **more)
        return Reply("ok", {kind: made.id}, (made.id,))


def answer_to(inquiry: inquiries.Inquiry, request: str) -> bool | None:
    """What was said about a request: yes, no, or nothing yet."""
    said = [bool(one["yes"]) for one in inquiry.entries("answer", own=True) if one["request"] == request]
    return said[0] if said else None


def answer(book: log.Log, request: str, *, yes: bool) -> log.Entry:
    """Says yes or no to a request; from any process.

    Raises:
        SelectorError: There is no such request.
        RequestError: It was answered before.
    """
    log.number(request, "request")
    entry = book.get(request)
    inquiry = inquiries.opened(book, str(entry.inquiry))

    def unanswered() -> None:
        if (said := answer_to(inquiry, request)) is not None:
            raise errors.RequestError(f"{request} was answered already: {'yes' if said else 'no'}")

    return inquiry.append("answer", {"request": request, "yes": yes}, cites=(request,), check=unanswered)


def _surveyed(entry: log.Entry) -> dict[str, Any]:
    """What a planner is shown of a survey: the summary first, for long replies are cut."""
    numbers = [{name: one for name, one in row.items() if name in _ROW} for row in entry["rows"]]
    return {"sweep": entry.id, **entry["summary"], "rows": numbers}


def _shown(run: log.Entry, *, again: bool = False) -> Reply:
    numbers = {name: round(run[name], 4) for name in SHOWN if run[name] is not None}
    result = {"run": run.id, "corruption": run["corruption"], "split": run["split"], "n": run["n"], **numbers}
    return Reply("ok", result | ({"measured_before": True} if again else {}), (run.id,))
