"""What can a planner do? The tools of the lab, defined once for the loop, for language models and for MCP clients.

    tools.TOOLS["run_experiment"].arguments     # the dataclass of its arguments
    tools.listed()                              # all of them as JSON: name, description, schema

What the tools do is in `desk`. Costs nothing.
"""

from dataclasses import dataclass
from typing import Any, Literal

from sonde.core import errors
from sonde.lab import schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExperiment:
    """Arguments of run_experiment."""

    corruption: str | None = schemas.field(
        "What is done to the model, such as skip:11, skip:3,9, keep:0-3,29, swap:3-4, reverse:13-16, repeat:5; "
        "zero:a5.h3 or mean:m5 (head 3 of layer 5, its MLP); patch:blocks.5.hook_resid_post@at=-1@from=TEXT; "
        "add:blocks.5.hook_resid_post@2@from=TEXT|TEXT@to=TEXT|TEXT or remove: (a direction between texts). "
        "Left out with a prediction.",
        default=None,
        most=1200,
    )
    prediction: str | None = schemas.field(
        "Id of a registered prediction, to test it on the held-out examples. Without it the exploring examples are used.",
        default=None,
        most=20,
    )
    control: bool = schemas.field(
        "With a prediction: measure its next random control instead (other layers, drawn by the lab).", default=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Arguments of sweep."""

    over: Literal["layers", "attention", "mlps", "heads"] = schemas.field(
        "What is taken away, one by one.", default="layers"
    )
    way: Literal["zero", "mean"] = schemas.field("Not for layers, which are skipped: set to what.", default="zero")
    layers: tuple[int, ...] = schemas.field("Only in these layers; all if left out.", default=(), most=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPairs:
    """Arguments of patch_pairs."""

    component: Literal["residual_stream", "attention", "mlp", "attention_heads"] = schemas.field("What is patched.")
    layers: tuple[int, ...] = schemas.field("Only in these layers; all if left out.", default=(), most=200)
    clean: tuple[str, ...] = schemas.field("Prompts of your own; the task's if left out.", default=(), most=40)
    corrupt: tuple[str, ...] = schemas.field(
        "To each the prompt that differs, as many tokens long.", default=(), most=40
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Arguments of probe."""

    yes: tuple[str, ...] = schemas.field("Texts of one kind.", default=(), most=100)
    no: tuple[str, ...] = schemas.field("Texts of the other kind.", default=(), most=100)
    answers: tuple[str, ...] = schemas.field("Instead: the task's prompts with these answers.", default=(), most=40)
    layers: tuple[int, ...] = schemas.field("Only these layers; all if left out.", default=(), most=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Arguments of compare."""

    first: str = schemas.field("Id of a run.", most=20)
    second: str = schemas.field("Id of a run on the same examples.", most=20)
    measure: Literal["kept", "loss_delta"] = schemas.field("What to compare.", default="kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Arguments of aggregate."""

    kind: Literal["run", "sweep", "example", "hypothesis", "prediction", "note", "finding"] = schemas.field(
        "What to look through.", default="run"
    )
    where: tuple[str, ...] = schemas.field(
        "Conditions that all must hold, such as kept<0.5, corruption=skip:11, layers~11.", default=(), most=10
    )
    by: tuple[str, ...] = schemas.field("Fields to group by; none gives the entries themselves.", default=(), most=5)
    of: tuple[str, ...] = schemas.field(
        "Fields to show, or with `by` those whose mean, least and most are shown.",
        default=("corruption", "kept"),
        most=8,
    )
    everywhere: bool = schemas.field("Look through the whole log instead of this inquiry.", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Arguments of note."""

    text: str = schemas.field("What was observed, in a sentence or two.", least=1, most=2000)
    cites: tuple[str, ...] = schemas.field("Ids of what it is about.", default=(), most=50)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeHypothesis:
    """Arguments of propose_hypothesis."""

    statement: str = schemas.field("A claim about the model that an experiment could refute.", least=1, most=1000)
    rival_of: str | None = schemas.field("Id of a hypothesis it competes with.", default=None, most=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterPrediction:
    """Arguments of register_prediction."""

    hypothesis: str = schemas.field("Id of the hypothesis it follows from.", most=20)
    corruption: str = schemas.field("What will be done to the model.", least=1, most=1200)
    measure: Literal["kept", "loss_delta"] = schemas.field(
        "kept: share of the solved examples still solved, 0 to 1. loss_delta: change of the answer's loss, nats per token.",
        default="kept",
    )
    relation: Literal["below", "above"] = schemas.field("On which side of the value the result will be.")
    value: float = schemas.field("The bound.", least=-1000, most=1000)
    controls: Literal["random", "alike"] = schemas.field(
        "random: other layers. alike: of one skipped layer, the layers nearest to it in norm and block influence.",
        default="random",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """Arguments of conclude."""

    hypothesis: str = schemas.field("Id of the hypothesis.", most=20)
    claim: str = schemas.field("The finding in one sentence, as it should stand in the report.", least=1, most=1000)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its name, what it does, its arguments."""

    name: str
    about: str
    arguments: type

    def to_json(self) -> dict[str, Any]:
        """Name, description and JSON schema."""
        return {"name": self.name, "description": self.about, "parameters": schemas.to_json(self.arguments)}


_ALL = (
    Tool(
        "run_experiment",
        "Corrupt the model and measure it on the task. Costs one experiment of the budget. With `prediction` it tests that "
        "prediction on held-out examples; with `control` as well, it measures a random control for it.",
        RunExperiment,
    ),
    Tool(
        "sweep",
        "Take away every layer (or attention, MLP, head) by itself and measure: one experiment of the budget. Says which do "
        "most harm, and which layers do more than their norm and block influence explain (odd). A good first step.",
        Sweep,
    ),
    Tool(
        "patch_pairs",
        "Activation patching between minimal pairs: which component, at the changed and at the final token, brings the "
        "other prompt's answer about; with a control. One experiment.",
        PatchPairs,
    ),
    Tool(
        "probe",
        "Linear probes on the stream after each layer, against shuffled labels, majority and the words. One experiment.",
        Probe,
    ),
    Tool("compare", "Compare two runs example by example: mean difference, interval, p-value. Free.", Compare),
    Tool("aggregate", "Filter, group and average what is in the log. Free.", Aggregate),
    Tool("note", "Write down an observation, citing what it is about. Free.", Note),
    Tool(
        "propose_hypothesis",
        "Write down a claim to be tested; it is open until it is concluded. Free.",
        ProposeHypothesis,
    ),
    Tool(
        "register_prediction",
        "Say what an experiment will show, before it is run on held-out examples. What was measured on them already "
        "cannot be predicted. Free.",
        RegisterPrediction,
    ),
    Tool(
        "conclude",
        "Ask for the verdict on a hypothesis. Refused until each of its predictions was tested on held-out examples, with "
        "3 random controls. The lab decides from the runs, corrected for how many hypotheses were tested: supported or "
        "refuted. Free.",
        Conclude,
    ),
)
TOOLS = {tool.name: tool for tool in _ALL}


def get(name: str) -> Tool:
    """A tool by name.

    Raises:
        RequestError: There is none.
    """
    if name not in TOOLS:
        near = errors.suggest(name, TOOLS)
        raise errors.RequestError(f"no tool {name[:80]!r}{near}; there are: {', '.join(TOOLS)}")
    return TOOLS[name]


def listed() -> list[dict[str, Any]]:
    """All tools as JSON."""
    return [tool.to_json() for tool in _ALL]
