"""The run that a browser keeps: it is shown for its own experiment, and unreadable text is ignored."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pytest

from kernels.measuring.session import MEASUREMENTS
from kernels.results import records
from visualize.views.result.view import read_kept, write_kept
from visualize.views.tabs import SETTINGS

FORM = MEASUREMENTS["run"].form
ENDED = datetime.datetime(2026, 11, 21, 13, 2, tzinfo=datetime.UTC)


def written(run, gpu="H200", ended=ENDED):
    return write_kept(run, gpu, ended)


def recorded_runs():
    return [records.find(FORM, one, "H200") for one in records.experiments(FORM, "H200")]


def state_of(experiment):
    return SETTINGS.state({**experiment.to_address(), "gpu": "H200"}, None)


@pytest.mark.parametrize("run", recorded_runs()[::7], ids=lambda run: run.experiment.kernel)
def test_a_run_comes_back_as_it_was(run):
    state = state_of(run.experiment)
    for shown in (run, replace(run, recorded=run)):
        back, ended = read_kept(written(shown), state)
        assert (replace(back, diff=None), ended) == (replace(run, diff=None), ENDED)
    problem = run.experiment.problem
    other = state_of(replace(run.experiment, problem=replace(problem, M=1 + problem.M % 16_384)))
    assert read_kept(written(run), other) is None
    assert read_kept(written(run, "A100"), state) is None


@pytest.mark.parametrize(
    "text", [None, 7, "", "{", "[]", "null", "[" * 50_000, '{"gpu": "H200"}', '{"run": {}}', "x" * 200_000]
)
def test_what_is_no_run_is_left_alone(text):
    run = recorded_runs()[0]
    assert read_kept(text, state_of(run.experiment)) is None


def test_a_run_with_a_field_of_another_type_is_no_run():
    run = recorded_runs()[0]
    fields = json.loads(written(run))
    for name, value in (("note", 7), ("check", "good"), ("experiment", {"kernel": "nothing"}), ("extra", 1)):
        wrong = json.dumps({**fields, "run": {**fields["run"], name: value}})
        assert read_kept(wrong, state_of(run.experiment)) is None, name


@pytest.mark.parametrize("date", ["yesterday", "2026-11-21", "2026-11-21T14:02", 7, None])
def test_a_run_that_does_not_say_when_it_ended_is_no_run(date):
    """A time without its zone is none: the browser may be in another one."""
    run = recorded_runs()[0]
    fields = {**json.loads(written(run)), "date": date}
    assert read_kept(json.dumps(fields), state_of(run.experiment)) is None


def test_a_picture_of_another_output_is_no_picture_of_this_one():
    run = next(one for one in recorded_runs() if one.diff)
    state = state_of(run.experiment)
    assert read_kept(written(run), state)[0].diff is not None
    fields = json.loads(written(run))
    diff = fields["run"]["diff"]
    rows, columns = diff["shape"]
    for name, value in (("tile", [0, 0]), ("shape", [rows - 1, columns])):
        wrong = {**fields, "run": {**fields["run"], "diff": {**diff, name: value}}}
        assert read_kept(json.dumps(wrong), state) is None, name
