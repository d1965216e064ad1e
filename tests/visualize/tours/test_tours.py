"""Every stop of every tour: a state of the page, a short sentence, and a question with one right answer."""

import json
import re

import pytest

from tests.messages import text_of
from tests.tables import read_table
from tilescope.numbers import format_number
from visualize import tours as tour
from visualize.tours import DIRECTORY, bar, sentence, show_stop, tours
from visualize.views.state import ProgramOrderView

STOPS = [
    pytest.param(stop, id=f"{each.name} {number}")
    for each in tours().values()
    for number, stop in enumerate(each.stops, start=1)
]


def test_the_seven_tours_are_in_their_order_and_each_asks_for_predictions():
    names = [
        "why-grouping",
        "compiler-and-blackboard",
        "a-race",
        "fusing",
        "tf32",
        "tail-wave",
        "one-element-more",
    ]
    assert list(tours()) == names
    assert all(sum(stop.ask is not None for stop in each.stops) >= 2 for each in tours().values())


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_is_a_short_sentence_about_its_picture(stop, session):
    """Talk mode shows one picture, which is the sentence's: a stop about a timeline shows it."""
    assert 4 <= count_words(stop.say.replace("**", "")) <= 25, stop.say
    assert bool(stop.sources) == ("**" in stop.say), "each number has a source"
    if stop.ask:
        choices = [choice.text for choice in stop.ask.choices]
        assert len(set(choices)) == len(choices)
    state = tour.check_state(stop.fields)
    if state.view.of(ProgramOrderView).picture == "timeline":
        assert state.view.tab == "program-order"
        assert session.find_value(state.experiment, "timeline") is not None
    elif state.view.tab == "result":
        assert session.find_value(state.experiment, "run") is not None


def times_of(states, session):
    """Yield the texts of the times that were recorded for some states."""
    for state in states:
        for experiment in filter(None, (state.experiment, state.pinned)):
            if run := session.find_value(experiment, "run"):
                if run.timing:
                    yield format_number(run.timing.median_ms, "ms")
                if run.baseline:
                    yield format_number(run.baseline.timing.median_ms, "ms")
            if timeline := session.find_value(experiment, "timeline"):
                yield format_number(timeline.span_ns, "ns")


# Of launches that are no stop: the tile order of another kernel or shape, and B row-major in float16.
OTHERS = {"85.2 µs", "0.784 ms", "0.189 ms"}


def test_the_times_of_a_tour_are_recorded(session):
    for each in tours().values():
        stated = {
            time for stop in each.stops for time in re.findall(r"\*\*([\d.]+ [mµ]s)\*\*", stop.say)
        }
        states = [tour.check_state(stop.fields) for stop in each.stops]
        assert stated - OTHERS <= set(times_of(states, session)), each.name


def test_a_stop_has_its_sentence_and_its_question():
    slots = show_stop({"tour": "why-grouping", "stop": 2}, None)
    value = json.loads(slots["tour"])
    shown = text_of(value["html"])
    assert "With GROUP_SIZE 3 the same 9 programs fill a square, and load 54 distinct" in shown
    assert value["html"].count('data-right="yes"') == 1
    assert "GROUP_SIZE=3" in value["query"]
    assert show_stop({"tour": "no-such-tour", "stop": 2}, None) == {}
    assert show_stop({"tour": "why-grouping", "stop": "2"}, None) == {}


def count_words(text):
    """Count words; a number and its unit are one."""
    joined = re.sub(r"([\d.,]+) (ms|µs|GB|MB|kB|bytes|×|%)", r"\1", text)
    return sum(any(letter.isalnum() for letter in word) for word in joined.split())


GOOD = (DIRECTORY / "tail-wave.toml").read_text()


WRONG = """
title = "A tail wave" | | title: Field required
order = 6 | "order = 6\\nauthor = 1" | author: Unexpected
BLOCK_N=256 | BLOCK_N=250 | stop 1: BLOCK_N must be
tab=program-order | tab=scheduel | stop 1: There is no picture 'scheduel'
num_warps=8&tab | num_wraps=8&tab | stop 1: the address has num_wraps
sources = ["recorded" | sources = ["guessed" | stop 1: sources must be of
right = true | right = false | stop 2: exactly one choice must have right = true
"""


@pytest.mark.parametrize(("old", "new", "says"), read_table(WRONG))
def test_an_error_in_a_file_has_its_place_and_its_reason(old, new, says):
    assert old in GOOD
    with pytest.raises(tour.BadTour, match=r"^bad\.toml") as error:
        tour.read(GOOD.replace(old, new), "bad")
    assert says in str(error.value)


def test_a_tour_has_four_to_eight_stops():
    head, *stops = GOOD.split("[[stops]]")
    with pytest.raises(tour.BadTour, match="stops: List should have at least 4 items"):
        tour.read("[[stops]]".join([head, *stops[:3]]), "bad")


def test_a_bar_escapes_its_texts_and_has_one_mark_for_each_source():
    question = tour.Question("<img 3>", [tour.Choice("<img 4>"), tour.Choice("", right=True)])
    stop = tour.TourStop("", "<img 2> **3**", ["predicted", "recorded"], question)
    html = bar(tour.Tour("why", "<img 1>", "", 1, [stop]), 1)
    assert html.count('class="mark recorded"') == html.count('class="mark predicted"') == 1
    assert "<b>3</b>" in sentence(stop)
    assert "<img" not in html
    assert all(f"&lt;img {number}&gt;" in html for number in range(1, 5))
