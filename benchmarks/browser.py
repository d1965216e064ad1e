"""The browser in which benchmarks and scripts open pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, ViewportSize, sync_playwright

WINDOW: ViewportSize = {"width": 1280, "height": 720}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield the Chromium that CHROMIUM names, or `chromium` on the path."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        yield browser
        browser.close()
