"""Sweeps through Dask: two workers on this machine that check in the interpreter or return made-up times."""

import ctypes
import functools
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace

import pytest
from fakes import FakeBuilder, grid, make_run, run_trial, swept

from tests.experiments import experiment_of
from tests.waiting import PATIENCE_S, until
from tilescope.declare.gpus import GPUS, visible_devices
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import space
from tilescope.measure.pool import DEADLINES_S
from tilescope.results import Device, Strategy
from tilescope.search.devices import ClusterDevice, connect, select_kind, start_workers
from tilescope.search.search import ConfigTrial

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.filterwarnings("default")]

SPACE = grid({"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 32, 64, 128], "num_warps": [4, 8, 16]})


@pytest.fixture(scope="module")
def client():
    """Two workers, one thread each, that see no GPU."""
    with start_workers(["", ""]) as client:
        yield client


def started(client):
    future = Future()
    future.set_result(client)
    return future


def device(client=None, number=0, run=None, gpu="H200"):
    faked = Device("cuda", f"Fake {gpu}", "none", "none")
    return ClusterDevice(
        started(client), f"gpu-{number}", faked, GPUS[gpu], f"worker {number}", run
    )


@pytest.fixture
def devices(client, tmp_path):
    return [device(client, number, functools.partial(run_trial, tmp_path)) for number in range(2)]


def never_end(payload):
    threading.Event().wait()
    return b""


def test_each_interpreter_of_the_environments_scheduler_checks_configs(client, monkeypatch):
    """This test runs first: a process decides whether to interpret when it imports Triton, and the fakes import it."""
    base = experiment_of("transpose.tiled M=65 N=33")
    four = space(base, {"BLOCK_M": [16, 32], "BLOCK_N": [16, 32]})
    monkeypatch.setenv("TILESCOPE_SCHEDULER", client.scheduler.address)
    with connect(None, base, session=None) as devices:
        assert [device.describe().backend for device in devices] == ["interpreter", "interpreter"]
        builder = FakeBuilder(lambda *_: None)
        sweep = swept(
            Strategy("grid"), devices, within=four, builder=builder, predict=lambda *_: None
        )
    assert sweep.count("checked") == four.size
    assert {row.device for row in sweep.rows} == {"H200"}
    assert len({row.where for row in sweep.rows}) == 2
    assert "Nothing was timed here" in sweep.note


def test_two_workers_share_a_sweep_and_a_killed_one_loses_nothing(devices, tmp_path):
    shared = swept(Strategy("grid"), devices, within=SPACE)
    assert {row.where for row in shared.rows} == {"worker 0", "worker 1"}
    (tmp_path / "dies_at").write_text(repr(SPACE.experiments[20].config))
    sweep = swept(Strategy("grid"), devices, within=SPACE)
    assert (tmp_path / "died").exists()
    assert [row.reason for row in sweep.rows if row.status != "timed"] == []
    assert sweep.best.experiment.config.BLOCK_M == sweep.best.experiment.config.BLOCK_N == 128


def test_compiles_begin_before_the_workers_have_started(client, tmp_path):
    starting = Future()
    builder = FakeBuilder()
    trial = functools.partial(run_trial, tmp_path)
    late = [
        ClusterDevice(starting, f"gpu-{number}", None, GPUS["H200"], f"worker {number}", trial)
        for number in range(2)
    ]
    run = make_run(Strategy("grid"), late, within=SPACE, builder=builder)
    run.start()
    until(lambda: len(builder.submitted) == SPACE.size)
    assert run.progress.done == 0
    starting.set_result(client)
    sweep = run.result(PATIENCE_S)
    assert sweep.count("timed") == SPACE.size
    assert sweep.device.backend == "interpreter"


def test_a_worker_that_has_not_started_can_be_cancelled():
    late = ClusterDevice(Future(), "gpu-0", None, GPUS["H200"], "worker 0")
    late.cancel()
    assert late.describe().kind == late.attempt(None).kind == "cancelled"


def test_a_trial_that_takes_too_long_costs_only_its_worker(client, devices, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(DEADLINES_S, "time", 0.5)
        assert device(client, 0, never_end).attempt(None).kind == "timeout"
    (outcome,) = devices[0].attempt(ConfigTrial(SPACE.experiments[:1])).each
    assert len(outcome.times_ms)


def test_cancelling_gives_up_the_current_task(client):
    endless = device(client, 1, never_end)
    threading.Timer(0.5, endless.cancel).start()
    assert endless.attempt(None).kind == "cancelled"


def test_gpus_of_different_kinds_are_not_ranked_together():
    h200, a100, other_h200 = (device(gpu=gpu) for gpu in ("H200", "A100-80GB", "H200"))
    base = grid().base
    mixed = [h200, a100, other_h200]
    assert select_kind(mixed, replace(base, gpu="A100-80GB")) == [a100]
    assert select_kind([h200, other_h200], base) == [h200, other_h200]
    for gpu, message in (
        ("", "has 2 × H200, 1 × A100-80GB; times of different GPUs are not ranked"),
        ("B200", "gpu is 'B200', but the cluster has 2 × H200, 1 × A100-80GB"),
    ):
        with pytest.raises(ConfigError, match=message):
            select_kind(mixed, replace(base, gpu=gpu))


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("nonsense://127.0.0.1:1", "No scheduler answers at"),
        ("", "--gpus is 2; this host has none"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused_with_the_reason(monkeypatch, scheduler, message):
    monkeypatch.setenv("TILESCOPE_SCHEDULER", scheduler)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=message), connect(2, grid().base, session=None):
        pass


def test_without_dask_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)  # importing it raises ImportError
    install = r'pip install "tilescope\[cluster\]"'
    with pytest.raises(ConfigError, match=install), connect(None, grid().base, session=None):
        pass


class Driver:
    """A CUDA driver that reports two visible devices."""

    def cuInit(self, flags):
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = 2
        return 0


def test_visible_gpus_have_the_names_in_the_environment_variable(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    assert visible_devices() == ("3", "GPU-5")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_devices() == ("0", "1")
