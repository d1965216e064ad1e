"""The state that the server keeps of open pages is bounded, and ends with a page."""

from __future__ import annotations

from types import SimpleNamespace

from kernels.measuring.measurement import Job
from visualize.web.open_pages import MAX_OPEN_PAGES, OpenPages


def request(number):
    return SimpleNamespace(session_hash=f"page {number}")


def test_the_least_recently_used_page_is_forgotten_when_there_are_too_many():
    pages = OpenPages()
    kept, forgotten = pages.find(request(0)), pages.find(request(1))
    for number in range(2, MAX_OPEN_PAGES):
        pages.find(request(number))
    assert pages.find(request(0)) is kept
    pages.find(request(MAX_OPEN_PAGES))
    assert pages.find(request(0)) is kept
    assert pages.find(request(1)) is not forgotten


def test_closing_a_page_cancels_its_measurement_and_supersedes_its_handlers():
    pages, job = OpenPages(), Job(None)
    page = pages.find(request(0))
    page.changes = 1
    page.replace_job(job)
    pages.close(request(0))
    assert job.is_cancelled
    assert page.changes != 1
    assert pages.find(request(0)) is not page


def test_another_measurement_of_a_page_cancels_the_one_before():
    page, before, after = OpenPages().find(request(0)), Job(None), Job(None)
    page.replace_job(before)
    page.replace_job(after)
    assert (before.is_cancelled, after.is_cancelled) == (True, False)
