"""The public names are a promise: adding or dropping one is a change to exports.txt that a reviewer sees."""

import pathlib

import sonde

EXPORTS = pathlib.Path(__file__).with_name("exports.txt").read_text(encoding="utf-8").split()


def test_the_exported_names_are_the_committed_ones():
    assert sorted(sonde.__all__) == sorted(EXPORTS)


def test_every_exported_name_resolves():
    missing = [name for name in sonde.__all__ if not hasattr(sonde, name)]
    assert missing == []


def test_every_exported_name_is_listed_by_dir():
    assert set(sonde.__all__) <= set(dir(sonde))


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(sonde, "no_such_name")
