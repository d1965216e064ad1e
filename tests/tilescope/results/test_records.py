"""Recordings: shipped lines are read and written unchanged, errors say where, and pictures of errors stay small."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.experiments import experiment_of
from tests.tables import read_table
from tilescope.declare.experiment import from_json
from tilescope.measure.session import MEASUREMENTS
from tilescope.results import Diff, records
from tilescope.results.codec import LEVELS, UnreadableRecording
from tilescope.results.run import MOST_RECORDED_CELLS, Closeup

FORMS = {measurement.form.word: measurement.form for measurement in MEASUREMENTS.values()}
FILES = sorted(records.DIRECTORY.glob("*.jsonl"))


def lines(word):
    """Return the shipped lines of a kind."""
    every = (line for file in FILES for line in file.read_text().splitlines())
    return [line for line in every if word in json.loads(line)]


def test_every_shipped_line_is_of_a_kind_that_can_be_measured():
    every = [line for file in FILES for line in file.read_text().splitlines()]
    assert (
        len(every)
        == sum(len(records.shipped(form)) for form in dict.fromkeys(FORMS.values()))
        > 1000
    )


@pytest.mark.parametrize("word", FORMS)
def test_reading_and_writing_a_line_gives_the_same_line(word):
    form = FORMS[word]
    for line in lines(word):
        assert form.line(form.recording(json.loads(line))) == line


@pytest.mark.parametrize("word", FORMS)
def test_a_recording_is_found_by_its_own_experiment_and_marked_as_recorded(word):
    form = FORMS[word]
    for recording in records.shipped(form):
        experiment = recording.measured.experiment
        found = records.find(form, experiment, recording.gpu)
        assert found.experiment == experiment
        assert found.backend == found.device.backend == "recorded"
        assert found.note == f"{form.verb} on {recording.gpu}, {recording.date}."
        assert experiment in records.experiments(form, recording.gpu)
        assert records.find(form, experiment, "B200") is None
    assert records.experiments(form, "B200") == ()


def test_the_nearest_recording_is_of_the_same_kernel_and_nearly_the_same_size():
    """Here, only M differs. Nothing was recorded on a B200."""
    problem = {"M": 4098, "N": 4097, "K": 4097}
    config = {"BLOCK_N": 256, "num_warps": 8}
    wanted = from_json({"kernel": "matmul.persistent", "problem": problem, "config": config})
    found = records.nearest(FORMS["run"], wanted, "H200")
    assert found == replace(wanted, problem=replace(wanted.problem, M=4097))
    assert records.nearest(FORMS["run"], wanted, "B200") is None


FOUND = """
{"run": {"seed": 9}} | True |
{"problem": {"precision": "ieee"}} | True | float16 has only one precision
{"problem": {"dtype": "float32", "precision": "tf32x3"}} | False |
"""


@pytest.mark.parametrize(("payload", "is_found", "why"), read_table(FOUND))
def test_recorded_counts_are_found_whatever_the_inputs_are(payload, is_found, why):
    experiment = from_json({"kernel": "matmul.grouped", "gpu": "H200", **payload})
    found = records.find(FORMS["counters"], experiment, "H200")
    assert (found is not None) is is_found
    assert not is_found or found.experiment == experiment


FIRST = {word: lines(word)[0] for word in FORMS}


def change(path, value, line=None):
    """Return a recording's line with the field at a path, such as "run.timing.median_ms", set to another value."""
    *names, last = (int(name) if name.isdigit() else name for name in path.split("."))
    fields = inner = json.loads(line or FIRST[names[0]])
    for name in names:
        inner = inner[name]
    inner[last] = value
    return json.dumps(fields)


WRONG_FIELDS = {
    "a number in quotes": ("run.timing.median_ms", "0.1"),
    "half a program": ("timeline.sm.1", 1.5),
    "three registers": ("timeline.registers", [1, 2, 3]),
    "another field": ("reuse.speed", 1),
}
UNREADABLE = {
    **{
        name: (change(path, value), path.replace(".", ": ", 1))
        for name, (path, value) in WRONG_FIELDS.items()
    },
    "an unknown kernel": (change("counters.experiment.kernel", "x"), "(got 'x')"),
    "no tool": (FIRST["counters"].replace('"tool"', '"fool"'), "counters: tool"),
    "no date": (FIRST["timeline"].replace('"date"', '"day"'), "fields gpu, date"),
    "half a line": (FIRST["run"][:100], "this is not JSON"),
    "a list": ("[]", "this is not a JSON object"),
}


@pytest.mark.parametrize(("line", "wrong"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_line_that_cannot_be_read_says_file_and_line_and_what_is_wrong(tmp_path, line, wrong):
    (tmp_path / "mine.jsonl").write_text(f"{FIRST['run']}\n\n{line}\n")
    with pytest.raises(UnreadableRecording, match=r"^mine\.jsonl, line 3: ") as error:
        _ = [records.shipped(form, tmp_path) for form in FORMS.values()]
    assert wrong in str(error.value)


def test_counters_of_earlier_versions_may_have_additional_fields():
    line = change("counters.compiled.shared", [{"op": "load"}])
    form = FORMS["counters"]
    assert form.line(form.recording(json.loads(line))) == FIRST["counters"]


RUN = FORMS["run"]
LOST = records.find(RUN, experiment_of("matmul.split_k_race"), "H200")


def picture(rows=128, columns=126):
    """Return a picture of 512 × 501 elements: errors of every size, some beyond the limit, one not finite."""
    rng = np.random.default_rng(0)
    cells = (10 ** rng.uniform(-6, 4, (rows, columns))).astype(np.float32)
    cells[0, 0] = 0
    cells[5, 5] = np.inf
    cells[9, 9] = 1
    output = rng.normal(size=(7, 6)).astype(np.float32)
    output[0, 0] = np.nan
    output[1, 1] = -np.inf
    near = Closeup(
        cells[:96, :90],
        (2, 4),
        (64, 120),
        (192, 358),
        (100, 130),
        output,
        output * 2,
        np.abs(output),
    )
    return Diff(cells, (4, 4), (512, 501), exact=False, tile=(64, 128), closeup=near)


def recorded(diff):
    return records.Recording(
        "H200", "2026-01-01", replace(LOST, backend="cuda", diff=diff, note="")
    )


def read_back(diff):
    return RUN.recording(json.loads(RUN.line(recorded(diff)))).measured.diff


def test_a_picture_is_read_back_as_the_small_one_that_was_written():
    small = picture().shrink()
    back = read_back(picture())
    assert replace(back, cells=small.cells, closeup=small.closeup) == small
    assert max(back.cells.shape) <= MOST_RECORDED_CELLS
    arrays = {name: getattr(small.closeup, name) for name in ("cells", "got", "expected", "units")}
    assert replace(back.closeup, **arrays) == small.closeup
    for name in ("got", "expected", "units"):
        np.testing.assert_array_equal(getattr(back.closeup, name), arrays[name])
    for ours, theirs in ((back.cells, small.cells), (back.closeup.cells, small.closeup.cells)):
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(np.isinf(ours), np.isinf(theirs))
        np.testing.assert_array_equal(ours == 0, theirs == 0)
        np.testing.assert_array_equal(ours > 1, theirs > 1, "what passes, and what does not")
        drawn = np.isfinite(theirs) & (theirs > 1e-4)
        assert (ours[drawn] >= theirs[drawn]).all(), "a cell stays an upper bound"
        assert (ours[drawn] <= 1.11 * theirs[drawn]).all()


def test_reading_and_writing_a_picture_gives_the_same_line_of_at_most_20_kilobytes():
    line = RUN.line(recorded(picture()))
    assert RUN.line(RUN.recording(json.loads(line))) == line
    assert len(line) < 20_000
    assert "NaN" not in line, "plain JSON"
    assert "Infinity" not in line


def test_every_level_is_read_back_unchanged():
    every = Diff(LEVELS.reshape(16, 16), (1, 1), (16, 16), exact=False)
    np.testing.assert_array_equal(read_back(every).cells, every.cells)
    assert len(LEVELS) == 256
    assert (np.diff(LEVELS) > 0).all()
    assert 1 in LEVELS, "the limit"


WRONG_PICTURES = """
cells | AAAA | valid array
cells.3 | AAAA | equal lengths
cells.3 | 7 | valid string
cell | [1, 1] | make a picture of
closeup.got.0 | ["1", 2, 3, 4, 5, 6] | valid number
closeup.got.0 | [True, 2, 3, 4, 5, 6] | valid number
closeup.units | [[1]] | must have the same shape
colour | 0 | colour
"""


@pytest.mark.parametrize(("path", "value", "wrong"), read_table(WRONG_PICTURES))
def test_a_picture_that_cannot_be_read_says_where_and_what_is_wrong(path, value, wrong):
    line = change(f"run.diff.{path}", value, RUN.line(recorded(picture())))
    with pytest.raises(UnreadableRecording) as error:
        RUN.recording(json.loads(line), "mine.jsonl, line 3")
    assert str(error.value).startswith("mine.jsonl, line 3: run: diff")
    assert wrong in str(error.value)
