"""Worker processes: where they come from, what they are told, and when they end."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring import processes, worker
from kernels.measuring.processes import Workers, outcome
from kernels.sweep import builder
from kernels.sweep.builder import LocalBuilder
from tests.kernels.trees import ROOT, children, is_alive

PATIENCE_S = 60

# Starts a run that takes ten seconds and a compile that takes half a minute, says so, and stays.
BUSY = """
import sys, threading, time
from pathlib import Path

if __name__ == "__main__":
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.measuring.session import Session

    session = Session(None, Path(sys.argv[1]))
    tile = {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 16, "num_warps": 2}
    slow = from_json({"kernel": "matmul.grouped", "config": tile, "gpu": "H200"}, discover())
    long = from_json({"kernel": "matmul.grouped", "config": {"BLOCK_M": 32, "BLOCK_N": 32}}, discover())
    job = session.submit(long)
    threading.Thread(target=session.compiled, args=(slow,)).start()
    while job.progress.stage != "launch" or not job._work.running():
        assert not job.done.done(), job.result()
        time.sleep(0.05)
    time.sleep(1)
    print("busy", flush=True)
    time.sleep(600)
"""


def told(name: str) -> str | None:
    return os.environ.get(name)


def no_prediction(*_):
    return None


def parent() -> int:
    return os.getppid()


def test_a_worker_has_the_environment_of_when_it_was_asked_for_and_comes_from_a_server_with_torch(
    tmp_path, monkeypatch
):
    pools = []
    for value in ("one", "other"):
        monkeypatch.setenv("TILESCOPE_TOLD", value)
        pools.append(Workers("interpreter", str(tmp_path)))
    try:
        assert [pool.submit(told, "worker", "TILESCOPE_TOLD").result() for pool in pools] == ["one", "other"]
        assert [pool.submit(told, "worker", "TRITON_CACHE_DIR").result() for pool in pools] == [str(tmp_path)] * 2
        servers = {pool.submit(parent, "worker").result() for pool in pools}
        assert len(servers) == 1
        assert servers.isdisjoint({os.getpid()})
    finally:
        for pool in pools:
            pool.close()


def test_a_worker_that_was_replaced_is_another_process(tmp_path):
    pool = Workers("interpreter", str(tmp_path))
    try:
        before = pool.submit(worker.process_id, "worker").result()
        pool.replace()
        assert pool.submit(worker.process_id, "worker").result() != before
    finally:
        pool.close()


@pytest.fixture
def pool(tmp_path):
    made = Workers("interpreter", str(tmp_path))
    yield made
    made.close()


def test_a_signal_may_close_workers_while_their_lock_is_held(pool):
    """Its handler runs in the thread that it strikes."""
    with pool._lock:
        pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(worker.process_id, "worker")


def test_a_worker_that_was_stopped_while_idle_is_replaced_and_the_call_answered(pool, monkeypatch):
    monkeypatch.setattr(processes, "TAKEN_WITHIN_S", 0.5)
    stopped = pool.submit(worker.process_id, "worker").result()
    os.kill(stopped, signal.SIGSTOP)
    answered = pool.submit(worker.process_id, "worker").result(PATIENCE_S)
    assert answered != stopped
    assert not is_alive(stopped)


def test_a_worker_that_was_killed_while_idle_costs_no_call(pool):
    """Whether the pool has noticed already, or not yet."""
    for pause_s in (0.0, 0.4):
        os.kill(pool.submit(worker.process_id, "worker").result(PATIENCE_S), signal.SIGKILL)
        time.sleep(pause_s)
        calls = [pool.submit(worker.process_id, "worker") for _ in range(3)]
        assert len({call.result(PATIENCE_S) for call in calls}) == 1


def test_a_worker_that_dies_at_work_costs_that_call_alone(pool):
    dying, *after = [pool.submit(function, "worker") for function in (os.abort, worker.process_id, worker.process_id)]
    assert outcome(dying, "worker").kind == "worker_died"
    assert len({call.result(PATIENCE_S) for call in after}) == 1


def test_workers_that_can_not_start_are_a_failure(tmp_path):
    pool = Workers("interpreter", str(tmp_path), preload=["no_such_module"])
    try:
        for _ in range(2):
            failure = outcome(pool.submit(worker.process_id, "compile"), "compile")
            assert (failure.stage, failure.kind) == ("compile", "worker_died")
            assert "before it took the work" in failure.message
    finally:
        pool.close()


def test_a_sweeps_compile_ends_where_no_worker_can_start(tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "Workers", functools.partial(Workers, preload=["no_such_module"]))
    made = LocalBuilder(GPUS["H200"], no_prediction, tmp_path, count=2)
    try:
        failure = made.submit(from_json({"kernel": "transpose.tiled"}, discover())).result(PATIENCE_S)
        assert failure.kind == "no_worker"
    finally:
        made.close()


def test_workers_that_nobody_is_timed_by_are_nicer_than_the_page(tmp_path):
    made = {backend: Workers(backend, str(tmp_path)) for backend in ("model", "interpreter")}
    try:
        nice = {backend: pool.submit(os.nice, "worker", 0).result(PATIENCE_S) for backend, pool in made.items()}
        assert nice["model"] > nice["interpreter"] == os.nice(0)
    finally:
        for pool in made.values():
            pool.close()


def test_no_process_outlives_a_page_that_is_killed_in_the_middle_of_work(tmp_path):
    """A compile that holds Python's lock, and a kernel under the interpreter: gone as soon as the page is."""
    script = tmp_path / "busy.py"
    script.write_text(BUSY, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, tmp_path / "cache"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as page:
        try:
            assert page.stdout is not None
            assert page.stdout.readline() == "busy\n"
            (server,) = children(page.pid, "forkserver")
            ours = [server, *children(server, "forkserver")]
            assert len(ours) >= 3, "the server, a compile worker, and the one that runs"
        finally:
            page.kill()
    deadline = time.monotonic() + 5
    while left := [one for one in ours if is_alive(one)]:
        assert time.monotonic() < deadline, f"{left} live on"
        time.sleep(0.05)
