"""The arguments of the command."""

import argparse


def parse(arguments):
    """The options in the arguments."""
    parser = argparse.ArgumentParser(prog="greet")
    parser.add_argument("name")
    parser.add_argument("--count", default=1)
    parser.add_argument("--quiet", type=bool, default=False)
    return parser.parse_args(arguments)
