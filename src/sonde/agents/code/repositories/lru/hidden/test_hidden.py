"""Hidden tests."""

import unittest

from lru import Cache


class HiddenTest(unittest.TestCase):
    def test_reading(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertEqual(cache.get("a"), 1)
        cache.put("c", 3)
        self.assertEqual(cache.keys(), ["a", "c"])
        self.assertEqual(cache.get("b", "gone"), "gone")

    def test_absent_keys_are_not_made(self):
        cache = Cache(2)
        self.assertEqual(cache.get("x"), None)
        self.assertEqual(cache.keys(), [])

    def test_a_stored_none_counts_as_used(self):
        cache = Cache(2)
        cache.put("a", None)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        self.assertEqual(cache.keys(), ["a", "c"])

    def test_membership_does_not_count(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertEqual("a" in cache, True)
        cache.put("c", 3)
        self.assertEqual(cache.keys(), ["b", "c"])

    def test_overwriting(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("b", 3)
        self.assertEqual([cache.get("a"), cache.get("b")], [1, 3])
