"""Hidden tests."""

import unittest

from roman import read, write


class HiddenTest(unittest.TestCase):
    def test_reading(self):
        texts = ["IV", "XL", "XC", "CD", "CM", "MCMXCIV", "MMXXVI", "mdclxvi"]
        self.assertEqual([read(text) for text in texts], [4, 40, 90, 400, 900, 1994, 2026, 1666])

    def test_writing(self):
        numbers = [4, 9, 14, 44, 99, 444, 999, 1994]
        expected = [write(number) for number in numbers]
        self.assertEqual(expected, ["IV", "IX", "XIV", "XLIV", "XCIX", "CDXLIV", "CMXCIX", "MCMXCIV"])

    def test_there_and_back(self):
        self.assertEqual([number for number in range(1, 4000) if read(write(number)) != number], [])
