"""A pinned experiment is compared with the current one: figures, sentences, numbers and ratios; a link holds both."""

from __future__ import annotations

import json
import re
import urllib.parse
from dataclasses import replace

import pytest

from kernels.knobs import ConfigError
from tests.panels.sent import request, settings_of, slots_of
from visualize.views.compare import pair_slots, ratio, render_comparison
from visualize.views.numbers import Number
from visualize.views.slots import NONE
from visualize.views.state import read_pinned
from visualize.views.tabs import SETTINGS

PINNED = "kernel=matmul.grouped&M=576&N=576&K=288&BLOCK_N=64&GROUP_SIZE=1"
SET = {"M": 576, "N": 576, "K": 288, "BLOCK_M": 64, "BLOCK_N": 64, "GROUP_SIZE": 3, "with": PINNED}


def changed(page, flat):
    """Return the slots that a change fills while an experiment is pinned."""
    return slots_of(page.on_message(request(), settings_of(flat)))


def followed(page, query):
    return slots_of(page.on_message(request(), json.dumps({"follow": query})))


def links(compare):
    """The addresses of the bar's links, by what they say."""
    pieces = [piece.split('"', 1) for piece in str(compare).split('<a href="?')[1:]]
    text = [rest.split(">", 1)[1].split("<", 1)[0] for _, rest in pieces]
    return {said: address.replace("&amp;", "&") for said, (address, _) in zip(text, pieces, strict=True)}


def test_only_with_a_pinned_experiment_a_slot_holds_two_values(shared_page):
    own = changed(shared_page, {**SET, "with": ""})
    assert " " not in own["schedule-plot"]
    assert "pinned" not in own["schedule-claim"]
    assert set(links(own["compare"])) == {"Pin"}
    both = changed(shared_page, SET)
    pinned = changed(shared_page, {**dict(urllib.parse.parse_qsl(PINNED)), "with": ""})
    assert both["schedule-plot"].split(" ") == [own["schedule-plot"], pinned["schedule-plot"]]
    columns = '<div class="beside"><div class="own">{}</div><div class="pinned">{}</div></div>'
    assert both["schedule-claim"] == columns.format(own["schedule-claim"], pinned["schedule-claim"])


def test_the_strip_names_differences_and_a_few_numbers_and_folds_the_table_of_all(shared_page):
    strip, table = changed(shared_page, {**SET, "first": 9})["compare"].split("<details>")
    assert "Pinned → now: GROUP_SIZE 1 → <b>3</b>." in strip
    assert "blocks for 9 programs 90 → <b>54</b> (0.600 ×)</span>" in strip
    assert ">M<" not in table, "equal knobs are left out"
    assert all(word in table for word in ("GROUP_SIZE", "waves", "same", "0.600 ×"))
    assert "All known numbers are equal." in changed(shared_page, SET)["compare"]
    gpus = changed(shared_page, {**SET, "GROUP_SIZE": 1, "gpu": "A10G"})["compare"]
    assert "gpu H200 → <b>A10G</b>" in gpus
    many = {f"knob{place}": place for place in range(7)}
    assert "knob3 3 → <b>–</b>, 3 more." in render_comparison({}, many, [], [])


TIME, LOADS = Number("time", 2.0, "ms", "recorded"), [Number(name, 5, "", "predicted") for name in "abcd"]
NO_NUMBER = "No number is known for both experiments. Press Run; for the pinned one, press Swap first."
HALF = [replace(number, value=number.value / 2) for number in (*LOADS, TIME)]


@pytest.mark.parametrize(
    ("numbers", "pinned", "sentence"),
    [
        ([], [], NO_NUMBER),
        ([TIME], [], NO_NUMBER),
        ([TIME], LOADS, NO_NUMBER),
        ([TIME], [TIME], "All known numbers are equal."),
        (HALF, [*LOADS, TIME], "a 5 → 2.50 (0.500 ×) · b 5 → 2.50 (0.500 ×) · time 2.00 ms → 1.00 ms (0.500 ×)"),
    ],
)
def test_the_strip_has_at_most_three_numbers_or_says_why_it_has_none(numbers, pinned, sentence):
    strip = render_comparison({"M": 1}, {"M": 2}, numbers, pinned)
    assert re.sub("<[^>]*>", "", strip.split("<details>")[0]) == f"Pinned → now: M 2 → 1. {sentence}"
    assert ("<table" in strip) == bool(numbers or pinned)


@pytest.mark.parametrize("tab", SETTINGS.tabs)
def test_two_kernels_of_two_families_are_compared_on_every_tab(shared_page, tab):
    answer = changed(shared_page, {"kernel": "transpose.tiled", "tab": tab, "operation": "1", "with": PINNED})
    assert "kernel matmul.grouped → <b>transpose.tiled</b>" in answer["compare"]
    assert "<td>–</td>" in answer["compare"], "a transpose has no K"


def test_pin_swap_and_unpin_are_links_to_states(shared_page):
    pinned = followed(shared_page, links(changed(shared_page, {**SET, "with": ""})["compare"])["Pin"])
    assert "Nothing differs yet" in pinned["compare"]
    ways = links(changed(shared_page, SET)["compare"])
    swapped = SETTINGS.state(dict(urllib.parse.parse_qsl(ways["Swap"])), None)
    assert (swapped.experiment.config.GROUP_SIZE, swapped.pinned.config.GROUP_SIZE) == (1, 3)
    unpinned = SETTINGS.state(dict(urllib.parse.parse_qsl(ways["Unpin"])), None)
    assert (unpinned.experiment.config.GROUP_SIZE, unpinned.pinned) == (3, None)


def test_a_link_holds_both_and_another_kernel_keeps_the_pinned_experiment(shared_page):
    state = SETTINGS.state(SET, None)
    assert SETTINGS.state(state.to_address(), None) == state
    assert SETTINGS.state(SETTINGS.short_address(state), None) == state
    kept = SETTINGS.change_kernel({**SET, "form_of": "matmul.grouped"}, "matmul.persistent")
    assert kept["with"] == PINNED
    opened = followed(shared_page, urllib.parse.urlencode({"kernel": "matmul.grouped", "with": PINNED}))
    assert json.loads(opened["settings"])["with"] == PINNED


def test_recorded_runs_are_compared(shared_page):
    there = {"kernel": "matmul.grouped", "tab": "result", "gpu": "H200", "with": "kernel=matmul.persistent&gpu=H200"}
    answer = followed(shared_page, urllib.parse.urlencode(there))
    assert answer["card"].count('class="mark recorded"') == 1
    assert "TFLOP/s" in answer["compare"]
    assert " ×" in answer["compare"]


@pytest.mark.parametrize(
    "wrong", ["kernel=sort", "M=5", "kernel=matmul.grouped&M=0", "x" * 1001, "kernel=matmul.grouped&gpu=this"]
)
def test_an_invalid_pinned_experiment_is_refused_and_the_rest_opens(shared_page, wrong):
    with pytest.raises(ConfigError) as error:
        read_pinned(wrong, None)
    assert error.value.field == "with"
    answer = followed(shared_page, urllib.parse.urlencode({"kernel": "matmul.grouped", "M": 640, "with": wrong}))
    assert "pinned" in json.loads(answer["problems"])["with"]
    assert "M=640" in answer["link"]


def test_a_pinned_experiment_that_cannot_be_drawn_says_why_beside_the_current_one(shared_page):
    """An SM holds 64 warps: 32 programs of 2, but not of 4."""
    flat = {**SET, "num_warps": 2, "programs_per_sm": 32}
    answer = changed(shared_page, flat)
    assert "programs_per_sm must be at most" in answer["compare"]
    assert " " not in answer["schedule-plot"]
    assert json.loads(answer["problems"]) == {}


def test_the_ratio_of_two_numbers():
    def one(value, unit="", name="n"):
        return Number(name, value, unit, "predicted")

    assert ratio(one(54), one(90)) == "0.600 ×"
    assert ratio(one(5), one(5)) == ratio(one(0), one(0)) == "same"
    assert ratio(one(5), one(0)) == "+5"
    assert ratio(one(5), None) == ratio(None, one(5)) == ratio(one(5, "ms"), one(5, "bytes")) == ""


@pytest.mark.parametrize(("own", "value"), [("now", "now then"), (NONE, f"{NONE} then"), ("", " then")])
def test_a_plot_without_a_figure_shows_the_pinned_one(own, value):
    assert pair_slots({"a-plot": own}, {"a-plot": "then"}) == {"a-plot": value}
    assert (
        pair_slots({"a-plot": own}, {"a-plot": NONE}) == pair_slots({"a-plot": own}, {"a-plot": ""}) == {"a-plot": own}
    )
