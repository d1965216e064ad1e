"""GPUs that ZeroGPU lends for one job at a time, with a fake hub that forks a process per lease and has no GPU."""

import contextvars
import multiprocessing
import os
import sys
import types

import gradio as gr
import pytest

from tests.experiments import assert_failed, experiment_of
from tests.waiting import PATIENCE_S, until
from tilescope.declare.gpus import GPUS, gpu_or_slice
from tilescope.measure import worker
from tilescope.measure.fair_queue import Call
from tilescope.measure.session import Session
from tilescope.measure.zero_gpu import LEASE_S, ZeroGpuPool, serve
from tilescope.results import Failure
from tilescope.search.trial import LocalDevice

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

WHO = contextvars.ContextVar("who", default="nobody")


class Hub:
    """Runs a function in a forked daemon, and reports only the class of an error, as ZeroGPU does."""

    def __init__(self):
        self.asked = []
        self.refuses = ""
        self.alive = 0

    def GPU(self, function, duration):
        def lent(*args):
            self.asked.append((WHO.get(), duration(*args)))
            if self.refuses:
                raise gr.Error(self.refuses)
            process = multiprocessing.get_context("fork").Process(
                target=function, args=args, daemon=True
            )
            self.alive += 1
            process.start()
            process.join()
            self.alive -= 1
            if process.exitcode:
                raise RuntimeError("ZeroGPU worker error: 'GPU task aborted'")

        return lent


@pytest.fixture
def hub():
    return Hub()


@pytest.fixture
def pool(hub, tmp_path):
    made = ZeroGpuPool(hub.GPU(serve, duration=lambda path, cache, seconds: seconds), str(tmp_path))
    yield made
    made.close()


def describe_process():
    return os.getpid(), os.environ["TRITON_CACHE_DIR"], multiprocessing.current_process().daemon


def call(pool, function, *args, stage="worker"):
    return pool.submit(Call(stage, function, args))


def test_one_lease_answers_all_calls_of_a_job_and_keeps_its_values(pool, hub, tmp_path):
    first = call(pool, describe_process).result(PATIENCE_S)
    assert first[0] != os.getpid()
    assert first[1:] == (str(tmp_path), True)
    call(pool, worker.set_kept_value, [1, 2], stage="launch").result(PATIENCE_S)
    assert call(pool, worker.get_kept_value, stage="check").result(PATIENCE_S) == [1, 2]
    assert len(hub.asked) == 1
    call(pool, worker.finish)
    until(lambda: hub.alive == 0)
    assert call(pool, describe_process).result(PATIENCE_S)[0] != first[0]
    assert hub.asked == [("nobody", LEASE_S)] * 2


def test_a_lease_that_is_released_in_the_middle_of_a_call_ends_with_that_call(pool, hub, held):
    running = pool.submit(held.call("running"))
    process = held.process("running")
    call(pool, worker.finish)
    held.end("running")
    assert running.result(PATIENCE_S) == process
    until(lambda: hub.alive == 0)
    assert call(pool, os.getpid).result(PATIENCE_S) != process
    assert len(hub.asked) == 2, "the release asked for no lease"


def test_a_dead_worker_is_a_failure_and_the_next_call_gets_another(pool):
    died = call(pool, os._exit, 3, stage="launch")
    assert_failed(died, "launch", "worker_died", "(ZeroGPU worker error: 'GPU task aborted')")
    assert call(pool, describe_process).result(PATIENCE_S)[2]


def test_a_hub_that_lends_nothing_is_a_failure_with_its_message(pool, hub):
    hub.refuses = 'You have exceeded your GPU quota. <a href="https://hub.example">More</a>'
    assert_failed(
        call(pool, os.getpid),
        "worker",
        "no_gpu",
        "ZeroGPU granted no GPU: You have exceeded your GPU quota. More",
    )
    hub.refuses = ""
    assert call(pool, os.getpid).result(PATIENCE_S)


def test_a_closed_pool_leaves_no_worker_and_takes_no_call(pool, hub):
    call(pool, describe_process).result(PATIENCE_S)
    pool.close()
    until(lambda: hub.alive == 0)
    assert_failed(call(pool, os.getpid), "worker", "cancelled")


def test_a_slice_is_no_whole_gpu():
    lent = gpu_or_slice("NVIDIA H200 MIG 3g.71gb", 60, (9, 0))
    assert lent.name == "slice of H200"
    assert lent.sms == 60
    assert lent.compute_capability == (9, 0)
    assert lent.matrix_tflops["float16"] == pytest.approx(
        GPUS["H200"].matrix_tflops["float16"] * 60 / 132
    )
    assert "as 60 of the 132 SMs of H200" in lent.assumed
    assert gpu_or_slice("NVIDIA H200", 132, (9, 0)).name == "H200"
    assert gpu_or_slice("NVIDIA Unheard Of", 10, (9, 0)).l2_bytes == 0
    with pytest.raises(ValueError, match=r"compute capability 3\.5; supported: 7\.5"):
        gpu_or_slice("NVIDIA K40", 15, (3, 5))


@pytest.fixture
def space(hub, monkeypatch, tmp_path):
    """A session on this machine, as a Space on ZeroGPU."""
    module = types.ModuleType("spaces")
    config = types.ModuleType("spaces.config")
    module.GPU = hub.GPU
    config.Config = types.SimpleNamespace(
        zerogpu_cuda_device_name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        zerogpu_cuda_multi_processor_count=94,
        zerogpu_cuda_capability_major=12,
        zerogpu_cuda_capability_minor=0,
    )
    monkeypatch.setitem(sys.modules, "spaces", module)
    monkeypatch.setitem(sys.modules, "spaces.config", config)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "tilescope.db"))
    session = Session.here()
    yield session
    session.close()


def test_a_session_on_zero_gpu_knows_its_slice_and_requests_none_until_something_runs(space, hub):
    space.warm_up()
    assert space.gpu.name == "slice of RTXPRO6000"
    assert space.gpu.sms == 94
    assert space.backend == "cuda"
    assert space.ping_runner() is None
    device = LocalDevice(space, experiment_of("matmul.grouped"))
    assert not device.takes_times
    assert device.refusal(None).startswith("ZeroGPU lends this GPU for one run at a time")
    assert hub.asked == []


def test_a_run_takes_one_lease_in_the_name_of_its_visitor(space, hub):
    context = contextvars.copy_context()
    context.run(WHO.set, "a visitor")
    result = context.run(space.submit, experiment_of("transpose.tiled M=64 N=64")).result(120)
    assert isinstance(result, Failure), "there is no CUDA here"
    assert result.stage in ("launch", "worker"), result
    until(lambda: hub.alive == 0)
    assert hub.asked == [("a visitor", LEASE_S)]
