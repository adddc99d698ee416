"""Tests of the search."""

import unittest

from search import count, first_index


class SearchTest(unittest.TestCase):
    def test_every_place(self):
        self.assertEqual([first_index("abcde", letter) for letter in "abcde"], [0, 1, 2, 3, 4])

    def test_the_first_of_several(self):
        self.assertEqual(first_index([1, 2, 2, 2, 2, 3], 2), 1)

    def test_absent(self):
        self.assertEqual(first_index([1, 3], 2), -1)

    def test_count(self):
        self.assertEqual(count([1, 2, 2, 2, 2, 3], 2), 4)


if __name__ == "__main__":
    unittest.main()
