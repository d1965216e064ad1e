"""The state that the server keeps of open pages is bounded, and ends with a page."""

from __future__ import annotations

from types import SimpleNamespace

from kernels.measuring.measurement import Job
from visualize.web.redraw import MAX_OPEN_PAGES, OpenPages


def request(number):
    return SimpleNamespace(session_hash=f"page {number}")


def test_the_least_recently_used_page_is_evicted_first():
    pages = OpenPages()
    first, second, *_ = [pages.find(request(number)) for number in range(MAX_OPEN_PAGES)]
    assert pages.find(request(0)) is first
    pages.find(request(MAX_OPEN_PAGES))
    assert pages.find(request(0)) is first
    assert pages.find(request(1)) is not second


def test_a_new_measurement_cancels_the_previous_one_and_closing_the_page_cancels_both():
    pages, before, after = OpenPages(), Job(None), Job(None)
    page = pages.find(request(0))
    page.changes = 1
    page.replace_job(before)
    page.replace_job(after)
    assert (before.is_cancelled, after.is_cancelled) == (True, False)
    pages.close(request(0))
    assert after.is_cancelled
    assert page.changes != 1, "its handlers are superseded"
    assert pages.find(request(0)) is not page
