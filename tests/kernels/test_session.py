"""A session: stages, places in the queue, cancels, deadlines, and workers that die. Under the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import kernels as package
from kernels import discover
from kernels.experiment import Experiment, Run, from_json
from kernels.gpus import GPUS
from kernels.knobs import knobs
from kernels.measuring import processes, worker
from kernels.measuring.interpreter import LIMIT_S, estimate_seconds
from kernels.measuring.measurements.run_measurement import RUN, check_output
from kernels.measuring.session import Session
from kernels.measuring.turns import Client
from kernels.results import STAGES, Compiled, Failure, RunResult
from kernels.spec import Launch
from tests.waiting import until

KERNEL = next(iter(discover().values()))
PATIENCE_S = 60


def experiment(shape, **fields):
    sizes = {name: size for name, size in zip("MNK", shape, strict=True) if name in knobs(KERNEL.family.problem)}
    smallest = {n: k.choices[0] for n, k in knobs(KERNEL.config).items() if n.startswith("BLOCK")}
    return Experiment(KERNEL.id, KERNEL.family.problem(**sizes), KERNEL.config(**smallest), **fields)


QUICK = experiment((1, 129, 33))


def longest():
    """The longest run that is not refused here: no test waits for its end."""
    for side in range(1, 4096, 64):
        longer = experiment((side, side, side))
        if estimate_seconds(KERNEL, Launch(longer.problem, longer.config, GPUS["H200"])) > LIMIT_S:
            return experiment((side - 64, side - 64, side - 64))
    raise AssertionError("nothing takes too long")


LONG = longest()

# Half a minute for an H200: 512 sums per thread.
SLOW_TO_COMPILE = {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 16, "num_warps": 2}


def worker_id(session):
    return session.ask_runner(worker.process_id)


def is_gone(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


def launched(session):
    """A long run whose launch is under way, and the process that it is in."""
    process_id = worker_id(session)
    job = session.submit(LONG)
    until(lambda: job.done.done() or (job.progress.stage == "launch" and job._work is not None and job._work.running()))
    assert not job.done.done(), job.result()
    return job, process_id


def assert_runs(session):
    result = session.submit(QUICK).result()
    assert isinstance(result, RunResult), result
    assert result.check.passed


def test_a_run_passes_its_stages_in_order(session):
    job = session.submit(QUICK)
    seen = [progress.stage for progress in job.updates(every_s=0.001)]
    result = job.result()
    assert isinstance(result, RunResult), result
    order = ("queued", "worker", "launch", "check")
    assert [stage for stage, before in zip(seen, ["", *seen], strict=False) if stage != before] == [
        s for s in order if s in seen
    ]
    assert {"launch", "check"} <= set(result.stages) <= set(STAGES) - {"compile", "time"}
    assert all(seconds > 0 for seconds in result.stages.values())
    assert result.device.backend == "interpreter"
    assert result.note


def test_updates_end_at_once_where_there_is_an_outcome(session):
    job = session.submit(replace(QUICK, gpu="B200"))
    assert list(job.updates()) == []


def test_runs_take_places_in_line_and_move_up(session):
    running, process_id = launched(session)
    waiting = []
    for place in (1, 2, 3):
        waiting.append(session.submit(QUICK))
        until(lambda place=place: waiting[-1].progress.before == place)
    assert {job.progress.stage for job in waiting} == {"queued"}
    assert next(waiting[1].updates()).before == 2

    waiting[0].cancel()
    outcome = waiting[0].result()
    assert isinstance(outcome, Failure)
    assert outcome.kind == "cancelled"
    assert "nothing was launched" in outcome.message
    until(lambda: [job.progress.before for job in waiting[1:]] == [1, 2])
    assert not running.done.done(), "the run before it goes on"
    assert running.progress.stage == "launch"
    assert not is_gone(process_id)

    running.cancel()
    for job in waiting[1:]:
        assert isinstance(job.result(), RunResult), job.result()
    assert session._machine.queue._jobs == []


def test_cancelling_a_run_ends_its_worker(session):
    job, process_id = launched(session)
    job.cancel()
    outcome = job.result()
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("launch", "cancelled")
    until(lambda: is_gone(process_id))
    assert_runs(session)
    assert worker_id(session) != process_id


def test_cancelling_what_is_over_changes_nothing(session):
    job = session.submit(QUICK)
    result, process_id = job.result(), worker_id(session)
    job.cancel()
    assert job.result() is result
    assert worker_id(session) == process_id


def test_a_worker_killed_in_the_middle_of_a_run_is_a_failure_and_the_next_run_succeeds(session):
    job, process_id = launched(session)
    os.kill(process_id, signal.SIGKILL)
    outcome = job.result()
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("launch", "worker_died")
    assert "SIGKILL" in outcome.message
    assert_runs(session)


def test_a_worker_killed_between_runs_does_not_fail_the_next_one(session):
    process_id = worker_id(session)
    os.kill(process_id, signal.SIGKILL)
    until(lambda: is_gone(process_id))
    time.sleep(0.5)  # the pool looks after its workers every 0.1 s
    # Dense values show whether the new worker multiplies bfloat16 as numbers.
    problem = replace(QUICK.problem, dtype="bfloat16")
    result = session.submit(replace(QUICK, problem=problem)).result()
    assert isinstance(result, RunResult), result
    assert result.check.passed


def test_a_worker_that_died_between_stages_is_told_apart_from_a_defect(session, monkeypatch):
    """The check finds a worker that has launched nothing: another than the one that launched."""
    monkeypatch.setattr(RUN, "measure", lambda experiment, stages: stages.work("check", check_output))
    session.ask_runner(worker.finish)
    outcome = session.submit(QUICK).result()
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("check", "worker_died")


def test_replaced_workers_end_what_they_were_doing_and_the_next_run_succeeds(session):
    job, process_id = launched(session)
    waiting = session.submit(QUICK)
    session._machine.runner.replace()
    outcome = job.result(PATIENCE_S)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("launch", "worker_died")
    assert is_gone(process_id)
    assert isinstance(waiting.result(PATIENCE_S), RunResult)


def test_closing_a_session_ends_its_runs(tmp_path):
    session = Session(None, tmp_path)
    job, process_id = launched(session)
    waiting = session.submit(QUICK)
    session.close()
    assert isinstance(job.result(PATIENCE_S), Failure)
    assert isinstance(waiting.result(PATIENCE_S), Failure)
    assert is_gone(process_id)


def test_more_runs_than_anyone_would_wait_for_are_refused(session, monkeypatch):
    """Whatever the one under way is at: here it waits, so that no worker need be ended."""
    held, let_go = threading.Event(), Failure("queued", "cancelled", "It was let go.")
    with monkeypatch.context() as patch:
        patch.setattr("kernels.measuring.session.MOST_JOBS", 1)
        patch.setattr(RUN, "measure", lambda *_: held.wait(PATIENCE_S) and let_go)
        job = session.submit(QUICK)
        outcome = session.submit(QUICK).result(0)
        assert isinstance(outcome, Failure)
        assert outcome.kind == "busy"
        held.set()
        assert job.result() == let_go
    assert_runs(session)


def test_a_missed_deadline_is_a_timeout_of_its_stage(session, monkeypatch):
    assert_runs(session)
    process_id = worker_id(session)
    monkeypatch.setitem(processes.DEADLINES_S, "launch", 1.0)
    outcome = session.submit(LONG).result()
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("launch", "timeout")
    assert "within 1 s" in outcome.message
    until(lambda: is_gone(process_id))
    monkeypatch.undo()
    assert_runs(session)


def test_a_shape_that_takes_too_long_is_refused_at_once(session):
    outcome = session.submit(experiment((16384, 16384, 16384))).result(0)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("config", "too_slow_here")


def test_another_gpu_without_a_recorded_run_is_refused_at_once(session):
    outcome = session.submit(replace(QUICK, gpu="B200")).result(0)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind, outcome.field) == ("config", "not_recorded", "gpu")
    assert "B200" in outcome.message


def test_this_gpu_where_there_is_none_is_interpreted(session):
    result = session.submit(replace(QUICK, gpu="this")).result()
    assert isinstance(result, RunResult), result
    assert result.backend == "interpreter"


def test_an_error_in_a_worker_is_a_failure_and_the_next_run_succeeds(session):
    outcome = session.submit(replace(QUICK, run=Run(seed="seven"))).result()
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("launch", "error")
    assert "manual_seed" in outcome.message
    assert_runs(session)


SCRIPT = """
import sys
from pathlib import Path

if __name__ == "__main__":
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.measuring.session import Session

    session = Session(None, Path(sys.argv[1]))
    result = session.submit(from_json({"kernel": sys.argv[2], "problem": {"M": 1, "N": 129}}, discover())).result()
    session.close()
    print(result.check.passed, "torch" in sys.modules, "triton" in sys.modules)
"""


def test_the_process_that_submits_runs_imports_no_torch(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parent.parent)}
    ended = subprocess.run(
        [sys.executable, str(file), str(tmp_path / "cache"), KERNEL.id],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == ["True", "False", "True"], ended.stderr


def test_a_compile_that_takes_too_long_is_a_timeout_and_the_next_one_is_unharmed(session, monkeypatch):
    payload = {"kernel": "matmul.grouped", "gpu": "H200"}
    with monkeypatch.context() as patch:
        patch.setitem(processes.DEADLINES_S, "compile", 2.0)
        outcome = session.compiled(from_json({**payload, "config": SLOW_TO_COMPILE}, discover()))
    assert isinstance(outcome, Failure), outcome
    assert (outcome.stage, outcome.kind) == ("compile", "timeout")
    assert isinstance(session.compiled(from_json({**payload, "problem": {"M": 272}}, discover())), Compiled)


def test_a_compile_that_nobody_wants_any_more_is_ended(session, monkeypatch):
    monkeypatch.setattr("kernels.measuring.under_way.PATIENCE_S", 0.5)
    slow = {"kernel": "matmul.grouped", "gpu": "H200", "config": {**SLOW_TO_COMPILE, "num_stages": 2}}
    began = time.monotonic()
    outcome = session.compiled(
        from_json(slow, discover()),
        wanted=lambda: time.monotonic() - began < 1,
    )
    assert isinstance(outcome, Failure)
    assert outcome.kind == "cancelled"
    assert time.monotonic() - began < 30
    quick = session.compiled(from_json({"kernel": "transpose.tiled", "problem": {"M": 96}, "gpu": "H200"}, discover()))
    assert isinstance(quick, Compiled)


def test_all_who_wait_for_the_same_compile_share_it(session, monkeypatch):
    submitted = []
    submit = session._machine.compilers.submit
    monkeypatch.setattr(session._machine.compilers, "submit", lambda *a, **b: submitted.append(a) or submit(*a, **b))
    experiment = from_json({"kernel": "transpose.tiled", "problem": {"M": 4000}, "gpu": "H200"}, discover())
    with ThreadPoolExecutor(4) as clients:
        outcomes = list(clients.map(lambda _: session.compiled(experiment), range(4)))
    assert all(isinstance(outcome, Compiled) for outcome in outcomes)
    assert len(submitted) == 1


def test_a_compile_that_would_be_ended_before_it_is_done_is_not_started(session):
    tile = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 1}
    asked = session.compiling(from_json({"kernel": "matmul.grouped", "gpu": "T4", "config": tile}, discover()))
    refused = asked.result(0)
    assert isinstance(refused, Failure)
    assert (refused.stage, refused.kind) == ("compile", "too_slow_to_compile")
    assert "2048 registers per thread with num_warps 1; a thread has 255" in refused.message


def test_a_stranger_with_slow_compiles_does_not_delay_a_quick_one(session):
    """Real compiles: as many slow ones as one address may have, and somebody else's quick one."""
    configs = [{**SLOW_TO_COMPILE, "BLOCK_K": depth, "num_stages": n} for depth in (16, 32) for n in (1, 2, 3, 4)]
    payload = {"kernel": "matmul.grouped", "gpu": "H200"}
    greedy, other = Client("10.0.0.1", "one"), Client("10.0.0.2", "other")
    slow = [session.compiling(from_json({**payload, "config": one}, discover()), client=greedy) for one in configs]
    try:
        quick = {"kernel": "transpose.tiled", "problem": {"M": 80}, "gpu": "H200"}
        made = session.compiling(from_json(quick, discover()), client=other).result(PATIENCE_S)
        assert isinstance(made, Compiled), made
        assert not any(one.done() for one in slow[1:])
    finally:
        for one in slow:
            one.cancel()
