"""The Results page of an inquiry: findings, their evidence, what was refuted, and figures.

    results.report(inquiry)

The page says nothing that is not in the log: every claim stands with the runs it rests on, and what failed stands beside
what held. Costs a second or so.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde.lab import correcting, inquiries, log, rules, verdicts
from sonde.report import charts, page, wording
from sonde.store import documents

MOST_ROWS = 60
SHOWN_ANSWERS = 8
_PACKAGES = ("sonde", "torch", "transformers")


def report(inquiry: inquiries.Inquiry) -> page.Report:
    """The page as data."""
    settings = inquiry.settings
    sections = [
        page.Section(
            "Findings",
            "What the lab decided. A prediction was registered before the run that tested it; that run used examples that "
            "were not explored with; its controls do the same to random other layers. A prediction holds if its whole "
            "interval is on the predicted side; a finding also survives Holm's correction over all hypotheses that this "
            "inquiry tested, at 5 %.",
            charts=tests_chart(inquiry),
            tables=(findings_table(inquiry, "supported"),),
        ),
        page.Section(
            "Refuted and open hypotheses", "", tables=(findings_table(inquiry, "refuted"), open_table(inquiry))
        ),
        page.Section(
            "What was tried",
            "Every exploring run: which layers were left out, and what share of the solved examples was kept.",
            charts=tried_chart(inquiry),
            tables=(runs_table(inquiry),),
        ),
    ]
    surveyed = inquiry.entries("sweep")
    if surveyed:
        sections.insert(
            2,
            page.Section(
                "Sweeps",
                "Many measurements on the exploring examples, each sweep one experiment. They suggest; they show nothing.",
                charts=tuple(chart for one in surveyed for chart in sweep_chart(one)),
                tables=tuple(sweep_table(one) for one in surveyed),
            ),
        )
    said = answers_table(inquiry)
    if said.rows:
        sections.append(
            page.Section(
                "What the corrupted model says", "Held-out examples under each tested corruption.", tables=(said,)
            )
        )
    notes = tuple((one.id, one["text"], ", ".join(one["cites"])) for one in inquiry.entries("note"))
    if notes:
        sections.append(page.Section("Notes", "", tables=(page.Table(("note", "text", "cites"), notes, folded=False),)))
    shown = settings.to_json() | {"inquiry": inquiry.id, "log": str(inquiry.book.path.name)}
    return page.Report(
        title=f"Lab: which layers of {settings.model} does {settings.task!r} need?",
        summary=tuple(summary(inquiry)),
        sections=tuple(sections),
        settings=shown,
        versions={name: documents.package_version(name) or "?" for name in _PACKAGES},
    )


def summary(inquiry: inquiries.Inquiry) -> list[str]:
    """What was found, in words, also when it is nothing."""
    settings, end, findings = inquiry.settings, inquiry.ended(), inquiry.findings()
    told = [f"{one['claim']} ({one['why']}.)" for one in findings if one["status"] == "supported"]
    if not told:
        told.append("Nothing is concluded: no hypothesis passed the test on held-out examples with its controls.")
    refuted = sum(one["status"] == "refuted" for one in findings)
    states = inquiry.states()
    still = list(states.values()).count("open")
    tested = len(correcting.over(inquiry))
    counted = f"{_counted(len(states), 'hypothesis', 'hypotheses')} proposed"
    counted += f", {tested} tested, {refuted} refuted, {still} still open" if states else ""
    corrected = f" What is supported survives Holm's correction over the {tested} tested." if tested else ""
    told.append(f"{counted}.{corrected}")
    whole = [one for one in inquiry.entries("run") if one["split"] == "all"]
    if whole:
        told.append(
            f"The intact model solves {whole[0]['accuracy']:.0%} of the task's {whole[0]['n']} examples ({whole[0].id})."
        )
    told.append(f"{inquiry.spent().of(settings.limits)}. {end['why'] if end else 'The inquiry has not ended.'}")
    return told


def findings_table(inquiry: inquiries.Inquiry, status: str) -> page.Table:
    """Findings of one status with their evidence."""
    rows = tuple(
        (one.id, one["claim"], one["why"], one["p_corrected"], ", ".join([one["hypothesis"], *one["evidence"]]))
        for one in inquiry.findings()
        if one["status"] == status
    )
    name = {"supported": "finding", "refuted": "refuted"}[status]
    caption = "p: two-sided, corrected by Holm's method over all hypotheses tested." if rows else f"None was {status}."
    return page.Table((name, "claim", "why", "p", "hypothesis and evidence"), rows, caption, folded=False)


def open_table(inquiry: inquiries.Inquiry) -> page.Table:
    """Hypotheses that nothing was concluded about, or no longer, and why."""
    states, why = inquiry.states(), {one["hypothesis"]: one["why"] for one in inquiry.findings()}
    for one in inquiry.entries("call"):
        if one["tool"] == "conclude" and one["outcome"] == "refused":
            why.setdefault(one["arguments"]["hypothesis"], one["result"]["error"])
    still = [one for one in inquiry.entries("hypothesis") if states[one.id] == "open"]
    rows = tuple((one.id, one["statement"], why.get(one.id, "nobody asked for the verdict")) for one in still)
    return page.Table(("open", "statement", "why"), rows, "" if rows else "None is open.", folded=False)


def runs_table(inquiry: inquiries.Inquiry) -> page.Table:
    """All runs."""
    rows = tuple(
        (one.id, one["corruption"], one["split"], _role(one), _cell(one, "kept"), _cell(one, "loss_delta"), one["n"])
        for one in inquiry.entries("run")
    )
    caption = "kept: share of the examples solved intact that are still solved; change of loss in nats per answer token. 95 % intervals over examples."
    return page.Table(("run", "corruption", "examples", "for", "kept", "change of loss", "n"), rows, caption)


def sweep_table(entry: log.Entry) -> page.Table:
    """The rows of a sweep, with an interval wherever a number has one."""
    ends = [name for row in entry["rows"][:1] for name in row if name.endswith(("low", "high"))]
    names = [name for row in entry["rows"][:1] for name in row if name not in ends]
    bounds = {"success": "", "auroc": "", "kept": "kept_", "loss_delta": "loss_delta_", "recovery": "recovery_"}

    def cell(row: dict[str, Any], name: str) -> wording.Cell:
        value, before = row.get(name), bounds.get(name)
        low = row.get(f"{before}low") if before is not None else None
        return value if value is None or low is None else wording.Interval(value, low, row[f"{before}high"])

    rows = tuple(tuple(cell(row, name) for name in names) for row in entry["rows"])
    asked = ", ".join(f"{name} {value}" for name, value in entry["arguments"].items())
    return page.Table(tuple(names), rows, f"{entry.id}: {entry['tool']}{asked and ', '}{asked}. 95 % intervals.")


def sweep_chart(entry: log.Entry) -> tuple[charts.Bars, ...]:
    """The harm of skipping each layer, beside what its size explains; nothing for other sweeps."""
    rows = [row for row in entry["rows"] if "bound" in row]
    if not rows:
        return ()
    harm = [[row[f"loss_delta{end}"] for row in rows] for end in ("", "_low", "_high")]
    explained = [[row[name] for row in rows] for name in ("expected", "expected", "bound")]
    series = (_series("skipped, 95 % interval", harm), _series("explained by its size, and at most", explained))
    chart = charts.Bars(
        key=f"sweep-{entry.id}",
        title="What skipping each layer costs, and what its norm and block influence explain",
        labels=tuple(str(row["layer"]) for row in rows),
        series=series,
        value_name="change of the answer's loss (nats per token)",
        label_name="layer",
        caption=f"{rows[0]['n']} exploring examples. The upper end of what is explained: 95 of 100 layers of that size.",
        points=True,
    )
    return (chart,)


def answers_table(inquiry: inquiries.Inquiry) -> page.Table:
    """What was said to held-out prompts, intact and corrupted."""
    rows = []
    for run in inquiry.entries("run"):
        if run["split"] == "held_out" and run["control"] is None:
            for row in inquiry.book.examples(run.id)[:SHOWN_ANSWERS]:
                prompt = "…" + row["prompt"].splitlines()[-1][-60:]
                said = (row["answer"], row["intact_completion"], row["completion"])
                rows.append((run["corruption"], prompt, *(wording.one_line(repr(text)[1:-1]) for text in said)))
    columns = ("corruption", "prompt", "answer", "intact", "corrupted")
    return page.Table(columns, tuple(rows), f"The first {SHOWN_ANSWERS} examples of each test.", folded=False)


def tests_chart(inquiry: inquiries.Inquiry) -> tuple[charts.Bars, ...]:
    """Each tested prediction beside its controls."""
    tests = []
    for one in inquiry.entries("prediction"):
        runs = [run for run in inquiry.entries("run") if run["prediction"] == one.id]
        real = [run for run in runs if run["control"] is None]
        if real and one["measure"] == "kept" and real[0]["kept"] is not None:
            tests.append((one, real[0], [run["kept"] for run in runs if run["control"] is not None]))
    if not tests:
        return ()
    values = [[run[f"kept{end}"] for _, run, _ in tests] for end in ("", "_low", "_high")]
    beside = [[_or_nan(way(kept) if kept else None) for _, _, kept in tests] for way in (np.mean, min, max)]
    series = (_series("test, 95 % interval", values), _series("controls, mean and range", beside))
    bounds = sorted({float(one["value"]) for one, _, _ in tests})
    chart = charts.Bars(
        key="tests",
        title="Predictions on held-out examples, and their controls",
        labels=tuple(
            f"{wording.one_line(one['corruption'], 28)} ({one['relation']} {one['value']:g})" for one, _, _ in tests
        ),
        series=series,
        value_name="share of solved examples still solved",
        label_name="prediction",
        caption=f"{tests[0][1]['n']} held-out examples; {rules.CONTROLS} random controls of the same size each.",
        references=tuple(charts.Reference("bound", bound) for bound in bounds),
        points=True,
    )
    return (chart,)


def tried_chart(inquiry: inquiries.Inquiry) -> tuple[charts.Heatmap, ...]:
    """Which layers each exploring run left out, coloured by what was kept."""
    runs = [
        one
        for one in inquiry.entries("run")
        if one["split"] == "explore" and verdicts.skipped(one, inquiry.settings.n_layers)
    ]
    runs = runs[:MOST_ROWS]
    if not runs:
        return ()
    cells = np.full((len(runs), inquiry.settings.n_layers), np.nan)
    for row, one in enumerate(runs):
        cells[row, verdicts.skipped(one, inquiry.settings.n_layers)] = _or_nan(one["kept"])
    chart = charts.Heatmap(
        key="tried",
        title="Layers left out in each exploring run",
        cells=cells,
        rows=tuple(f"{one.id} {wording.one_line(one['corruption'], 18)}" for one in runs),
        columns=tuple(str(layer) for layer in range(inquiry.settings.n_layers)),
        x_name="layer",
        y_name="run",
        value_name="share kept",
        caption=f"Coloured: the layer was left out, and this share was kept ({runs[0]['n']} examples). A layer that ran has none.",
        limits=(0.0, 1.0),
    )
    return (chart,)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one} was" if count == 1 else f"{count} {many} were"


def _series(name: str, rows: Sequence[Sequence[float | None]]) -> charts.Series:
    value, low, high = (np.array([_or_nan(one) for one in row], dtype=float) for row in rows)
    return charts.Series(name, value, low, high)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _cell(one: log.Entry, name: str) -> wording.Cell:
    value, low, high = one[name], one[f"{name}_low"], one[f"{name}_high"]
    return value if value is None or low is None else wording.Interval(value, low, high)


def _role(one: log.Entry) -> str:
    if one["prediction"] is None:
        return ""
    return f"control of {one['prediction']}" if one["control"] is not None else f"test of {one['prediction']}"
