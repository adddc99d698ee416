"""Tests of the import."""

import unittest

from contacts import read_contacts


class ContactsTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(read_contacts("name,city\nAnn,Rome\n"), [{"name": "Ann", "city": "Rome"}])

    def test_a_comma_in_quotation_marks(self):
        self.assertEqual(
            read_contacts('name,address,age\nAnn,"Main St 1, Rome",30\n'),
            [{"name": "Ann", "address": "Main St 1, Rome", "age": "30"}],
        )


if __name__ == "__main__":
    unittest.main()
