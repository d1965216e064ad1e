"""GROUP_SIZEs compared on a real GPU: counted and timed, and only timed where nothing can be counted."""

import statistics

import pytest

from tests.experiments import experiment_of
from tilescope.declare.experiment import launch_of
from tilescope.measure.counters import REPEATS
from tilescope.results import GroupSizeStudy
from visualize.predict.reuse import reuse
from visualize.predict.schedule import schedule

pytestmark = [pytest.mark.gpu, pytest.mark.idle_gpu]

MATMUL = "matmul.grouped M=1024 N=1024 K=1024 BLOCK_M=128 BLOCK_N=128 BLOCK_K=64 GROUP_SIZE=4 num_warps=4"


def compare_sizes(gpu, text=MATMUL):
    experiment = experiment_of(text)
    study = gpu.submit(experiment, "reuse").result()
    assert isinstance(study, GroupSizeStudy), study
    return experiment, study


def test_each_group_size_is_counted_five_times_and_timed_in_turns(gpu):
    experiment, study = compare_sizes(gpu)
    compulsory = reuse(schedule(*launch_of(experiment, gpu.gpu)), 0.0).compulsory_bytes
    assert study.backend == "cuda"
    assert study.device.backend == "cuda"
    assert study.tool.startswith("Nsight Compute")
    assert [row.group_size for row in study.rows] == [1, 2, 4, 8]
    for row in study.rows:
        assert len(row.dram_read_bytes) == len(row.dram_write_bytes) == REPEATS
        assert statistics.median(row.dram_read_bytes) >= 0.9 * compulsory
        assert 0 < row.l2_read_bytes <= row.received_bytes
        assert len(row.times_ms) >= 10
        assert min(row.times_ms) > 0
        assert row.registers > 0
    assert len({len(row.times_ms) for row in study.rows}) == 1, "each was timed in every turn"
    assert gpu.find_value(experiment, "reuse") is study


def test_without_ncu_sizes_are_only_timed_and_the_note_says_why(gpu, monkeypatch):
    monkeypatch.setenv("PATH", "")
    _, study = compare_sizes(
        gpu, f"{MATMUL} BLOCK_K=32"
    )  # not measured before, so no result is cached
    assert study.tool == ""
    assert "is not installed" in study.note
    for row in study.rows:
        assert row.dram_read_bytes == ()
        assert row.received_bytes is None
        assert len(row.times_ms) >= 10
