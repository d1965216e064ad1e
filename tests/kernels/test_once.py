"""A value that several threads ask for at once is made once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from kernels import records
from kernels.measuring.measurements import MEASUREMENTS
from kernels.once import once


def test_threads_that_ask_while_it_is_made_wait_for_it():
    begun, go_on, made = threading.Event(), threading.Event(), []

    @once
    def slow(name):
        """What it is for."""
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
    assert slow.__doc__ == "What it is for."


def test_recordings_are_read_once_however_many_ask(monkeypatch):
    """As when many pages are opened right after the start."""
    reading = []
    fields = records._fields
    monkeypatch.setattr(records, "_fields", lambda *of: reading.append(1) or fields(*of))
    for cached in (records._lines, records._shipped, records._index):
        cached.cache_clear()
    form = MEASUREMENTS["counters"].form
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(lambda _: records.shipped(form), range(4)))
    assert len(several[0]) > 100
    assert all(one is several[0] for one in several)
    assert len(reading) == sum(len(lines) for lines in records._lines().values())
