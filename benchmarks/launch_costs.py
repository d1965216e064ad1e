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

from benchmarks.timed_loops import REPEATS, WARM_UP_CYCLES, WARPS, Row, Sample, make_row
from tilescope.declare.gpus import Gpu
from tilescope.evaluate.sectors import LANES, LINE_BYTES
from tilescope.record.compiled import disassemble
from tilescope.sass.instructions import parse_sass
from tilescope.timing.constants import Constants
from tilescope.timing.launches import HELD_SHARE
from tilescope.timing.model import Execution, Traffic, time_launch
from tilescope.timing.steps import read_steps

_MEGABYTES = (1, 2, 4, 8, 16, 32, 64, 128)
_BLOCK = 2048
_WORDS_PER_PAGE = (2 << 20) // 4
_WORDS_PER_MEGABYTE = (1 << 20) // 4
_WARPS_PER_SM = 64
_WAVES = (4, 12)
_SPIN_CYCLES = 2000
_SIMULATED_STEPS = 5000

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
    import torch

    from tilescope.measure.gated_stream import GatedStream

    batch_stream = GatedStream(calls, l2, "events", device)
    batch_stream.batch(2)
    torch.cuda._sleep(WARM_UP_CYCLES)
    batch = batch_stream.batch(REPEATS)
    return batch.times_ms * 1e3, (batch.clock_mhz or np.nan) / 1e3


def measure_streams(gpu: Gpu, constants: Constants) -> Iterator[Row]:
    """Read or copy 1 to 128 MB, with a warm and a cold L2, and after the pages alone were touched.

    The control touches pages of other tensors: it shows how a kernel between the flush and the launch changes the time.
    """
    import torch

    words = _MEGABYTES[-1] * _WORDS_PER_MEGABYTE
    # No word is the value that `stream` looks for.
    x, y, *others = (
        torch.randint(2, 1 << 30, (words,), dtype=torch.int32, device="cuda") for _ in range(4)
    )
    states = {
        "warm": ("warm", ()),
        "cold": ("cold", ()),
        "own pages touched": ("cold", (x, y)),
        "other pages touched": ("cold", others),
    }
    for writes in (False, True):
        times = {}
        expected = {}
        compiled = stream.warmup(x, y, writes, _BLOCK, grid=(1,))
        sass = disassemble(compiled.asm["cubin"])
        for state, (l2, touched) in states.items():
            rows = []
            modelled = []
            for size in _MEGABYTES:
                grid = (size * _WORDS_PER_MEGABYTE // _BLOCK,)
                call = partial(stream[grid], x, y, writes, _BLOCK)
                device = _touching_device(gpu, *touched, size) if touched else None
                rows.append(_time([call], l2, device)[0][0])
                modelled.append(predict_stream(sass, size, writes, l2, constants))
                labels = {"megabytes": size, "writes": writes, "l2": state}
                yield make_row("stream", "µs", Sample(rows[-1]), modelled[-1], **labels)
            times[state] = np.array(rows)
            expected[state] = np.array(modelled)
        for curves in (times, expected):
            curves["cold - warm"] = curves["cold"] - curves["warm"]
        for state in times:
            yield from fit_stream(times[state], expected[state], writes=writes, l2=state)


def fit_stream(times: ndarray, modelled: ndarray, **labels: Any) -> Iterator[Row]:
    """Yield intercept and slope of the time over the size, of short and of long launches.

    Args:
        times: in microseconds, (sizes, repeats).
        modelled: (sizes,).
    """
    sizes = np.array(_MEGABYTES, dtype=float)
    for span, where in (("1 to 16 MB", sizes <= 16), ("16 to 128 MB", sizes >= 16)):
        slope, intercept = np.polyfit(sizes[where], times[where], 1)
        expected = np.polyfit(sizes[where], modelled[where], 1)
        for name, unit, values, model in (
            ("stream intercept", "µs", intercept, expected[1]),
            ("stream slope", "µs/MB", slope, expected[0]),
        ):
            yield make_row(name, unit, Sample(values), float(model), span=span, **labels)


def predict_stream(sass: str, megabytes: int, writes: bool, l2: str, constants: Constants) -> float:
    """Return the time model's microseconds."""
    instructions = parse_sass(sass)
    last = next(
        number
        for number, each in enumerate(instructions)
        if each.name == "EXIT" and not each.predicate
    )
    programs = megabytes * _WORDS_PER_MEGABYTE // _BLOCK
    executed = [float(programs * WARPS * (number <= last)) for number in range(len(instructions))]
    read = megabytes * _WORDS_PER_MEGABYTE * 4
    written = read * writes
    is_held = read + written <= HELD_SHARE * constants.gpu.l2_bytes
    traffic = Traffic(
        wavefronts={"load": read / LINE_BYTES, "store": written / LINE_BYTES},
        l2_bytes={"load": read, "store": written},
        read_bytes=read,
        written_bytes=max(0.0, written - constants.kept_bytes),
        warm_read_bytes=0.0 if is_held else read,
        warm_written_bytes=0.0 if is_held else written,
    )
    execution = Execution(
        instructions,
        read_steps(sass),
        executed,
        traffic,
        programs,
        WARPS,
        resident=_WARPS_PER_SM // WARPS,
    )
    if l2 == "warm":
        execution = execution.after_same_launch
    return time_launch(execution, constants, _SIMULATED_STEPS)[0]


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
