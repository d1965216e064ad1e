"""Stored sweeps in the History tab and in /history: which are listed, how, and which lead to the Sweep tab."""

from __future__ import annotations

import re
import sqlite3
import urllib.parse
from contextlib import closing

import pytest

from kernels.results import SweepRow
from kernels.results.store import Store
from tests.kernels.results_made_up import START
from tests.kernels.stores import put_sweep
from tests.panels.sweeps_made_up import space_of
from tests.panels.test_history import DAY, asked, drawn, text_of
from visualize.views.tabs import SETTINGS
from visualize.views.tune.history import HistoryPanel
from visualize.views.tune.view import swept_space


@pytest.fixture
def panel():
    return HistoryPanel()


def swept(store, ended="complete", when=START, **flat):
    """A sweep of two configs, of which one is timed."""
    within = space_of("BLOCK_M=32,64", **flat)
    row = SweepRow(within.experiments[0], "timed", median_ms=0.25)
    put_sweep(store, f"sweep {len(store.sweeps(99))}", within, {0: row}, ended, when)
    return within


def test_sweeps_are_listed_and_the_last_of_a_space_has_a_link(panel, store):
    swept(store, "running")
    within = swept(store, when=START + DAY)
    swept(store, "cancelled", M=128)
    listed = drawn(panel, store)["history-sweeps"]
    said = text_of(listed)
    assert said.count("1 of 2 0.250 ms") == 3
    assert [said.index(word) for word in ("cancelled", "complete", "cut off")] == sorted(
        said.index(word) for word in ("cancelled", "complete", "cut off")
    )
    assert "512 × 512 × 512" in said
    links = re.findall(r'href="\?([^"]+)"', listed.split("<tbody>")[1])
    assert len(links) == 2, "an earlier sweep of the same space is not what the page shows"
    there = SETTINGS.state(dict(urllib.parse.parse_qsl(links[1].replace("&amp;", "&"))), None)
    assert there.view.tab == "sweep"
    assert swept_space(there).identity == within.identity
    assert "No sweep is stored" in text_of(drawn(panel, Store(store.path.with_name("other.db")))["history-sweeps"])


def test_the_endpoint_lists_sweeps_of_a_kernel_or_of_a_problem(store):
    swept(store)
    swept(store, M=128)
    both = asked(store)["sweeps"]
    assert [one["experiment"].get("problem") for one in both] == [{"M": 128}, None]
    first = both[1]
    assert (first["vary"], first["done"], first["total"], first["best_ms"]) == ({"BLOCK_M": [32, 64]}, 1, 2, 0.25)
    assert (first["gpu"], first["ended"], first["began"]) == ("H200", "complete", START.isoformat())
    assert len(asked(store, kernel="transpose.tiled")["sweeps"]) == 0
    assert len(asked(store, experiment={"kernel": "matmul.grouped", "problem": {"M": 128}})["sweeps"]) == 1
    assert len(asked(store, limit=1)["sweeps"]) == 1


def test_a_sweep_of_a_kernel_that_is_gone_is_listed_without_a_link(panel, store):
    swept(store)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE sweep SET details = replace(details, 'matmul.grouped', 'matmul.gone')")
    listed = drawn(panel, store)["history-sweeps"]
    assert "of another version of this kernel" in listed
    assert "href" not in listed.split("<tbody>")[1]
    assert asked(store)["sweeps"] == []
