"""Worker processes: where they come from, what they are told, and when they end."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from kernels.runner import worker
from kernels.runner.processes import Workers
from tests.kernels.trees import ROOT, children, is_alive

# Starts a run that takes ten seconds and a compile that takes minutes, says so, and stays.
BUSY = """
import sys, threading, time
from pathlib import Path

if __name__ == "__main__":
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.runner.session import Session

    session = Session(None, Path(sys.argv[1]))
    tile = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 1}
    slow = from_json({"kernel": "matmul.grouped", "config": tile, "gpu": "T4"}, discover())
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
