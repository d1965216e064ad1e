"""The microbenchmarks' kernels, compiled for an H200, and their results from made-up times."""

from collections import Counter
from functools import cache
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from benchmarks import launch_costs, microbenchmarks, ptx_loops, timed_loops
from benchmarks.timed_loops import (
    FIELDS,
    WARPS,
    LoopTimer,
    find_body,
    run_loop,
    simulate_trip,
)
from tilescope.declare.gpus import GPUS
from tilescope.evaluate.sectors import LANES
from tilescope.record.compiled import disassemble, read_resources
from tilescope.sass.instructions import parse_sass
from tilescope.timing.constants import H200

pytestmark = pytest.mark.xdist_group("benchmark")
SMS = GPUS["H200"].sms
# The registers of a thread if an SM runs 64 warps.
MOST_REGISTERS = 32


@pytest.fixture(scope="module", autouse=True)
def target():
    """Let Triton compile for compute capability 9.0."""
    stand_in = SimpleNamespace(
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 90,
    )
    with mock.patch.object(driver, "_active", stand_in):
        yield


def compile_kernel(kernel, *arguments, num_warps):
    return kernel.warmup(*arguments, num_warps=num_warps, grid=(1,)).asm["cubin"]


@cache
def compile_loop(loop):
    """Return the compiled loop, and its SASS."""
    tensor = torch.empty(1, dtype=torch.int64, device="meta")
    arguments = (tensor, tensor, tensor, 2, 0, loop.ptx, loop.warps * LANES)
    cubin = compile_kernel(run_loop, *arguments, num_warps=loop.warps)
    return cubin, disassemble(cubin)


class MadeUpTimer(LoopTimer):
    """Each iteration takes seven cycles per program of the SM."""

    def __init__(self):
        self.sms = SMS
        self.loops = set()

    def warm_up(self):
        pass

    def fill_zeros(self):
        pass

    def fill_pointers(self, end_bytes, distance_bytes):
        assert end_bytes <= microbenchmarks.BUFFER_BYTES

    def run(self, loop, offsets, trips, step=0, is_cold=False):
        self.loops.add(loop)
        assert offsets.shape[1] == loop.warps * LANES
        assert 0 <= offsets.min() <= offsets.max() + trips * step < microbenchmarks.BUFFER_BYTES
        fields = np.zeros((len(offsets), loop.warps, FIELDS), np.int64)
        fields[..., 2] = np.arange(len(offsets))[:, np.newaxis] % SMS
        fields[..., 1] = 1000 + 7 * trips * -(-len(offsets) // SMS)
        return fields

    def simulate(self, loop, access, warps, quarters=4):
        return simulate_trip(compile_loop(loop)[1], access, warps, quarters)


@pytest.mark.parametrize("name", ptx_loops.all_loops())
def test_each_loop_contains_the_instructions_that_it_times(name):
    loop = ptx_loops.all_loops()[name]
    cubin, sass = compile_loop(loop)
    instructions = parse_sass(sass)
    body = [instructions[number] for number in find_body(instructions)]
    for opcode, count in loop.opcodes:
        parts = opcode.split(".")
        assert sum(each.opcode.split(".")[: len(parts)] == parts for each in body) == count, opcode
    # Barriers of convergence aside, each memory instruction is one of those
    accesses = [each for each in body if each.traits.gmem or each.traits.lmem]
    expected = [
        count for opcode, count in loop.opcodes if opcode[:3] in ("LDG", "STG", "STL", "LDL")
    ]
    assert len(accesses) == sum(expected)
    registers, _ = read_resources(cubin)
    if loop.warps == WARPS:
        assert registers <= MOST_REGISTERS


def test_streams_move_16_bytes_per_lane_and_programs_store_only_if_asked():
    tensor = torch.empty(1, dtype=torch.int32, device="meta")
    cubin = compile_kernel(launch_costs.stream, tensor, tensor, True, 2048, num_warps=4)
    counts = Counter(each.opcode for each in parse_sass(disassemble(cubin)))
    assert counts["LDG.E.128"] == counts["STG.E.128"] == 4
    for stores in (False, True):
        arguments = (tensor, 2000, launch_costs.SPIN, stores, 1024)
        cubin = compile_kernel(launch_costs.spin, *arguments, num_warps=32)
        instructions = parse_sass(disassemble(cubin))
        names = Counter(each.name for each in instructions)
        assert names["STG"] == stores
        assert "CS2R" in {instructions[number].name for number in find_body(instructions)}
        assert read_resources(cubin)[0] <= MOST_REGISTERS
    compile_kernel(launch_costs.touch, tensor, tensor, 3, 1 << 19, num_warps=4)


def test_every_benchmark_of_loops_derives_its_rows_from_made_up_times(monkeypatch):
    monkeypatch.setattr(timed_loops, "_SIMULATED", 1)  # iterations
    timer = MadeUpTimer()
    bench = microbenchmarks.Bench(timer, GPUS["H200"], H200)
    for name, measure in microbenchmarks.BENCHMARKS.items():
        if name in ("streams", "programs"):
            continue
        rows = list(measure(bench))
        assert rows
        for row in rows:
            assert row.low == row.value == row.high, name
            assert row.modelled is None or row.modelled > 0 or row.name == "rest of an iteration"
    assert timer.loops == set(ptx_loops.all_loops().values())
