"""What is asked of which models, about which programs? The description of an experiment, and the shipped ones.

    config = quick_experiment("tracking", prompts.RANGE_TRACKING, generators.make_range_program, models=["tiny-gpt2"])

Costs nothing: programs are made when the experiment runs, the same for every model and every run of a seed.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.core import errors
from sonde.programs import generators, interpreter, parsers, prompts

_NAME = re.compile(r"[\w.-]{1,80}", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentConfig:
    """One experiment.

    Attributes:
        name: Begins the folder's name: letters, digits, `_`, `-`, `.`.
        prompt_template: With `{code}` where the program goes.
        program_generator: `(seq_len, rng) -> (program, answer)` or `(program, answer, metadata)`.
        answer_parser: From the model's text to an answer; None chooses by the type of the program's answer.
        models: Names for `sonde.load`.
        num_seqs: Programs of each length.
        seq_lens: The lengths.
        seed: Fixes programs and sampling.
        max_new_tokens: Tokens of an answer at most; prompts that make the model think need more.
        temperature: Of the sampling; 0 takes the most probable token.
        batch_size: Prompts that run together.
    """

    name: str
    prompt_template: str
    program_generator: generators.Generator
    models: Sequence[str]
    answer_parser: parsers.Parser | None = None
    num_seqs: int = 10
    seq_lens: Sequence[int] = (2, 3, 4, 5)
    seed: int = 0
    max_new_tokens: int = 12
    temperature: float = 0.0
    batch_size: int = 16

    def __post_init__(self) -> None:
        """Refuses what cannot run."""
        for name in ("models", "seq_lens"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        prompts.check(self.prompt_template)
        checks = (
            ("name", bool(_NAME.fullmatch(self.name)) and self.name.strip("."), "letters, digits, '_', '-' and '.'"),
            ("models", self.models and len(set(self.models)) == len(self.models), "one or more different models"),
            ("seq_lens", self.seq_lens and min(self.seq_lens) >= 1, "one or more lengths of at least 1"),
            ("seq_lens", len(set(self.seq_lens)) == len(self.seq_lens), "different lengths"),
            ("num_seqs", self.num_seqs >= 1, "at least 1"),
            ("seed", self.seed >= 0, "0 or more"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "0 or more"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
        )
        for name, good, expected in checks:
            if not good:
                raise errors.RequestError(f"{name} must be {expected}, got {getattr(self, name)!r}")

    def settings(self) -> dict[str, Any]:
        """What fixes the results, as JSON data; functions by their names."""
        told = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        told |= {"models": list(self.models), "seq_lens": list(self.seq_lens)}
        told["program_generator"] = _called(self.program_generator)
        told["answer_parser"] = self.answer_parser and _called(self.answer_parser)
        return told


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """One program of an experiment, with its label."""

    seq_len: int
    seq_id: int
    program: str
    answer: int | bool
    metadata: Mapping[str, Any]


def quick_experiment(
    name: str,
    prompt_template: str,
    program_generator: generators.Generator,
    models: Sequence[str],
    **more: Any,
) -> ExperimentConfig:
    """Describes an experiment in one call.

    Args:
        name: Begins the folder's name.
        prompt_template: With `{code}`.
        program_generator: Of `generators`, or your own.
        models: Names for `sonde.load`.
        **more: Any other field of `ExperimentConfig`: num_seqs, seq_lens, answer_parser, seed, …
    """
    known = {field.name for field in dataclasses.fields(ExperimentConfig)}
    for field in more:
        if field not in known:
            raise errors.RequestError(f"an experiment has no setting {field!r}{errors.suggest(field, known)}")
    return ExperimentConfig(
        name=name, prompt_template=prompt_template, program_generator=program_generator, models=models, **more
    )


def items(config: ExperimentConfig) -> list[Item]:
    """Makes the programs: each from its own seed, so that one length or number more changes no other.

    A label is checked by running the program; one of a language that the interpreter does not know is taken at its word.

    Raises:
        RequestError: The generator returned something else than program, answer and perhaps metadata, or a wrong label.
    """
    return [_item(config, seq_len, seq_id) for seq_len in config.seq_lens for seq_id in range(config.num_seqs)]


def _item(config: ExperimentConfig, seq_len: int, seq_id: int) -> Item:
    made: Any = config.program_generator(seq_len, np.random.default_rng([config.seed, seq_len, seq_id]))
    match made:
        case (str() as program, bool() | int() | np.integer() | np.bool_() as answer, *rest) if len(rest) < 2:
            metadata = dict(rest[0]) if rest and rest[0] is not None else {}
            plain = bool(answer) if isinstance(answer, bool | np.bool_) else int(answer)
            _check_label(config, seq_len, seq_id, program, plain)
            return Item(seq_len, seq_id, program, plain, metadata)
    raise errors.RequestError(
        f"{_called(config.program_generator)} must return (program, answer) or (program, answer, metadata) with a whole "
        f"number or a truth value as answer, got {str(made)[:120]!r}"
    )


def _check_label(config: ExperimentConfig, seq_len: int, seq_id: int, program: str, answer: int | bool) -> None:
    """Refuses a label that is not what the program gives."""
    where = f"program {seq_id} of length {seq_len} of {_called(config.program_generator)}"
    try:
        true = interpreter.answer(program)
    except interpreter.OutsideError:
        return
    except errors.RequestError as error:
        raise errors.RequestError(f"{where}: {error}") from error
    if not parsers.is_correct(answer, true):
        raise errors.RequestError(f"{where} gives {true}, but its label says {answer}: mend the label")


def _called(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


@dataclasses.dataclass(frozen=True, slots=True)
class Shipped:
    """What an experiment of the command line asks."""

    template: str
    generator: generators.Generator


SHIPPED: Mapping[str, Shipped] = {
    "binding": Shipped(prompts.VARIABLE_BINDING, generators.make_variable_binding_program_with_metadata),
    "range": Shipped(prompts.RANGE_TRACKING, generators.make_range_program),
    "boolean": Shipped(prompts.BOOLEAN_LOGIC, generators.make_boolean_program),
    "integer": Shipped(prompts.ENTITY_TRACKING, generators.make_variable_increments),
    "exception": Shipped(prompts.EXCEPTION_HANDLING, generators.make_exception_program),
}


def shipped(kind: str, models: Sequence[str], **more: Any) -> ExperimentConfig:
    """Describes one of the shipped experiments: binding, range, boolean, integer or exception."""
    if kind not in SHIPPED:
        raise errors.RequestError(
            f"no experiment {kind!r}{errors.suggest(kind, SHIPPED)} There are: {', '.join(SHIPPED)}"
        )
    one = SHIPPED[kind]
    return quick_experiment(kind, one.template, one.generator, models, **more)
