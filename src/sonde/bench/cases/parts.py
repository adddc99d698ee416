"""Pieces that several programs are made of: lengths, neighbours, ranks, look-ups.

    parts.lookup(parts.previous_index())                      # the token that the previous index names

Each call makes new variables: a piece that a program uses twice must be made once and kept.
"""

from collections.abc import Callable

from sonde.bench import rasp

Predicate = Callable[[rasp.Value, rasp.Value], object]


def length() -> rasp.SelectorWidth:
    """How many tokens the input has."""
    return rasp.SelectorWidth(rasp.Select(rasp.TOKENS, rasp.TOKENS, lambda key, query: True), name="length")


def count(
    keys: rasp.Variable, holds: Predicate, *, name: str, queries: rasp.Variable | None = None
) -> rasp.SelectorWidth:
    """At how many positions something holds of the value there and the value here."""
    return rasp.SelectorWidth(rasp.Select(keys, keys if queries is None else queries, holds), name=name)


def shifted(by: int, *, default: rasp.Value = None, name: str) -> rasp.Aggregate:
    """The token so many places before (later, if negative)."""
    where = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key == query - by)
    return rasp.Aggregate(where, rasp.TOKENS, default, name=name)


def token_at(index: int, *, default: rasp.Value = None, name: str) -> rasp.Aggregate:
    """The token at one index, known everywhere."""
    where = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key == index)
    return rasp.Aggregate(where, rasp.TOKENS, default, name=name)


def lookup(indices: rasp.Variable, *, default: rasp.Value = None, name: str) -> rasp.Aggregate:
    """The token at the index that a variable names."""
    where = rasp.Select(rasp.INDICES, indices, lambda key, query: key == query)
    return rasp.Aggregate(where, rasp.TOKENS, default, name=name)


def from_end(back: int, *, name: str) -> rasp.Aggregate:
    """The token so many places before the end (1 is the last), known everywhere."""
    where = rasp.Select(rasp.INDICES, length(), lambda key, query: key == query - back)
    return rasp.Aggregate(where, rasp.TOKENS, name=name)


def source(move: Callable[[int, int], int], *, name: str) -> rasp.SequenceMap:
    """The index from which a position takes its token, given its own and the length; impossible pairs have none."""
    return rasp.SequenceMap(lambda index, n: move(index, n) if index < n else None, rasp.INDICES, length(), name=name)


def placed(key: Callable[[rasp.Value], rasp.Value] = lambda token: token) -> rasp.SequenceMap:
    """Sort key and index of a token, so that no two positions are equal."""
    return rasp.SequenceMap(lambda token, index: (key(token), index), rasp.TOKENS, rasp.INDICES, name="placed")


def rank(places: rasp.Variable) -> rasp.SelectorWidth:
    """The index that a position has after sorting."""
    return count(places, lambda key, query: key < query, name="rank")


def ranked(ranks: rasp.Variable, wanted: rasp.Variable, *, back: int = 0, name: str) -> rasp.Aggregate:
    """The token whose rank is the wanted one, less `back`."""
    return rasp.Aggregate(rasp.Select(ranks, wanted, lambda key, query: key == query - back), rasp.TOKENS, name=name)


def none_of(flags: rasp.Variable, *, name: str) -> rasp.Map:
    """1 everywhere if a flag is set nowhere, else 0."""
    return rasp.Map(lambda n: int(n == 0), count(flags, lambda key, query: key, name=f"{flags}_count"), name=name)
