"""Tests of the search for bold passages."""

import unittest

from bold import bold


class BoldTest(unittest.TestCase):
    def test_one(self):
        self.assertEqual(bold("a <b>c</b> d"), ["c"])

    def test_two_on_a_line(self):
        self.assertEqual(bold("<b>one</b> and <b>two</b>"), ["one", "two"])

    def test_over_a_line_break(self):
        self.assertEqual(bold("<b>one\ntwo</b>"), ["one\ntwo"])


if __name__ == "__main__":
    unittest.main()
