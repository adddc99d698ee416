"""Hidden tests."""

import unittest

from convert import target
from suffix import split_suffix, with_suffix


class HiddenTest(unittest.TestCase):
    def test_split(self):
        self.assertEqual(split_suffix("a.b/c.tar.gz"), ("a.b/c.tar", ".gz"))
        self.assertEqual(split_suffix("a.b/c"), ("a.b/c", ""))
        self.assertEqual(split_suffix("a/.hidden"), ("a/.hidden", ""))
        self.assertEqual(split_suffix("a/.hidden.md"), ("a/.hidden", ".md"))

    def test_change(self):
        self.assertEqual(with_suffix("../up/file.md", ".html"), "../up/file.html")
        self.assertEqual(target("x.d/.profile"), "x.d/.profile.txt")
        self.assertEqual(target("x.txt/y"), "x.txt/y.txt")
