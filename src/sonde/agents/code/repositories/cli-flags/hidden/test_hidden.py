"""Hidden tests."""

import contextlib
import io
import unittest

from greet import greeting


def status(arguments):
    """How the command ends."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            greeting(arguments)
        except SystemExit as error:
            return error.code
    return 0


class HiddenTest(unittest.TestCase):
    def test_together(self):
        self.assertEqual(greeting(["--count", "3", "--quiet", "Bo"]), "Hello Bo\nHello Bo\nHello Bo")
        self.assertEqual(greeting(["Bo", "--quiet"]), "Hello Bo")
        self.assertEqual(greeting(["--count=0", "Bo"]), "")

    def test_refused(self):
        self.assertEqual(status(["--count", "-1", "Bo"]), 2)
        self.assertEqual(status(["--count", "many", "Bo"]), 2)
        self.assertEqual(status([]), 2)
        self.assertEqual(status(["Bo"]), 0)
