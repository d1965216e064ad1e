"""The Reuse panel: what it claims of bytes and time is what was predicted and recorded."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernels import discover
from kernels.accesses import CompiledFacts
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.counters import COUNTERS
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.results import Failure, records
from kernels.spec import Launch
from visualize.panels import reuse_tab
from visualize.predict.reuse import DramTraffic
from visualize.state.known import Known
from visualize.state.state import State
from visualize.state.view import View
from visualize.text.reuse_claims import sentences
from visualize.views.prose import html, plain

H200 = GPUS["H200"]
WIDE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8}


def found(config, m=8192, n=8192, k=8192, kernel="matmul.grouped", gpu=H200, **more):
    payload = {"kernel": kernel, "problem": {"M": m, "N": n, **({"K": k} if k else {})}, "config": config}
    experiment = from_json(payload)
    launch = Launch(experiment.problem, experiment.config, gpu)
    study = records.find(GROUP_SIZES.form, experiment, gpu.name)
    if study and more:
        study = replace(study, **more)
    return DramTraffic(discover()[kernel], launch, None, study)


def said(here):
    return plain(sentences(here))


def test_reads_are_said_beside_what_was_counted():
    here = found({**WIDE, "GROUP_SIZE": 8})
    counted = sorted(here.row.dram_read_bytes)[2]
    assert here.own.read_bytes == pytest.approx(counted, rel=0.02)
    assert f"Nsight Compute counted {counted / 1e9:.2f} GB." in said(here)
    assert "The L2 serves 88 % of the 12.9 GB that the programs request." in said(here)


def test_a_kernel_that_also_reads_its_output_claims_no_share_that_the_l2_serves():
    """Adding to C reads it from DRAM, but no program requests it: the share would be negative."""
    here = found({"SPLIT_K": 1}, 64, 64, 64, "matmul.split_k_atomic")
    assert here.own.read_bytes > here.own.asked_bytes
    assert "The L2 serves" not in said(here)


def test_the_group_size_of_the_fewest_bytes_is_named():
    here = found({**WIDE, "GROUP_SIZE": 1})
    fewest = int(said(here).partition(" reads the fewest bytes")[0].rpartition(" ")[2])
    assert here.sizes[fewest].read_bytes == pytest.approx(min(one.read_bytes for one in here.sizes.values()))


def test_where_all_fits_no_group_size_makes_a_difference():
    assert "No GROUP_SIZE makes a difference here: all of it fits in the L2." in said(found(WIDE, 2048, 2048, 2048))


def test_fewer_bytes_that_buy_nothing_are_said_to_buy_nothing():
    here = found({**WIDE, "GROUP_SIZE": 8})
    alike = tuple(replace(row, times_ms=(1.0, 1.01, 0.99, 1.0, 1.02)) for row in here.study.rows)
    assert "no time difference here" in said(replace(here, study=replace(here.study, rows=alike)))


@pytest.mark.parametrize(
    ("slower", "bought", "why"),
    [(1.5, "took 33 % less time, ± ", "is not hidden behind"), (1.06, "took 5.7 % less time, ± ", "was hidden behind")],
)
def test_a_difference_in_time_is_said_with_its_noise_and_whether_the_bytes_were_hidden(slower, bought, why):
    here = found({**WIDE, "GROUP_SIZE": 8})
    slow = tuple(
        replace(row, times_ms=tuple(t * (slower if row.group_size == 1 else 1) for t in (2.0, 2.01, 1.99)))
        for row in here.study.rows
    )
    text = said(replace(here, study=replace(here.study, rows=slow)))
    assert bought in text
    assert why in text


def test_a_gpu_with_less_bandwidth_per_flop_is_named():
    wide = said(found({**WIDE, "GROUP_SIZE": 1}, 16384, 16384, 4096))
    assert "It would show on a GPU with less bandwidth per FLOP: on " in wide


def test_a_gpu_that_holds_fewer_programs_per_sm_is_named_too():
    here = found({**WIDE, "GROUP_SIZE": 1}, 16384, 16384, 4096)
    launch = replace(here.launch, config=replace(here.launch.config, num_warps=16))
    here = replace(here, launch=launch, compiled=CompiledFacts(32, 0, 0, (), (), (), "not read"))
    assert here.schedule.programs_per_sm == 4
    assert "with less bandwidth per FLOP" in said(here)


def test_an_uncompiled_kernel_is_said_to_assume_one_program_per_sm():
    assert "One program per SM is assumed until the kernel is compiled." in said(found(WIDE))


def test_of_a_kernel_that_could_not_be_read_nothing_is_said_of_load_and_store_units():
    counters = records.shipped(COUNTERS.form)[0].measured
    experiment, made = counters.experiment, counters.compiled
    launch = Launch(experiment.problem, experiment.config, H200)
    for compiled, known in ((made, True), (replace(made, unreadable="an instruction", operations=()), False)):
        here = DramTraffic(discover()[experiment.kernel], launch, compiled, None)
        assert ("load and store" in [bound.name for bound in here.bounds]) is known


def test_a_copy_has_no_group_sizes_and_reads_its_input_once():
    here = found({}, 1024, 1024, None, kernel="transpose.tiled")
    assert here.sizes == {}
    assert here.own.read_bytes == 1024 * 1024 * 4
    assert "GROUP_SIZE" not in said(here)


def test_the_reply_has_every_group_size_and_says_why_nothing_was_compiled():
    experiment = from_json({"kernel": "matmul.grouped", "config": {"BLOCK_M": 64}})
    failure = Failure("compile", "no_triton", "Triton is not installed.")
    known = Known(State(experiment, View(""), discover()["matmul.grouped"], H200), failure=failure)
    reply = reuse_tab.reply(known)
    assert list(reply["by_group_size"]) == [str(size) for size in range(1, 9)]
    assert reply["by_group_size"]["4"] == reply["dram_read_bytes"]
    assert reply["recommended_group_size"] in range(1, 9)
    assert reply["resident_source"] == "assumed"
    assert reply["note"].endswith("Triton is not installed.")
    assert [one["name"] for one in reply["bounds"]] == ["DRAM", "L2", "arithmetic", "tail wave"]


def test_what_was_counted_on_another_day_is_marked_as_recorded():
    here = found({**WIDE, "GROUP_SIZE": 8})
    assert (here.source("counted"), here.source("measured")) == ("recorded", "recorded")
    live = replace(here, study=replace(here.study, backend="cuda"))
    assert (live.source("counted"), live.source("measured")) == ("counted", "measured")
    assert 'class="mark counted"' in html(sentences(live))
    assert 'class="mark counted"' not in html(sentences(here))


@pytest.mark.parametrize("size", [1, 8, 64])
def test_a_note_has_no_blanks_where_the_page_has_marks(size):
    note = said(found({**WIDE, "GROUP_SIZE": size}))
    assert "  " not in note
    assert not re.search(r"\s[.,;:)]", note)
    assert "<" not in note
