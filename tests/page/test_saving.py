"""The browser saves figures as pictures, tables as CSV and a script, and sends nothing anywhere else."""

from __future__ import annotations

import csv
import re
import struct
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Download

from tests.page.conftest import Tab

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]

GROUPED = "?kernel=matmul.grouped&M=576&N=576&K=288&BLOCK_M=64&BLOCK_N=64&GROUP_SIZE=3&gpu=H200&tab="
BUTTONS = ["Zoom", "Pan", "Reset axes", "Save as PNG, at 2×", "Save as SVG"]


def saved(tab: Tab, selector: str) -> Download:
    """Click a button and return the file that it saves."""
    with tab.page.expect_download() as download:
        tab.page.locator(selector).first.click()
    return download.value


def content(download: Download) -> bytes:
    return Path(download.path()).read_bytes()


def test_a_figure_is_saved_with_its_title_its_config_and_its_mark_and_so_is_a_script(tab: Tab) -> None:
    tab.open(GROUPED + "reuse")
    tab.wait_for_draw("reuse-plot")
    plot = tab.page.locator("#reuse-plot .live-plot")
    plot.hover()
    assert [one.get_attribute("data-title") for one in plot.locator(".modebar-btn").all()] == BUTTONS
    title, buttons = plot.locator(".gtitle").bounding_box(), plot.locator(".modebar").bounding_box()
    assert title is not None
    assert buttons is not None
    assert buttons["y"] > title["y"] + title["height"]
    svg = saved(tab, "#reuse-plot [data-title='Save as SVG']")
    assert svg.suggested_filename.endswith(".svg")
    text = " ".join(re.sub(r"<[^>]*>", " ", content(svg).decode()).split())  # the caption may have several lines
    for part in ("DRAM reads by GROUP_SIZE", "matmul.grouped · M 576, N 576, K 288", "H200 · predicted"):
        assert part in text, part
    png = content(saved(tab, "#reuse-plot [data-title='Save as PNG, at 2×']"))
    width, height = struct.unpack(">II", png[16:24])
    box = plot.bounding_box()
    assert box is not None
    assert width == pytest.approx(2 * box["width"], abs=4)
    assert height > 2 * 0.9 * box["height"]
    here = urlsplit(tab.url).netloc
    assert {urlsplit(url).netloc for url in tab.requests if url.startswith("http")} == {here}
    tab.follow(GROUPED + "result")
    a_script_of_what_is_set_is_saved(tab)


def test_a_table_is_saved_as_it_stands(tab: Tab) -> None:
    tab.open("?kernel=matmul.grouped&gpu=H200&tab=coalescing")
    tab.fold("verdicts-fold")
    table = "#coalescing-table .scroll"
    tab.page.wait_for_selector(f"{table} td:text-is('compiled')", state="attached", timeout=60_000)
    tab.page.locator(table).first.hover()
    download = saved(tab, f"{table} .save-csv")
    rows = list(csv.reader(content(download).decode("utf-8-sig").splitlines()))
    assert rows[0][:2] == ["operation", "line"]
    assert len({len(row) for row in rows}) == 1
    load = next(row for row in rows if row[0] == "load A" and row[2] == "compiled")
    assert load[3:6] == ["16 B", "4096", "65536"]
    assert download.suggested_filename.startswith("matmul.grouped")


def a_script_of_what_is_set_is_saved(tab: Tab) -> None:
    tab.fold("take-it")
    take = tab.page.locator("#take-it .take")
    take.wait_for()
    script = saved(tab, "[data-file=script]")
    assert script.suggested_filename == "matmul_grouped_576x576x288_float16.py"
    assert "problem = SimpleNamespace(M=576, N=576, K=288," in content(script).decode()
    assert saved(tab, "[data-file=notebook]").suggested_filename == "matmul_grouped_576x576x288_float16.ipynb"
    offered = take.locator("option").all_text_contents()
    assert {"/run", "/schedule", "/reuse", "/compile"} <= set(offered)
    assert not {"/kernels", "/script", "/trace", "/sweep"} & set(offered)
    tab.page.locator("[data-file=trace]").click()
    take.locator(".problem").wait_for()
    assert "no timeline of this experiment on H200 was recorded" in take.inner_text()
