"""How large is the trained model of each case?

    sizes.of(3)        # Sizes(n_layers=2, n_heads=4, d_model=12, d_head=3)

The sizes are those of the published models, so that figures can be compared. They follow from the compiled model (at least
2 layers and 4 heads, heads about half as wide) with exceptions, hence a table. An MLP is four times as wide as the stream.
"""

from typing import NamedTuple

from sonde.core import errors


class Sizes(NamedTuple):
    """Sizes of a trained model."""

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int


_CASES: dict[tuple[int, int, int, int], tuple[int, ...]] = {
    (2, 4, 4, 1): (
        8,
        20,
        30,
        31,
        33,
        40,
        41,
        43,
        46,
        48,
        49,
        50,
        51,
        52,
        53,
        54,
        55,
        56,
        60,
        62,
        64,
        65,
        66,
        68,
        69,
        70,
        72,
        73,
        75,
        76,
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
        106,
        107,
        114,
        121,
        122,
        123,
    ),
    (2, 4, 6, 1): (36,),
    (2, 4, 8, 2): (14,),
    (2, 4, 9, 2): (35,),
    (2, 4, 12, 3): (3, 11, 37),
    (2, 4, 13, 3): (29,),
    (2, 4, 16, 4): (34,),
    (2, 4, 17, 4): (7, 23),
    (2, 4, 20, 5): (1, 4, 13, 32, 38, 42, 57, 92, 110, 116, 118, 131),
    (2, 4, 21, 5): (26,),
    (2, 4, 24, 6): (44, 47, 61, 63, 67, 71, 78, 100),
    (2, 4, 26, 6): (18,),
    (2, 4, 32, 8): (19,),
    (2, 4, 36, 9): (6, 24),
    (2, 4, 50, 12): (28,),
    (2, 4, 62, 15): (25,),
    (2, 4, 120, 30): (39,),
    (3, 4, 4, 1): (10, 15, 129, 130),
    (3, 4, 20, 5): (93, 99, 112, 115, 128),
    (3, 4, 24, 6): (45, 103, 108, 109, 111, 117, 124),
    (3, 4, 28, 7): (74,),
    (3, 4, 32, 8): (12, 58),
    (3, 4, 66, 16): (9,),
    (3, 4, 200, 50): (59, 97, 98),
    (4, 4, 20, 5): (94, 120, 127),
    (4, 4, 24, 6): (82, 89, 96),
    (4, 4, 36, 9): (88,),
    (4, 4, 40, 10): (17,),
    (4, 4, 44, 11): (22,),
    (4, 4, 50, 12): (21,),
    (4, 4, 56, 14): (2,),
    (4, 4, 200, 50): (81, 126),
    (5, 4, 20, 5): (125,),
    (5, 4, 24, 6): (119,),
    (7, 4, 88, 22): (113,),
    (8, 4, 37, 9): (5,),
}
_OF = {case: Sizes(*size) for size, cases in _CASES.items() for case in cases}


def of(case: int) -> Sizes:
    """The sizes of a case's trained model.

    Raises:
        RequestError: There is no such case.
    """
    if case not in _OF:
        raise errors.RequestError(f"no case {case}: there are {len(_OF)}, from {min(_OF)} to {max(_OF)}")
    return _OF[case]
