"""Hidden tests."""

import unittest

from caching import cached
from prices import price, stock


class HiddenTest(unittest.TestCase):
    def test_keywords(self):
        self.assertEqual(price("book", discount=50), 500)
        self.assertEqual(price("book"), 1000)
        self.assertEqual(price("book", discount=20), 800)

    def test_functions_are_apart(self):
        self.assertEqual([stock("book"), price("book"), stock("pen"), price("pen")], [3, 1000, 40, 200])

    def test_it_still_remembers(self):
        calls = []

        @cached
        def double(x, *, plus=0):
            calls.append(x)
            return 2 * x + plus

        self.assertEqual([double(1), double(1), double(1, plus=5), double(1, plus=5), double(2)], [2, 2, 7, 7, 4])
        self.assertEqual(calls, [1, 1, 2])
