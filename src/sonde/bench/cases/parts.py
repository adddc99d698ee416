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


def shifted(by: int, *, of: rasp.Variable = rasp.TOKENS, default: rasp.Value = None, name: str) -> rasp.Aggregate:
    """The token, or another value, so many places before (later, if negative)."""
    where = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key == query - by)
    return rasp.Aggregate(where, of, default, name=name)


def reversed_tokens() -> rasp.Aggregate:
    """The token that stands as far from the end as a position from the beginning."""
    left = source(lambda index, n: n - index, name="tokens_left")
    return lookup(rasp.Map(lambda places: places - 1, left, name="mirror_index"), name="reversed")


def token_at(index: int, *, name: str, default: rasp.Value = None) -> rasp.Aggregate:
    """The token at one index, known everywhere."""
    where = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key == index)
    return rasp.Aggregate(where, rasp.TOKENS, default, name=name)


def lookup(indices: rasp.Variable, *, default: rasp.Value = None, name: str) -> rasp.Aggregate:
    """The token at the index that a variable names."""
    where = rasp.Select(rasp.INDICES, indices, lambda key, query: key == query)
    return rasp.Aggregate(where, rasp.TOKENS, default, name=name)


def from_end(back: int, lengths: rasp.Variable, *, name: str) -> rasp.Aggregate:
    """The token so many places before the end (1 is the last), known everywhere, given the length."""
    index = rasp.Map(lambda n: n - back if n >= back else None, lengths, name=f"index_of_{name}")
    return lookup(index, name=name)


def following() -> rasp.Aggregate:
    """The token after each; for the last token that token itself."""
    return lookup(source(lambda index, n: min(index + 1, n - 1), name="next_index"), name="next")


def source(move: Callable[[int, int], int], *, name: str) -> rasp.SequenceMap:
    """The index from which a position takes its token, given its own and the length; impossible pairs have none."""
    return rasp.SequenceMap(lambda index, n: move(index, n) if index < n else None, rasp.INDICES, length(), name=name)


def placed(key: rasp.Variable = rasp.TOKENS) -> rasp.SequenceMap:
    """Sort key (the token, if none is given) and index of a position, so that no two are equal."""
    return rasp.SequenceMap(lambda value, index: (value, index), key, rasp.INDICES, name="placed")


def rank(places: rasp.Variable) -> rasp.SelectorWidth:
    """The index that a position has after sorting."""
    return count(places, lambda key, query: key < query, name="rank")


def ranked(ranks: rasp.Variable, wanted: rasp.Variable, *, back: int = 0, name: str) -> rasp.Aggregate:
    """The token whose rank is the wanted one, less `back`."""
    return rasp.Aggregate(rasp.Select(ranks, wanted, lambda key, query: key == query - back), rasp.TOKENS, name=name)


def none_of(flags: rasp.Variable, *, name: str) -> rasp.Map:
    """1 everywhere if a flag is set nowhere, else 0."""
    return rasp.Map(lambda n: int(n == 0), count(flags, lambda key, query: key, name=f"{flags}_count"), name=name)
