"""Tuning with Dask: two workers on this machine check configs in the interpreter."""

import ctypes
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.experiments import experiment_of
from tests.waiting import until
from tilescope.declare.gpus import visible_devices
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import space
from tilescope.results.store import Store
from tilescope.search import cluster
from tilescope.search.tune import StoredRows, tune

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.filterwarnings("default")]

BASE = experiment_of("transpose.tiled")


@pytest.fixture
def workers(monkeypatch, tilescope_cache):
    """Two workers without a GPU. The environment names their scheduler."""
    import dask
    import distributed

    monkeypatch.setenv("TILESCOPE_CACHE", str(tilescope_cache))
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": 0}))
        options = {"n_workers": 0, "dashboard_address": None, "silence_logs": "CRITICAL"}
        local = stack.enter_context(distributed.LocalCluster(**options))
        monkeypatch.setenv(cluster.SCHEDULER, local.scheduler_address)
        yield stack.enter_context(cluster.start_workers(local.scheduler_address, ["", ""]))


def test_a_signal_to_the_process_group_leaves_workers_to_the_command(workers):
    assert all(os.getpgid(each.pid) == each.pid for each in workers)


def test_workers_share_problems_and_a_killed_worker_loses_no_stored_row(workers, tmp_path):
    """Only the row in progress is lost: another worker resumes from the stored rows."""
    store = Store(tmp_path / "rows.db")
    rows = StoredRows(store)
    vary = {"BLOCK_M": [16, 32, 64]}
    spaces = [space(experiment_of(f"transpose.tiled M={size} N=33"), vary) for size in (33, 65, 97)]
    killed = threading.Event()

    def kill():
        until(lambda: sum(rows.done.values()) >= 2)
        workers[0].kill()
        killed.set()

    threading.Thread(target=kill).start()
    with cluster.connect(0) as client:
        tuner = cluster.ClusterTuner(client, BASE, rows)
        until(lambda: tuner.capacity() == 2 * cluster.SWEEPS_PER_GPU)
        *_, sweeps = tune(tuner, spaces, store, False, False)
    assert killed.wait(10)
    assert [sweep.count("checked") for sweep in sweeps] == [3, 3, 3]
    assert {sweep.device.backend for sweep in sweeps} == {"interpreter"}
    stored = [store.load_sweep(each, tuner.gpu) for each in spaces]
    assert [sweep.count("checked") for sweep in stored] == [3, 3, 3]


def test_a_cluster_whose_workers_have_ended_is_not_awaited_forever(workers, monkeypatch):
    store = Store(None)
    sizes = [
        space(experiment_of(f"transpose.tiled M={size}"), {"num_warps": [4]}) for size in (33, 65)
    ]
    with cluster.connect(0) as client:
        tuner = cluster.ClusterTuner(client, BASE, StoredRows(store))
        for worker in workers:
            worker.kill()
        until(lambda: not cluster.count_kinds(tuner._client))
        monkeypatch.setattr(cluster, "ARRIVAL_S", 0.5)
        with pytest.raises(ConfigError, match=r"The cluster has had no worker for 0\.5 s"):
            list(tune(tuner, sizes, store, False, False))


def test_tasks_that_start_together_share_a_session(monkeypatch):
    def make():
        time.sleep(0.2)
        return object()

    monkeypatch.setattr(cluster, "_start_session", make)
    monkeypatch.setattr(cluster, "_sessions", {})
    with ThreadPoolExecutor(3) as threads:
        assert len(set(threads.map(cluster._find_session, ["a script"] * 3))) == 1


def test_gpus_of_different_kinds_are_not_ranked_together():
    mixed = Counter({"H200": 2, "A100-80GB": 1})
    assert cluster.select_kind(mixed, "A100-80GB") == "A100-80GB"
    assert cluster.select_kind(Counter({"H200": 2}), "") == "H200"
    for gpu, message in (
        ("", "has 2 × H200, 1 × A100-80GB; times of different GPUs are not ranked"),
        ("B200", "gpu is 'B200', but the cluster has 2 × H200, 1 × A100-80GB"),
    ):
        with pytest.raises(ConfigError, match=message):
            cluster.select_kind(mixed, gpu)


def test_without_dask_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)  # importing it raises ImportError
    install = r'pip install "tilescope\[cluster\]"'
    with (
        pytest.raises(ConfigError, match=install),
        cluster.connect(2),
    ):
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
