"""Loops of PTX in a Triton kernel, timed with the clocks of the SMs, and the same loops in the time model's simulator.

Triton can't express a fixed sequence of instructions, so each loop is inline PTX. Each thread runs it once. All
addresses and the number of iterations are arguments, so a loop compiles once for all patterns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy import ndarray

from tilescope.evaluate.sectors import LANES
from tilescope.record.compiled import disassemble
from tilescope.sass.instructions import Instruction, parse_sass
from tilescope.timing.model import QUARTERS
from tilescope.timing.sm import GlobalAccess, Quarter, simulate
from tilescope.timing.steps import count_issue_cycles, find_loops, read_steps

# Launches per value. The second and the last but one of nine sorted samples bound the median with 96 % confidence.
REPEATS = 9
WARPS = 4
# A thread writes four numbers: its clock before and after the loop, its SM and a value that depends on all results.
FIELDS = 4
_SIMULATED = 30
WARM_UP_CYCLES = 20_000_000
_POINTER_BYTES = 8

_PTX = """{{
.reg .pred p, q<8>;
.reg .b32 n, sink, v<32>;
.reg .f32 f<16>;
.reg .b64 a, s, start, end, t<8>;
mov.b64 a, $3;
mov.b32 n, $4;
cvt.s64.s32 s, $5;
mov.b32 sink, 0;
{setup}
bar.sync 0;
mov.u64 start, %clock64;
LOOP:
.pragma "nounroll";
{body}
add.s32 n, n, -1;
setp.ne.s32 p, n, 0;
@p bra LOOP;
mov.u64 end, %clock64;
{finish}
mov.b64 $0, start;
mov.b64 $1, end;
mov.b32 $2, sink;
}}"""


@triton.jit(do_not_specialize=["trips", "step"])
def run_loop(base, offsets, out, trips, step, PTX: tl.constexpr, THREADS: tl.constexpr):
    """Run a loop in each thread, at the address of `base` plus the thread's offset, and write FIELDS."""
    thread = tl.program_id(0) * THREADS + tl.arange(0, THREADS)
    address = base.to(tl.int64) + tl.load(offsets + thread)
    start, end, sink = tl.inline_asm_elementwise(
        PTX,
        "=l,=l,=r,l,r,r",
        [address, trips, step],
        dtype=(tl.int64, tl.int64, tl.int32),
        is_pure=False,
        pack=1,
    )
    place = out + thread * 4
    tl.store(place, start)
    tl.store(place + 1, end)
    tl.store(place + 2, tl.extra.cuda.smid().to(tl.int64))
    tl.store(place + 3, sink.to(tl.int64))


@dataclass(frozen=True)
class Loop:
    """A loop of PTX.

    It may use these registers: `a` (the thread's address), `s` (a number, 64 bits), `n` (iterations left), `v0` to
    `v31` (32 bits), `f0` to `f15`, `t0` to `t7` (64 bits), `q0` to `q7` (predicates), and `sink`.

    Attributes:
        opcodes: the opcodes of SASS that the body is about, and how often each occurs in it.
    """

    body: str
    opcodes: tuple[tuple[str, int], ...]
    setup: str = ""
    finish: str = ""
    warps: int = WARPS

    @property
    def ptx(self) -> str:
        return _PTX.format(setup=self.setup, body=self.body, finish=self.finish)

    def launch(self, base: Any, offsets: Any, out: Any, trips: int, step: int) -> Any:
        """Launch one program per row of offsets. Return Triton's compiled kernel."""
        return run_loop[(len(offsets),)](
            base, offsets, out, trips, step, self.ptx, self.warps * LANES, num_warps=self.warps
        )


@dataclass(frozen=True)
class Sample:
    """Values of repeated measurements.

    >>> Sample(np.array([3.0, 1, 2, 9, 4, 5, 6, 7, 8])).interval
    (2.0, 8.0)
    """

    values: ndarray

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the median with a confidence of 96 %, of nine values."""
        ordered = np.sort(self.values)
        return float(ordered[1]), float(ordered[-2])

    def __truediv__(self, divisor: float) -> Sample:
        return Sample(self.values / divisor)


@dataclass(frozen=True)
class Row:
    """A result.

    Attributes:
        low, high: see `Sample.interval`.
        modelled: the time model's value for the same thing; None if it has none.
    """

    name: str
    parameters: dict[str, Any]
    value: float
    unit: str
    low: float
    high: float
    modelled: float | None = None


def make_row(
    name: str, unit: str, sample: Sample, modelled: float | None = None, **parameters: Any
) -> Row:
    return Row(name, parameters, sample.median, unit, *sample.interval, modelled)


def per_trip(first: ndarray, second: ndarray, trips: tuple[int, int]) -> Sample:
    """Return the cycles of an iteration: the slope between two numbers of iterations, without the launch's overhead.

    Args:
        first, second: cycles of launches with the smaller and the larger number of iterations, (repeats,).
    """
    return Sample((second - first) / (trips[1] - trips[0]))


def sm_cycles(fields: ndarray, per_sm: int) -> float:
    """Return the cycles from the first start to the last end of a loop on an SM: the median over SMs.

    Args:
        fields: (programs, warps, FIELDS).
        per_sm: programs that an SM should run at a time. SMs with more or fewer are left out.
    """
    start, end = fields[..., 0].min(axis=1), fields[..., 1].max(axis=1)
    _, sm, programs = np.unique(fields[:, 0, 2], return_inverse=True, return_counts=True)
    first = np.full(len(programs), np.iinfo(np.int64).max)
    last = np.zeros_like(first)
    np.minimum.at(first, sm, start)
    np.maximum.at(last, sm, end)
    cycles = (last - first)[programs == per_sm]
    if not len(cycles):
        raise RuntimeError(f"No SM ran exactly {per_sm} of {len(fields)} programs.")
    return float(np.median(cycles))


class LoopTimer:
    """Times loops on this GPU, whose timing device reads the clock and evicts the L2's contents."""

    def __init__(self, buffer_bytes: int) -> None:
        import torch

        from tilescope.measure.gated_stream import timing_device

        self._torch = torch
        self._buffer = torch.zeros(buffer_bytes // _POINTER_BYTES, dtype=torch.int64, device="cuda")
        self._sass: dict[Loop, str] = {}
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.device = timing_device()
        self._flush = self.device.make_flush()

    def warm_up(self) -> None:
        """Keep the GPU busy, as an idle one lowers its clock, and loads from the L2 and DRAM then take fewer cycles."""
        self._torch.cuda._sleep(WARM_UP_CYCLES)

    def fill_zeros(self) -> None:
        self._buffer.zero_()

    def fill_pointers(self, end_bytes: int, distance_bytes: int) -> None:
        """Let each word of the buffer's first bytes point to the word at a distance."""
        begin = self._buffer.data_ptr() + distance_bytes
        part = self._buffer[: end_bytes // _POINTER_BYTES]
        assert len(part) == end_bytes // _POINTER_BYTES
        self._torch.arange(begin, begin + end_bytes, _POINTER_BYTES, out=part)

    def run(
        self, loop: Loop, offsets: ndarray, trips: int, step: int = 0, is_cold: bool = False
    ) -> ndarray:
        """Return FIELDS of the first thread of each warp, (programs, warps, FIELDS).

        Args:
            offsets: from the begin of the buffer in bytes, (programs, threads) int64.
            is_cold: evict the L2's contents first.
        """
        on_gpu = self._torch.from_numpy(np.ascontiguousarray(offsets)).cuda()
        out = self._torch.zeros((*offsets.shape, FIELDS), dtype=self._torch.int64, device="cuda")
        if is_cold:
            self._flush()
        compiled = loop.launch(self._buffer, on_gpu, out, trips, step)
        if loop not in self._sass:
            self._sass[loop] = disassemble(compiled.asm["cubin"])
        return out[:, ::LANES].cpu().numpy()

    def time(
        self,
        loop: Loop,
        offsets: ndarray,
        trips: tuple[int, int],
        step: int = 0,
        is_cold: bool = False,
        derive: Callable[[ndarray], float] | None = None,
    ) -> Sample:
        """Return the cycles of an iteration.

        Args:
            derive: returns the cycles of a launch, given its fields; defaults to `sm_cycles`.
        """
        per_sm = math.ceil(len(offsets) / self.sms)
        derive = derive or functools.partial(sm_cycles, per_sm=per_sm)
        self.run(loop, offsets, trips[0], step, is_cold)
        self.warm_up()
        cycles = [
            [derive(self.run(loop, offsets, number, step, is_cold)) for number in trips]
            for _ in range(REPEATS)
        ]
        first, second = np.array(cycles).T
        return per_trip(first, second, trips)

    def simulate(
        self, loop: Loop, access: GlobalAccess, warps: int, quarters: int = QUARTERS
    ) -> float:
        """Return what `simulate_trip` returns for a loop that has run."""
        return simulate_trip(self._sass[loop], access, warps, quarters)


def find_body(instructions: Sequence[Instruction]) -> range:
    """Return the numbers of the instructions of the longest loop."""
    loops = find_loops(instructions, [1.0] * len(instructions))
    first, last = max(loops.items(), key=lambda ends: ends[1] - ends[0])
    return range(first, last + 1)


def simulate_trip(sass: str, access: GlobalAccess, warps: int, quarters: int = QUARTERS) -> float:
    """Return the cycles of an iteration according to the time model.

    Args:
        access: each access to global memory in the loop.
        warps: warps per quarter of an SM.
        quarters: busy quarters of the SM.
    """
    instructions = parse_sass(sass)
    issue = count_issue_cycles(instructions, [2.0] * len(instructions), 1)
    steps = [
        replace(read_steps(sass)[number], issue=issue[number])
        for number in find_body(instructions)
        if instructions[number].predicate != "!PT"
    ]
    quarter = Quarter(1, warps, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, quarters, math.inf)
    cycles = [
        simulate(
            steps * trips,
            [access if step.traffic else None for step in steps] * trips,
            quarter,
            warps,
        ).cycles
        for trips in (_SIMULATED, 2 * _SIMULATED)
    ]
    return (cycles[1] - cycles[0]) / _SIMULATED
