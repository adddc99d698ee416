"""Tests of the cache."""

import unittest

from lru import Cache


class CacheTest(unittest.TestCase):
    def setUp(self):
        self.cache = Cache(3)
        for key in "abc":
            self.cache.put(key, key.upper())

    def test_the_oldest_goes(self):
        self.cache.put("d", "D")
        self.assertEqual(self.cache.keys(), ["b", "c", "d"])

    def test_what_was_read_stays(self):
        self.cache.get("a")
        self.cache.put("d", "D")
        self.assertEqual(self.cache.keys(), ["c", "a", "d"])

    def test_a_new_value_for_an_old_key(self):
        self.cache.put("a", "new")
        self.assertEqual(self.cache.keys(), ["b", "c", "a"])


if __name__ == "__main__":
    unittest.main()
