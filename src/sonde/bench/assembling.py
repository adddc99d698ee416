"""Which weights make a transformer compute a RASP program?

    assembler = assembling.Assembler(program, values, placement, bos=True)
    assembler.head(share)                                     # in the order of rasp.variables(program)

The stream has a direction for every value of a categorical variable, one for a numerical variable, and three constants:
`one`, `bos`, `pad`. Every operation writes only into directions of its own.

1. Token and position embeddings write tokens, indices and the constants.
2. A head's scores are 100 x predicate. BOS scores 50, so a position that looks nowhere looks at BOS, which carries the
   default; padding scores far below zero, so nothing looks there.
3. For a SelectorWidth BOS scores 100 as well and alone carries a 1: its share is 1/(d + 1), which an MLP turns into d.
4. Map of a category: one ReLU per value. SequenceMap: one per pair, ReLU(x + y - 1). Map of a number: at the midpoint
   between neighbouring values, two ReLUs make a step.
5. What stands at BOS itself is known beforehand, so every reader subtracts it through the `bos` direction: BOS is never
   taken for a token.
6. The unembedding reads the directions of the result.

Plain numpy; costs milliseconds, mostly for SequenceMaps over many pairs.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from sonde.bench import placing, rasp
from sonde.core import errors

SHARP, NOWHERE, NEVER = 100.0, 50.0, -1000.0
CLOSE = 1e-6
Values = Mapping[rasp.Variable, tuple[rasp.Value, ...] | None]
Units = list[tuple[dict[int, float], dict[int, float]]]


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """The projections of one head."""

    query: Float[np.ndarray, "d_model rank"]
    key: Float[np.ndarray, "d_model rank"]
    value: Float[np.ndarray, "d_model carried"]
    out: Float[np.ndarray, "carried d_model"]


class Assembler:
    """Writes the weights of one program, operation by operation."""

    def __init__(self, program: rasp.Variable, values: Values, placement: placing.Placement, *, bos: bool) -> None:
        self.values, self.placement, self.bos = values, placement, bos
        self.columns: dict[rasp.Variable, list[int]] = {}
        self.shares: dict[rasp.Variable, int] = {}
        self.basis = ["one", "bos", "pad"]
        for variable in rasp.variables(program):
            self.columns[variable] = self._directions(variable)
            if isinstance(variable, rasp.SelectorWidth):
                self.shares[variable] = len(self.basis)
                self.basis.append(f"{variable}:share of bos")
        self.at_bos = np.zeros(len(self.basis))
        self.at_bos[:2] = 1.0

    def _directions(self, variable: rasp.Variable) -> list[int]:
        start = len(self.basis)
        if variable.kind == rasp.NUMERICAL:
            self.basis.append(str(variable))
        else:
            self.basis += [f"{variable}:{value}" for value in self._listed(variable)]
        return list(range(start, len(self.basis)))

    def _listed(self, variable: rasp.Variable) -> tuple[rasp.Value, ...]:
        """The values of a variable; there must be a list of them."""
        found = self.values[variable]
        if found is None:
            raise _fail(variable, f"it may take more than {rasp.LARGEST:,} values, so nothing can look them up")
        return found

    def written(self, variable: rasp.Variable, value: rasp.Value) -> dict[int, float]:
        """The directions, and how far along each, that stand for a value."""
        if value is None:
            return {}
        if variable.kind == rasp.NUMERICAL:
            return {self.columns[variable][0]: _number(variable, value)}
        return {self.columns[variable][self._listed(variable).index(value)]: 1.0}

    def number(self, variable: rasp.Variable) -> dict[int, float]:
        """The weights by which a reader gets a variable as a number."""
        if variable.kind == rasp.NUMERICAL:
            return {self.columns[variable][0]: 1.0}
        listed = zip(self.columns[variable], self._listed(variable), strict=True)
        return {column: _number(variable, value) for column, value in listed}

    def settle(self, weights: Float[np.ndarray, "d_model out"], wanted: Float[np.ndarray, " out"]) -> None:
        """Makes a reader get `wanted` at BOS, whatever earlier operations have written there."""
        if self.bos:
            weights[1] = 0.0
            weights[1] = wanted - self.at_bos @ weights

    def embeddings(
        self, words: Sequence[rasp.Value], max_length: int
    ) -> tuple[Float[np.ndarray, "vocab d_model"], Float[np.ndarray, "pos d_model"]]:
        """What tokens (BOS and PAD last) and positions write into the stream."""
        tokens = np.zeros((len(words) + 2, len(self.basis)))
        positions = np.zeros((max_length, len(self.basis)))
        tokens[:, 0] = tokens[-2, 1] = tokens[-1, 2] = 1.0
        for variable in self.columns:
            if isinstance(variable, rasp.Tokens | rasp.Indices):
                rows = tokens if isinstance(variable, rasp.Tokens) else positions[int(self.bos) :]
                for row, value in zip(rows, self._listed(variable), strict=False):
                    for column, far in self.written(variable, value).items():
                        row[column] = far
        return tokens, positions

    def head(self, variable: rasp.Aggregate | rasp.SelectorWidth) -> Head:
        """The head that looks where a selector says, and what it carries."""
        query, key = self._scores(variable.select, variable)
        if isinstance(variable, rasp.SelectorWidth):
            targets = [self.shares[variable]]
            value, default = np.zeros((len(self.basis), 1)), np.ones(1)
        else:
            targets = self.columns[variable]
            value, default = self._carried(variable)
        self.settle(value, default)
        if self.bos:
            self.at_bos[targets] = default
        out = np.zeros((len(targets), len(self.basis)))
        out[np.arange(len(targets)), targets] = 1.0
        return Head(query, key, value, out)

    def _carried(self, variable: rasp.Aggregate) -> tuple[Float[np.ndarray, "d_model out"], Float[np.ndarray, " out"]]:
        """Values from the variable that is read to the one that is made, and what BOS carries."""
        value = np.zeros((len(self.basis), len(self.columns[variable])))
        first = self.columns[variable][0] if self.columns[variable] else 0
        if variable.kind == rasp.NUMERICAL:
            if variable.default is None and self.bos:
                raise _fail(
                    variable, "a numerical Aggregate needs a default: what is its value where nothing is selected?"
                )
            for column, weight in self.number(variable.values).items():
                value[column, 0] = weight
        elif variable.values.kind == rasp.NUMERICAL:
            raise _fail(variable, "it is categorical but reads a number: make it numerical, then Map it")
        else:
            for one in self._listed(variable.values):
                (source,), (target,) = self.written(variable.values, one), self.written(variable, one)
                value[source, target - first] = 1.0
        default = np.zeros(value.shape[1])
        for column, far in self.written(variable, variable.default).items():
            default[column - first] = far
        if not self.bos and variable.default is not None:
            raise _fail(variable, "its default is carried by BOS: compile with bos=True, or leave the default out")
        return value, default

    def _scores(
        self, select: rasp.Select, variable: rasp.Variable
    ) -> tuple[Float[np.ndarray, "d_model rank"], Float[np.ndarray, "d_model rank"]]:
        """Queries and keys whose product is 100 x predicate, and 50 (100 for a width) for BOS."""
        wide = isinstance(variable, rasp.SelectorWidth)
        if wide and not self.bos:
            raise _fail(variable, "a width is counted with the help of BOS: compile with bos=True")
        table = table_of(select, self.values, variable)
        n_keys, n_queries = table.shape
        rank = min(n_keys, n_queries)
        query, key = (np.zeros((len(self.basis), rank + 1)) for _ in range(2))
        by_query = n_queries <= n_keys
        query[self.columns[select.queries], :rank] = np.eye(rank) if by_query else table.T * SHARP
        key[self.columns[select.keys], :rank] = table * SHARP if by_query else np.eye(rank)
        query[0, rank] = 1.0
        key[2, rank] = NEVER
        last = np.eye(rank + 1)[rank]
        self.settle(query, last)
        self.settle(key, last * (SHARP if wide else NOWHERE))
        return query, key

    def mlp(
        self, variable: rasp.Variable
    ) -> tuple[Float[np.ndarray, "d_model d_mlp"], Float[np.ndarray, "d_mlp d_model"]]:
        """The hidden units of an operation: what they read and what they write."""
        match variable:
            case rasp.SelectorWidth():
                widths = list(self._listed(variable))[::-1]
                steps = [(1.0 / (1 + width), width) for width in widths]
                units = self._steps(variable, {self.shares[variable]: 1.0}, steps)
            case rasp.Map(function=function, of=of) if of.kind == rasp.NUMERICAL:
                units = self._steps(variable, self.number(of), [(float(x), function(x)) for x in self._listed(of)])
            case rasp.Map(function=function, of=of):
                units = [(self.written(of, x), self.written(variable, function(x))) for x in self._listed(of)]
            case rasp.SequenceMap():
                units = self._pairs(variable)
            case rasp.LinearSequenceMap(first_weight=a, second_weight=b):
                if variable.kind != rasp.NUMERICAL:
                    raise _fail(variable, "a weighted sum is numerical; Map it to get categories")
                weights: dict[int, float] = {}
                for one, times in ((variable.first, a), (variable.second, b)):
                    for column, weight in self.number(one).items():
                        weights[column] = weights.get(column, 0.0) + times * weight
                target = self.columns[variable][0]
                minus = {column: -weight for column, weight in weights.items()}
                units = [(weights, {target: 1.0}), (minus, {target: -1.0})]
            case _:
                raise _fail(variable, "no such operation")
        return self._units([unit for unit in units if any(unit[1].values())])

    def _units(self, units: Units) -> tuple[Float[np.ndarray, "d_model d_mlp"], Float[np.ndarray, "d_mlp d_model"]]:
        """Matrices of hidden units; all of them are silent at BOS."""
        into, out = np.zeros((len(self.basis), len(units))), np.zeros((len(units), len(self.basis)))
        for index, (reads, writes) in enumerate(units):
            into[list(reads), index] = list(reads.values())
            out[index, list(writes)] = list(writes.values())
        self.settle(into, -np.ones(len(units)))
        return into, out

    def _pairs(self, variable: rasp.SequenceMap) -> Units:
        first, second = variable.first, variable.second
        for one in (first, second):
            if one.kind == rasp.NUMERICAL:
                raise _fail(
                    variable, f"{str(one)!r} is numerical: use LinearSequenceMap, or Map it to categories first"
                )
        units = []
        for x, y in itertools.product(self._listed(first), self._listed(second)):
            (left,), (right,) = self.written(first, x), self.written(second, y)
            if left == right:
                reads = {left: 1.0}
            elif first is second:
                continue
            else:
                reads = {left: 1.0, right: 1.0, 0: -1.0}
            units.append((reads, self.written(variable, variable.function(x, y))))
        return units

    def _steps(
        self, variable: rasp.Variable, reads: Mapping[int, float], table: list[tuple[float, rasp.Value]]
    ) -> Units:
        """Units that write what a table says for a number: a constant, and a step between neighbours."""
        before, target = table[0]
        current = self.written(variable, target)
        units = [({0: 1.0}, current)]
        for number, target in table[1:]:
            following = self.written(variable, target)
            if following != current:
                gap = number - before
                if gap < CLOSE:
                    raise _fail(variable, f"it must tell {before} from {number}, which are too close")
                change = {
                    column: following.get(column, 0.0) - current.get(column, 0.0) for column in following | current
                }
                slope, middle = 2.0 / gap, (before + number) / 2
                for shift, sign in ((0.5, 1.0), (-0.5, -1.0)):
                    into = {column: slope * weight for column, weight in reads.items()} | {0: shift - slope * middle}
                    units.append((into, {column: sign * far for column, far in change.items()}))
            before, current = number, following
        return units


def table_of(select: rasp.Select, values: Values, variable: rasp.Variable) -> Float[np.ndarray, "key query"]:
    """The predicate as a table of zeros and ones."""
    for one in (select.keys, select.queries):
        if one.kind == rasp.NUMERICAL or values[one] is None:
            raise _fail(variable, f"its Select compares {str(one)!r}, a number: Map it to categories first")
    keys, queries = values[select.keys] or (), values[select.queries] or ()
    try:
        rows = [[bool(select.predicate(key, query)) for query in queries] for key in keys]
    except Exception as error:
        raise _fail(variable, f"its predicate fails on values that it may be given ({error})") from error
    return np.array(rows, dtype=float).reshape(len(keys), len(queries))


def _number(variable: rasp.Variable, value: rasp.Value) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise _fail(variable, f"a number is needed, but it may be {value!r}")
    return found


def _fail(variable: rasp.Variable, why: str) -> errors.CompileError:
    return errors.CompileError(f"cannot compile {type(variable).__name__} {str(variable)!r}: {why}")
