"""Cases in which positions or other tokens matter, against plain Python, on inputs of every kind and length.

The functions are written from what the tasks say, without RASP; `None` stands where the original says nothing. What a case
says of each token by itself is settled by `test_bench_behaviour`, which meets every token.
"""

import itertools
import random
import statistics

import pytest

from sonde.bench import cases

SEEDS = 150
SINGLE = {
    8,
    10,
    20,
    23,
    28,
    29,
    30,
    31,
    33,
    34,
    35,
    36,
    37,
    40,
    41,
    43,
    46,
    49,
    50,
    51,
    52,
    54,
    55,
    60,
    62,
    64,
    65,
    66,
    68,
}
SINGLE |= {
    69,
    70,
    72,
    73,
    75,
    77,
    79,
    80,
    83,
    84,
    85,
    86,
    87,
    90,
    91,
    95,
    101,
    102,
    104,
    105,
    107,
    114,
    121,
    122,
    123,
    130,
}


def everywhere(value, x):
    return [value for _ in x]


def share(x, token):
    return [x[: i + 1].count(token) / (i + 1) for i in range(len(x))]


def balanced(x):
    def even(opening, closing):
        depth = 0
        for token in x:
            depth += (token == opening) - (token == closing)
            if depth < 0:
                return False
        return depth == 0

    return everywhere(even("(", ")") and even("{", "}"), x)


def oscillates(x):
    inner = [(b > a) != (c > b) for a, b, c in zip(x, x[1:], x[2:], strict=False)]
    return [None, *inner, None]


def trend(x):
    words = {True: "increasing", False: "decreasing"}
    return [*("constant" if a == b else words[b > a] for a, b in itertools.pairwise(x)), None]


def frequency(x):
    shares = [x.count(token) / len(x) for token in x]
    return ["rare" if one < 0.25 else "common" if one < 0.5 else "frequent" for one in shares]


def without_neighbours_like_it(x):
    inner = [b not in (a, c) for a, b, c in zip(x, x[1:], x[2:], strict=False)]
    return [None, *inner, None]


def with_next(x, join):
    return [join(a, b) for a, b in zip(x, [*x[1:], x[-1]], strict=True)]


def with_previous(x, join):
    return [None, *(join(a, b) for a, b in itertools.pairwise(x))]


def mirrored(x):
    kept = x[: (len(x) + 1) // 2]
    return kept + kept[::-1][len(x) % 2 :]


def woven(x):
    back = x[::-1]
    return [back[i] if i % 2 else x[i] for i in range(len(x))]


def swapped_pairs(x, first):
    found = list(x)
    for i in range(first, len(x) - 1, 2):
        found[i], found[i + 1] = x[i + 1], x[i]
    return found


def halves_swapped(x):
    half = len(x) // 2
    return x[len(x) - half :] + x[half : len(x) - half] + x[:half]


def ends_swapped(x):
    return [x[-1], *x[1:-1], x[0]]


def spread(x):
    return [token for number in x for token in (number, 0)][: len(x)]


def steps(x, holds):
    return everywhere(int(all(holds(a, b) for a, b in itertools.pairwise(x))), x)


def reversed_if_sorted(x):
    return x[::-1] if x == sorted(x) else x


def polynomial(x):
    value = 0
    for coefficient in x[1:]:
        value = value * x[0] + coefficient
    return everywhere(value, x)


def divided(x):
    first, second = x[:2]
    return [one / (second / first) for one in x] if first and second else x


MEANINGS = {
    1: lambda x: [None, None, *(a == b for a, b in zip(x, x[2:], strict=False))],
    2: lambda x: x[::-1],
    3: lambda x: share(x, "x"),
    4: lambda x: [a - b for a, b in zip(share(x, "("), share(x, ")"), strict=True)],
    5: balanced,
    6: oscillates,
    7: lambda x: list(map(x.count, x)),
    9: sorted,
    11: lambda x: list(map(len, x)),
    12: lambda x: [None, None, *("".join(x[i - 2 : i + 1]) == "abc" for i in range(2, len(x)))],
    13: trend,
    14: lambda x: everywhere(x.count("a"), x),
    15: lambda x: [2 * one - i for i, one in enumerate(x)],
    17: lambda x: [a == b for a, b in zip(x, x[::-1], strict=True)],
    18: frequency,
    19: lambda x: [None, *(b if a != b else None for a, b in itertools.pairwise(x))],
    21: lambda x: [token if token not in x[:i] else None for i, token in enumerate(x)],
    22: lambda x: sorted(x, key=len),
    24: lambda x: x,
    25: lambda x: [x.count(token) / len(x) for token in x],
    26: lambda x: [token * (i + 1) for i, token in enumerate(x)],
    32: lambda x: with_previous(x, lambda last, word: last != word),
    38: without_neighbours_like_it,
    39: lambda x: share(x, "x"),
    42: lambda x: everywhere(x[0], x),
    44: lambda x: [sum(other > one for other in x) for one in x],
    45: lambda x: [2 * one if i < len(x) / 2 else one for i, one in enumerate(x)],
    47: lambda x: list(map(x.count, x)),
    48: lambda x: [one + i for i, one in enumerate(x)],
    53: lambda x: [one + i % 2 for i, one in enumerate(x)],
    56: lambda x: [0 if i in (2, 5, 8) else one for i, one in enumerate(x)],
    57: lambda x: everywhere(x[1], x),
    58: mirrored,
    59: sorted,
    61: lambda x: [sorted(x).index(one) + 1 for one in x],
    63: lambda x: [sorted(x).index(one) for one in x],
    67: lambda x: [one * len(x) for one in x],
    71: lambda x: [one / len(x) for one in x],
    74: woven,
    76: lambda x: [one if i % 2 else 0 for i, one in enumerate(x)],
    78: lambda x: list(map(x.count, x)),
    81: lambda x: everywhere(statistics.median(x), x),
    82: lambda x: [*x[: len(x) // 2], *(one / 2 for one in x[len(x) // 2 :])],
    88: lambda x: everywhere((x[0] + x[-1]) / 2, x),
    89: lambda x: steps(x, lambda a, b: a < b),
    92: lambda x: [x[0], *(b if b >= a else 0 for a, b in itertools.pairwise(x))],
    93: lambda x: swapped_pairs(x, 1),
    94: lambda x: steps(x, lambda a, b: a > b),
    96: lambda x: [one if x.count(one) == 1 else 0 for one in x],
    97: lambda x: [one / max(x) if max(x) else 0 for one in x],
    98: lambda x: everywhere(max(x), x),
    99: lambda x: with_next(x, lambda a, b: a + b),
    100: lambda x: [x[1], x[0], *x[2:]],
    103: lambda x: swapped_pairs(x, 0),
    106: lambda x: [0, x[1], *(0 for _ in x[2:])],
    108: lambda x: everywhere(int(len(set(x)) < len(x)), x),
    109: lambda x: everywhere(int(x[-1] == x[-2]), x),
    110: spread,
    111: lambda x: [x[-1], *(0 for _ in x[1:])],
    112: lambda x: with_next(x, lambda a, b: b - a),
    113: reversed_if_sorted,
    115: lambda x: with_next(x, lambda a, b: a * b),
    116: lambda x: [int(x[0] != 0 and one % x[0] == 0) for one in x],
    117: lambda x: everywhere(x[-2] + x[-1], x),
    118: lambda x: with_previous(x, lambda a, b: a + b),
    119: polynomial,
    120: halves_swapped,
    124: lambda x: everywhere(int(len(set(x)) == 1), x),
    125: lambda x: steps(x, lambda a, b: a % 2 != b % 2),
    126: lambda x: everywhere(statistics.median(x), x),
    127: divided,
    128: ends_swapped,
    129: lambda x: everywhere(int(all(one % 2 == 0 for one in x)), x),
    131: lambda x: with_previous(x, max),
}


def inputs(case):
    """Inputs of all lengths: any tokens, one repeated, two taking turns or mixed, sorted both ways."""
    draw, words = random.Random(case.id), case.vocabulary
    found = [list(one) for one in case.sample(SEEDS, seed=1)]
    for length in case.lengths:
        for _ in range(4):
            one, other = draw.choice(words), draw.choice(words)
            some = draw.choices(words, k=length)
            few = draw.choices((one, other), k=length)
            taking_turns = [(one, other)[i % 2] for i in range(length)]
            different = sorted(draw.sample(words, length)) if length <= len(words) else some
            found += [[one] * length, taking_turns, few, sorted(some), sorted(some)[::-1], different, different[::-1]]
    return found


def test_every_case_has_a_meaning_of_its_own_or_one_for_each_token():
    assert set(MEANINGS).isdisjoint(SINGLE)
    assert tuple(sorted(SINGLE | set(MEANINGS))) == cases.ids("all")


@pytest.mark.parametrize("number", sorted(SINGLE))
def test_what_is_said_of_a_token_does_not_depend_on_others(number):
    case = cases.get(number)
    alone = {word: case.evaluate([word] * case.lengths[0])[0] for word in case.vocabulary}
    for tokens in case.sample(SEEDS):
        assert case.evaluate(tokens) == [alone[token] for token in tokens], (number, tokens)


@pytest.mark.parametrize("number", sorted(MEANINGS))
def test_a_program_says_what_its_task_says(number):
    case = cases.get(number)
    for tokens in inputs(case):
        for said, expected in zip(case.evaluate(tokens), MEANINGS[number](tokens), strict=True):
            if expected is not None:
                same = said == expected if isinstance(expected, str) else said == pytest.approx(expected, abs=1e-9)
                assert same, (number, tokens)
