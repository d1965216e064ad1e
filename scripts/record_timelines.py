"""Record timelines on this machine's GPU: `python -m scripts.record_timelines FILE [--append]`.

A few launches, each for what its timeline shows. The file holds one recording a line; what is printed says how far each
can be trusted: the span of all programs beside the time of the launch, the timer's tick, and what recording costs.
"""

from __future__ import annotations

import sys
from typing import Any

from scripts.recording import flags_of, record, submitted

# A recording of so many programs takes some 90 kB; larger ones are printed, and not kept.
MOST_KEPT = 4096

_LARGE = {"M": 4096, "N": 4096, "K": 4096}
_WIDE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8}

TAKEN: list[dict[str, Any]] = [
    # Small: about one wave.
    {
        "kernel": "matmul.grouped",
        "problem": {"M": 2048, "N": 2048, "K": 2048},
        "config": {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8},
    },
    # Four waves of one program per SM; the order alone differs, then the kernel.
    {"kernel": "matmul.grouped", "problem": _LARGE, "config": {**_WIDE, "GROUP_SIZE": 8}},
    {"kernel": "matmul.grouped", "problem": _LARGE, "config": {**_WIDE, "GROUP_SIZE": 1}},
    {"kernel": "matmul.persistent", "problem": _LARGE, "config": {"BLOCK_N": 256, "num_warps": 8}},
    # Few tiles and a long reduction: slices fill the SMs.
    {"kernel": "matmul.split_k_atomic", "problem": {"M": 512, "N": 512, "K": 8192}, "config": {}},
    {"kernel": "matmul.grid_2d", "problem": {"M": 512, "N": 512, "K": 8192}, "config": {"BLOCK_N": 128}},
    # Programs that wait for memory.
    {"kernel": "transpose.tiled", "problem": {"M": 4096, "N": 4096}, "config": {}},
    {"kernel": "transpose.row_strip", "problem": {"M": 4096, "N": 4096}, "config": {}},
    # Large, as a check.
    {
        "kernel": "matmul.grouped",
        "problem": {"M": 8192, "N": 4096, "K": 6144},
        "config": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32},
    },
    {"kernel": "transpose.flat", "problem": {"M": 4096, "N": 4096}, "config": {}},
]


def main() -> int:
    """Record; returns the number of experiments that could not be."""
    flags = flags_of(__doc__).parse_args()
    taken = submitted([(payload, "timeline") for payload in TAKEN])
    return record(taken, said, flags.file, flags.append, kept=lambda timeline: len(timeline.sm) <= MOST_KEPT)


def said(timeline: Any) -> str:
    """What shows how far a timeline can be trusted."""
    span_ms = timeline.span_ns / 1e6
    cost = timeline.instrumented.median_ms / timeline.plain.median_ms - 1
    return (
        f"{len(timeline.sm):,} programs on {len(set(timeline.sm))} SMs (numbers up to {max(timeline.sm)}), span "
        f"{span_ms:.4f} ms, launch {timeline.kernel_ms:.4f} ms, span / launch {span_ms / timeline.kernel_ms:.3f}, tick "
        f"{timeline.tick_ns} ns, smallest step {timeline.step_ns} ns, kernel {timeline.plain.median_ms:.4f} ms, timed "
        f"build {timeline.instrumented.median_ms:.4f} ms ({cost:+.1%}), registers {timeline.registers[0]} and "
        f"{timeline.registers[1]}, clock {timeline.clock_mhz} MHz, output {'right' if timeline.passed else 'WRONG'}"
    )


if __name__ == "__main__":
    sys.exit(main())
