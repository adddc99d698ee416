"""Hidden tests."""

import unittest

from members import Members


class HiddenTest(unittest.TestCase):
    def test_folding(self):
        self.assertEqual(Members(["Weiß"]).find("weiss"), "Weiß")
        self.assertEqual(Members(["GROSS"]).find("groß"), "GROSS")
        self.assertEqual(Members(["Σίσυφος"]).find("ΣΊΣΥΦΟΣ"), "Σίσυφος")

    def test_accents(self):
        self.assertEqual(Members(["A\u030angstro\u0308m"]).find("\u00c5NGSTR\u00d6M"), "A\u030angstro\u0308m")
        self.assertEqual(Members(["Zoe"]).find("Zo\u00eb"), None)

    def test_one_member_entered_twice(self):
        self.assertEqual(len(Members(["Zo\u00eb", "zoe\u0308"])), 1)
