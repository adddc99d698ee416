"""At which depth each behaviour appears: a model cut off after its first n layers, for every n, continues some prompts.

    with sonde.load("smollm2-135m-instruct") as model:
        found = experiments.run(depths.Depth(model), depths.DepthSettings(model=model.cfg.model_name), run="depth")
    found.results["table"]

Four things are looked for in each continuation, the same way for all:

| behaviour              | holds if |
|------------------------|----------|
| `repeats the last token` | its first `ECHO` tokens are all the last token of the prompt |
| `notices the format`   | it has what is due there: a number, a bracket; a pattern of the prompt's own |
| `grammatical`          | the whole model finds it as likely, per token, as the most predictable of the ten bundled texts, and no more than half of its tokens were said before |
| `right`                | the answer, such as 5; JSON that closes |

`first` is the smallest n at which a behaviour holds, `stays` the smallest from which on it always does. Controls: how often the
continuations of the OTHER prompts, at any depth, would pass for the format or the answer; and how often the same tokens in
a drawn order would pass for grammatical. A likelihood is no grammar: it is the nearest that can be measured without a judge.

Every n is an item, kept as it is finished. Costs a short generation and two forward passes for every n.
"""

import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pydantic

from sonde import experiments
from sonde.analysis import fluency
from sonde.core import errors, spans
from sonde.core import settings as core_settings
from sonde.lab import corruptions, measuring, texts
from sonde.models import model as models_model
from sonde.report import charts, page
from sonde.store import schemas

REPEATS, FORMAT, GRAMMATICAL, RIGHT = "repeats the last token", "notices the format", "grammatical", "right"
BEHAVIOURS = (REPEATS, FORMAT, GRAMMATICAL, RIGHT)
ECHO = 3
#: Tokens of the ordinary texts that grammar is held against.
ORDINARY = 64
_RIGHT = r"(?i)^\s*"


class _Said(pydantic.BaseModel):
    """What the first layers make of one prompt."""

    said: schemas.Text
    loss: schemas.Number | None
    holds: dict[str, pydantic.StrictBool | None]
    shuffled_passes: pydantic.StrictBool

    @pydantic.model_validator(mode="after")
    def _all_looked_for(self) -> "_Said":
        if set(self.holds) != set(BEHAVIOURS):
            raise ValueError(f"expected {', '.join(BEHAVIOURS)}")
        return self


class _Depth(pydantic.BaseModel):
    """What the first layers make of all prompts."""

    layers: schemas.Count
    prompts: Annotated[list[_Said], pydantic.Field(min_length=1)]


class _Depths(pydantic.BaseModel):
    depths: Annotated[list[_Depth], pydantic.Field(min_length=1)]


DEPTH = schemas.register("depth of a model", _Depth)
DEPTHS = schemas.register("stage of depths", _Depths)
RESULTS = schemas.register("results of the depths of a model", schemas.Data)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt, and what is looked for after it.

    Attributes:
        name: What to call it.
        text: The prompt.
        due: A pattern of what is due, for `notices the format`; empty: not looked for.
        right: A pattern of right continuations; `json` for whatever closes the prompt; empty: not looked for.
    """

    name: str
    text: str
    due: str = ""
    right: str = ""

    def holds(self, behaviour: str, said: str) -> bool | None:
        """Whether a continuation shows the format or the answer; None if it is not looked for."""
        pattern = self.due if behaviour == FORMAT else self.right
        if pattern == "json":
            return _closes(self.text, said)
        return bool(re.search(pattern, said)) if pattern else None


#: A fact with a number, arithmetic, unfinished JSON, a year.
PROMPTS = (
    Prompt(
        name="distance",
        text="The distance between Rome and Paris is approximately",
        due=r"\d",
        right=r"\b1[,.]?[014]\d\d ?(km|kilomet)|\b(6[5-9]|7[0-2]|8[5-9])\d ?mi",
    ),
    Prompt(name="addition", text="1 + 3 = 4\n4 + 5 = 9\n2 + 3 =", due=r"^\s*\d", right=r"^\s*5\b"),
    Prompt(
        name="JSON",
        text='{"name": "Ada", "langs": ["en", "fr"], "home": {"city": "Oslo"',
        due=r'^\s*(\}|,\s*")',
        right="json",
    ),
    Prompt(name="year", text="Obama was elected in the year", due=r"^\s*[12]\d{3}\b", right=r"^\s*(2008|2012)\b"),
)


def prompt_of(text: str, answer: str = "", *, name: str = "") -> Prompt:
    """A prompt of one's own; what is due after it is what its answer is made of: digits, letters, or its other characters."""
    wanted = answer.strip()
    if any(one.isdigit() for one in wanted):
        due = r"^\s*\d"
    elif any(one.isalpha() for one in wanted):
        due = r"^\s*[^\W\d_]{2}"
    else:
        due = f"^\\s*[{re.escape(wanted)}]" if wanted else ""
    return Prompt(name=name or text[-24:], text=text, due=due, right=f"{_RIGHT}{re.escape(wanted)}" if wanted else "")


class DepthSettings(core_settings.Settings):
    """What is to be done."""

    model: str = core_settings.field(..., "The model's name.")
    prompts: tuple[Prompt, ...] = core_settings.field(PROMPTS, "The prompts.", option="")
    words: int = core_settings.field(16, "Tokens of each continuation.", ge=ECHO)
    seed: int = core_settings.field(0, "Draws the order of the control's tokens.", ge=0)

    @pydantic.field_validator("prompts")
    @classmethod
    def _told_apart(cls, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
        names = [one.name for one in prompts]
        empty = [one.name for one in prompts if not one.text or one.text != one.text.rstrip()]
        if not names or len(set(names)) < len(names) or empty:
            raise ValueError(
                f"prompts need different names and a text that ends in no space, got {names}"
                + (f"; look at {empty[0]!r}" if empty else "")
            )
        return prompts


def _items(context: experiments.Context[Any]) -> list[dict[str, int]]:
    at: Any = context.experiment
    return [{"layers": layers} for layers in range(1, int(at.model.cfg.n_layers) + 1)]


def _work(context: experiments.Context[Any], item: Mapping[str, int]) -> dict[str, Any]:
    at: Any = context.experiment
    with at.model.packed():
        return _measured(at.model, context.settings, item["layers"], at.limit)


def _join(context: experiments.Context[Any], made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    asked = len(context.settings.prompts)
    for one in made:
        if len(one["prompts"]) != asked:
            raise errors.DamagedError(
                f"{context.folder}: depth {one['layers']} is about {len(one['prompts'])} prompts, expected {asked}"
            )
    return {"depths": made}


class Depth(experiments.Experiment[DepthSettings]):
    """The experiment."""

    kind, verb, results_kind = "depth", ("lab", "depth"), RESULTS
    settings_type = DepthSettings
    stages = (experiments.Items("depths", DEPTHS, _items, _work, DEPTH, _join),)
    model: models_model.Model

    @functools.cached_property
    def limit(self) -> float:
        """Nats per token that the whole model gives to the most predictable of some ordinary texts."""
        return _ordinary(self.model)

    def check(self, settings: DepthSettings) -> None:
        """Refuses another model's settings."""
        if settings.model != self.model.cfg.model_name:
            raise errors.RequestError(
                f"the settings are for {settings.model!r}, the model is {self.model.cfg.model_name!r}"
            )

    def headline(self, settings: DepthSettings) -> str:
        """Sizes."""
        return f"{self.model.cfg.n_layers} depths, {len(settings.prompts)} prompts, {settings.words} tokens each"

    def results(self, context: experiments.Context[DepthSettings]) -> dict[str, Any]:
        """All depths, and the table."""
        settings, measured = context.settings, context.found("depths")["depths"]
        told = {"study": self.kind, "settings": settings.to_json(), "n_layers": int(self.model.cfg.n_layers)}
        return told | {"depths": measured, "table": table(settings, measured)}

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Where each prompt is first continued rightly."""
        return {"right from": {row["prompt"]: row["first"] for row in results["table"] if row["behaviour"] == RIGHT}}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """The table, a picture of it, and what was said."""
        return report(results)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """Prompts by behaviours."""
        return report(results).sections[0].tables[:1]

    def command(self, settings: DepthSettings) -> str:
        """The command, with the prompts of one's own."""
        own = [one for one in settings.prompts if one not in PROMPTS]
        words = [super().command(settings), *(() if PROMPTS[0] in settings.prompts else ("--own",))]
        for one in own:
            answer = re.sub(r"\\(.)", r"\1", one.right.removeprefix(_RIGHT))
            words += ["--prompt", shlex.quote(one.text), "--answer", shlex.quote(answer)]
        return " ".join(words)


def table(settings: DepthSettings, depths: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Prompts by behaviours: where each first holds, from where on it stays, and how often chance would pass for it."""
    rows = []
    for at, prompt in enumerate(settings.prompts):
        for behaviour in BEHAVIOURS:
            holds = [one["prompts"][at]["holds"][behaviour] for one in depths]
            if holds[0] is None:
                continue
            first = next((layers for layers, one in enumerate(holds, 1) if one), None)
            stays = next((layers for layers in range(1, len(holds) + 1) if all(holds[layers - 1 :])), None)
            chance = _chance(settings, depths, at, behaviour)
            rows.append({"prompt": prompt.name, "behaviour": behaviour, "first": first, "stays": stays, **chance})
    return rows


def report(results: Mapping[str, Any]) -> page.Report:
    """The table, a picture of it, and what was said."""
    names = [one["name"] for one in results["settings"]["prompts"]]
    cells = {(row["prompt"], row["behaviour"]): row for row in results["table"]}
    shown = page.Table(
        ("prompt", *BEHAVIOURS),
        tuple((name, *(_spelled(cells.get((name, one))) for one in BEHAVIOURS)) for name in names),
        "Only the first n layers run. The smallest n at which the continuation shows it; in brackets the n from which on it always "
        "does; – never; empty: not looked for.",
        folded=False,
    )
    chance = page.Table(
        ("prompt", "behaviour", "first n", "stays from", "passes by chance", "of"),
        tuple(
            (row["prompt"], row["behaviour"], row["first"], row["stays"], row["chance"], row["of"])
            for row in results["table"]
        ),
        "By chance: for format and answer, the continuations of the other prompts at every n; for grammar, the same tokens in a "
        "drawn order.",
    )
    said = page.Table(
        ("n", *names),
        tuple((one["layers"], *(repr(part["said"])[1:-1] for part in one["prompts"])) for one in results["depths"]),
        "Greedy continuations.",
        folded=False,
    )
    section = page.Section("Where behaviours appear", charts=(_picture(results),), tables=(shown, chance))
    return page.Report(
        title=f"What the first n layers of {results['settings']['model']} can do",
        summary=tuple(sentences(results)),
        sections=(section, page.Section("What was said", tables=(said,))),
        settings=results["settings"],
    )


def sentences(results: Mapping[str, Any]) -> list[str]:
    """The table in words."""
    told = []
    for behaviour in BEHAVIOURS:
        rows = [row for row in results["table"] if row["behaviour"] == behaviour]
        parts = [f"{row['prompt']} {'never' if row['first'] is None else row['first']}" for row in rows]
        if parts:
            told.append(f"First n of {results['n_layers']} at which it {_VERBS[behaviour]}: {', '.join(parts)}.")
    return told


_VERBS = {REPEATS: "repeats the last token", FORMAT: "notices the format", GRAMMATICAL: "reads like text", RIGHT: "is right"}  # fmt: skip


def _measured(model: models_model.Model, settings: DepthSettings, layers: int, limit: float) -> dict[str, Any]:
    """What the first layers make of each prompt."""
    specs = corruptions.parse(f"keep-first:{layers}", int(model.cfg.n_layers)).bound(model)
    prompts = [tuple(model.tokenizer.encode(one.text)) for one in settings.prompts]
    with measuring.isolated(model):
        answers = model.generate(prompts, interventions=specs, max_new_tokens=settings.words)
    said = [one.tokens for one in answers]
    rng = np.random.default_rng([settings.seed, layers])
    mixed = [tuple(int(token) for token in rng.permutation(one)) for one in said]
    losses, drawn = (_losses(model, prompts, some) for some in (said, mixed))
    rows = []
    for at, prompt in enumerate(settings.prompts):
        text = answers[at].text
        holds = {
            REPEATS: len(said[at]) >= ECHO and set(said[at][:ECHO]) == {prompts[at][-1]},
            FORMAT: prompt.holds(FORMAT, text),
            GRAMMATICAL: _fluent(said[at], losses[at], limit),
            RIGHT: prompt.holds(RIGHT, text),
        }
        rows.append(
            {"said": text, "loss": losses[at], "holds": holds, "shuffled_passes": _fluent(mixed[at], drawn[at], limit)}
        )
    return {"layers": layers, "limit": limit, "prompts": rows}


def _losses(
    model: models_model.Model, prompts: Sequence[tuple[int, ...]], said: Sequence[tuple[int, ...]]
) -> list[float | None]:
    """Nats per token that the whole model gives to continuations; None for empty ones."""
    passages = [
        fluency.Passage(one + more, (spans.Span(len(one), len(one) + len(more)),))
        for one, more in zip(prompts, said, strict=True)
    ]
    return [-float(np.mean(part)) if part else None for (part,) in fluency.judge(model, passages)]


def _ordinary(model: models_model.Model) -> float:
    """Nats per token that the whole model gives to the most predictable of some ordinary texts."""
    rows = [tuple(model.tokenizer.encode(text))[:ORDINARY] for text in texts.load().values()]
    judged = fluency.judge(model, [fluency.Passage(one, (spans.Span(1, len(one)),)) for one in rows])
    return min(-float(np.mean(part)) for (part,) in judged)


def _fluent(said: Sequence[int], loss: float | None, limit: float) -> bool:
    return loss is not None and loss <= limit and 2 * len(set(said)) >= len(said)


def _chance(
    settings: DepthSettings, depths: Sequence[Mapping[str, Any]], at: int, behaviour: str
) -> dict[str, float | int | None]:
    """How often something else would pass for it; None for what nothing else can be asked about."""
    if behaviour == GRAMMATICAL:
        passes = [bool(one["prompts"][at]["shuffled_passes"]) for one in depths]
    elif behaviour == REPEATS or len(settings.prompts) < 2:
        return {"chance": None, "of": 0}
    else:
        prompt = settings.prompts[at]
        passes = [bool(prompt.holds(behaviour, other["said"])) for one in depths
                  for place, other in enumerate(one["prompts"]) if place != at]  # fmt: skip
    return {"chance": float(np.mean(passes)), "of": len(passes)}


def _closes(prompt: str, said: str) -> bool:
    """Whether some beginning of a continuation makes the prompt whole JSON."""
    for end in range(1, len(said) + 1):
        if said[end - 1] in "}]":
            try:
                json.loads(prompt + said[:end])
            except (ValueError, RecursionError):
                continue
            return True
    return False


def _spelled(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["first"] is None:
        return "–"
    return f"{row['first']} ({'–' if row['stays'] is None else row['stays']})"


def _picture(results: Mapping[str, Any]) -> charts.Heatmap:
    """Each behaviour of each prompt at each depth."""
    prompts, rows = results["settings"]["prompts"], []
    for at, prompt in enumerate(prompts):
        for behaviour in BEHAVIOURS:
            holds = [one["prompts"][at]["holds"][behaviour] for one in results["depths"]]
            if holds[0] is not None:
                rows.append((f"{prompt['name'][:24]}: {behaviour}", [float(one) for one in holds]))
    return charts.Heatmap(
        key="depth",
        title="What only the first n layers can do",
        cells=np.array([values for _, values in rows]),
        rows=tuple(name for name, _ in rows),
        columns=tuple(str(one["layers"]) for one in results["depths"]),
        x_name="layers that run",
        y_name="prompt and behaviour",
        value_name="holds (1) or not (0)",
        caption=f"One greedy continuation of {results['settings']['words']} tokens per prompt and depth.",
        limits=(0.0, 1.0),
    )
