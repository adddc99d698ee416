"""Tests of the parameters."""

import unittest

from query import parameters


class ParametersTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(parameters("http://x.example/?a=1&b=2"), {"a": ["1"], "b": ["2"]})

    def test_spaces_and_accents(self):
        self.assertEqual(parameters("http://x.example/?q=red+wine&c=caf%C3%A9"), {"q": ["red wine"], "c": ["café"]})

    def test_a_name_given_twice(self):
        self.assertEqual(parameters("http://x.example/?tag=a&tag=b"), {"tag": ["a", "b"]})

    def test_no_parameters(self):
        self.assertEqual(parameters("http://x.example/"), {})


if __name__ == "__main__":
    unittest.main()
