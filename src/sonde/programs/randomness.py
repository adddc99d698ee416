"""Where programs draw from: any of the usual random generators, as numpy's.

    randomness.generator(np.random.RandomState(0))
    randomness.generator(random.Random(0))

A numpy `Generator` is used as it is. The others give a seed, which moves them on: called again they give another program,
and the same state gives the same program. Costs nothing.
"""

import random

import numpy as np

from sonde.core import errors

Rng = np.random.Generator | np.random.RandomState | random.Random
WORDS = 4


def generator(rng: Rng | object) -> np.random.Generator:
    """Returns numpy's Generator of any random generator.

    Raises:
        RequestError: It is none.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, np.random.RandomState):
        return np.random.default_rng(rng.randint(0, 2**32, size=WORDS, dtype=np.uint32).tolist())
    if isinstance(rng, random.Random):
        return np.random.default_rng([rng.getrandbits(32) for _ in range(WORDS)])
    raise errors.RequestError(
        f"a generator of programs draws from numpy's Generator or RandomState, or random.Random, got {type(rng).__name__}: "
        "give np.random.default_rng(seed)"
    )
