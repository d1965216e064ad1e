"""Every stop of every tour: a state of the page, a short sentence, and numbers that models and records give."""

from __future__ import annotations

import re

import pytest

from visualize.tours import DIRECTORY, tours
from visualize.tours.fact import Fact, NoFact, Value, compute_facts, steps_of
from visualize.tours.guide import bar, plain, sentence
from visualize.tours.tour import (
    MOST_WORDS,
    BadTour,
    Choice,
    Question,
    Stop,
    Tour,
    checked_state,
    facts_named,
    read,
)
from visualize.views.state import ScheduleView

STOPS = [
    pytest.param(stop, id=f"{tour.name} {number}")
    for tour in tours().values()
    for number, stop in enumerate(tour.stops, start=1)
]
needs_triton = pytest.mark.xdist_group("compiles")


def test_the_six_tours_are_there_in_their_order() -> None:
    assert [tour.title for tour in tours().values()] == [
        "Why grouping?",
        "When the compiler disagrees with the blackboard",
        "A race you can see, and one you can't",
        "Fusing pays, until it doesn't",
        "tf32: who pays for a row-major B",
        "A tail wave",
    ]


@needs_triton
@pytest.mark.parametrize("stop", STOPS)
def test_every_number_is_what_the_sentence_was_written_for(stop, session) -> None:
    facts = compute_facts(stop.facts, stop.fields, session)
    assert {name: value.text for name, value in facts.items()} == {name: f.shown for name, f in stop.facts.items()}
    text = plain(stop.say, facts)
    assert 4 <= count_words(text) <= MOST_WORDS, text
    if stop.ask:
        values = {name: value.number for name, value in facts.items()}
        assert sum(choice.is_right(values) for choice in stop.ask.choices) == 1
        choices = [plain(choice.text, facts) for choice in stop.ask.choices]
        assert len(set(choices)) == len(choices)


@pytest.mark.parametrize("stop", STOPS)
def test_a_number_in_a_sentence_is_a_fact_or_part_of_the_state(stop) -> None:
    values = {str(value) for value in checked_state(stop.fields).to_address().values()}
    bare = re.sub(r"\{\w+\}", "", stop.say)
    typed = set(re.findall(r"(?<![\w])\d[\d,.]*(?![\w])", bare.replace("torch.", "")))
    assert {number.rstrip(".,") for number in typed} <= values | {"132"}, bare


@pytest.mark.parametrize("stop", STOPS)
def test_every_sentence_states_a_fact_and_uses_what_it_asks(stop) -> None:
    assert facts_named(stop.say), "a stop proves something"
    used = set(facts_named(stop.say)) | {other for fact in stop.facts.values() for other in fact.ratio}
    if stop.ask:
        texts = (stop.ask.ask, *(choice.text for choice in stop.ask.choices))
        used |= {name for text in texts for name in facts_named(text)}
        used |= {choice.condition[0] for choice in stop.ask.choices}
    assert used == stop.facts.keys()


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_that_counts_on_a_timeline_shows_it(stop, session) -> None:
    """Talk mode shows one picture: the one that the sentence speaks of."""
    state, told = stop.state(), {fact.endpoint for fact in stop.facts.values()}
    is_shown = state.view.of(ScheduleView).picture == "timeline"
    assert is_shown == ("timeline" in told)
    if is_shown:
        assert state.view.tab == "schedule"
        assert session.find_value(state.experiment, "timeline") is not None


def count_words(text: str) -> int:
    """Count words; a number and its unit are one."""
    joined = re.sub(r"([\d.,]+) (ms|µs|GB|MB|kB|bytes|×|%)", r"\1", text)
    return sum(any(letter.isalnum() for letter in word) for word in joined.split())


def test_a_number_and_its_unit_are_one_word() -> None:
    assert count_words("It takes 3.56 ms instead of 3.70 ms, 1.04 × less.") == 8


def test_every_tour_asks_for_a_prediction() -> None:
    for tour in tours().values():
        assert sum(stop.ask is not None for stop in tour.stops) >= 2, tour.name


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
        ('unit = "ms"', 'unit = "s"', "(got 's')"),
        ('path = "programs"', 'path = "programs["', "is not a path"),
        ('set = "M=1536&N=2816"', 'set = "M=0"', "stop 2: M must be "),
        ('ratio = ["time", "before"]', 'ratio = ["time"]', "is a ratio"),
        ('ratio = ["time", "before"]', 'ratio = ["time", "longer"]', "which is itself a ratio"),
        ('when = "longer < 1.05"', 'when = "longer under 1"', "stop 2: when is 'longer under 1'"),
        ('when = "longer < 1.05"', 'when = "length < 1"', "'length' is not one"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(BadTour, match=r"^bad\.toml") as error:
        read(GOOD.replace(old, new), "bad")
    assert says in str(error.value)


def test_a_tour_has_four_to_eight_stops() -> None:
    head, *stops = GOOD.split("[[stops]]")
    with pytest.raises(BadTour, match="it has 3 stops; 4 to 8 are allowed"):
        read("[[stops]]".join([head, *stops[:3]]), "bad")


def test_a_tour_is_added_as_a_file_alone() -> None:
    assert read(GOOD, "another").name == "another"


MEDIAN = Fact(shown="", endpoint="run", path="timing.median_ms", unit="ms")


def test_a_number_that_nobody_measured_is_no_fact(session) -> None:
    address = {"kernel": "matmul.grouped", "M": "777", "gpu": "H200"}
    with pytest.raises(NoFact, match="No run of this experiment on H200 was measured here or recorded"):
        compute_facts({"time": MEDIAN}, address, session)


def test_a_recorded_number_says_so(session) -> None:
    address = {"kernel": "matmul.grouped", "gpu": "H200"}
    facts = compute_facts({"time": MEDIAN}, address, session)
    assert (facts["time"].text, facts["time"].source) == ("7.20 µs", "recorded")


@pytest.mark.parametrize("path", ["", "[", "a..b", "a[b]", "a[-1]", "a b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        steps_of(path)


@pytest.mark.parametrize(("when", "right"), [("x < 2", True), ("x > 2", False), ("x == 1.5", True)])
def test_a_choice_is_right_where_its_fact_says_so(when: str, right: bool) -> None:
    assert Choice("", when).is_right({"x": 1.5}) is right


def test_what_a_tour_says_is_escaped() -> None:
    stop = Stop("", "<img 2> {x}", {"x": Fact("")}, Question("<img 4>", [Choice("<img 5>", "x > 2")]))
    facts = {"x": Value(3, "<img 3>", "predicted")}
    html = bar(Tour("why", "<img 1>", "", 1, [stop]), 1, facts) + bar(
        Tour("why", "", "", 1, [stop]), 1, None, "<img 6>"
    )
    assert "<img" not in html
    assert all(f"&lt;img {number}&gt;" in html for number in range(1, 7))


def test_one_mark_for_each_source_of_a_sentence() -> None:
    facts = {"a": Value(1, "1", "recorded"), "b": Value(2, "2", "recorded"), "c": Value(3, "3", "predicted")}
    html = sentence("{a} {b} {c}", facts)
    assert html.count('class="mark recorded"') == html.count('class="mark predicted"') == 1
