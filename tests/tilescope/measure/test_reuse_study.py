"""Comparing GROUP_SIZEs without a GPU: which sizes are compared, recordings, and ncu's page of many launches."""

from dataclasses import replace

import pytest

from tests.experiments import experiment_of
from tests.tables import read_table
from tests.tilescope.measure.test_counters import raw_page
from tilescope.declare.gpus import GPUS
from tilescope.measure import counters, ncu
from tilescope.measure.counters import DRAM, REPEATS, count_variants, make_row, variants
from tilescope.measure.ncu import L2
from tilescope.results import GroupSizeStudy
from tilescope.results.counters import any_group_size

RECORDED = (
    "matmul.grouped M=4096 N=4096 K=4096 BLOCK_M=128 BLOCK_N=128 BLOCK_K=64 num_warps=4 gpu=H200"
)
TWO_SIZES = [experiment_of(f"{RECORDED} GROUP_SIZE={size}") for size in (1, 2)]


@pytest.mark.parametrize("size", [1, 3, 8, 1024])
def test_without_a_gpu_the_recorded_study_is_given_for_any_group_size(session, size):
    experiment = experiment_of(f"{RECORDED} seed={size} l2=cold GROUP_SIZE={size}")
    study = session.submit(experiment, "reuse").result()
    assert isinstance(study, GroupSizeStudy), study
    assert study.backend == "recorded"
    assert study.device.name == "NVIDIA H200"
    assert study.experiment == experiment
    assert [row.group_size for row in study.rows] == [1, 2, 4, 8, 16, 32]
    assert study.tool.startswith("Nsight Compute 20")
    assert "Recorded on H200" in study.note
    assert session.find_value(experiment, "reuse").rows == study.rows


COMPARED = """
8192 | 8 | [1, 2, 4, 8, 16, 32, 64]
6000 | 6 | [1, 2, 4, 6, 8, 16, 32, 47]
129 | 1 | [1, 2]
1 | 9 | [1, 9]
"""


@pytest.mark.parametrize(("m", "own", "compared"), read_table(COMPARED))
def test_powers_of_two_are_compared_with_all_rows_and_the_launchs_own(m, own, compared):
    experiment = experiment_of(f"{RECORDED} M={m} GROUP_SIZE={own}")
    experiments = variants(experiment, GPUS["H200"])
    assert [variant.config.GROUP_SIZE for variant in experiments] == compared
    assert {replace(variant, config=experiment.config) for variant in experiments} == {experiment}
    assert len({any_group_size(variant) for variant in experiments}) == 1


@pytest.mark.parametrize("kernel", ["matmul.grid_2d", "matmul.split_k_atomic", "transpose.tiled"])
def test_a_kernel_without_groups_is_compared_with_nothing(kernel):
    experiment = experiment_of(kernel)
    assert variants(experiment, GPUS["H200"]) == (experiment,)
    assert any_group_size(experiment) == experiment


@pytest.fixture
def ncu_calls(fake_ncu, tmp_path):
    """Return a function that makes a fake ncu, which logs its arguments and prints the page of the given metrics."""

    def make(dram, l2=0):
        (tmp_path / "dram").write_text(raw_page(DRAM, dram))
        (tmp_path / "l2").write_text(raw_page(L2, l2))
        fake_ncu(f"""
            case "$*" in
                --version) echo "Version 1.2.3 (build)" ;;
                *--import*) echo "$@" >> {tmp_path}/imports; cat {tmp_path}/$(cat {tmp_path}/asked) ;;
                *dram__*) echo dram > {tmp_path}/asked; echo "$@" >> {tmp_path}/calls ;;
                *) echo l2 > {tmp_path}/asked; echo "$@" >> {tmp_path}/calls ;;
            esac
        """)
        ncu.tool.cache_clear()
        return tmp_path / "calls"

    return make


def count(repeats=3):
    return counters.count(TWO_SIZES, DRAM, "/tmp", repeats=repeats, by_instruction=False)


def test_every_launch_of_every_experiment_is_read_in_order(ncu_calls):
    calls = ncu_calls(dram=6)
    assert count() == [(dict.fromkeys(DRAM, float(number)), []) for number in range(1, 7)]
    command = calls.read_text().split()
    assert command[command.index("--metrics") + 1] == "dram__bytes_read.sum,dram__bytes_write.sum"
    assert command[command.index("--cache-control") + 1] == "all", (
        "caches are flushed before each launch"
    )
    assert command[command.index("--kernel-name") + 1] == "regex:^(matmul_grouped)$"
    assert command[-1] == "3"
    imported = (calls.parent / "imports").read_text().split()
    assert imported[imported.index("--print-units") + 1] == "base", "not in a unit that ncu chooses"


@pytest.mark.parametrize("counted", [0, 5, 7])
def test_a_count_of_fewer_or_more_launches_than_were_made_is_refused(ncu_calls, counted):
    ncu_calls(dram=counted)
    with pytest.raises(ncu.CountingFailed) as error:
        count()
    assert error.value.failure.kind == "ncu_failed"
    assert f"ncu counted {counted} of 6 launches" in str(error.value)


def test_each_experiment_gets_its_own_launches_of_dram_and_one_of_the_l2(ncu_calls):
    """DRAM's metrics are requested alone: ncu would measure more metrics in several passes, with a warm L2."""
    calls = ncu_calls(dram=2 * REPEATS, l2=2)
    first, second = count_variants(TWO_SIZES, cache="/tmp")
    assert ncu.tool() == "Nsight Compute 1.2.3"
    assert [counts["dram_read_bytes"] for counts in first[0]] == list(range(1, REPEATS + 1))
    assert [counts["dram_read_bytes"] for counts in second[0]] == list(
        range(REPEATS + 1, 2 * REPEATS + 1)
    )
    assert (first[1], second[1]) == tuple(dict.fromkeys(L2, n) for n in (1.0, 2.0))
    dram, l2 = calls.read_text().splitlines()
    assert "lts__" not in dram
    assert "dram__" not in l2


def test_a_row_has_bytes_of_what_was_counted_in_sectors(ncu_calls, compile_kernel):
    experiment = experiment_of(f"{RECORDED} GROUP_SIZE=4")
    compiled = compile_kernel(experiment)
    ncu_calls(dram=REPEATS, l2=1)
    (found,) = count_variants([experiment], cache="/tmp")
    of_four = make_row(experiment, compiled, found, [0.12345678])
    assert of_four.dram_read_bytes == of_four.dram_write_bytes == tuple(range(1, REPEATS + 1))
    assert of_four.received_bytes == 32
    assert of_four.l2_read_bytes == 32
    assert of_four.group_size == 4
    assert of_four.registers == compiled.registers
    assert of_four.shared_bytes == compiled.shared_bytes
    assert of_four.times_ms == (0.123457,)
    uncounted = make_row(experiment, compiled, ((), None), [1.0])
    assert uncounted.dram_read_bytes == ()
    assert uncounted.received_bytes is None
    assert uncounted.l2_read_bytes is None
