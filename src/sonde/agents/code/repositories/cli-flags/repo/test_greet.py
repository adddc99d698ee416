"""Tests of the command."""

import unittest

from greet import greeting


class GreetTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(greeting(["Ann"]), "Hello Ann!")

    def test_count(self):
        self.assertEqual(greeting(["--count", "2", "Ann"]), "Hello Ann!\nHello Ann!")

    def test_quiet(self):
        self.assertEqual(greeting(["--quiet", "Ann"]), "Hello Ann")


if __name__ == "__main__":
    unittest.main()
