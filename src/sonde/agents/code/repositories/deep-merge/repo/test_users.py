"""Tests of the settings."""

import unittest

from users import DEFAULTS, settings_of


class SettingsTest(unittest.TestCase):
    def test_a_section_keeps_the_rest(self):
        self.assertEqual(settings_of({"server": {"port": 81}})["server"], {"host": "localhost", "port": 81})

    def test_defaults_stay(self):
        settings_of({"debug": True})
        self.assertEqual(DEFAULTS["debug"], False)


if __name__ == "__main__":
    unittest.main()
