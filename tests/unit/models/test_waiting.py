"""Loading says what one waits for: on a terminal, when it takes long, and nowhere else."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest

WAIT = """
import sys
from sonde.models import waiting

@waiting.loading
def load(name):
    print("done", "torch" in sys.modules)

waiting.PATIENCE = {patience}
{before}load("tiny-gpt2")
"""
LOAD = """
import sonde
from sonde.models import waiting
waiting.PATIENCE = 0
sonde.load("tiny-gpt2").close()
print("done")
"""


def on_a_terminal(code):
    """What a process writes to a terminal that is its standard error, and to its standard output."""
    ours, theirs = pty.openpty()
    settings = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=settings) as process:
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while piece := os.read(ours, 4096):
                seen += piece
        os.close(ours)
        said = process.stdout.read()
    assert process.returncode == 0, seen
    return seen.decode(), said.decode()


def test_a_long_load_is_shown_on_a_terminal_and_wiped_off_again():
    seen, said = on_a_terminal(WAIT.format(patience=0, before=""))
    assert "loading tiny-gpt2" in seen
    assert seen.rstrip("\r\n").endswith("\x1b[2K")  # the line is erased
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h")  # and the cursor is back
    assert said == "done False\n"


@pytest.mark.parametrize("before", ["with waiting.silent(): ", "waiting.PATIENCE = 1e6; "])
def test_a_short_load_and_one_under_progress_bars_show_nothing(before):
    seen, said = on_a_terminal(WAIT.format(patience=0, before=before))
    assert "loading tiny-gpt2" not in seen
    assert said == "done False\n"


def test_nothing_is_written_to_a_pipe_even_where_colours_are_forced():
    settings = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
    code = WAIT.format(patience=0, before="")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=settings, check=True)
    assert (done.stdout, done.stderr) == ("done False\n", "")


@pytest.mark.slow
def test_loading_a_model_is_shown_from_the_import_of_torch_on():
    seen, said = on_a_terminal(LOAD)
    assert "loading sonde" in seen
    assert "loading tiny-gpt2" in seen
    assert said == "done\n"


def test_a_wait_within_a_wait_takes_over_the_line_and_an_error_ends_both():
    code = """
from sonde.models import waiting
waiting.PATIENCE = 0
try:
    with waiting.shown("outer [/]"), waiting.shown("inner") as say:
        say("fetching")
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
with waiting.shown("again"):
    pass
"""
    seen, _ = on_a_terminal(code)
    assert [seen.count(word) > 0 for word in ("fetching", "again")] == [True, True]
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 2
