"""Tests of the member list."""

import unittest

from members import Members


class MembersTest(unittest.TestCase):
    def test_case_does_not_matter(self):
        self.assertEqual(Members(["Ann"]).find(" ANN "), "Ann")

    def test_sharp_s(self):
        self.assertEqual(Members(["Straße"]).find("STRASSE"), "Straße")

    def test_two_ways_to_write_an_accent(self):
        self.assertEqual(Members(["Zo\u00eb"]).find("Zoe\u0308"), "Zo\u00eb")


if __name__ == "__main__":
    unittest.main()
