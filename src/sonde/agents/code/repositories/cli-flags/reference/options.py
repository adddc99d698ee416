"""The arguments of the command."""

import argparse


def _count(text):
    """A number from 0 up."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be below zero")
    return number


def parse(arguments):
    """The options in the arguments."""
    parser = argparse.ArgumentParser(prog="greet")
    parser.add_argument("name")
    parser.add_argument("--count", type=_count, default=1)
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args(arguments)
