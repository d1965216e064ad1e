"""The browser in which pages are measured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, ViewportSize, sync_playwright

WINDOW: ViewportSize = {"width": 1280, "height": 720}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a Chromium: the one that CHROMIUM names, otherwise the one on the path."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        yield browser
        browser.close()
