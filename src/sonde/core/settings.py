"""The base of everything that fixes a result: fields with bounds and help, errors in words, JSON, and command-line options.

    class LayersSettings(settings.Settings):
        tokens: int = settings.field(64, "Tokens of each text.", ge=8)

    LayersSettings(tokens=4)                # RequestError: tokens must be 8 or more, got 4
    LayersSettings(tokens=16).typed()     # ["--tokens", "16"]: what to type for these settings

Settings are frozen, and compared by value. Costs pydantic's import, 60 ms, where settings are first used.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

import pydantic
import pydantic_core

from sonde.core import errors

_BOUNDS = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "{} or less"),
    "less_than": ("lt", "less than {}"),
}
_TYPES = {"int": "a whole number", "float": "a number", "finite_number": "a finite number", "bool": "true or false",
          "string": "a text", "tuple": "a list", "list": "a list", "dict": "a mapping"}  # fmt: skip


def field(default: Any, text: str, *, option: str | None = None, **bounds: Any) -> Any:
    """A field of settings.

    Args:
        default: Its value if none is given; `...` if one must be.
        text: One sentence of help, shown by `--help`.
        option: Its command-line option, if that is not its name; an empty text: it has none.
        **bounds: `ge`, `gt`, `le`, `lt`, `min_length`, `max_length`.
    """
    return pydantic.Field(default, description=text, json_schema_extra={"option": option}, **bounds)


def option_of(name: str, info: Any) -> str | None:
    """The command-line option of a field, None if it has none."""
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    chosen = extra.get("option")
    return None if chosen == "" else str(chosen or f"--{name.replace('_', '-')}")


class Settings(pydantic.BaseModel):
    """Everything that fixes the result of an experiment."""

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False, protected_namespaces=()
    )

    def __init__(self, **given: Any) -> None:
        """Checks and takes the values.

        Raises:
            RequestError: One is impossible, missing or unknown; says which, what it is and what it may be.
        """
        try:
            super().__init__(**given)
        except pydantic.ValidationError as error:
            raise errors.RequestError(_explained(type(self), error)) from None

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON data."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The settings that `to_json` gave.

        Raises:
            RequestError: They are of another program, or were changed.
        """
        return cls(**content)

    def changed(self, **values: Any) -> Self:
        """A copy with other values, checked as new ones are."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **values})

    def typed(self) -> list[str]:
        """The command-line options for what is not at its default."""
        words: list[str] = []
        for name, info in type(self).model_fields.items():
            value, option = getattr(self, name), option_of(name, info)
            if option is None or value == info.get_default(call_default_factory=True):
                continue
            if isinstance(value, bool):
                words.append(option)
            elif isinstance(value, Mapping):
                words += [word for key, one in value.items() for word in (option, f"{key}={json.dumps(one)}")]
            elif isinstance(value, tuple) and all(isinstance(one, str) for one in value):
                words += [word for one in value for word in (option, one)]
            elif value is not None:
                words += [option, ",".join(map(_typed, value)) if isinstance(value, tuple | list) else _typed(value)]
        return words


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _explained(cls: type[pydantic.BaseModel], error: pydantic.ValidationError) -> str:
    """The first thing that is wrong, in words."""
    found = error.errors(include_url=False)[0]
    place, kind = ".".join(str(part) for part in found["loc"]), found["type"]
    got, context = found.get("input"), found.get("ctx", {})
    if kind == "extra_forbidden":
        return f"there is no setting {place!r}{errors.suggest(place, cls.model_fields)}"
    if kind == "missing":
        return f"{place} must be given"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{place} must be {words.format(context[name])}, got {got!r}"
    if kind == "literal_error":
        known = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        return f"{place} must be one of {', '.join(known)}, got {got!r}{errors.suggest(str(got), known)}"
    if kind == "value_error":
        return f"{place}: {context['error']}" if place else str(context["error"])
    if kind in ("too_short", "too_long"):
        bound = context.get("min_length", context.get("max_length"))
        return f"{place} must have {bound} or {'more' if kind == 'too_short' else 'fewer'}, got {got!r}"
    wanted = next((words for name, words in _TYPES.items() if kind.startswith(name)), None)
    if wanted is None:
        raw: pydantic_core.ErrorDetails = found
        return f"{place}: {raw['msg']}, got {got!r}"
    return f"{place} must be {wanted}, got {got!r}"
