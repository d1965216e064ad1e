"""A session under the interpreter: stages, the queue, cancels, deadlines, and workers that die or are killed."""

import os
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from scripts.inject_deaths import inject
from tests.experiments import assert_failed, experiment_of, run
from tests.trees import ROOT, is_alive, python
from tests.waiting import PATIENCE_S, until
from tilescope.measure import worker
from tilescope.measure.fair_queue import Client
from tilescope.measure.run import check_output
from tilescope.measure.session import MAX_JOBS, MAX_JOBS_PER_ADDRESS, MEASUREMENTS, BoundedCache
from tilescope.results import Compiled, RunResult, records

SMALL = "matmul.grid_2d M=1 N=129 K=33 BLOCK_M=16 BLOCK_N=16 BLOCK_K=16"
QUICK = experiment_of(SMALL)


@pytest.fixture
def held(held, made_up):
    """Make a measurement whose launch runs until the test ends it."""

    def measure(job):
        job.work("launch", worker.set_kept_value, None)
        call = held.call("launch")
        return job.work("launch", call.function, *call.args)

    made_up(measure)
    return held


def worker_id(session):
    return session.call_runner(os.getpid)


def launched(session, held):
    """Return a job whose launch a worker has taken, and the worker's process id."""
    job = session.submit(QUICK, "made_up")
    return job, held.process("launch")


def test_a_run_passes_its_stages_in_order(session):
    job = session.submit(QUICK)
    seen = []
    while wait([job.done], 0.001).not_done:
        seen.append(job.progress.stage)
    result = job.result()
    assert isinstance(result, RunResult), result
    order = ("queued", "worker", "launch", "check")
    assert [stage for stage, before in zip(seen, ["", *seen], strict=False) if stage != before] == [
        s for s in order if s in seen
    ]
    assert {"launch", "check"} <= set(result.stages) <= {"worker", "launch", "check"}
    assert all(seconds > 0 for seconds in result.stages.values())
    assert result.device.backend == "interpreter"
    assert result.note


def test_runs_wait_in_line_and_cancelling_the_first_ends_its_worker(session, held):
    running, process_id = launched(session, held)
    waiting = []
    for place in (1, 2, 3):
        waiting.append(session.submit(QUICK))
        until(lambda place=place: waiting[-1].progress.before == place)
    assert {job.progress.stage for job in waiting} == {"queued"}

    waiting[0].cancel()
    assert_failed(waiting[0], "launch", "cancelled", "nothing was launched")
    until(lambda: [job.progress.before for job in waiting[1:]] == [1, 2])
    assert not running.done.done(), "the job before it goes on"
    assert running.progress.stage == "launch"
    assert is_alive(process_id)

    running.cancel()
    assert_failed(running, "launch", "cancelled")
    until(lambda: not is_alive(process_id))
    for job in waiting[1:]:
        assert isinstance(job.result(PATIENCE_S), RunResult), job.result()
    assert len(session.queue) == 0


def test_cancelling_a_finished_job_changes_nothing(session):
    job = session.submit(QUICK)
    result = job.result(PATIENCE_S)
    process_id = worker_id(session)
    job.cancel()
    assert job.result() is result
    assert worker_id(session) == process_id


def test_a_worker_that_died_between_stages_is_told_apart_from_a_defect(session, made_up):
    def check_without_launch(job):
        job.work("launch", worker.set_kept_value, None)
        return job.work("check", check_output)

    made_up(check_without_launch)
    assert_failed(session.submit(QUICK, "made_up"), "check", "worker_died")


def test_runs_are_limited_in_all_and_per_address(session, held):
    ann = Client("10.0.0.1")
    jobs = [
        launched(session, held)[0],
        *(session.submit(QUICK, client=ann) for _ in range(MAX_JOBS_PER_ADDRESS)),
    ]
    assert_failed(session.submit(QUICK, client=ann), "worker", "busy", "16 runs from this address")
    jobs += [
        session.submit(QUICK, client=Client(f"10.0.0.{place}"))
        for place in range(2, 2 + MAX_JOBS - len(jobs))
    ]
    assert_failed(session.submit(QUICK), "worker", "busy", f"{MAX_JOBS} runs are in progress")
    for job in jobs:
        job.cancel()
    for job in jobs:
        job.result(PATIENCE_S)
    run(session, SMALL)


def test_a_shape_that_takes_too_long_is_refused_at_once(session):
    large = experiment_of("matmul.grid_2d M=16384 N=16384 K=16384")
    assert_failed(session.submit(large), "config", "too_slow_here")
    too_large = replace(large, config=replace(large.config, BLOCK_K=256, num_stages=8))
    message = session.submit(too_large).result().message
    assert message.startswith("This config probably can't launch on H200: it needs 524,288 bytes")


def test_a_page_checks_in_the_interpreter_whatever_gpu_the_predictions_are_for(session):
    """A recording replaces a launch that would take too long."""
    foreign = replace(QUICK, gpu="B200")
    checked = session.submit(foreign, interprets_any_gpu=True).result()
    assert checked.backend == "interpreter"
    assert checked.check.passed
    assert checked.experiment == foreign
    assert session.find_value(foreign, "run") == checked
    assert session.find_value(replace(QUICK, gpu="A10G"), "run") is None, (
        "a launch may depend on the GPU"
    )
    large = next(
        each
        for each in records.experiments(MEASUREMENTS["run"].form, "H200")
        if each.problem.M >= 4096
    )
    assert (
        session.submit(replace(large, gpu="H200"), interprets_any_gpu=True).result().backend
        == "recorded"
    )


def test_this_gpu_where_there_is_none_is_interpreted(session):
    assert run(session, SMALL, gpu="this").backend == "interpreter"


SCRIPT = """
import sys
from pathlib import Path

if __name__ == "__main__":
    from tilescope.declare.experiment import from_json
    from tilescope.measure.session import Session

    session = Session(None, Path(sys.argv[1]))
    result = session.submit(from_json({"kernel": "matmul.grid_2d", "problem": {"M": 1, "N": 129}})).result()
    session.close()
    print(result.check.passed, "torch" in sys.modules, "triton" in sys.modules)
"""


def test_the_process_that_submits_runs_imports_no_torch(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    ended = python(ROOT, file, tmp_path / "cache")
    assert ended.stdout.split() == ["True", "False", "True"], ended.stderr


def test_a_compile_is_shared_while_it_runs_and_cached_before_anyone_has_it(session):
    chosen = experiment_of("transpose.tiled gpu=H200 M=4000")
    found = []
    futures = [session.compile(chosen) for _ in range(4)]
    futures[0].add_done_callback(lambda _: found.append(session.find_compiled(chosen)))
    assert len(session.compilers) == 1
    made = {id(future.result(PATIENCE_S)) for future in futures}
    assert made == {id(session.find_compiled(chosen))} == {id(each) for each in found}
    assert session.compile(chosen).result(0) is session.find_compiled(chosen)


def test_a_config_that_does_not_fit_is_cached_with_its_reason_and_the_suggested_one_fits(session):
    fused = "matmul.fused_add_relu gpu=RTX5090 "
    refused = session.compile(experiment_of(fused)).result(PATIENCE_S)
    assert refused.kind == "out_of_resources"
    suggestion = "Make the tile or num_stages smaller; with num_stages 2 it should fit."
    assert refused.message.endswith(suggestion)
    assert session.find_compiled(experiment_of(fused)) is refused
    smaller = session.compile(experiment_of(f"{fused} num_stages=2")).result(PATIENCE_S)
    assert isinstance(smaller, Compiled)


def test_a_cache_drops_the_value_that_was_used_least_recently():
    cache = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_the_cache_directory_is_chosen_by_the_environment_or_the_users_or_private(
    monkeypatch, tmp_path
):
    for name in ("TILESCOPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory."))
        )
        directory = worker.default_cache_directory()
        assert directory.stat().st_mode & 0o077 == 0
        assert worker.default_cache_directory() == directory
    for name, value, expected in (
        ("HOME", tmp_path, tmp_path / ".cache" / "tilescope"),
        ("XDG_CACHE_HOME", tmp_path / "caches", tmp_path / "caches" / "tilescope"),
        ("TILESCOPE_CACHE", tmp_path / "ours", tmp_path / "ours"),
    ):
        monkeypatch.setenv(name, str(value))
        assert worker.default_cache_directory() == expected


def test_runs_whose_worker_is_killed_say_so_and_the_next_ones_are_good(session):
    result = inject(session, deaths=1, seed=1)
    assert result.stages.total() == 1
    assert result.unclear == []
    assert result.bad_next == []
