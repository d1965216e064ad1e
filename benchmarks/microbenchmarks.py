"""Measure the rates and latencies of the time model: `python -m benchmarks.microbenchmarks OUT.json [NAME ...]`.

Each benchmark yields rows with a median, its 96 % interval and the model's own value. Loops are timed with the clocks
of the SMs, as the slope between two numbers of iterations, so that overhead cancels. Takes about a minute on a GPU.
Each row is written at once. After an error, another process runs the remaining benchmarks.
"""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from benchmarks import launch_costs, ptx_loops
from benchmarks.timed_loops import WARPS, LoopTimer, Row, Sample, make_row, sm_cycles
from tilescope.declare.gpus import Gpu, this_gpu
from tilescope.evaluate.sectors import LANES, LINE_BYTES, SECTOR_BYTES, count_requests
from tilescope.timing.constants import Constants, find_constants
from tilescope.timing.model import MERGED_BYTES, QUARTERS, SLICE_BYTES, STORED_BYTES
from tilescope.timing.sm import GlobalAccess
from tilescope.timing.steps import L1_CYCLES

_FEW_SMS = 8
_BUSY = 4  # programs per SM, if an SM's throughput is measured
_LONGEST_S = 45.0  # of a benchmark
_MOST_IN_FLIGHT = 32
_STRIDES = (128, 1 << 10, 4 << 10, 64 << 10, 2 << 20)
_COLD_TRIPS = (2, 4)
BUFFER_BYTES = _STRIDES[-1] * _MOST_IN_FLIGHT * (_COLD_TRIPS[1] * ptx_loops.CHAIN_LOADS + 1)
_WARM_BYTES = 32 << 20

_LANE = np.arange(LANES, dtype=np.int64)
_WARP = np.arange(WARPS, dtype=np.int64)[:, np.newaxis]


@dataclass(frozen=True)
class Bench:
    """The timer, the GPU and its constants, for all benchmarks of loops."""

    timer: LoopTimer
    gpu: Gpu
    constants: Constants

    @property
    def l2_bytes(self) -> float:
        """The bytes that the L2 serves per cycle of an SM."""
        return self.constants.l2_tbps * 1e3 / self.constants.clock_ghz


def place_programs(programs: int, lanes: ndarray, distance_bytes: int = 0) -> ndarray:
    """Return the offsets of all programs, (programs, threads).

    Args:
        lanes: offsets of a warp, (lanes,), or of each warp of a program, (warps, lanes).
        distance_bytes: between programs.
    """
    first = np.arange(programs, dtype=np.int64)[:, np.newaxis] * distance_bytes
    return first + lanes.reshape(1, -1)


def place_sectors(bytes_per_sector: int, sectors_per_line: int) -> ndarray:
    """Return the offsets of a warp's lanes that access words of sectors, (lanes,).

    Lanes that would begin a line without completing it repeat the first lanes.
    """
    lanes = bytes_per_sector // 4
    sector = _LANE // lanes
    complete = LANES // lanes // sectors_per_line * sectors_per_line
    sector = sector % complete
    line = sector // sectors_per_line
    return line * LINE_BYTES + sector % sectors_per_line * SECTOR_BYTES + _LANE % lanes * 4


def count_lines(offsets: ndarray) -> int:
    return len(np.unique(offsets // LINE_BYTES))


def count_wavefronts(offsets: ndarray, width: int) -> int:
    """Return the model's passes of a request through the L1."""
    lanes = offsets.reshape(1, LANES)
    return int(count_requests(lanes, np.ones_like(lanes, bool), width).wavefronts[0])


def _hit(wavefronts: float, quarters: int = QUARTERS) -> GlobalAccess:
    return GlobalAccess(data_path=quarters * wavefronts, latency=L1_CYCLES)


def measure_l1(bench: Bench) -> Iterator[Row]:
    """Cycles per request of an SM for loads that hit in the L1, by the distance between lanes."""
    bench.timer.fill_zeros()
    requests = ptx_loops.LOADS * WARPS * _BUSY
    for width in (4, 8, 16):
        loop = ptx_loops.hit_loads(width)
        for words in range(width // 4, 34, width // 4):
            lanes = _LANE * 4 * words
            offsets = place_programs(bench.timer.sms * _BUSY, np.tile(lanes, WARPS))
            sample = bench.timer.time(loop, offsets, (50, 250))
            access = _hit(count_wavefronts(lanes, width))
            modelled = bench.timer.simulate(loop, access, _BUSY) / requests
            yield make_row(
                "L1 hit",
                "cycles/request",
                sample / requests,
                modelled,
                width=width,
                stride_words=words,
                wavefronts=count_wavefronts(lanes, width),
            )


def measure_l2(bench: Bench) -> Iterator[Row]:
    """Cycles per line and SM for loads and stores that hit in the L2, on a few SMs (port) and on all (slices)."""
    bench.timer.fill_zeros()
    kinds = [("load", 4)] + [("store", size) for size in (4, 8, 16, 32)]
    for (kind, size), sectors, sms in product(kinds, range(1, 5), (_FEW_SMS, bench.timer.sms)):
        loop = ptx_loops.l2_loads() if kind == "load" else ptx_loops.stores()
        lanes = place_sectors(size, sectors)
        lines = count_lines(lanes)
        offsets = place_programs(
            sms,
            lanes + _WARP * LANES * LINE_BYTES,
            ptx_loops.L2_ACCESSES * ptx_loops.L2_SPACING,
        )
        sample = bench.timer.time(loop, offsets, (20, 100))
        moved = sectors * SECTOR_BYTES
        served = max(moved, SLICE_BYTES)
        if kind == "store":  # see `traffic._serve`
            served = (sectors + 1) * (STORED_BYTES if size == SECTOR_BYTES else MERGED_BYTES)
        modelled = max(moved / bench.constants.port_bytes, served * sms / bench.l2_bytes)
        lines_per_trip = lines * WARPS * ptx_loops.L2_ACCESSES
        yield make_row(
            f"L2 {kind}",
            "cycles/line/SM",
            sample / lines_per_trip,
            modelled,
            bytes_per_sector=size,
            sectors_per_line=sectors,
            sms=sms,
        )


def measure_latency(bench: Bench) -> Iterator[Row]:
    """Latency of dependent loads that hit in the L1 and the L2, and of cold loads by distance and number in flight."""
    timer = bench.timer
    constants = bench.constants
    timer.fill_pointers(_WARM_BYTES, 0)
    offsets = place_programs(timer.sms, 0 * _LANE, 4096)
    for name, modelled in (("L1", L1_CYCLES), ("L2", constants.l2_cycles)):
        sample = timer.time(ptx_loops.chain(name == "L2", 1), offsets, (20, 100))
        yield make_row(f"{name} latency", "cycles", sample / ptx_loops.CHAIN_LOADS, modelled)
    loop = ptx_loops.chain(True, 1)
    for stride, in_flight in product(_STRIDES, (1, 2, 4, 8, 16, 32)):
        distance = stride * in_flight
        timer.fill_pointers(distance * (_COLD_TRIPS[1] * ptx_loops.CHAIN_LOADS + 1), distance)
        offsets = place_programs(1, _LANE % in_flight * stride)
        sample = timer.time(loop, offsets, _COLD_TRIPS, is_cold=True) / ptx_loops.CHAIN_LOADS
        yield make_row(
            "cold loads",
            "cycles",
            sample,
            constants.dram_cycles,
            stride_bytes=stride,
            in_flight=in_flight,
        )


def measure_shared_misses(bench: Bench) -> Iterator[Row]:
    """Latency of a load of a sector that was requested before: by the same warp, or by other SMs at the same time.

    The model lets both loads of one iteration wait for the L2 or DRAM, whatever their distance.
    """
    timer = bench.timer
    constants = bench.constants
    timer.fill_zeros()
    loop = ptx_loops.repeated_load()
    trips = (8, 40)
    offsets = place_programs(timer.sms, 0 * _LANE, trips[1] * ptx_loops.ADVANCE_BYTES)
    for is_cold, delay in product((False, True), (0, 50, 200, 400, 2000)):
        took, waited = (
            timer.time(loop, offsets, trips, delay, is_cold, derive)
            for derive in (partial(sm_cycles, per_sm=1), lambda fields: np.median(fields[..., 3]))
        )
        labels: dict[str, Any] = {"source": "DRAM" if is_cold else "L2", "delay": delay}
        modelled = constants.dram_cycles if is_cold else constants.l2_cycles
        yield make_row("second load", "cycles", took, modelled, **labels)
        yield make_row("delay of the second load", "cycles", waited, **labels)
    loop = ptx_loops.simultaneous_load()
    for sms in (1, 2, 8, 32, timer.sms):
        offsets = place_programs(sms, 0 * _LANE)
        sample = timer.time(loop, offsets, (4, 20), is_cold=True)
        yield make_row("shared cold load", "cycles", sample, constants.dram_cycles, sms=sms)


def measure_issue(bench: Bench) -> Iterator[Row]:
    """Cycles per instruction of each class and per iteration's branch, by the warps of a quarter."""
    counts = (ptx_loops.SHORT_LOOP, ptx_loops.LONG_LOOP)
    for classes, warps in product(ptx_loops.ARITHMETIC, (1, 2, 4, 8, 16)):
        loops = [ptx_loops.arithmetic(classes, count) for count in counts]
        offsets = place_programs(bench.timer.sms * warps, np.tile(0 * _LANE, WARPS))
        # A step of 3 sets the operands.
        samples = [bench.timer.time(loop, offsets, (200, 1000), 3) for loop in loops]
        modelled = [bench.timer.simulate(loop, GlobalAccess(), warps) for loop in loops]
        labels: dict[str, Any] = {"classes": " ".join(classes), "warps_per_quarter": warps}
        names = (("instruction", "cycles"), ("rest of an iteration", "cycles/warp"))
        measured = split_iteration(samples[0].values, samples[1].values, warps)
        expected = split_iteration(np.array(modelled[0]), np.array(modelled[1]), warps)
        for (name, unit), values, model in zip(names, measured, expected, strict=True):
            yield make_row(name, unit, Sample(values), float(model), **labels)


def split_iteration(short: ndarray, long: ndarray, warps: int) -> tuple[ndarray, ndarray]:
    """Return the cycles per instruction, and those that remain of an iteration: two instructions and a taken branch.

    Args:
        short, long: cycles in which `warps` warps run an iteration of SHORT_LOOP and LONG_LOOP instructions.
    """
    instruction = (long - short) / (ptx_loops.LONG_LOOP - ptx_loops.SHORT_LOOP) / warps
    return instruction, short / warps - ptx_loops.SHORT_LOOP * instruction


def measure_code(bench: Bench) -> Iterator[Row]:
    """Cycles per instruction of loops that may exceed the instruction cache, by the warps of a quarter."""
    for size in ptx_loops.CODE_SIZES:
        loop = ptx_loops.arithmetic(("FFMA",), size)
        modelled = 0.0  # of any number of programs: the model's share no instructions
        for warps in (1, 2, 4):
            offsets = place_programs(bench.timer.sms * warps, np.tile(0 * _LANE, WARPS))
            sample = bench.timer.time(loop, offsets, (10, 50), 3) / size / warps
            modelled = modelled or bench.timer.simulate(loop, GlobalAccess(), 1) / size
            labels = {"instructions": size, "warps_per_quarter": warps}
            yield make_row("instruction of a loop", "cycles", sample, modelled, **labels)


def measure_copies(bench: Bench) -> Iterator[Row]:
    """Cycles of an SM per wavefront of asynchronous copies that hit in the L1 or in the L2."""
    bench.timer.fill_zeros()
    for (width, cache), source in product(ptx_loops.COPY_KINDS, ("L1", "L2")):
        if (cache, source) == ("cg", "L1"):
            continue  # it bypasses the L1
        loop = ptx_loops.copies(width, cache)
        row = WARPS * LANES * width
        is_hit = source == "L1"
        programs = bench.timer.sms * _BUSY
        offsets = place_programs(programs, np.arange(WARPS * LANES, dtype=np.int64) * width)
        if not is_hit:
            spread = np.arange(programs, dtype=np.int64)[:, np.newaxis] * (128 << 10)
            offsets = offsets + spread % (12 << 20)
        step = 0 if is_hit else row * ptx_loops.COPIES
        sample = bench.timer.time(loop, offsets, (20, 100), step)
        size = LANES * width
        access = GlobalAccess(latency=L1_CYCLES)
        if not is_hit:
            l2 = size * QUARTERS * bench.timer.sms / bench.l2_bytes
            port = size * QUARTERS / bench.constants.port_bytes
            access = GlobalAccess(port=port, l2=l2, latency=bench.constants.l2_cycles)
        wavefronts = ptx_loops.COPIES * WARPS * _BUSY * size / LINE_BYTES
        yield make_row(
            "cp.async",
            "cycles/wavefront",
            sample / wavefronts,
            bench.timer.simulate(loop, access, _BUSY) / wavefronts,
            width=width,
            cache=cache,
            source=source,
        )


def measure_sets(bench: Bench) -> Iterator[Row]:
    """Latency of repeated loads of 32 lines per request. If lines share sets of the L1, it is that of the L2."""
    loop = ptx_loops.chain(False, WARPS)
    strides = [LINE_BYTES << shift for shift in range(10)]
    bench.timer.fill_pointers(WARPS * LANES * strides[-1], 0)
    for stride, warps in product(strides, range(1, WARPS + 1)):
        # Lanes use different banks. The other warps load one word.
        lanes = (_WARP * LANES + _LANE) * stride + _LANE * 8 % LINE_BYTES
        lanes = np.where(warps > _WARP, lanes, 0)
        sample = bench.timer.time(loop, place_programs(bench.timer.sms, lanes), (10, 50))
        access = _hit(count_wavefronts(lanes[0], 8), warps)
        modelled = bench.timer.simulate(loop, access, 1, warps)
        yield make_row(
            "32 lines",
            "cycles/request",
            sample / ptx_loops.CHAIN_LOADS,
            modelled / ptx_loops.CHAIN_LOADS,
            stride_bytes=stride,
            warps=warps,
        )


def measure_local(bench: Bench) -> Iterator[Row]:
    """Cycles of an SM per access of a warp to 16 bytes per lane of local memory."""
    loop = ptx_loops.local_accesses()
    for size, programs in product((16, 256, 512, 1024, 2048), (1, 2, 4)):
        offsets = place_programs(bench.timer.sms * programs, np.tile(0 * _LANE, WARPS))
        sample = bench.timer.time(loop, offsets, (200, 600), size - 16)
        accesses = 2 * WARPS * programs
        yield make_row(
            "local memory",
            "cycles/access",
            sample / accesses,
            bench.timer.simulate(loop, GlobalAccess(), programs) / accesses,
            bytes_per_thread=size,
            programs_per_sm=programs,
        )


Benchmark = Callable[[Bench], Iterator[Row]]
BENCHMARKS: dict[str, Benchmark] = {
    "streams": lambda bench: launch_costs.measure_streams(bench.gpu, bench.constants),
    "latency": measure_latency,
    "shared-misses": measure_shared_misses,
    "l1": measure_l1,
    "l2": measure_l2,
    "issue": measure_issue,
    "code": measure_code,
    "copies": measure_copies,
    "sets": measure_sets,
    "programs": lambda bench: launch_costs.measure_programs(bench.gpu, bench.constants),
    "local": measure_local,
}


def run_benchmarks(out: Path, names: list[str]) -> None:
    """Run benchmarks in this process, and write the rows of each."""
    gpu = this_gpu()
    if gpu is None:
        raise SystemExit("There is no GPU here, so there is nothing to time.")
    bench = Bench(LoopTimer(BUFFER_BYTES), gpu, find_constants(gpu)[0])
    device = bench.timer.device
    for name in names:
        faulthandler.dump_traceback_later(_LONGEST_S, exit=True)
        rows: list[dict[str, Any]] = []
        _write(out, name, {"error": "It did not begin.", "rows": rows})
        began = time.monotonic()
        device.probe(0)
        try:
            for row in BENCHMARKS[name](bench):
                rows.append(asdict(row))
                _write(out, name, {"error": "It crashed or took too long.", "rows": rows})
        except Exception:
            _write(out, name, {"error": traceback.format_exc(), "rows": rows})
            raise
        device.probe(1)
        clock_mhz = device.clock_mhz()
        _write(out, name, {"error": "", "rows": rows, "clock_mhz": clock_mhz})
        _print(rows)
        print(f"{name}: {time.monotonic() - began:.1f} s, {clock_mhz or 0:.0f} MHz", flush=True)


def _write(out: Path, name: str, result: dict[str, Any]) -> None:
    results = json.loads(out.read_text()) if out.exists() else {}
    out.write_text(json.dumps({**results, name: result}))


def _print(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        labels = " ".join(f"{label}={value}" for label, value in row["parameters"].items())
        value = f"{row['value']:10.4g} {row['unit']:15} {row['low']:.4g} to {row['high']:.4g}"
        modelled = "" if row["modelled"] is None else f"{row['modelled']:.4g} modelled"
        print(f"{row['name']:24} {labels:56} {value:44} {modelled}")


def main(out: Path, names: list[str]) -> int:
    """Run benchmarks in other processes. Return the number of failures."""
    out.unlink(missing_ok=True)
    remaining = names or list(BENCHMARKS)
    results: dict[str, Any] = {}
    while remaining:
        command = [sys.executable, "-m", "benchmarks.microbenchmarks", "--run", str(out)]
        subprocess.run([*command, *remaining])
        results = json.loads(out.read_text()) if out.exists() else {}
        if not any(name in results for name in remaining):
            return len(remaining)
        remaining = [name for name in remaining if name not in results]
    return sum(bool(result["error"]) for result in results.values())


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run_benchmarks(Path(sys.argv[2]), sys.argv[3:])
    else:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
