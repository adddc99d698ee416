"""Settings: copies with other values, and what to type for them."""

import pytest

from sonde.core import errors, settings


class Counting(settings.Settings):
    """Everything a setting can be."""

    count: int = settings.field(3, "How many.", ge=1)
    models: tuple[str, ...] = settings.field((), "Which.", option="--model")
    layers: tuple[int, ...] = settings.field((), "Where.")
    option: dict[str, object] = settings.field({}, "What else.")


def test_a_copy_with_other_values_is_checked_and_leaves_the_first_alone():
    first = Counting(count=5, layers=(1, 2))
    assert first.changed(count=7) == Counting(count=7, layers=(1, 2))
    assert first.count == 5
    with pytest.raises(errors.RequestError, match="count must be 1 or more, got 0"):
        first.changed(count=0)
    with pytest.raises(errors.RequestError, match="no setting 'cuont'; did you mean 'count'"):
        first.changed(cuont=1)


def test_what_is_typed_is_what_is_not_at_its_default():
    assert Counting().typed() == []
    told = Counting(count=4, models=("a", "b c"), layers=(0, 5), option={"oracle": "llm", "limit": 3})
    assert told.typed() == ["--count", "4", "--model", "a", "--model", "b c", "--layers", "0,5",
                            "--option", 'oracle="llm"', "--option", "limit=3"]  # fmt: skip
