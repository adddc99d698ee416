"""Hidden tests."""

import unittest

from ini import read


class HiddenTest(unittest.TestCase):
    def test_values(self):
        self.assertEqual(read("a=b=c=d"), {"": {"a": "b=c=d"}})
        self.assertEqual(read("colour = #fff"), {"": {"colour": "#fff"}})
        self.assertEqual(read("empty ="), {"": {"empty": ""}})

    def test_comments(self):
        self.assertEqual(read("  ; a = 1\n  # b = 2\n\n[s]\nc = 3"), {"": {}, "s": {"c": "3"}})
