"""What a cache keeps: the values used last, up to a number and a size."""

from __future__ import annotations

from kernels.measuring.bounded_cache import BoundedCache


def test_the_cache_forgets_what_was_used_least_recently():
    cache = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)
    cache.put("a", 4)
    assert (cache.get("a"), len(cache)) == (4, 2)


def test_values_are_kept_up_to_a_size_and_the_last_one_always():
    cache = BoundedCache(9, size=len, largest=10)
    cache.put("a", "1234")
    cache.put("b", "123456")
    assert len(cache) == 2
    cache.put("a", "12345")
    assert [cache.get(key) for key in "ab"] == ["12345", None], "a larger value in the place of one"
    cache.put("c", "x" * 50)
    assert [cache.get(key) for key in "ac"] == [None, "x" * 50]
    cache.put("d", "1")
    assert [cache.get(key) for key in "cd"] == [None, "1"]
