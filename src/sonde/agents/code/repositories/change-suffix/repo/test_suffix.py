"""Tests of the endings."""

import unittest

from convert import target


class TargetTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(target("a/b.md"), "a/b.txt")
        self.assertEqual(target("a/b.txt"), "a/b.txt.txt")

    def test_a_dot_in_the_folder(self):
        self.assertEqual(target("notes.d/readme"), "notes.d/readme.txt")

    def test_a_hidden_file(self):
        self.assertEqual(target(".profile"), ".profile.txt")


if __name__ == "__main__":
    unittest.main()
