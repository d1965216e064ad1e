"""The Order view's sentences state what the models predict and what was recorded."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernels import discover
from kernels.accesses import CompiledFacts
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.results import Failure, records
from kernels.spec import Launch
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import FirstLoads, schedule, steps
from visualize.views.order.text import (
    loads_headline,
    occupancy_table,
    reuse_headline,
    reuse_sentences,
    split_k_sentence,
    waves_sentence,
)
from visualize.views.order.view import reuse_json
from visualize.views.prose import Link, html, plain
from visualize.views.state import Snapshot, State, View

H200 = GPUS["H200"]
SEVEN_SMS = replace(H200, sms=7, name="seven")
WIDE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8}


def planned(kernel_id, m, n, k=64, per_sm=1, **config):
    kernel = discover()[kernel_id]
    return schedule(kernel, Launch(kernel.family.problem(M=m, N=n, K=k), kernel.config(**config), SEVEN_SMS), per_sm)


def waves(*args, **config):
    order = planned("matmul.grid_2d", *args, BLOCK_M=64, BLOCK_N=64, **config)
    return waves_sentence(order, steps(order))


def test_the_last_wave_is_full_or_states_its_idle_share_and_the_launchs():
    text = waves(256, 256)
    assert str(text) == (
        "16 programs run in 3 waves of 7 (7 SMs of seven, 1 program per SM). "
        "The last wave has 2 programs: 71 % of it is idle, 24 % of the launch."
    )
    assert '<b>3 waves</b> of 7 (7 SMs of seven, 1 program per SM <span class="mark assumed"' in html([text])
    assert str(waves(64, 192)).endswith("The last wave has 3 programs: 57 % of it is idle.")
    full = "14 programs run in 1 wave of 14 (7 SMs of seven, 2 programs per SM). The last wave is full."
    assert str(waves(64, 14 * 64, per_sm=2)) == full
    order = planned("matmul.persistent", 512, 512, 128, BLOCK_M=128, BLOCK_N=128)
    assert str(waves_sentence(order, steps(order))) == (
        "7 programs loop over 16 tiles in 3 turns of 7 (7 SMs of seven, 1 program per SM). "
        "The last turn has 2 tiles: 71 % of it is idle, 24 % of the launch."
    )


def test_the_occupancy_table_has_waves_and_idle_shares_by_programs_per_sm():
    order = planned("matmul.grid_2d", 256, 256, BLOCK_M=64, BLOCK_N=64)
    text = " ".join(re.sub(r"<[^>]*>", " ", occupancy_table(order, None)).split())
    rows = [text.find(row) for row in ("3 2 of 7 71 % 24 %", "2 2 of 14 86 % 43 %", "1 16 of 28 43 % 43 %")]
    assert -1 < rows[0] < rows[1] < rows[2], text


def test_only_split_k_shares_a_tile():
    assert "8 programs, one per slice of K" in str(split_k_sentence(planned("matmul.split_k_atomic", 64, 64, 512)))
    assert split_k_sentence(planned("matmul.grid_2d", 64, 64, 512)) == ""


FEWER = FirstLoads(9, 81, 54, 90, ((3, 3), (1, 9)), False, None)


def traffic(config, m=8192, n=8192, k=8192, kernel="matmul.grouped", compiled=None):
    payload = {"kernel": kernel, "problem": {"M": m, "N": n, **({"K": k} if k else {})}, "config": config}
    experiment = from_json(payload)
    study = records.find(GROUP_SIZES.form, experiment, "H200")
    return DramTraffic(discover()[kernel], Launch(experiment.problem, experiment.config, H200), compiled, study)


GROUPED, ROW_MAJOR = (traffic({**WIDE, "GROUP_SIZE": size}) for size in (8, 1))


def with_times(here, times_of):
    """Replace the study's times, in ms, by those of each GROUP_SIZE."""
    rows = tuple(replace(row, times_ms=times_of(row.group_size)) for row in here.study.rows)
    return replace(here, study=replace(here.study, rows=rows))


def parts(markup):
    """Return the number and the words beside it, the sentence, and the folded sentences."""
    text = re.sub(r" <span class=\"mark.*?</span>", "", markup)
    found = re.fullmatch(r".*?number\">(.*?)</p><p class=\"claim\">(.*?)</p>(?:.*?<p>(.*?)</p>)?.*", text)
    return [re.sub(r"<[^>]*>", "", part or "").strip() for part in found.groups()]


def loads(first_loads, here=ROW_MAJOR):
    number, claim, more = parts(loads_headline(first_loads, "program", here, Link("All sizes", ""), ("End.",)))
    assert len(claim.split()) <= 25
    assert more.endswith("End.")
    return number, claim, more


def test_fewer_blocks_are_the_number_and_rows_and_columns_the_reason():
    need = "The first 9 programs need 3 rows of A and 3 columns of B; row-major order needs 1 row and 9 columns."
    assert loads(FEWER) == ("54 blocks loaded by 9 programs, not 90", need, "End.")


def test_more_blocks_are_explained():
    number, claim, more = loads(FirstLoads(132, 512, 1792, 1600, ((12, 16), (9, 16)), False, (7360, 6336)))
    assert number == "1,792 blocks loaded by 132 programs, not 1,600"
    assert claim == "C is only 16 tiles wide, so grouping loads more. DRAM reads shows whether the L2 makes up for it."
    assert "need 12 rows of A and 16 columns of B; row-major order needs 9 rows and 16 columns." in more
    assert "All waves together load 7,360 blocks; in row-major order, 6,336." in more


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_same_order": True}, "This order is row-major, so both load the same blocks."),
        ({"first": 81}, "Together, all 81 programs load every block in any order. Larger launches show a difference."),
        ({"first": 1}, "Both orders need equally many rows and columns of tiles for 1 program."),
        ({"first": 9}, "Both orders need equally many rows and columns of tiles for 9 programs."),
    ],
)
def test_equal_loads_have_a_reason(changes, reason):
    number, claim, _ = loads(replace(FEWER, blocks=90, **changes))
    assert number == "90 blocks in either order"
    assert claim.startswith(reason)


def test_the_gain_of_fewer_blocks_is_stated_if_both_orders_were_counted():
    here = with_times(GROUPED, lambda size: (2.0 if size == 1 else 1.5,) * 3)
    _, claim, more = loads(FEWER, here)
    reads = "The first 9 programs share more blocks: DRAM reads fall from 2.62 GB to 1.49 GB"
    assert claim == f"{reads}; the time goes from 2.00 ms to 1.50 ms."
    assert "row-major order needs 1 row and 9 columns. All sizes" in more


def said(here):
    text = plain(reuse_sentences(here))
    assert not re.search(r"\s[.,;:)]|  |<", text), "the API's note has no traces of the page's marks"
    return text


def test_predicted_reads_stand_beside_counted_reads():
    counted = sorted(GROUPED.row.dram_read_bytes)[2]
    assert GROUPED.own.read_bytes == pytest.approx(counted, rel=0.02)
    assert f"Nsight Compute counted {counted / 1e9:.2f} GB." in said(GROUPED)
    assert "The L2 serves 88 % of the 12.9 GB that the programs request." in said(GROUPED)
    number, claim, _ = parts(reuse_headline(GROUPED, "No compiler."))
    assert number == "5.6 × the compulsory DRAM reads"
    assert "Nsight Compute counted" in claim


def test_an_output_that_is_added_to_has_no_share_that_the_l2_serves():
    """Adding to C reads it from DRAM, but no program requests it: the share would be negative."""
    here = traffic({"SPLIT_K": 1}, 64, 64, 64, "matmul.split_k_atomic")
    assert here.own.read_bytes > here.own.asked_bytes
    assert "The L2 serves" not in said(here)


def test_the_group_size_with_the_fewest_bytes_is_named():
    fewest = int(said(ROW_MAJOR).partition(" reads the fewest bytes")[0].rpartition(" ")[2])
    reads = [each.read_bytes for each in ROW_MAJOR.sizes.values()]
    assert ROW_MAJOR.sizes[fewest].read_bytes == pytest.approx(min(reads))


def test_there_is_nothing_to_gain_if_all_inputs_fit_in_the_l2():
    here = traffic(WIDE, 2048, 2048, 2048)
    number, claim, more = parts(reuse_headline(here, ""))
    assert number == "Each input is read from DRAM once"
    assert claim == "Nothing to gain at this size: the L2 holds all inputs, so every GROUP_SIZE reads 16.8 MB."
    assert claim not in more
    assert claim in said(here)


def test_a_copy_has_no_group_sizes_and_reads_its_input_once():
    here = traffic({}, 1024, 1024, None, kernel="transpose.tiled")
    assert (here.sizes, here.own.read_bytes) == ({}, 1024 * 1024 * 4)
    assert "GROUP_SIZE" not in said(here)
    assert parts(reuse_headline(here, ""))[0] == "Each input is read from DRAM once"


@pytest.mark.parametrize(
    ("slower", "texts"),
    [
        (1.0, ["no time difference here"]),
        (1.06, ["took 5.7 % less time, ± ", "was hidden behind"]),
        (1.5, ["took 33 % less time, ± ", "is not hidden behind"]),
    ],
)
def test_a_difference_in_time_is_stated_with_its_noise_and_its_reason(slower, texts):
    text = said(with_times(GROUPED, lambda size: tuple(t * (slower if size == 1 else 1) for t in (2.0, 2.01, 1.99))))
    assert all(part in text for part in texts), text


@pytest.mark.parametrize("num_warps", [8, 16])
def test_a_gpu_with_less_bandwidth_per_flop_is_named_even_if_its_sms_hold_fewer_programs(num_warps):
    here = traffic({**WIDE, "GROUP_SIZE": 1}, 16384, 16384, 4096)
    launch = replace(here.launch, config=replace(here.launch.config, num_warps=num_warps))
    compiled = CompiledFacts(32, 0, 0, (), (), (), "not read") if num_warps == 16 else None
    assert "on a GPU with less bandwidth per FLOP: on " in said(replace(here, launch=launch, compiled=compiled))


def test_recorded_studies_are_marked_as_recorded():
    live = replace(GROUPED, study=replace(GROUPED.study, backend="cuda"))
    for here, counted, measured in ((GROUPED, "recorded", "recorded"), (live, "counted", "measured")):
        assert (here.source("counted"), here.source("measured")) == (counted, measured)
        assert f'class="mark {counted}"' in html(reuse_sentences(here))
    assert 'class="mark counted"' not in html(reuse_sentences(GROUPED))


def test_the_reply_has_every_group_size_and_the_reason_that_nothing_was_compiled():
    experiment = from_json({"kernel": "matmul.grouped", "config": {"BLOCK_M": 64}})
    failure = Failure("compile", "no_triton", "Triton is not installed.")
    reply = reuse_json(Snapshot(State(experiment, View(""), H200), failure=failure))
    assert list(reply["by_group_size"]) == [str(size) for size in range(1, 9)]
    assert reply["by_group_size"]["4"] == reply["dram_read_bytes"]
    assert reply["recommended_group_size"] in range(1, 9)
    assert reply["resident_source"] == "assumed"
    assert "One program per SM is assumed until the kernel is compiled." in reply["note"]
    assert reply["note"].endswith("Triton is not installed.")
    assert [bound["name"] for bound in reply["bounds"]] == ["DRAM", "L2", "arithmetic", "tail wave"]
