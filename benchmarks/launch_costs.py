"""The benchmarks of `benchmarks.microbenchmarks` that time whole launches.

They time reads and copies of up to 128 MB, and the starts and ends of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy import ndarray

from benchmarks.timed_loops import REPEATS, WARPS, Row, Sample, make_row
from tilescope.declare.gpus import Gpu
from tilescope.evaluate.sectors import LANES
from tilescope.timing.constants import Constants

_MEGABYTES = (1, 2, 4, 8, 16, 32, 64, 128)
_BLOCK = 2048
_WORDS_PER_PAGE = (2 << 20) // 4
_WORDS_PER_MEGABYTE = (1 << 20) // 4
_WARPS_PER_SM = 64
_WAVES = (4, 12)
_SPIN_CYCLES = 2000

SPIN = """{
.reg .pred p;
.reg .b64 t0, t1, cycles;
cvt.s64.s32 cycles, $1;
mov.u64 t0, %clock64;
WAIT:
mov.u64 t1, %clock64;
sub.s64 t1, t1, t0;
setp.lt.s64 p, t1, cycles;
@p bra WAIT;
cvt.u32.u64 $0, t1;
}"""


@triton.jit
def stream(x, y, WRITES: tl.constexpr, BLOCK: tl.constexpr):
    """Read a block, and copy it or compare it with a value that it lacks."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place)
    if WRITES:
        tl.store(y + place, value)
    else:
        tl.store(y + place, value, mask=value == 1)


@triton.jit(do_not_specialize=["pages"])
def touch(x, y, pages, PAGE: tl.constexpr):
    """Read a word of each of the first pages of two tensors in each program."""
    page = tl.arange(0, 64).to(tl.int64)
    value = tl.load(x + page * PAGE, mask=page < pages, other=0)
    value += tl.load(y + page * PAGE, mask=page < pages, other=0)
    tl.store(x + page * PAGE, value, mask=value == 1)


@triton.jit(do_not_specialize=["cycles"])
def spin(out, cycles, PTX: tl.constexpr, STORES: tl.constexpr, THREADS: tl.constexpr):
    """Wait, and store a word per thread or nothing."""
    thread = tl.arange(0, THREADS)
    waited = tl.inline_asm_elementwise(
        PTX, "=r,r", [thread * 0 + cycles], dtype=tl.int32, is_pure=False, pack=1
    )
    if STORES:
        tl.store(out + tl.program_id(0) * THREADS + thread, waited)


Call = Callable[[], Any]


def _time(calls: Sequence[Call], l2: str, device: Any = None) -> tuple[ndarray, float]:
    """Return the microseconds of each call, (calls, REPEATS), and the clock in GHz."""
    from tilescope.measure.gated_stream import GatedStream

    batch_stream = GatedStream(calls, l2, "events", device)
    batch_stream.batch(2)
    batch = batch_stream.batch(REPEATS)
    return batch.times_ms * 1e3, (batch.clock_mhz or np.nan) / 1e3


def measure_streams(gpu: Gpu, constants: Constants) -> Iterator[Row]:
    """Read or copy 1 to 128 MB, with a warm and a cold L2, and after the pages alone were touched.

    The control touches pages of other tensors: it shows how a kernel between the flush and the launch changes the time.
    """
    import torch

    words = _MEGABYTES[-1] * _WORDS_PER_MEGABYTE
    x, y, *others = (torch.zeros(words, dtype=torch.int32, device="cuda") for _ in range(4))
    states = {
        "warm": ("warm", ()),
        "cold": ("cold", ()),
        "own pages touched": ("cold", (x, y)),
        "other pages touched": ("cold", others),
    }
    for writes in (False, True):
        times = {}
        for state, (l2, touched) in states.items():
            rows = []
            for size in _MEGABYTES:
                grid = (size * _WORDS_PER_MEGABYTE // _BLOCK,)
                call = partial(stream[grid], x, y, writes, _BLOCK)
                device = _touching_device(gpu, *touched, size) if touched else None
                rows.append(_time([call], l2, device)[0][0])
                labels = {"megabytes": size, "writes": writes, "l2": state}
                yield make_row("stream", "µs", Sample(rows[-1]), **labels)
            times[state] = np.array(rows)
        times["cold - warm"] = times["cold"] - times["warm"]
        yield from fit_streams(times, writes, gpu, constants)


def fit_streams(
    times: dict[str, ndarray], writes: bool, gpu: Gpu, constants: Constants
) -> Iterator[Row]:
    """Yield intercept and slope of the times over the size, of short and of long launches.

    Args:
        times: microseconds for each state of the L2, (sizes, repeats).
    """
    sizes = np.array(_MEGABYTES, dtype=float)
    # A copy reads as much as it writes. The L2 keeps what short ones write.
    turnaround = 1 + constants.turnaround / 2 if writes else 1
    us_per_megabyte = (1 << 20) / (constants.dram_share * gpu.dram_gbps * 1e3)
    for (l2, samples), (span, where) in product(
        times.items(), (("1 to 16 MB", sizes <= 16), ("16 to 128 MB", sizes >= 16))
    ):
        slope, intercept = np.polyfit(sizes[where], samples[where], 1)
        is_long = span.startswith("16")
        modelled = us_per_megabyte * (turnaround * (1 + writes) if is_long else 1)
        labels = {"writes": writes, "l2": l2, "span": span}
        waits = (constants.dram_cycles - constants.l2_cycles) / constants.clock_ghz / 1e3
        fixed = waits if l2 == "cold - warm" else constants.launch_us
        yield make_row("stream intercept", "µs", Sample(intercept), fixed, **labels)
        yield make_row(
            "stream slope", "µs/MB", Sample(slope), None if l2 == "warm" else modelled, **labels
        )


def _touching_device(gpu: Gpu, x: Any, y: Any, megabytes: int) -> Any:
    """Return a `TimingDevice` that touches pages after it has evicted the L2's contents."""
    from tilescope.measure.gated_stream import TimingDevice

    class TouchingDevice(TimingDevice):
        def make_flush(self) -> Call:
            flush = super().make_flush()
            launch = partial(touch[(gpu.sms,)], x, y, -(-megabytes // 2), _WORDS_PER_PAGE)

            def flush_and_touch() -> None:
                flush()
                launch()

            return flush_and_touch

    return TouchingDevice()


def measure_programs(gpu: Gpu, constants: Constants) -> Iterator[Row]:
    """Time programs that do nothing, or wait, and end with a store or without.

    The time that a wave adds is the time of a program in its slot, or the time to start a program in every slot.
    """
    import torch

    out = torch.empty(
        gpu.sms * _WARPS_PER_SM * LANES * _WAVES[-1], dtype=torch.int32, device="cuda"
    )
    for warps, stores, cycles in product((WARPS, 32), (False, True), (0, _SPIN_CYCLES)):
        slots = gpu.sms * _WARPS_PER_SM // warps
        arguments = (out, cycles, SPIN, stores, warps * LANES)
        calls = [
            partial(spin[(programs,)], *arguments, num_warps=warps)
            for programs in (1, *(slots * waves for waves in _WAVES))
        ]
        times, clock = _time(calls, "warm")
        labels = {"warps": warps, "stores": stores, "spins": cycles}
        waves = Sample((times[2] - times[1]) / (_WAVES[1] - _WAVES[0]) * 1e3)
        start_ns = constants.start_ns * slots
        latency = constants.start_cycles + cycles + stores * constants.l2_cycles
        modelled = max(start_ns, latency / constants.clock_ghz)
        yield make_row("wave", "ns", waves, modelled, **labels)
        yield make_row("wave per program", "ns", waves / slots, modelled / slots, **labels)
        yield make_row("one program", "µs", Sample(times[0]), constants.launch_us, **labels)
        yield make_row("clock", "GHz", Sample(np.full(REPEATS, clock)), constants.clock_ghz)
