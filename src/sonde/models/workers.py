"""How do threads that compute in turns stay out of each other's way?

    workers.release()            # after a thread has computed, before another one does

Every thread that runs a parallel operation of torch on a CPU keeps OpenMP workers of its own. With two such threads there are
more workers than cores, and GNU's OpenMP then lets none of them wait awake: each operation starts with waking one, which
takes about 50 microseconds where it took 5, many hundred times per forward pass. A thread that releases its workers has them
again at its next operation; both together cost about as much as two such wake-ups. Where torch has another OpenMP, nothing happens.
"""

import ctypes
import functools
import os
import pathlib
from collections.abc import Callable

import torch

SOFT = 1


def release() -> None:
    """Gives back the OpenMP workers of the calling thread; inside a parallel operation, nothing happens."""
    pause = _pause()
    if pause is not None:
        pause(SOFT)


@functools.cache
def _pause() -> Callable[[int], int] | None:
    """OpenMP's own function for it, in the library that torch has loaded."""
    for path in sorted(pathlib.Path(torch.__file__).with_name("lib").glob("libgomp*.so*")):
        try:
            loaded = ctypes.CDLL(str(path), mode=getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW)
            return loaded.omp_pause_resource_all
        except (OSError, AttributeError):
            continue
    return None
