"""Hidden tests."""

import unittest

from query import parameters


class HiddenTest(unittest.TestCase):
    def test_decoding(self):
        self.assertEqual(parameters("http://x.example/?q=a%2Bb+c%26d%3De"), {"q": ["a+b c&d=e"]})
        self.assertEqual(parameters("http://x.example/?n%C3%A4me=1"), {"näme": ["1"]})

    def test_empty_values(self):
        self.assertEqual(parameters("http://x.example/?debug&q="), {"debug": [""], "q": [""]})
        self.assertEqual(parameters("http://x.example/?"), {})
        self.assertEqual(parameters("http://x.example/path"), {})

    def test_repeated(self):
        self.assertEqual(parameters("http://x.example/?t=1&u=2&t=3"), {"t": ["1", "3"], "u": ["2"]})

    def test_equal_signs(self):
        self.assertEqual(parameters("http://x.example/?q=a=b"), {"q": ["a=b"]})
