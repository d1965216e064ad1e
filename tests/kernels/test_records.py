"""Files of recordings: every shipped line is read and written as it stands, and one that can't be read says where."""

from __future__ import annotations

import json

import pytest

from kernels.experiment import from_json
from kernels.measuring.session import MEASUREMENTS
from kernels.results import records
from kernels.results.codec import UnreadableRecording

FORMS = {measurement.form.word: measurement.form for measurement in MEASUREMENTS.values()}
FILES = sorted(records.DIRECTORY.glob("*.jsonl"))


def lines(word):
    """The shipped lines of a kind."""
    every = (line for file in FILES for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in every if word in json.loads(line)]


def test_every_shipped_line_is_of_a_kind_that_can_be_measured():
    every = [line for file in FILES for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(every) == sum(len(records.shipped(form)) for form in dict.fromkeys(FORMS.values())) > 1000


@pytest.mark.parametrize("word", FORMS)
def test_reading_and_writing_a_line_gives_the_same_line(word):
    form = FORMS[word]
    for line in lines(word):
        assert form.line(form.recording(json.loads(line))) == line


@pytest.mark.parametrize("word", FORMS)
def test_a_recording_is_found_by_its_own_experiment_and_marked_as_recorded(word):
    form = FORMS[word]
    assert len(records.shipped(form)) == len(lines(word))
    for recording in records.shipped(form):
        experiment = recording.measured.experiment
        found = records.find(form, experiment, recording.gpu)
        assert found.experiment == experiment
        assert found.backend == found.device.backend == "recorded"
        assert found.note == f"{form.verb} on {recording.gpu}, {recording.date}."
        assert experiment in records.experiments(form, recording.gpu)
        assert records.find(form, experiment, "B200") is None
    assert records.experiments(form, "B200") == ()


@pytest.mark.parametrize(
    ("payload", "is_found"),
    [
        ({"run": {"seed": 9}}, True),
        ({"problem": {"precision": "ieee"}}, True),  # float16 is multiplied in one way alone
        ({"problem": {"dtype": "float32", "precision": "tf32x3"}}, False),
    ],
)
def test_recorded_counts_are_found_whatever_the_inputs_are(payload, is_found):
    experiment = from_json({"kernel": "matmul.grouped", "gpu": "H200", **payload})
    found = records.find(FORMS["counters"], experiment, "H200")
    assert (found is not None) is is_found
    assert not is_found or found.experiment == experiment


def changed(word, *path, value):
    """A shipped line with one field set to something else."""
    fields = json.loads(lines(word)[0])
    inner = fields
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return json.dumps(fields)


UNREADABLE = {
    "a number in quotes": (changed("run", "run", "timing", "median_ms", value="0.1"), "run.timing.median_ms"),
    "half a program": (changed("timeline", "timeline", "sm", 1, value=1.5), "timeline.sm.1"),
    "three registers": (changed("timeline", "timeline", "registers", value=[1, 2, 3]), "timeline.registers"),
    "another field": (changed("reuse", "reuse", "speed", value=1), "reuse.speed"),
    "an unknown kernel": (changed("counters", "counters", "experiment", "kernel", value="sort"), "kernel is 'sort'"),
    "no tool": (lines("counters")[0].replace('"tool"', '"fool"'), "counters.tool"),
    "no date": (lines("timeline")[0].replace('"date"', '"day"'), "fields gpu, date"),
    "half a line": (lines("run")[0][:100], "this is not JSON"),
    "a list": ("[]", "this is not a JSON object"),
}


@pytest.mark.parametrize(("line", "wrong"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_line_that_cannot_be_read_says_file_and_line_and_what_is_wrong(tmp_path, line, wrong):
    (tmp_path / "mine.jsonl").write_text(f"{lines('run')[0]}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(UnreadableRecording, match=r"^mine\.jsonl, line 3: ") as error:
        _ = [records.shipped(form, tmp_path) for form in FORMS.values()]
    assert wrong in str(error.value)
