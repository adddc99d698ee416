"""What is asked of which models, about which programs? The description of an experiment, and the shipped ones.

    config = quick_experiment("tracking", prompts.RANGE_TRACKING, generators.make_range_program, models=["tiny-gpt2"])

Costs nothing: programs are made when the experiment runs, the same for every model and every run of a seed.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pydantic

from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.programs import generators, interpreter, parsers, prompts

_NAME = re.compile(r"[\w.-]{1,80}", re.ASCII)


class ExperimentConfig(core_settings.Settings):
    """One experiment: what is asked of which models, about which programs."""

    name: str = core_settings.field(..., "Begins the folder's name: letters, digits, `_`, `-`, `.`.", option="")
    prompt_template: str = core_settings.field(..., "With `{code}` where the program goes.", option="")
    program_generator: Any = core_settings.field(
        ..., "(seq_len, rng) -> (program, answer) or (program, answer, metadata).", option=""
    )
    models: tuple[str, ...] = core_settings.field(..., "Names for `sonde.load`.", option="", min_length=1)
    answer_parser: Any = core_settings.field(None, "From text to answer; None: by the answer's type.", option="")
    num_seqs: int = core_settings.field(10, "Programs of each length.", option="--number", ge=1)
    seq_lens: tuple[int, ...] = core_settings.field((2, 3, 4, 5), "The lengths.", min_length=1)
    seed: int = core_settings.field(0, "Fixes programs and sampling.", ge=0)
    max_new_tokens: int = core_settings.field(
        12, "Tokens of an answer; prompts that make the model think need more.", ge=1
    )
    temperature: float = core_settings.field(0.0, "Of the sampling; 0 takes the most probable token.", option="", ge=0)
    batch_size: int = core_settings.field(16, "Prompts that run together.", option="--batch", ge=1)

    @pydantic.field_validator("models", mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @pydantic.model_validator(mode="after")
    def _sensible(self) -> "ExperimentConfig":
        prompts.check(self.prompt_template)
        checks = (
            ("name", bool(_NAME.fullmatch(self.name)) and self.name.strip("."), "letters, digits, '_', '-' and '.'"),
            ("models", len(set(self.models)) == len(self.models), "different models"),
            ("seq_lens", min(self.seq_lens) >= 1, "lengths of at least 1"),
            ("seq_lens", len(set(self.seq_lens)) == len(self.seq_lens), "different lengths"),
        )
        for name, good, expected in checks:
            if not good:
                raise errors.RequestError(f"{name} must be {expected}, got {getattr(self, name)!r}")
        return self

    def to_json(self) -> dict[str, Any]:
        """What fixes the results, as JSON data; functions by their names."""
        told = {name: getattr(self, name) for name in type(self).model_fields}
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
    return ExperimentConfig(
        name=name,
        prompt_template=prompt_template,
        program_generator=program_generator,
        models=tuple([models] if isinstance(models, str) else models),
        **more,
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
