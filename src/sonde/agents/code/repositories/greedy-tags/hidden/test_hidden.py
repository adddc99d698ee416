"""Hidden tests."""

import unittest

from bold import bold


class HiddenTest(unittest.TestCase):
    def test_several(self):
        self.assertEqual(bold("<b>1</b><b>2</b>\n<b>3</b>"), ["1", "2", "3"])

    def test_attributes(self):
        self.assertEqual(bold('<b class="x">1</b> <b id="y" class="z">2</b>'), ["1", "2"])

    def test_other_tags(self):
        self.assertEqual(bold("<br> no <b>yes</b> <br>"), ["yes"])
        self.assertEqual(bold("<body><b>yes</b></body>"), ["yes"])

    def test_nothing(self):
        self.assertEqual(bold("plain"), [])
        self.assertEqual(bold("<b></b>"), [""])
