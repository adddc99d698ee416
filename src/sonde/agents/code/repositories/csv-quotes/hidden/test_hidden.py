"""Hidden tests."""

import unittest

from contacts import read_contacts


class HiddenTest(unittest.TestCase):
    def test_commas(self):
        rows = read_contacts('name,address\nAnn,"a, b, c"\nBob,d\n')
        self.assertEqual(rows, [{"name": "Ann", "address": "a, b, c"}, {"name": "Bob", "address": "d"}])

    def test_doubled_marks(self):
        self.assertEqual(read_contacts('name,age\n"Bob ""Bobby"" Low",7'), [{"name": 'Bob "Bobby" Low', "age": "7"}])

    def test_two_lines(self):
        rows = read_contacts('name,address\nAnn,"Main St\nRome"\nBob,x\n')
        self.assertEqual(rows, [{"name": "Ann", "address": "Main St\nRome"}, {"name": "Bob", "address": "x"}])

    def test_empty_fields(self):
        self.assertEqual(read_contacts("a,b,c\n1,,3\n"), [{"a": "1", "b": "", "c": "3"}])
