"""The Library: every recorded count compared once and drawn, and the list of recordings for the API."""

import json
import math
import urllib.parse
from collections import Counter
from types import SimpleNamespace

import orjson
import plotly.graph_objects as go
import pytest

from scripts.draw_scoreboard import summary
from scripts.score_file import format_score
from tests.experiments import experiment_of
from tests.messages import decode
from tests.waiting import run_coroutine
from tilescope.declare.discovery import read_text
from tilescope.declare.experiment import from_json, nest
from tilescope.measure.session import MEASUREMENTS
from tilescope.numbers import Number, key_numbers
from tilescope.results import records, scores
from tilescope.results.scores import Score, parse_scores, shipped_scores
from visualize.views import compare, library
from visualize.views.library import (
    DRAM,
    MODELS,
    compared_scores,
    is_miss,
    scoreboard_figure,
    scores_by_model,
)
from visualize.views.state import Snapshot
from visualize.views.tabs import read_state

FORMS = {measurement.form.word: measurement.form for measurement in MEASUREMENTS.values()}
OWN = [score for count in ("sectors", "requests", DRAM) for score in scores_by_model()[count]]
COMPARED = [score for score in OWN if score.is_compared]
READS = scores_by_model()[DRAM]


def snapshot(tab="scoreboard", **flat):
    return Snapshot(read_state({"kernel": "matmul.grouped", "tab": tab, **flat}, None))


def draw_scoreboard(**flat):
    return library.ScoreboardPanel().draw(snapshot("scoreboard", **flat))


def state_at(query):
    return read_state(dict(urllib.parse.parse_qsl(query)), None)


def ask(name, *values, **arguments):
    """Return the reply of an endpoint of the panel."""
    (endpoint,) = (each for each in library.ScoreboardPanel().endpoints if each.name == name)
    arguments |= dict(zip(endpoint.arguments, values, strict=False))
    reply = run_coroutine(endpoint.call(SimpleNamespace(), arguments))
    return orjson.loads(orjson.dumps(reply))


def score(predicted, counted, part="load", gpu="H200", model="sectors", size=4, **fields):
    experiment = experiment_of("matmul.grouped", gpu=gpu, GROUP_SIZE=size)
    return Score(model, experiment.short_address(), predicted, counted, part, **fields)


# Recorded.


def test_every_recording_is_listed_once_with_one_or_two_recorded_numbers():
    counts = Counter(row["kind"] for row in library.recordings())
    assert counts == {word: len(records.shipped(form)) for word, form in FORMS.items()}
    for row in library.recordings():
        assert 1 <= len(row["numbers"]) <= 2
        assert all(
            number["source"] == "recorded" and number["value"] >= 0 for number in row["numbers"]
        )


@pytest.mark.parametrize("kind", FORMS)
def test_a_link_opens_the_state_that_has_the_recording(kind):
    for row in [row for row in library.recordings() if row["kind"] == kind][:40]:
        state = state_at(row["address"])
        assert state.experiment == from_json(row["experiment"])
        assert state.view.tab == library.TABS_BY_KIND[kind]
        assert state.gpu.name == row["gpu"]
        recorded = records.find(FORMS[kind], state.experiment, row["gpu"])
        assert key_numbers(recorded) == tuple(Number(**number) for number in row["numbers"])


def test_the_endpoint_lists_every_recording_part_by_part():
    first = ask("recorded")
    assert first["total"] == len(library.recordings())
    assert len(json.dumps(first)) < 40_000
    starts = range(0, first["total"] + 1, 500)
    replies = [
        row for start in starts for row in ask("recorded", limit=500, offset=start)["recorded"]
    ]
    assert replies[:50] == first["recorded"]
    assert replies == list(library.recordings())
    chosen = ("transpose.tiled", "H200", "counters")
    part = ask("recorded", *chosen, limit=2, offset=1)["recorded"]
    assert [(row["experiment"]["kernel"], row["gpu"], row["kind"]) for row in part] == [chosen] * 2


# Scores.


def test_every_recorded_launch_has_scores_in_a_file_that_is_written_like_this():
    launches = {json.dumps(score.launch) for score in OWN if score.model != DRAM}
    assert len(launches) == len(records.shipped(FORMS["counters"]))
    assert len(READS) == sum(len(study.measured.rows) for study in records.shipped(FORMS["reuse"]))
    texts = [read_text(library.FILE), scores.FILE.read_text("utf-8")]
    lines = [line for text in texts for line in text.splitlines()]
    shipped = (*parse_scores(texts[0]), *shipped_scores())
    assert list(map(format_score, shipped)) == lines
    assert {score.model for score in shipped} == set(MODELS)


def test_sectors_and_requests_are_exact_lower_bounds_hold_and_other_misses_have_a_reason():
    exact = [score for score in COMPARED if score.model != DRAM]
    bounds = [score for score in OWN if not score.is_compared]
    assert summary().startswith(f"{len(exact):,} of {len(exact):,} counts agree exactly (")
    assert len({json.dumps(score.launch) for score in bounds}) == 23
    assert {score.part for score in bounds} == {"atomic"}
    assert all(0 < score.predicted <= score.counted for score in bounds)
    for model in ("executions", "wavefronts", "instructions"):
        assert all(score.why for score in scores_by_model()[model] if is_miss(score))


def test_exact_counts_must_be_equal_and_dram_bytes_within_a_fifth():
    exact = [score(100, 100), score(100, 101), score(0, 0), score(100, 0), score(None, 1)]
    assert [each.error for each in exact] == [
        0, pytest.approx(-1 / 101), 0, math.inf, math.inf,
    ]  # fmt: skip
    assert [is_miss(each) for each in exact] == [False, True, False, True, True]
    reads = [score(predicted, 100, model=DRAM) for predicted in (79, 80, 120, 121)]
    assert [is_miss(each) for each in reads] == [True, False, False, True]


# Scoreboard.


def test_the_texts_are_the_approved_ones(approve):
    texts = {"models": draw_scoreboard()["scoreboard-models"]}
    for name, model in MODELS.items():
        texts[name] = library.scoreboard_headline(scores_by_model()[name], model)
    misses = [score(5, 5, size=1), score(90, 100, size=2), score(7, 7)]
    texts["misses"] = library.scoreboard_headline(misses, MODELS["sectors"])
    points = (
        score(1234, 5678, "TMA load"),
        score(1234, 1234, "TMA load"),
        scores_by_model()["time"][0],
    )
    texts["points"] = "<p>".join(map(library.point_text, points))
    approve("library", texts)


def test_a_click_opens_the_launch_on_the_picture_that_has_its_count():
    for score in COMPARED[::23]:
        state = state_at(library.score_address(score))
        assert state.view.tab == ("dram-reads" if score.model == DRAM else "requests")
        assert state.gpu.name == score.launch["gpu"]
        assert state.experiment == from_json(nest(score.launch))
        form = FORMS["reuse" if score.model == DRAM else "counters"]
        assert records.find(form, state.experiment, state.gpu.name) is not None
    assert not any(map(library.score_address, shipped_scores()))


def test_the_picture_is_the_same_for_every_experiment_and_pin_and_is_sent_in_100_kilobytes():
    plot = draw_scoreboard(M=512)["scoreboard-plot"]
    assert plot == draw_scoreboard(M=640)["scoreboard-plot"]
    assert {"words", "addresses"} <= set(decode(plot)["layout"]["meta"])
    assert all(
        len(draw_scoreboard(score_count=name)["scoreboard-plot"].encode()) < 100_000
        for name in MODELS
    )
    panel = library.ScoreboardPanel()
    own = snapshot("scoreboard")
    pinned = snapshot("scoreboard", M=640)
    slots = compare.add_comparison(panel.draw(own), own, pinned, [panel])
    assert slots == {**panel.draw(own), "compare": slots["compare"]}


def test_the_endpoint_has_every_score_once_and_their_totals():
    reply = ask("scoreboard")
    totals = {model: total["compared"] for model, total in reply["totals"].items()}
    assert totals == {model: len(compared_scores(model)) for model in MODELS}
    misses = Counter(row["model"] for row in reply["scores"] if row["is_miss"])
    assert misses == {
        model: total["misses"] for model, total in reply["totals"].items() if total["misses"]
    }
    assert len(reply["scores"]) == sum(map(len, scores_by_model().values()))
    part = ask("scoreboard", "transpose.flat", "H200", "requests")["scores"]
    filters = {"kernel": "transpose.flat", "gpu": "H200"}.items()
    selected = [score for score in compared_scores("requests") if filters <= score.launch.items()]
    assert [(row["predicted"], row["counted"]) for row in part] == [
        (score.predicted, score.counted) for score in selected
    ]


def test_the_figures_are_the_approved_ones(approve):
    first, *_, nothing, _ = scores = (
        score(100, 100),
        score(20_000, 20_000, "store", "H100"),
        score(50, 80, "TMA load"),
        score(0, 7, "atomic"),
        score(400, 400, "load", "H100"),
    )
    flagged = score(2 * 10**9, 10**9, "DRAM read", model=DRAM, is_flagged=True)
    right = score(10**9, 10**9, "DRAM read", model=DRAM)
    figures = {
        "sectors": scoreboard_figure(scores, MODELS["sectors"]),
        "nothing to draw": scoreboard_figure([nothing], MODELS["sectors"]),
        "an H200 alone": scoreboard_figure([first], MODELS["sectors"]),
        "DRAM reads": scoreboard_figure([flagged, right], MODELS[DRAM]),
    }
    approve("library_figures", {name: go.Figure(figures[name]) for name in figures})
