"""Every stop of every tour: a state of the page, a short sentence, and numbers that models and records give."""

import asyncio
import json
import re

import pytest

from tests.messages import text_of
from tilescope.measure.session import Session
from visualize.tours import DIRECTORY, tour, tours
from visualize.tours.guide import Guide, bar, plain
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


@pytest.mark.xdist_group("compiles")
@pytest.mark.parametrize("stop", STOPS)
def test_every_number_is_what_the_sentence_was_written_for(stop, session):
    facts = tour.compute_facts(stop.facts, stop.fields, session)
    assert {name: value.text for name, value in facts.items()} == {
        name: f.shown for name, f in stop.facts.items()
    }
    text = plain(stop.say, stop, facts)
    assert 4 <= count_words(text) <= 25, text
    if stop.ask:
        numbers = {name: value.number for name, value in facts.items()}
        assert sum(choice.is_right(numbers) for choice in stop.ask.choices) == 1
        choices = [plain(choice.text, stop, facts) for choice in stop.ask.choices]
        assert len(set(choices)) == len(choices)


def test_a_stop_has_no_holes_before_its_numbers_are_known_and_the_next_one_is_prepared(
    tmp_path,
):
    """On an empty cache, with nothing compiled: the file ships the numbers."""
    session = Session(None, tmp_path)
    guide = Guide(session)
    message = {"tour": "compiler-and-blackboard", "stop": 2}

    async def first_bar():
        stop = guide.show_stop(message)
        bar = json.loads((await anext(stop))["tour"])["html"]
        await stop.aclose()
        return bar

    try:
        shown = text_of(asyncio.run(first_bar()))
        assert "Triton's tile touches 131,072 sectors, 1.00 × what its bytes need" in shown
        for each in tours().values():
            for number in range(1, len(each.stops) + 1):
                assert "…" not in bar(each, number, {})
        *_, last = run_all(guide, {"tour": "a-race", "stop": 1})
        assert 'data-right="yes"' in last
        first, *later = run_all(guide, {"tour": "a-race", "stop": 2})
        assert "1.5 %" in first
        assert later == [], "its numbers were computed while stop 1 was shown"
    finally:
        session.close()


def run_all(guide, message):
    """Return the HTML of all updates of a stop."""

    async def collect():
        return [json.loads(slots["tour"])["html"] async for slots in guide.show_stop(message)]

    return asyncio.run(collect())


@pytest.mark.parametrize("stop", STOPS)
def test_a_sentence_states_facts_and_types_no_other_numbers_than_the_states(stop, session):
    """Talk mode shows one picture, which is the sentence's: a stop that counts on a timeline shows it."""
    assert tour.facts_named(stop.say), "a stop proves something"
    assert stop.used_facts() == stop.facts.keys()
    state = tour.check_state(stop.fields)
    bare = re.sub(r"\{\w+\}", "", stop.say).replace("torch.", "")
    typed = {number.rstrip(".,") for number in re.findall(r"(?<![\w])\d[\d,.]*(?![\w])", bare)}
    assert typed <= {*map(str, state.to_address().values()), "132"}, bare
    shows_timeline = state.view.of(ProgramOrderView).picture == "timeline"
    assert shows_timeline == any(fact.endpoint == "timeline" for fact in stop.facts.values())
    if shows_timeline:
        assert state.view.tab == "program-order"
        assert session.find_value(state.experiment, "timeline") is not None


def count_words(text):
    """Count words; a number and its unit are one."""
    joined = re.sub(r"([\d.,]+) (ms|µs|GB|MB|kB|bytes|×|%)", r"\1", text)
    return sum(any(letter.isalnum() for letter in word) for word in joined.split())


GOOD = (DIRECTORY / "tail-wave.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "A tail wave"', "", "title: Field required"),
        ("order = 6", "order = 6\nauthor = 1", "author: Unexpected"),
        ("BLOCK_N=256", "BLOCK_N=250", "stop 1: BLOCK_N must be "),
        ("tab=program-order", "tab=scheduel", "stop 1: tab is 'scheduel'"),
        ("num_warps=8&tab", "num_wraps=8&tab", "stop 1: the address has num_wraps"),
        (
            "{programs} tiles for",
            "{program} tiles for",
            "stop 1: 'program' is not one of the stop's facts",
        ),
        ('unit = "ms"', 'unit = "s"', "'times' or 'share' (got 's')"),
        *(
            ('path = "programs"', f'path = "{path}"', "is not a path")
            for path in ("", "a..b", "a[-1]")
        ),
        ('set = "M=1536&N=2816"', 'set = "M=0"', "stop 2: M must be "),
        ('ratio = ["time", "before"]', 'ratio = ["time", "longer"]', "is a ratio"),
        ('when = "longer < 1.05"', 'when = "length < 1"', "'length' is not one"),
    ],
)
def test_an_error_in_a_file_has_its_place_and_its_reason(old, new, says):
    assert old in GOOD
    with pytest.raises(tour.BadTour, match=r"^bad\.toml") as error:
        tour.read(GOOD.replace(old, new), "bad")
    assert says in str(error.value)


def test_a_tour_has_four_to_eight_stops_and_its_choices_have_conditions():
    head, *stops = GOOD.split("[[stops]]")
    with pytest.raises(tour.BadTour, match="stops: List should have at least 4 items"):
        tour.read("[[stops]]".join([head, *stops[:3]]), "bad")
    assert [
        tour.Choice("", when).is_right({"x": 1.5}) for when in ("x < 2", "x > 2", "x == 1.5")
    ] == [True, False, True]


def test_a_recorded_number_has_its_mark_and_a_number_that_nobody_measured_is_no_fact(
    session,
):
    address = {"kernel": "matmul.grouped", "gpu": "H200"}
    facts = {"time": tour.Fact(shown="", endpoint="run", path="timing.median_ms", unit="ms")}
    time = tour.compute_facts(facts, address, session)["time"]
    assert (time.text, time.source) == ("7.20 µs", "recorded")
    with pytest.raises(
        tour.NoFact, match="No run of this experiment on H200 was measured here or recorded"
    ):
        tour.compute_facts(facts, {**address, "M": "777"}, session)


def test_a_bar_escapes_its_texts_and_has_one_mark_for_each_source():
    question = tour.Question("<img 4>", [tour.Choice("<img 5>", "x > 2")])
    stop = tour.Stop("", "<img 2> {x} {y} {z}", {name: tour.Fact("") for name in "xyz"}, question)
    sources = {"x": "predicted", "y": "recorded", "z": "recorded"}
    facts = {name: tour.Value(3, "<img 3>", source) for name, source in sources.items()}
    html = bar(tour.Tour("why", "<img 1>", "", 1, [stop]), 1, facts)
    assert html.count('class="mark recorded"') == html.count('class="mark predicted"') == 1
    html += bar(tour.Tour("why", "", "", 1, [stop]), 1, {}, "<img 6>")
    assert "<img" not in html
    assert all(f"&lt;img {number}&gt;" in html for number in range(1, 7))
