"""The Library's data and text: every count is predicted once, and headlines, points and misses state these scores."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernels.experiment import from_json
from kernels.results import records
from visualize.predict.scores import COUNTS, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views.library import scoreboard, text

COUNTED, STUDIES = (records.shipped(form) for form in scoreboard.FORMS)
PREDICTIONS, BOARD = scoreboard.shipped_predictions(), scoreboard.scoreboard()
EXACT, READS = BOARD.part(EXACT_COUNTS), BOARD.part((DRAM,))


def visible(markup):
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def scores(*pairs, count="sectors", **fields):
    experiment = from_json({"kernel": "matmul.persistent", "gpu": "H200"})
    return tuple(Score(experiment, "TMA load", count, *pair, **fields) for pair in pairs)


def test_every_recorded_count_is_predicted_once():
    assert len(PREDICTIONS) == len(COUNTED) + len(STUDIES)
    assert BOARD.unpredicted == ()
    launches = {score.experiment for score in (*EXACT.scores, *BOARD.lower_bounds)}
    assert launches == set(map(scoreboard.recorded_launch, COUNTED))
    assert len(READS.scores) == sum(len(study.measured.rows) for study in STUDIES)
    experiment = from_json({"kernel": "transpose.flat", "gpu": "H200"})
    counted = records.find(scoreboard.FORMS[0], experiment, "H200").launch
    assert {(s.operation, s.count): s.counted for s in BOARD.scores if s.experiment == experiment} == {
        (operation, count): counted[f"{name}_{count}"]
        for operation, name in (("load", "ld"), ("store", "st"))
        for count in EXACT_COUNTS
    }


def test_the_file_is_small_and_holds_each_line_as_it_is_written():
    assert scoreboard.FILE.stat().st_size < 240_000
    assert [prediction.line() for prediction in PREDICTIONS] == scoreboard.FILE.read_text("utf-8").splitlines()
    compiled_by = {prediction.triton for prediction in PREDICTIONS if prediction.operations}
    assert compiled_by == {recording.measured.device.triton for recording in COUNTED}


@pytest.mark.parametrize("line", ["{}", '{"launch": {}, "triton": 3}', '{"launch": {}, "triton": "3", "more": 1}', "{"])
def test_an_error_in_the_file_names_the_line(line):
    with pytest.raises(ValueError, match=r"predictions\.jsonl, line 2: "):
        scoreboard.read_predictions([PREDICTIONS[0].line(), line])


def test_a_sample_of_the_shipped_predictions_equals_the_models():
    """tests/oracle compares all of them."""
    for recording in COUNTED[::23]:
        assert scoreboard.counters_prediction(recording, scoreboard.predict_counted(recording)) in PREDICTIONS


def test_sectors_and_requests_are_exact_lower_bounds_hold_and_dram_misses_are_flagged():
    assert len(EXACT.scores) > 2000
    assert EXACT.misses == ()
    assert text.scoreboard_summary(BOARD) == (
        f"{len(EXACT.scores):,} of {len(EXACT.scores):,} counts agree exactly ({len(COUNTED)} launches, H100 and H200)"
    )
    assert len({score.experiment for score in BOARD.lower_bounds}) == 23
    assert {score.operation for score in BOARD.lower_bounds} == {"atomic"}
    assert all(0 < score.predicted <= score.counted for score in BOARD.lower_bounds)
    assert 0 < READS.median_error < 0.05
    assert len(READS.misses) < 0.1 * len(READS.scores)
    assert sum(not score.is_flagged for score in READS.misses) <= 8


@pytest.mark.parametrize("count", COUNTS)
def test_the_headline_states_the_scores_of_the_selected_count_and_gpu(count):
    board, exact = (BOARD.part(counts, "H200") for counts in ((count,), EXACT_COUNTS))
    headline = visible(text.scoreboard_headline(board, count, exact))
    total, launches = f"{len(board.scores):,}", f"{board.launches} launches on H200"
    flagged = sum(score.is_flagged for score in board.scores)
    parts = (f"{total} of {total} ", f"In {launches}, ", f"{len(exact.scores):,} agree exactly.")
    if count == DRAM:
        number = f"{100 * board.median_error:.2g} % median error of DRAM reads"
        parts = (number, f"{total} program orders of {launches}", f"flags {flagged:,} as uncertain")
    assert headline.startswith(parts[0])
    assert all(part in headline for part in parts)
    assert len(headline.split(" More")[0].split()) <= 40


def test_misses_are_listed_with_links_and_otherwise_a_sentence_says_that_there_are_none():
    board, exact = Scoreboard(scores((5, 5), (90, 100), (7, 7))), Scoreboard(scores((5, 5), (7, 7)))
    notes = text.scoreboard_notes(board, "sectors", "tab=recorded", dict.fromkeys(board.misses, "kernel=k"))
    assert "<details open><summary>1 of 3 sector counts differs from the prediction</summary>" in notes
    assert notes.count("<tr>") == 2
    assert '<a href="?kernel=k">matmul.persistent</a>' in notes
    assert "<td>90</td><td>100</td><td>−10\u00a0%</td>" in notes
    assert "1 predicted count differs from" in visible(text.scoreboard_headline(board, "sectors", exact))
    notes = text.scoreboard_notes(exact, "sectors", "tab=recorded", {})
    assert notes.endswith("None of 2 sector counts differs from the prediction.</p>")
    assert "each predicted count equals" in visible(text.scoreboard_headline(exact, "sectors", exact))
    board = Scoreboard(scores((10, 10), (2000, 1000), count=DRAM, is_flagged=True))
    notes = text.scoreboard_notes(board, DRAM, "", dict.fromkeys(board.misses, ""))
    assert "1 of 2 DRAM reads differs from the prediction by more than 20 %" in notes
    assert "<td>2.00 kB</td><td>1.00 kB</td><td>+100\u00a0%</td><td>H200</td><td>flagged</td>" in notes


def test_excluded_launches_are_counted():
    first, *others = PREDICTIONS
    board = scoreboard.score_recordings(others).part(("sectors",))
    assert board.unpredicted == (first.experiment,)
    notes = visible(text.scoreboard_notes(board, "sectors", "", {}))
    assert "Not compared: retrying atomics of 23 launches. Left out: 1 recorded launch without a shipped" in notes
    notes = text.scoreboard_notes(board.part(kernel="transpose.flat"), "sectors", "", {})
    assert "Not compared" not in notes
    assert "Left out" not in notes


def test_a_point_names_the_launch_and_both_counts():
    (score,) = scores((1234, 5678))
    label = text.point_text(score)
    for part in ("TMA load", "matmul.persistent", "H200", "512 × 512 × 512", "float16", "4 warps", "1,234", "5,678"):
        assert part in label
    assert text.point_text(replace(score, count=DRAM, predicted=2 * 10**9)).count("2.00 GB") == 1
    assert "%" not in text.point_text(replace(score, counted=1234))
