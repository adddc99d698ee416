"""Hidden tests."""

import unittest

from merging import merge
from users import DEFAULTS, settings_of


class HiddenTest(unittest.TestCase):
    def test_three_levels(self):
        base = {"a": {"b": {"c": 1, "d": 2}, "e": 3}}
        self.assertEqual(merge(base, {"a": {"b": {"d": 5}}}), {"a": {"b": {"c": 1, "d": 5}, "e": 3}})
        self.assertEqual(base, {"a": {"b": {"c": 1, "d": 2}, "e": 3}})

    def test_kinds_change(self):
        self.assertEqual(merge({"a": {"b": 1}}, {"a": 2}), {"a": 2})
        self.assertEqual(merge({"a": 2}, {"a": {"b": 1}}), {"a": {"b": 1}})

    def test_lists_are_replaced(self):
        self.assertEqual(settings_of({"paths": ["c"]})["paths"], ["c"])

    def test_users_do_not_meet(self):
        mine = settings_of({"server": {"port": 1}})
        mine["server"]["host"] = "changed"
        mine["paths"].append("changed")
        self.assertEqual(DEFAULTS, {"server": {"host": "localhost", "port": 80}, "paths": ["a", "b"], "debug": False})
        self.assertEqual(settings_of({})["server"], {"host": "localhost", "port": 80})
