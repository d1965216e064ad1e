"""Sweeps through Dask: two workers on this machine, whose device is made up or the interpreter; one is killed."""

from __future__ import annotations

import builtins
import ctypes
import pickle
import threading
import time
from dataclasses import replace

import cluster_fakes
import pytest
from fakes import FakeBuilder, grid, swept

from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS, visible_devices
from kernels.knobs import ConfigError
from kernels.results import Device, Failure, Strategy
from kernels.space import space
from kernels.sweep import cluster
from kernels.sweep.cluster import ClusterDevice, connect, find_devices, select_kind, start_workers
from kernels.sweep.search import Trial

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.filterwarnings("default")]

FAKED = Device("cuda", "Fake H200", "none", "none")
WITHIN = grid({"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 32, 64, 128], "num_warps": [4, 8, 16]})


@pytest.fixture(scope="module")
def client():
    """Two workers, one thread each, that see no GPU."""
    with start_workers(["", ""]) as found:
        yield found


@pytest.fixture
def faked(client, tmp_path):
    """A device of made-up times on each."""
    return [
        ClusterDevice(
            client, f"gpu-{number}", FAKED, GPUS["H200"], f"worker {number}", str(tmp_path), cluster_fakes.run_trial
        )
        for number in range(2)
    ]


def test_the_interpreter_of_each_worker_checks_configs(client, tmp_path):
    """The first of this file: whether a process interprets is fixed when it imports Triton, as a made-up trial does."""
    base = from_json({"kernel": "transpose.tiled", "problem": {"M": 65, "N": 33}}, discover())
    within = space(base, {"BLOCK_M": [16, 32], "BLOCK_N": [16, 32]}, discover())
    devices = find_devices(client, base, str(tmp_path))
    assert [device.describe().backend for device in devices] == ["interpreter", "interpreter"]
    builder = FakeBuilder(lambda *_: None)
    found = swept(Strategy("grid"), devices, within=within, builder=builder, predict=lambda *_: None)
    assert found.count("checked") == within.size
    assert {row.device for row in found.rows} == {"H200"}
    assert len({row.where for row in found.rows}) == 2
    assert "Nothing was timed here" in found.note


def test_two_workers_share_a_sweep_and_one_that_is_killed_in_the_middle_loses_nothing(faked, tmp_path):
    shared = swept(Strategy("grid"), faked, within=WITHIN)
    assert {row.where for row in shared.rows} == {"worker 0", "worker 1"}
    # What is left when another worker has come may be nothing.
    (tmp_path / "dies_at").write_text(repr(WITHIN.experiments[20].config))
    found = swept(Strategy("grid"), faked, within=WITHIN)
    assert (tmp_path / "died").exists()
    assert found.count("timed") == WITHIN.size
    assert found.rows[20].median_ms
    assert found.best.experiment.config.BLOCK_M == found.best.experiment.config.BLOCK_N == 128


def test_what_kills_every_worker_is_reported_and_the_rest_is_timed(client, faked):
    one = WITHIN.experiments[5]
    for device in faked:
        attempt = device.attempt
        device.attempt = lambda trial, attempt=attempt: (
            Failure("time", "worker_died", "It died.") if one in trial.experiments else attempt(trial)
        )
    found = swept(Strategy("grid"), faked, within=WITHIN)
    assert [row.experiment for row in found.rows if row.status == "failed"] == [one]
    assert found.count("timed") == WITHIN.size - 1


def test_a_trial_that_takes_too_long_costs_its_worker_and_no_more(client, tmp_path):
    slow = ClusterDevice(client, "gpu-0", FAKED, GPUS["H200"], "worker 0", "", sleeping, deadline_s=0.5)
    assert slow.attempt(None).kind == "timeout"
    again = ClusterDevice(client, "gpu-0", FAKED, GPUS["H200"], "worker 0", str(tmp_path), cluster_fakes.run_trial)
    (outcome,) = again.attempt(Trial(WITHIN.experiments[:1])).each
    assert len(outcome.times_ms)


def test_cancelling_gives_up_the_task_under_way(client):
    device = ClusterDevice(client, "gpu-1", FAKED, GPUS["H200"], "worker 1", "", sleeping)
    threading.Timer(0.5, device.cancel).start()
    began = time.monotonic()
    assert device.attempt(None).kind == "cancelled"
    assert time.monotonic() - began < 20


def sleeping(payload: bytes, cache: str, host: str) -> bytes:
    time.sleep(60)
    return pickle.dumps(None)


def device_of(gpu):
    return ClusterDevice(None, "", FAKED, GPUS[gpu], "", "")


def test_devices_of_several_kinds_are_not_ranked_together():
    mixed = [device_of("H200"), device_of("A100-80GB"), device_of("H200")]
    base = grid().base
    with pytest.raises(ConfigError, match="has 2 × H200, 1 × A100-80GB; times of different GPUs are not ranked"):
        select_kind(mixed, base)
    assert select_kind(mixed, replace(base, gpu="A100-80GB")) == [mixed[1]]
    assert select_kind(mixed[::2], base) == mixed[::2]
    with pytest.raises(ConfigError, match="gpu is 'B200'; the cluster has 2 × H200, 1 × A100-80GB"):
        select_kind(mixed, replace(base, gpu="B200"))


def test_a_scheduler_that_does_not_answer_is_reported_in_a_sentence(monkeypatch):
    monkeypatch.setenv("TILESCOPE_SCHEDULER", "nonsense://127.0.0.1:1")
    with pytest.raises(ConfigError, match="no scheduler answers there"), connect(None):
        pass


def test_the_scheduler_of_the_environment_is_used(client, monkeypatch):
    monkeypatch.setenv("TILESCOPE_SCHEDULER", client.scheduler.address)
    with connect(None) as found:
        assert found.scheduler.address == client.scheduler.address


def test_more_gpus_than_there_are_is_told_in_a_sentence(monkeypatch):
    monkeypatch.delenv("TILESCOPE_SCHEDULER", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="--gpus is 2; this host has none"), connect(2):
        pass


class Driver:
    """CUDA's, of a host whose variable leaves some devices visible."""

    def __init__(self, count):
        self.count = count

    def cuInit(self, flags):
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = self.count
        return 0


def test_visible_gpus_are_named_as_the_variable_names_them(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    assert visible_devices() == ("3", "GPU-5")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_devices() == ("0", "1")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    plain = builtins.__import__

    def refusing(name, *rest, **more):
        if name == "distributed":
            raise ImportError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-cluster.txt"):
        cluster.import_distributed()
