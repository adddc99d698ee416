"""A line on the terminal that says what one is waiting for: a package, a model, a stage of its conversion.

It comes after a second, goes when the wait is over, and is written to standard error, and only if that is a terminal: never
to a pipe, a file or a notebook. Waits within waits share the line. Costs a thread for as long as it may be shown.
"""

import contextlib
import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Say = Callable[[str], None]

#: Seconds until the line is shown; what is over sooner is not worth one.
PATIENCE = 1.0
_line: contextvars.ContextVar[Say | None] = contextvars.ContextVar("sonde_waiting", default=None)


@contextlib.contextmanager
def shown(text: str) -> Iterator[Say]:
    """Shows a text while its block takes long; what it gives changes the text."""
    say = _line.get()
    with contextlib.nullcontext(say) if say or not sys.stderr.isatty() else _status() as open_line:
        token = _line.set(open_line)
        tell: Say = open_line or _nobody
        tell(text)
        try:
            yield tell
        finally:
            _line.reset(token)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Shows nothing in a block that has the terminal for itself, such as one with progress bars."""
    token = _line.set(_nobody)
    try:
        yield
    finally:
        _line.reset(token)


def loading(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function say that it is loading what its first argument names."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with shown(f"loading {args[0]}" if args else "loading a model"):
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def _status() -> Iterator[Say]:
    from rich import console, live, spinner, text

    spinning = spinner.Spinner("dots")
    screen = console.Console(file=sys.stderr)
    # What is printed to standard output meanwhile must stay there.
    line = live.Live(spinning, console=screen, transient=True, refresh_per_second=8, redirect_stdout=False)
    timer = threading.Timer(PATIENCE, line.start)
    timer.daemon = True
    timer.start() if PATIENCE else line.start()
    try:
        yield lambda told: spinning.update(text=text.Text(told))
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        line.stop()


def _nobody(text: str) -> Any:
    """Says it to nobody."""
