"""Tests of the settings reader."""

import unittest

from ini import read


class ReadTest(unittest.TestCase):
    def test_sections(self):
        self.assertEqual(read("[a]\nx = 1\n[b]\nx = 2\n"), {"": {}, "a": {"x": "1"}, "b": {"x": "2"}})

    def test_a_value_with_equal_signs(self):
        self.assertEqual(read("url = db://host?user=me&mode=rw"), {"": {"url": "db://host?user=me&mode=rw"}})

    def test_comments(self):
        self.assertEqual(read("# one\n; two\nx = 1"), {"": {"x": "1"}})


if __name__ == "__main__":
    unittest.main()
