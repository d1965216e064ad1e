"""The gallery: every recording is listed once, is found by its filters, and its link opens the state that shows it."""

from __future__ import annotations

import json
import urllib.parse
from collections import Counter
from dataclasses import replace

import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.knobs import ConfigError
from kernels.measuring.session import MEASUREMENTS
from kernels.results import records
from visualize.views.library.recorded_tab import KINDS, PAGE, SHOWN_ON, RecordedPanel, entries, reply
from visualize.views.numbers import SOURCES, key_numbers
from visualize.views.prose import KIND_NAMES, kind_name
from visualize.views.snapshot import Known
from visualize.views.tabs import SETTINGS

FORMS = {one.form.word: one.form for one in MEASUREMENTS.values()}


def parsed(address):
    return dict(urllib.parse.parse_qsl(address))


def drawn(**flat):
    """The list as the tab shows it."""
    panel = RecordedPanel()
    return panel.draw(Known(SETTINGS.state({"kernel": "matmul.grouped", "tab": "recorded", **flat}, None)))["recorded"]


def test_every_recording_is_an_entry():
    counts = Counter(one.kind for one in entries())
    assert counts == {word: len(records.shipped(form)) for word, form in FORMS.items()}
    assert sum(counts.values()) > 400


def test_every_kind_has_a_tab_that_shows_it_and_a_name():
    assert set(SHOWN_ON) == set(KINDS)
    assert tuple(KIND_NAMES) == KINDS
    names = [kind_name(kind, plural=True) for kind in SHOWN_ON]
    assert names == ["Runs", "Timelines", "Counts", "GROUP_SIZE studies"]
    assert set(SHOWN_ON.values()) <= set(SETTINGS.tabs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_opens_the_state_that_has_the_recording(kind):
    for one in [entry for entry in entries() if entry.kind == kind][:40]:
        state = SETTINGS.state(parsed(urllib.parse.urlencode(one.address())), None)
        assert state.view.tab == SHOWN_ON[kind]
        assert state.gpu.name == one.gpu
        found = records.find(FORMS[kind], state.experiment, one.gpu)
        assert key_numbers(found) == one.numbers


def test_every_entry_is_known_by_numbers_that_say_they_were_recorded():
    for one in entries():
        assert 1 <= len(one.numbers) <= 2
        assert {number.source for number in one.numbers} == {"recorded"}
        assert "recorded" in SOURCES
        assert all(number.value >= 0 for number in one.numbers)


def test_a_list_is_a_page_of_rows_that_fits_in_40_kilobytes():
    whole = drawn()
    assert whole.count("<tr>") == PAGE + 1
    assert len(whole.encode()) <= 40_000
    assert f"1–{PAGE} of {len(entries()):,}" in whole
    assert "Next" in whole
    assert "Previous" not in whole


def test_those_of_the_pages_kernel_come_first():
    for kernel in ("transpose.flat", "matmul.split_k_race"):
        kernels_listed = [cell for row in drawn(kernel=kernel).split("<tr>")[2:] for cell in discover() if cell in row]
        mine = min(PAGE, sum(one.kernel == kernel for one in entries()))
        assert kernels_listed[:mine] == [kernel] * mine


def test_filters_go_together_and_the_last_page_ends_the_list():
    chosen = ("transpose.tiled", "counters", "H200")
    mine = [one for one in entries() if (one.kernel, one.kind, one.gpu) == chosen]
    assert len(mine) > PAGE
    last = -(-len(mine) // PAGE)
    shown = drawn(recorded_kernel="transpose.tiled", recorded_kind="counters", recorded_gpu="H200", recorded_page=last)
    assert shown.count("<tr>") == len(mine) - (last - 1) * PAGE + 1
    assert "Previous" in shown
    assert "Next" not in shown
    assert shown == drawn(
        recorded_kernel="transpose.tiled", recorded_kind="counters", recorded_gpu="H200", recorded_page=last + 1
    ), "there is no page behind it"


def test_what_has_no_recording_says_so():
    assert "No recordings match." in drawn(recorded_gpu="B200")


def test_a_filter_keeps_the_experiment_and_the_other_filters():
    shown = drawn(M=640, recorded_kind="timeline")
    assert "kernel=matmul.grouped&amp;M=640&amp;tab=recorded&amp;recorded_kind=timeline&amp;recorded_kernel=" in shown


def test_the_endpoint_gives_the_same_and_payloads_that_stand_for_themselves():
    everything = whole()
    assert len(everything) == len(entries())
    for given, one in zip(everything, entries(), strict=True):
        assert from_json(given["experiment"]).config == one.experiment.config
        assert parsed(given["address"])["gpu"] == given["gpu"] == one.gpu
    timelines = reply("matmul.grouped", "H200", "timeline")["recorded"]
    assert {one["kind"] for one in timelines} == {"timeline"}
    chosen = ("timeline", "matmul.grouped", "H200")
    assert len(timelines) == sum((one.kind, one.kernel, one.gpu) == chosen for one in entries())


def whole():
    """The whole list, reply by reply."""
    first = reply()
    parts = [reply(offset=start)["recorded"] for start in range(first["limit"], first["total"], first["limit"])]
    return [*first["recorded"], *(one for part in parts for one in part)]


def test_a_reply_is_a_part_of_the_list_and_says_how_long_that_is():
    first = reply()
    assert (first["total"], first["limit"], first["offset"]) == (len(entries()), 50, 0)
    assert len(first["recorded"]) == 50
    assert len(json.dumps(first)) < 40_000
    last = reply(limit=500, offset=first["total"] - 3)
    assert last["recorded"] == whole()[-3:]
    assert reply(offset=first["total"])["recorded"] == []
    chosen = reply("transpose.tiled", "H200", "counters", limit=2, offset=1)
    assert chosen["recorded"] == reply("transpose.tiled", "H200", "counters")["recorded"][1:3]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("sort",), "kernel"),
        (("", "", "dance"), "kind"),
        (("", "", "", 0), "limit"),
        (("", "", "", 501), "limit"),
        (("", "", "", 50, -1), "offset"),
        (("", "", "", "many"), "limit"),
    ],
)
def test_the_endpoint_refuses_what_there_is_none_of_by_its_own_name(given, field):
    with pytest.raises(ConfigError) as error:
        reply(*given)
    assert error.value.field == field
    assert str(error.value).startswith(f"{field} must be ")


def test_recordings_of_a_kind_that_no_tab_is_named_for_open_the_page():
    assert "tab" not in replace(entries()[0], kind="unheard of").address()
