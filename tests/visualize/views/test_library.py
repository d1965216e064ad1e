"""The Library: every recorded count compared once and drawn, and the list of recordings for the API."""

import json
import math
import urllib.parse
from collections import Counter
from html import unescape
from types import SimpleNamespace

import orjson
import plotly.graph_objects as go
import pytest

from scripts import predict_records
from scripts.draw_scoreboard import summary
from tests.experiments import experiment_of
from tests.messages import decode
from tests.waiting import run_coroutine
from tilescope.declare.discovery import read_text
from tilescope.declare.experiment import from_json
from tilescope.measure.session import MEASUREMENTS
from tilescope.numbers import key_numbers
from tilescope.results import records
from visualize.views import compare, theme
from visualize.views.library import other_kernels, recorded, scoreboard, view
from visualize.views.library.figures import scoreboard_figure
from visualize.views.library.scoreboard import COUNTS, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS

FORMS = {measurement.form.word: measurement.form for measurement in MEASUREMENTS.values()}
COUNTED, STUDIES = (records.shipped(form) for form in scoreboard.FORMS)
PREDICTIONS = scoreboard.shipped_predictions()
BOARD = scoreboard.scoreboard()
EXACT = BOARD.part(EXACT_COUNTS)
READS = BOARD.part((DRAM,))


def snapshot(tab="scoreboard", **flat):
    return Snapshot(SETTINGS.state({"kernel": "matmul.grouped", "tab": tab, **flat}, None))


def draw_scoreboard(**flat):
    return view.ScoreboardPanel().draw(snapshot("scoreboard", **flat))


def state_at(query):
    return SETTINGS.state(dict(urllib.parse.parse_qsl(query)), None)


def ask(name, *values, **arguments):
    """Return the reply of an endpoint of the panel."""
    (endpoint,) = (each for each in view.ScoreboardPanel().endpoints() if each.name == name)
    arguments |= dict(zip(endpoint.arguments, values, strict=False))
    reply = run_coroutine(endpoint.call(SimpleNamespace(), arguments))
    return orjson.loads(orjson.dumps(reply))


def score(predicted, counted, operation="load", gpu="H200", count="sectors", size=4, **fields):
    experiment = experiment_of("matmul.grouped", gpu=gpu, GROUP_SIZE=size)
    return Score(experiment, operation, count, predicted, counted, **fields)


# Recorded.


def test_every_recording_is_listed_once_with_one_or_two_recorded_numbers():
    counts = Counter(entry.kind for entry in recorded.entries())
    assert counts == {word: len(records.shipped(form)) for word, form in FORMS.items()}
    for entry in recorded.entries():
        assert 1 <= len(entry.numbers) <= 2
        assert all(number.source == "recorded" and number.value >= 0 for number in entry.numbers)


@pytest.mark.parametrize("kind", FORMS)
def test_a_link_opens_the_state_that_has_the_recording(kind):
    for entry in [entry for entry in recorded.entries() if entry.kind == kind][:40]:
        state = state_at(recorded.address(entry.experiment, kind))
        assert state.view.tab == recorded.TABS_BY_KIND[kind]
        assert state.gpu.name == entry.experiment.gpu
        assert (
            key_numbers(records.find(FORMS[kind], state.experiment, entry.experiment.gpu))
            == entry.numbers
        )


def test_an_old_address_of_the_recordings_opens_the_scoreboard():
    state = state_at("tab=recorded&recorded_kind=timeline&recorded_page=3")
    assert state.view.tab == "scoreboard"


def test_the_endpoint_lists_every_recording_part_by_part():
    first = ask("recorded")
    assert first["total"] == len(recorded.entries())
    assert len(json.dumps(first)) < 40_000
    starts = range(0, first["total"] + 1, 500)
    replies = [
        row for start in starts for row in ask("recorded", limit=500, offset=start)["recorded"]
    ]
    assert replies[:50] == first["recorded"]
    experiments = [from_json(reply["experiment"]) for reply in replies]
    assert experiments == [entry.experiment for entry in recorded.entries()]
    chosen = ("transpose.tiled", "H200", "counters")
    part = ask("recorded", *chosen, limit=2, offset=1)["recorded"]
    assert [(row["experiment"]["kernel"], row["gpu"], row["kind"]) for row in part] == [chosen] * 2


def test_an_endpoint_refuses_an_argument_by_its_name():
    bad = [
        ("kernel", "sort"),
        ("kind", "dance"),
        ("limit", 501),
        ("limit", "many"),
        ("offset", -1),
        ("count", "lines"),
    ]
    for field, value in bad:
        reply = ask("scoreboard" if field == "count" else "recorded", **{field: value})
        assert reply["failure"]["message"].startswith(f"{field} must be ")


# Predictions and scores.


def test_every_recorded_count_is_predicted_once_in_a_small_file():
    assert len(PREDICTIONS) == len(COUNTED) + len(STUDIES)
    assert BOARD.unpredicted == ()
    launches = {score.experiment for score in (*EXACT.scores, *BOARD.lower_bounds)}
    assert launches == set(map(scoreboard.recorded_launch, COUNTED))
    assert len(READS.scores) == sum(len(study.measured.rows) for study in STUDIES)
    text = read_text(scoreboard.FILE)
    assert len(text) < 240_000
    assert list(map(predict_records.line, PREDICTIONS)) == text.splitlines()


def test_sectors_and_requests_are_exact_lower_bounds_hold_and_dram_misses_are_flagged():
    assert len(EXACT.scores) > 2000
    assert EXACT.misses == ()
    assert summary(BOARD) == (
        f"{len(EXACT.scores):,} of {len(EXACT.scores):,} counts agree exactly ({len(COUNTED)} launches, H100 and H200)"
    )
    assert len({score.experiment for score in BOARD.lower_bounds}) == 23
    assert {score.operation for score in BOARD.lower_bounds} == {"atomic"}
    assert all(0 < score.predicted <= score.counted for score in BOARD.lower_bounds)
    assert 0 < READS.median_error < 0.05
    assert len(READS.misses) < 0.1 * len(READS.scores)
    assert sum(not score.is_flagged for score in READS.misses) <= 8


def test_exact_counts_must_be_equal_and_dram_bytes_within_a_fifth():
    exact = [score(100, 100), score(100, 101), score(0, 0), score(100, 0)]
    assert [each.error for each in exact] == [0, pytest.approx(-1 / 101), 0, math.inf]
    assert [each.is_miss for each in exact] == [False, True, False, True]
    reads = [score(predicted, 100, count=DRAM) for predicted in (79, 80, 120, 121)]
    assert [each.is_miss for each in reads] == [True, False, False, True]


def test_the_largest_error_comes_first_in_either_direction():
    most, least, between = scores = score(20, 100), score(99, 100), score(150, 100)
    assert Scoreboard((score(7, 7), *reversed(scores))).misses == (most, between, least)


def test_group_sizes_of_one_launch_are_one_launch_of_dram_bytes_and_several_of_sectors():
    for count, launches in ((DRAM, 1), ("sectors", 3)):
        scores = tuple(score(1, 1, count=count, size=size) for size in (1, 2, 4))
        assert Scoreboard(scores).launches == launches


# Scoreboard.


def test_the_texts_are_the_approved_ones(approve):
    texts = {"facets": str(draw_scoreboard()["scoreboard-rows"]).split("<table")[0]}
    for count in COUNTS:
        board, exact = (BOARD.part(counts, "H200") for counts in ((count,), EXACT_COUNTS))
        texts[count] = view.scoreboard_headline(board, count, exact)
    misses = Scoreboard((score(5, 5), score(90, 100), score(7, 7)))
    texts["misses"] = view.scoreboard_headline(misses, "sectors", misses)
    empty = draw_scoreboard(score_gpu="B200")
    texts["no counts on this GPU"] = empty["scoreboard-headline"] + empty["scoreboard-rows"]
    texts["points"] = "<p>".join(
        view.point_text(point)
        for point in (score(1234, 5678, "TMA load"), score(1234, 1234, "TMA load"))
    )
    assert empty["scoreboard-plot"] == "none"
    approve("library", texts)


def test_misses_are_not_counted_as_exact_and_what_cannot_be_compared_is_left_out():
    first, *others = PREDICTIONS
    assert scoreboard.score_recordings(others).unpredicted == (first.experiment,)
    assert "Not compared" not in draw_scoreboard(score_kernel="transpose.flat")["scoreboard-rows"]


def test_the_table_lists_all_scores_with_the_largest_error_first_and_flags_dram_reads():
    rows, exact = (
        draw_scoreboard(score_count=count)["scoreboard-rows"] for count in (DRAM, COUNTS[0])
    )
    assert f">+{100 * READS.misses[0].error:.0f}\u00a0%</td>" in rows.split("</tr>")[1]
    assert f"of {len(READS.scores):,}" in rows
    assert "flagged" in rows
    assert "flagged" not in exact


def test_a_click_opens_the_launch_on_the_picture_that_has_its_count():
    for score in BOARD.scores[::23]:
        state = state_at(view.score_address(score))
        assert state.view.tab == ("dram-reads" if score.count == DRAM else "requests")
        assert state.gpu.name == score.experiment.gpu
        assert state.experiment == score.experiment
        form = scoreboard.FORMS[score.count == DRAM]
        assert records.find(form, state.experiment, state.gpu.name) is not None


def test_the_picture_is_the_same_for_every_experiment_and_pin_and_is_sent_in_100_kilobytes():
    plot = draw_scoreboard(M=512)["scoreboard-plot"]
    assert plot == draw_scoreboard(M=640)["scoreboard-plot"]
    assert {"words", "addresses"} <= set(decode(plot)["layout"]["meta"])
    assert all(
        len(draw_scoreboard(score_count=count)["scoreboard-plot"].encode()) < 100_000
        for count in COUNTS
    )
    panel = view.ScoreboardPanel()
    own = snapshot("scoreboard")
    pinned = snapshot("scoreboard", M=640)
    slots = compare.add_comparison(panel.draw(own), own, pinned, [panel])
    assert slots == {**panel.draw(own), "compare": slots["compare"]}


def test_the_endpoint_has_every_point_once_and_their_totals():
    reply = ask("scoreboard")
    assert set(reply["totals"]) == set(COUNTS)
    for count, total in reply["totals"].items():
        points = [point for point in reply["points"] if point["count"] == count]
        assert total["compared"] == len(points)
        assert total["exact"] == sum(p["predicted"] == p["counted"] for p in points)
    for point, score in zip(reply["points"], BOARD.scores, strict=True):
        assert from_json(reply["launches"][point["launch"]]["experiment"]) == score.experiment
        assert point["predicted"] == score.predicted
        assert point["counted"] == score.counted
    part = ask("scoreboard", "transpose.flat", "H200", "requests")["points"]
    selected = [
        score
        for score in BOARD.scores
        if (score.experiment.kernel, score.experiment.gpu, score.count)
        == ("transpose.flat", "H200", "requests")
    ]
    assert [point["counted"] for point in part] == [score.counted for score in selected]


def test_the_figures_are_the_approved_ones(approve):
    first, *_, nothing, _ = scores = (
        score(100, 100),
        score(20_000, 20_000, "store", "H100"),
        score(50, 80, "TMA load"),
        score(0, 7, "atomic"),
        score(400, 400, "load", "H100"),
    )
    flagged = score(2 * 10**9, 10**9, "DRAM read", count=DRAM, is_flagged=True)
    right = score(10**9, 10**9, "DRAM read", count=DRAM)
    figures = {
        "sectors": scoreboard_figure(scores, "sectors"),
        "nothing to draw": scoreboard_figure([nothing], "sectors"),
        "an H200 alone": scoreboard_figure([first], "sectors"),
        "DRAM reads": scoreboard_figure([flagged, right], DRAM),
    }
    approve("library_figures", {name: go.Figure(figures[name]) for name in figures})


def test_colours_differ_for_each_operation_and_for_misses():
    assert len({*theme.OPERATIONS.values(), theme.WRONG}) == len(theme.OPERATIONS) + 1


# Shared memory.


def test_the_fold_of_shared_memory_has_the_agreement_and_names_what_differs_or_is_not_compared():
    text = unescape(str(draw_scoreboard()["scoreboard-shared"]))
    total = other_kernels.summarize(other_kernels.shipped_scores())
    assert f"{total['exact_lines']} of {total['lines']} lines agree exactly" in text
    assert total["exact_lines"] >= 0.98 * total["lines"]
    assert total["exact_launches"] >= 0.95 * total["launches"]
    assert total["exact_instructions"] >= 0.9 * total["instructions"]
    assert "Not compared: 9 launches of liger's fused_moe." in text
    others = list(other_kernels.differences(other_kernels.shipped_scores()))
    assert all(each["why"] in text for each in others)
    assert all(each["why"] for each in others)


def test_a_wrong_line_and_an_unknown_count_are_not_exact():
    wrong = other_kernels.LineScore("a.py", 4, "LDS", (8, 8, 8), (8, 16, 8), "Its address is odd.")
    right = other_kernels.LineScore("a.py", 5, "STS", (8, 8, 8))
    launches = [
        other_kernels.LaunchScore(
            "rows", "sum", 0, "k", (None, 100), (wrong, right), why="A lock."
        ),
        other_kernels.LaunchScore("rows", "sum", 1, "k", (90, 90), (right,)),
        other_kernels.LaunchScore("rows", "sum", 2, "k", (None, 90), (right,), is_compared=False),
    ]
    assert other_kernels.summarize(launches) == {
        "lines": 3,
        "exact_lines": 2,
        "launches": 2,
        "exact_launches": 1,
        "instructions": 2,
        "exact_instructions": 1,
    }
    assert [
        (each["count"], each["predicted"], each["counted"], each["why"])
        for each in other_kernels.differences(launches)
    ] == [
        ("executed instructions", None, 100, "A lock."),
        ("a.py:4 LDS, wavefronts", 16, 8, "Its address is odd."),
    ]
