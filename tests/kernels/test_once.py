"""A value that several threads request at once is computed once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from kernels import once


def test_threads_wait_for_a_value_that_another_thread_is_computing():
    begun, go_on, made = threading.Event(), threading.Event(), []

    @once
    def slow(name):
        """Double a name."""
        begun.set()
        assert go_on.wait(20)
        made.append(name)
        return name * 2

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(slow, "a") for _ in range(4)]
        assert begun.wait(20)
        go_on.set()
        assert [one.result(20) for one in asked] == ["aa"] * 4
    assert made == ["a"]
    assert (slow("b"), made) == ("bb", ["a", "b"])
    slow.cache_clear()
    assert (slow("a"), len(made)) == ("aa", 3)
    assert slow.__doc__ == "Double a name."
