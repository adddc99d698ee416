"""A command that greets people."""

import sys

from options import parse


def greeting(arguments):
    """What the command says."""
    options = parse(arguments)
    line = f"Hello {options.name}" + ("" if options.quiet else "!")
    return "\n".join([line] * options.count)


if __name__ == "__main__":
    print(greeting(sys.argv[1:]))
