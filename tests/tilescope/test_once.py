"""A value that several threads request at once is computed once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from tests.waiting import PATIENCE_S
from tilescope.caching import once


def test_threads_wait_for_a_value_that_another_thread_is_computing():
    begun = threading.Event()
    go_on = threading.Event()
    made = []

    @once
    def slow(name):
        """Double a name."""
        begun.set()
        assert go_on.wait(PATIENCE_S)
        made.append(name)
        return name * 2

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(slow, "a") for _ in range(4)]
        assert begun.wait(PATIENCE_S)
        go_on.set()
        assert [future.result(PATIENCE_S) for future in asked] == ["aa"] * 4
    assert made == ["a"]
    assert slow("b") == "bb"
    assert made == ["a", "b"]
    slow.cache_clear()
    assert slow("a") == "aa"
    assert len(made) == 3
    assert slow.__doc__ == "Double a name."
