"""Tests of the numerals."""

import unittest

from roman import read, write


class RomanTest(unittest.TestCase):
    def test_adding(self):
        self.assertEqual(read("XVI"), 16)
        self.assertEqual(write(16), "XVI")

    def test_subtracting(self):
        self.assertEqual(read("IX"), 9)
        self.assertEqual(write(4), "IV")

    def test_small_letters(self):
        self.assertEqual(read("xiv"), 14)


if __name__ == "__main__":
    unittest.main()
