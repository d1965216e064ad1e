"""When and where each program ran: the timed build, its record, and the reply. Without a GPU."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from tests.experiments import assert_failed, experiment_of
from tests.results_made_up import H200
from tests.tables import read_table
from tilescope.compiling import compiler
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knobs
from tilescope.declare.spec import Launch
from tilescope.measure.fair_queue import Call
from tilescope.measure.pool import Pool
from tilescope.measure.timeline import MAX_PROGRAMS, read_record
from tilescope.results import Compiled, Stopped, Timeline, Timing
from visualize.views.order.view import timeline_json

pytestmark = pytest.mark.xdist_group("timed builds")

EXPERIMENT = experiment_of("matmul.grouped gpu=H200")
TIMING = Timing(0.25, 0.24, 0.26, 20, 10.0, None)


# Three programs on two SMs.
TIMES = dict(sm=(0, 131, 0), start_ns=(0, 32, 1056), end_ns=(1024, 960, 2080))


def timeline(**changed):
    builds = dict(
        kernel_ms=0.004,
        plain=TIMING,
        instrumented=replace(TIMING, median_ms=0.26),
        registers=(32, 38),
    )
    return Timeline(
        EXPERIMENT,
        "cuda",
        H200,
        **{**TIMES, **builds, "passed": True, "clock_mhz": 1980, **changed},
    )


@pytest.fixture(scope="module")
def pool(compiled_before):
    pool = Pool("compile", str(compiled_before))
    yield pool
    pool.close()


def both_builds(kernel_id, gpu):
    """Compile a kernel with small tiles, plain and as a timed build. In a compile worker."""
    declared = discover()[kernel_id]
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    config = {name: value for name, value in tile.items() if name in knobs(declared.config)}
    launch = Launch(declared.family.problem(), declared.config(**config), gpu)
    timed = compiler.timed_build(declared, launch)
    assert timed.grid(launch) == declared.grid(launch)
    return [compiler.compile_launch(build, launch) for build in (declared, timed)]


@pytest.mark.parametrize(
    ("kernel_id", "gpu"), [*zip(discover(), itertools.cycle(("H200", "A100-40GB")), strict=False)]
)
def test_the_timed_build_does_what_the_kernel_does_and_records_its_times(pool, kernel_id, gpu):
    builds = pool.submit(Call("compile", both_builds, (kernel_id, GPUS[gpu]))).result()
    assert isinstance(builds, list), builds
    plain, timed = builds
    assert isinstance(plain, Compiled), plain
    assert isinstance(timed, Compiled), timed
    assert (timed.operations, timed.shared_bytes) == (plain.operations, plain.shared_bytes)
    assert timed.spilled_bytes <= plain.spilled_bytes
    ptx = timed.ptx
    first = ptx.index("%globaltimer")
    last = ptx.rindex("%globaltimer")
    moves = [
        place for word in ("ld.global", "cp.async", "bulk.tensor") if (place := ptx.find(word)) >= 0
    ]
    assert first < min(moves)
    assert max(ptx[:last].rfind(word) for word in ("bar.sync", "barrier.sync")) > max(
        ptx[:last].rfind(word)
        for word in ("st.global", "red.global", "atom.global", "bulk.tensor", "st.async")
    )
    assert ptx.count("%globaltimer") == 2
    assert ptx.count("%smid") == 1


def test_times_are_counted_from_the_first_start():
    written = read_record(np.array([(1_000_064, 1_002_000, 5, 0), (1_000_000, 1_001_000, 131, 0)]))
    assert written == ((5, 131), (64, 0), (2000, 1000))


UNWRITTEN = """
(-1, -1, -1, -1) | never
(1000, 2000, 3, 1) | twice
(1000, 2000, 3, -1) | uncounted
(1000, 999, 3, 0) | backwards
(1000, -1, 3, 0) | no end
"""


@pytest.mark.parametrize(("row", "why"), read_table(UNWRITTEN))
def test_a_program_that_did_not_write_once_is_a_failure_that_names_it(row, why):
    with pytest.raises(Stopped) as stopped:
        read_record(np.array([(1000, 2000, 3, 0), row]))
    failure = stopped.value.failure
    assert failure.stage == "time"
    assert failure.kind == "not_written_once"
    assert "1 of 2 programs" in failure.message
    assert failure.message.endswith("program 1.")


TICKS = """
{} | 32 | 32 | 2080
{"start_ns": (0, 0, 96), "end_ns": (160, 160, 320)} | 32 | 64 | 320
{"start_ns": (0, 0, 0), "end_ns": (0, 0, 0)} | 0 | 0 | 0
"""


@pytest.mark.parametrize(("times", "tick_ns", "step_ns", "span_ns"), read_table(TICKS))
def test_the_tick_divides_all_differences_and_the_step_is_the_smallest(
    times, tick_ns, step_ns, span_ns
):
    made = timeline(**times)
    assert (made.tick_ns, made.step_ns, made.span_ns) == (tick_ns, step_ns, span_ns)


def test_the_reply_lists_every_program_and_what_recording_costs():
    reply = json.loads(json.dumps(timeline_json(timeline(note="The clock is unknown."), None)))
    assert reply["programs"][1] == {"sm": 131, "start_ns": 32, "end_ns": 960}
    assert len(reply["programs"]) == 3
    assert {"plain_ms": 0.25, "instrumented_ms": 0.26, "kernel_ms": 0.004}.items() <= reply.items()
    assert {
        "span_ns": 2080,
        "tick_ns": 32,
        "backend": "cuda",
        "registers": [32, 38],
    }.items() <= reply.items()
    assert reply["note"].startswith(
        "The clock is unknown. Each program reads the GPU's timer first"
    )
    assert "sm" not in reply


def test_more_programs_than_a_timeline_holds_are_refused_with_the_number(session):
    text = "transpose.tiled M=8192 N=16384 BLOCK_M=64 BLOCK_N=32"
    most = session.submit(experiment_of(text), "timeline").result()
    assert most.kind == "not_recorded"
    job = session.submit(experiment_of(f"{text} M=8193"), "timeline")
    for part in (f"{MAX_PROGRAMS + 512:,} programs", f"at most {MAX_PROGRAMS:,}"):
        assert_failed(job, "config", "too_many_programs", part)
