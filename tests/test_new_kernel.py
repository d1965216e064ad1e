"""Adding a kernel means adding one file: endpoints, schedule and contract tests follow from it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.xdist_group("grown")

KERNEL = "transpose.column_strip"
EXPERIMENT = {"kernel": KERNEL, "problem": {"M": 200, "N": 300}, "config": {"BLOCK_M": 16, "BLOCK_N": 64}}


def add(tree):
    """Add a copy of a kernel that walks along rows, under another name and with other knobs."""
    folder = tree / "kernels" / "transpose"
    text = (folder / "row_strip.py").read_text(encoding="utf-8").replace("row_strip", "column_strip")
    knobs = "powers(1, 64)"
    assert text.count(knobs) == text.count(f'id="{KERNEL}"') == 1
    (folder / "column_strip.py").write_text(text.replace(knobs, "powers(1, 16)"), encoding="utf-8")


def test_the_endpoints_know_the_kernel(grown_client):
    (entry,) = (one for one in grown_client.predict(api_name="/kernels")["kernels"] if one["id"] == KERNEL)
    assert [knob["name"] for knob in entry["knobs"]] == ["BLOCK_M", "BLOCK_N", "num_warps", "num_stages"]
    assert entry["knobs"][0]["choices"] == [1, 2, 4, 8, 16]
    assert entry["presets"]
    schedule = grown_client.predict(EXPERIMENT, api_name="/schedule")
    assert schedule["programs"] == -(-200 // 16)
    assert schedule["tiles"][2] == [[2, column, 0] for column in range(5)]
    ops = grown_client.predict(EXPERIMENT, "textbook", api_name="/coalescing")["ops"]
    assert [op["op"] for op in ops] == ["load", "store"]
    assert all(op["file"].endswith("column_strip.py") for op in ops)


def test_the_contract_tests_hold_it(contract):
    outcomes, printed = contract
    own = {name: outcome for name, outcome in outcomes.items() if "column_strip" in name}
    assert set(own.values()) == {"PASSED"}, printed[-3000:]
    assert len(own) > 20, printed
    assert any("test_interpreter_addresses" in name for name in own), printed
