"""Worker processes: deadlines, cancels, shared calls, deaths, and the end of the page."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.experiments import assert_failed
from tests.tilescope.measure.held import Held, hold
from tests.trees import ROOT, children, is_alive, python
from tests.waiting import PATIENCE_S, until
from tilescope.measure.fair_queue import MAX_WAITING_PER_PAGE, Call, Client
from tilescope.measure.pool import DEADLINES_S, Pool
from tilescope.measure.worker import PRELOADED, serve
from tilescope.results import Failure

PROCESS = Call("worker", os.getpid)
each_signal = pytest.mark.parametrize(
    "sent", [signal.SIGKILL, signal.SIGSTOP], ids=lambda sent: sent.name
)


@pytest.fixture
def make_pool(tmp_path):
    pools = []

    def make(count=1, backend="model", **options):
        pools.append(Pool(backend, str(tmp_path / "cache"), count, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def pool(make_pool):
    return make_pool()


def result_of(pool, function, *args):
    result = pool.submit(Call("worker", function, args)).result(PATIENCE_S)
    assert not isinstance(result, Failure), result
    return result


def test_importing_and_making_a_pool_start_no_thread_and_no_process():
    script = """
import os, threading
import tilescope.measure.session
from tilescope.measure.pool import Pool
from tests.trees import children
Pool("compile", "cache", 4)
print(threading.active_count(), children(os.getpid(), ""))
"""
    assert python(ROOT, "-c", script).stdout.split() == ["1", "[]"]


def test_a_worker_gets_the_environment_of_its_pool_and_comes_from_one_fork_server(
    make_pool, monkeypatch, tmp_path
):
    pools = []
    for value in ("one", "two"):
        monkeypatch.setenv("TILESCOPE_TEST", value)
        pools.append(make_pool())
    assert [result_of(pool, os.getenv, "TILESCOPE_TEST") for pool in pools] == ["one", "two"]
    assert {result_of(pool, os.getenv, "TRITON_CACHE_DIR") for pool in pools} == {
        str(tmp_path / "cache")
    }
    parents = {result_of(pool, os.getppid) for pool in pools}
    assert len(parents) == 1
    assert os.getpid() not in parents


def test_workers_that_start_with_triton_compile_and_interpreters_still_interpret(tmp_path):
    script = f"""
from tilescope.measure.fair_queue import Call
from tilescope.measure.pool import Pool, preload_triton
from tests.tilescope.measure.test_pool import describe_triton

if __name__ == "__main__":
    preload_triton()
    for backend in ("compile", "interpreter"):
        pool = Pool(backend, {str(tmp_path)!r})
        print(*pool.submit(Call("worker", describe_triton)).result())
        pool.close()
"""
    path = tmp_path / "script.py"
    path.write_text(script)
    done = python(ROOT, str(path), PYTHONPATH=str(ROOT))
    assert done.stdout.splitlines() == ["True JITFunction", "False InterpretedFunction"]


def describe_triton():
    """Return whether this process was forked from one that has imported Triton, and the class of a kernel."""
    is_preloaded = PRELOADED in sys.modules
    import triton.language as tl

    return is_preloaded, type(tl.sum).__name__


def test_a_deadline_starts_when_a_worker_takes_the_call_and_then_kills_it(pool, held, monkeypatch):
    monkeypatch.setitem(DEADLINES_S, "launch", 2.0)
    first, second = (pool.submit(held.call(name)) for name in ("first", "second"))
    killed = held.process("first")
    assert_failed(first, "launch", "timeout", "did not end within 2 s")
    until(lambda: not is_alive(killed))
    taken = held.process("second")
    held.end("second")
    assert second.result(PATIENCE_S) == taken, "it had waited for longer than its deadline"


def use_core(core, cpu_s):
    """Use CPU time on one core."""
    os.sched_setaffinity(0, {core})
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long a process waits")
def test_the_time_for_which_a_worker_waits_for_a_core_does_not_count_for_its_deadline(
    pool, monkeypatch
):
    monkeypatch.setitem(DEADLINES_S, "launch", 1.25)
    core = min(os.sched_getaffinity(0))
    priority = result_of(pool, os.nice, 0)
    use = f"import os\nos.nice({priority})\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", use]) for _ in range(5)]
    try:
        call = Call("launch", use_core, (core, 0.25))
        assert pool.submit(call).result(PATIENCE_S) is True
    finally:
        for process in others:
            process.kill()
            process.wait()


def test_cancelling_kills_a_running_call_and_drops_a_waiting_one(pool, held):
    running, waiting, last = (
        pool.submit(held.call(name)) for name in ("running", "waiting", "last")
    )
    process = held.process("running")
    waiting.cancel()
    running.cancel()
    until(lambda: not is_alive(process))
    assert held.process("last") != process
    held.end("last")
    assert last.result(PATIENCE_S)
    assert not held.has_run("waiting")


def test_equal_calls_in_flight_run_once_until_all_of_their_clients_have_cancelled(make_pool, held):
    pool = make_pool(count=2)
    kept = []
    shared = [pool.submit(held.call("shared", key="k"), on_result=kept.append) for _ in range(3)]
    process = held.process("shared")
    assert len(pool) == 1
    shared[0].cancel()
    held.end("shared")
    assert [future.result(PATIENCE_S) for future in shared[1:]] == [process] * 2
    assert kept == [process]

    again = [pool.submit(held.call("again", key="k")) for _ in range(2)]
    process = held.process("again")
    for future in again:
        future.cancel()
    until(lambda: not is_alive(process))
    until(lambda: len(pool) == 0)
    held.end("afterwards")
    assert pool.submit(held.call("afterwards", key="k")).result(PATIENCE_S) != process


@each_signal
def test_a_worker_that_dies_or_is_stopped_costs_its_own_call_and_is_replaced(pool, held, sent):
    call = pool.submit(held.call("busy"))
    waiting = pool.submit(PROCESS)
    process = held.process("busy")
    os.kill(process, sent)
    assert waiting.result(PATIENCE_S) != process
    until(lambda: not is_alive(process))
    assert_failed(
        call, "launch", "worker_died", "SIGKILL" if sent == signal.SIGKILL else "suspended"
    )


@each_signal
def test_an_idle_worker_that_dies_or_is_stopped_is_replaced_before_the_next_call(pool, sent):
    server = result_of(pool, os.getppid)
    process = result_of(pool, os.getpid)
    others = set(children(server, "")) - {process}
    os.kill(process, sent)
    until(lambda: not is_alive(process) and set(children(server, "")) - others - {process})


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has a fork server that has imported torch"
)
@each_signal
def test_a_fork_server_that_dies_or_is_stopped_is_replaced_with_its_workers(pool, sent):
    server = result_of(pool, os.getppid)
    before = result_of(pool, os.getpid)
    os.kill(server, sent)
    os.kill(before, signal.SIGKILL)
    assert result_of(pool, os.getpid) != before
    assert result_of(pool, os.getppid) != server


def test_a_worker_that_is_stopped_in_the_middle_of_a_message_is_replaced(pool):
    process = result_of(pool, os.getpid)
    os.kill(process, signal.SIGSTOP)
    assert result_of(pool, len, bytes(10**7)) == 10**7
    until(lambda: not is_alive(process))


def test_workers_that_can_not_start_are_a_failure(make_pool):
    pool = make_pool(preload=["no_such_module"])
    for _ in range(2):
        assert_failed(pool.submit(PROCESS), "worker", "worker_died", "before it accepted the call")
    assert not pool.has_ready_worker


def test_an_exception_and_values_that_can_not_be_sent_are_failures_and_cost_no_worker(pool):
    process = result_of(pool, os.getpid)
    assert_failed(
        pool.submit(Call("check", int, ("seven",))), "check", "error", "ValueError: invalid literal"
    )
    assert_failed(pool.submit(Call("check", lambda: 7)), "check", "error")
    assert_failed(pool.submit(Call("check", iter, (hold.__code__.co_lines,))), "check", "error")
    assert result_of(pool, os.getpid) == process


def test_a_client_with_too_many_waiting_calls_is_refused(pool, held):
    client = Client("10.0.0.1", "page")
    pool.submit(held.call("running"), client)
    held.process("running")
    waiting = [
        pool.submit(held.call(str(number)), client) for number in range(MAX_WAITING_PER_PAGE)
    ]
    assert_failed(pool.submit(held.call("late"), client), "launch", "busy", "the limit is 8")
    waiting[-1].cancel()
    assert not pool.submit(held.call("in its place"), client).done()


def test_closing_ends_every_call(pool, held):
    calls = [pool.submit(held.call(name)) for name in ("running", "waiting")]
    process = held.process("running")
    pool.close()
    assert not is_alive(process)
    for call in (*calls, pool.submit(held.call("late"))):
        assert_failed(call, "launch", "cancelled", "Tilescope is shutting down")


class Interrupting:
    """A key that is compared while the pool's lock is held."""

    def __eq__(self, other):
        signal.raise_signal(signal.SIGUSR1)
        return True

    __hash__ = None


def test_a_signal_handler_may_close_a_pool_in_the_middle_of_submit(pool, held):
    before = signal.signal(signal.SIGUSR1, lambda *_: pool.close())
    try:
        calls = [pool.submit(held.call(name, Interrupting())) for name in ("running", "late")]
        for call in calls:
            assert_failed(call, "launch", "cancelled", "Tilescope is shutting down")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_workers_that_do_not_time_a_gpu_are_nicer_than_the_page(make_pool):
    backends = ("model", "interpreter", "cuda")
    nice = [
        make_pool(backend=backend).submit(Call("worker", os.nice, (0,))) for backend in backends
    ]
    model, interpreter, cuda = (future.result(PATIENCE_S) for future in nice)
    assert model == interpreter > cuda == os.nice(0)


# One worker holds the GIL and another sleeps, until the page is killed.
BUSY = """
import sys, threading
from pathlib import Path

if __name__ == "__main__":
    from tilescope.measure.pool import Call, Pool
    from tests.tilescope.measure.held import hold
    from tests.tilescope.measure.test_pool import hold_lock

    pool = Pool("compile", sys.argv[1], 2)
    calls = [pool.submit(Call("launch", f, (sys.argv[1], f.__name__))) for f in (hold, hold_lock)]
    calls[0].result()
"""


def hold_lock(directory, name):
    """Write this process's id to a file, and hold the GIL for minutes, as a compile does."""
    Path(directory, name).write_text(str(os.getpid()))
    return pow(7, 10**8)


def test_no_process_outlives_a_page_that_is_killed_in_the_middle_of_work(tmp_path):
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script, tmp_path], env=environment) as page:
        try:
            processes = [Held(tmp_path).process(name) for name in ("hold", "hold_lock")]
            (server,) = children(page.pid, "forkserver")
        finally:
            page.kill()
    until(lambda: not any(is_alive(process) for process in (server, *processes)))


def test_a_worker_ends_quietly_if_the_page_ends_during_its_call():
    ours, theirs = multiprocessing.Pipe()
    ours.send(Call("worker", os.close, (ours.fileno(),)))
    ours._handle = None  # the worker closes it
    serve(theirs)
