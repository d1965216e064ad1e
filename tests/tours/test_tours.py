"""Every stop of every tour: a state of the page, a short sentence, and numbers that models and records give."""

from __future__ import annotations

import re

import pytest

from visualize.tours import DIRECTORY, tours
from visualize.tours.guide import bar, plain
from visualize.tours.tour import (
    MOST_WORDS,
    BadTour,
    Choice,
    Fact,
    NoFact,
    Question,
    Stop,
    Tour,
    Value,
    check_state,
    compute_facts,
    facts_named,
    read,
)
from visualize.views.state import ScheduleView

STOPS = [
    pytest.param(stop, id=f"{tour.name} {number}")
    for tour in tours().values()
    for number, stop in enumerate(tour.stops, start=1)
]


def test_the_six_tours_are_in_their_order_and_each_asks_for_predictions() -> None:
    names = ["why-grouping", "compiler-and-blackboard", "a-race", "fusing", "tf32", "tail-wave"]
    assert list(tours()) == names
    assert all(sum(stop.ask is not None for stop in tour.stops) >= 2 for tour in tours().values())


@pytest.mark.xdist_group("compiles")
@pytest.mark.parametrize("stop", STOPS)
def test_every_number_is_what_the_sentence_was_written_for(stop, session) -> None:
    facts = compute_facts(stop.facts, stop.fields, session)
    assert {name: value.text for name, value in facts.items()} == {name: f.shown for name, f in stop.facts.items()}
    text = plain(stop.say, facts)
    assert 4 <= count_words(text) <= MOST_WORDS, text
    if stop.ask:
        numbers = {name: value.number for name, value in facts.items()}
        assert sum(choice.is_right(numbers) for choice in stop.ask.choices) == 1
        choices = [plain(choice.text, facts) for choice in stop.ask.choices]
        assert len(set(choices)) == len(choices)


@pytest.mark.parametrize("stop", STOPS)
def test_a_sentence_states_facts_and_types_no_other_numbers_than_the_states(stop) -> None:
    assert facts_named(stop.say), "a stop proves something"
    assert stop.used_facts() == stop.facts.keys()
    values = {str(value) for value in check_state(stop.fields).to_address().values()}
    bare = re.sub(r"\{\w+\}", "", stop.say)
    typed = set(re.findall(r"(?<![\w])\d[\d,.]*(?![\w])", bare.replace("torch.", "")))
    assert {number.rstrip(".,") for number in typed} <= values | {"132"}, bare


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_that_counts_on_a_timeline_shows_it(stop, session) -> None:
    """Talk mode shows one picture, which is the sentence's."""
    state = check_state(stop.fields)
    shows_timeline = state.view.of(ScheduleView).picture == "timeline"
    assert shows_timeline == any(fact.endpoint == "timeline" for fact in stop.facts.values())
    if shows_timeline:
        assert state.view.tab == "schedule"
        assert session.find_value(state.experiment, "timeline") is not None


def count_words(text: str) -> int:
    """Count words; a number and its unit are one."""
    joined = re.sub(r"([\d.,]+) (ms|µs|GB|MB|kB|bytes|×|%)", r"\1", text)
    return sum(any(letter.isalnum() for letter in word) for word in joined.split())


GOOD = (DIRECTORY / "tail-wave.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "A tail wave"', "", "title: Field required"),
        ("order = 6", 'order = "6"', "order: Input should be a valid integer"),
        ("order = 6", "order = 6\nauthor = 1", "author: Unexpected"),
        ("order = 6", "order = = 6", "Invalid value"),
        ("BLOCK_N=256", "BLOCK_N=250", "stop 1: BLOCK_N must be "),
        ("tab=schedule", "tab=scheduel", "stop 1: tab is 'scheduel'"),
        ("num_warps=8&tab", "num_wraps=8&tab", "stop 1: the address has num_wraps"),
        ("{programs} tiles for", "{program} tiles for", "stop 1: 'program' is not one of the stop's facts"),
        ('endpoint = "run"', 'endpoint = "runs"', "(got 'runs')"),
        ('unit = "ms"', 'unit = "s"', "'times' or 'share' (got 's')"),
        *(('path = "programs"', f'path = "{path}"', "is not a path") for path in ("", "[", "a..b", "a[-1]", "a b")),
        ('set = "M=1536&N=2816"', 'set = "M=0"', "stop 2: M must be "),
        ('ratio = ["time", "before"]', 'ratio = ["time"]', "is a ratio"),
        ('ratio = ["time", "before"]', 'ratio = ["time", "longer"]', "is a ratio"),
        ('when = "longer < 1.05"', 'when = "longer under 1"', "stops.2.ask.choices.1.when: String should match"),
        ('when = "longer < 1.05"', 'when = "length < 1"', "'length' is not one"),
    ],
)
def test_an_error_in_a_file_has_its_place_and_its_reason(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(BadTour, match=r"^bad\.toml") as error:
        read(GOOD.replace(old, new), "bad")
    assert says in str(error.value)


def test_a_tour_has_four_to_eight_stops() -> None:
    head, *stops = GOOD.split("[[stops]]")
    with pytest.raises(BadTour, match="stops: List should have at least 4 items"):
        read("[[stops]]".join([head, *stops[:3]]), "bad")


def test_a_recorded_number_has_its_mark_and_a_number_that_nobody_measured_is_no_fact(session) -> None:
    address = {"kernel": "matmul.grouped", "gpu": "H200"}
    facts = {"time": Fact(shown="", endpoint="run", path="timing.median_ms", unit="ms")}
    time = compute_facts(facts, address, session)["time"]
    assert (time.text, time.source) == ("7.20 µs", "recorded")
    with pytest.raises(NoFact, match="No run of this experiment on H200 was measured here or recorded"):
        compute_facts(facts, {**address, "M": "777"}, session)


@pytest.mark.parametrize(("when", "is_right"), [("x < 2", True), ("x > 2", False), ("x == 1.5", True)])
def test_a_choice_is_right_if_its_condition_holds(when: str, is_right: bool) -> None:
    assert Choice("", when).is_right({"x": 1.5}) is is_right


def test_a_bar_escapes_its_texts_and_has_one_mark_for_each_source() -> None:
    question = Question("<img 4>", [Choice("<img 5>", "x > 2")])
    stop = Stop("", "<img 2> {x} {y} {z}", {name: Fact("") for name in "xyz"}, question)
    sources = {"x": "predicted", "y": "recorded", "z": "recorded"}
    facts = {name: Value(3, "<img 3>", source) for name, source in sources.items()}
    html = bar(Tour("why", "<img 1>", "", 1, [stop]), 1, facts)
    assert html.count('class="mark recorded"') == html.count('class="mark predicted"') == 1
    html += bar(Tour("why", "", "", 1, [stop]), 1, {}, "<img 6>")
    assert "<img" not in html
    assert all(f"&lt;img {number}&gt;" in html for number in range(1, 7))
