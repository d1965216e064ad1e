"""The run that a browser keeps: it is shown for its own experiment, and unreadable text is ignored."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pytest

from kernels.measuring.session import MEASUREMENTS
from kernels.results import records
from visualize.views.result.view import decode_run, encode_run
from visualize.views.tabs import SETTINGS

FORM = MEASUREMENTS["run"].form
ENDED = datetime.datetime(2026, 11, 21, 13, 2, tzinfo=datetime.UTC)
RUNS = [records.find(FORM, experiment, "H200") for experiment in records.experiments(FORM, "H200")]
RUN = next(run for run in RUNS if run.diff)


def read(text, run=RUN, **problem):
    experiment = replace(run.experiment, problem=replace(run.experiment.problem, **problem))
    return decode_run(text, SETTINGS.state({**experiment.to_address(), "gpu": "H200"}, None))


@pytest.mark.parametrize("run", RUNS[::7], ids=lambda run: run.experiment.kernel)
def test_a_run_is_read_back_for_its_own_experiment_and_gpu(run):
    for original in (run, replace(run, recorded=run)):
        back, ended = read(encode_run(original, "H200", ENDED), run)
        assert (replace(back, diff=None), ended) == (replace(run, diff=None), ENDED)
        assert (back.diff is None) == (run.diff is None)
    assert read(encode_run(run, "H200", ENDED), run, M=1 + run.experiment.problem.M % 16_384) is None
    assert read(encode_run(run, "A100", ENDED), run) is None


@pytest.mark.parametrize(
    "text", [None, 7, "", "{", "[]", "null", "[" * 50_000, '{"gpu": "H200"}', '{"run": {}}', "x" * 200_000]
)
def test_unreadable_text_is_ignored(text):
    assert read(text) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("date", date) for date in ("yesterday", "2026-11-21", "2026-11-21T14:02", 7, None)),  # no time, or no zone
        *(("run", {name: value}) for name, value in (("note", 7), ("check", "good"), ("extra", 1))),
        ("run", {"experiment": {"kernel": "nothing"}}),
        *(("run", {"diff": {name: value}}) for name, value in (("tile", [0, 0]), ("shape", [511, 512]))),
    ],
)
def test_a_run_with_a_field_of_another_type_or_the_picture_of_another_output_is_ignored(name, value):
    fields = json.loads(encode_run(RUN, "H200", ENDED))
    if isinstance(value, dict):
        diff = {"diff": {**fields["run"]["diff"], **value["diff"]}} if "diff" in value else value
        value = {**fields["run"], **diff}
    assert read(json.dumps({**fields, name: value})) is None
