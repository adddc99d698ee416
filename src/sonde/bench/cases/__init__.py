"""Tasks with a RASP program each: 129 models whose circuit is known.

    case = cases.get(3)
    case.compiled().circuit.names                             # the true edges
    cases.ids("core")                                         # the 32 that methods are compared on

Numbers, vocabularies, lengths and kinds are those of InterpBench (arXiv:2407.14494); the programs are Sonde's own.
Loading all of them takes milliseconds, compiling all of them seconds.
"""

from sonde.bench.cases.case import Case
from sonde.bench.cases.catalogue import GROUPS, get, ids

__all__ = ["get", "ids", "Case", "GROUPS"]
