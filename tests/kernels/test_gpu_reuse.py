"""GROUP_SIZEs compared on a real GPU: counted and timed, and only timed where nothing can be counted."""

import statistics

import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.measuring.group_sizes import REPEATS
from kernels.results import GroupSizeStudy
from kernels.spec import Launch
from visualize.predict.reuse import reuse
from visualize.predict.schedule import schedule

pytestmark = [pytest.mark.gpu, pytest.mark.idle_gpu]

PAYLOAD = {
    "kernel": "matmul.grouped",
    "problem": {"M": 1024, "N": 1024, "K": 1024},
    "config": {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_SIZE": 4, "num_warps": 4},
}


def compared(gpu, **config):
    experiment = from_json({**PAYLOAD, "config": {**PAYLOAD["config"], **config}})
    study = gpu.submit(experiment, "reuse").result()
    assert isinstance(study, GroupSizeStudy), study
    return experiment, study


def test_each_group_size_is_counted_five_times_and_timed_in_turns(gpu):
    experiment, study = compared(gpu)
    kernel = discover()[experiment.kernel]
    launch = Launch(experiment.problem, experiment.config, gpu.gpu)
    compulsory = reuse(schedule(kernel, launch), 0.0).compulsory_bytes
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
    _, study = compared(gpu, BLOCK_K=32)  # not measured before, so no result is cached
    assert study.tool == ""
    assert "ncu is not installed" in study.note
    for row in study.rows:
        assert row.dram_read_bytes == ()
        assert row.received_bytes is None
        assert len(row.times_ms) >= 10
