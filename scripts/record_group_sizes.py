"""Compare GROUP_SIZEs on this machine's GPU: `python -m scripts.record_group_sizes FILE [--append]`.

Shapes from what fits in the L2 to what is many times larger, tiles from 64 × 64 to 256 × 128, every power of two as
GROUP_SIZE up to all rows of tiles; and each kernel that has none, or another way of its own. FILE gets one recording a
line. Needs `ncu`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.recording import flags_of, record, submitted

SHAPES = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 4096, 6144),
    (16384, 16384, 4096),
    (2048, 16384, 8192),
    (12288, 12288, 1024),
    (6000, 10000, 3000),
    # Counted after the constants of a first model had been fitted to the others.
    (16384, 8192, 768),
    (3072, 16384, 1536),
    (10240, 7168, 2048),
    # Counted after the second one's had been chosen, by all of the above.
    (14336, 4096, 4096),
    (5120, 15360, 1280),
    (7168, 7168, 7168),
)

# BLOCK_M, BLOCK_N, BLOCK_K, num_warps
TILES = ((64, 64, 32, 4), (64, 128, 32, 4), (128, 128, 64, 4), (128, 256, 64, 8), (256, 128, 64, 8))

# Shapes drawn at random once the model was done, each with the next tile, and then with the first again.
DRAWN = (
    (11776, 10752, 4608),
    (12800, 8704, 1280),
    (3328, 12800, 7040),
    (2816, 5120, 7808),
    (10496, 14080, 8832),
    (6144, 12800, 6656),
    (7424, 8960, 4992),
    (13824, 14080, 9216),
    (10240, 7168, 6272),
    (4608, 8960, 9216),
    (8448, 12288, 7808),
    (12288, 6144, 5248),
    (12032, 6144, 8832),
)
DRAWN_TILES = (*TILES[:2], (128, 64, 32, 4), *TILES[2:])

# Drawn anew, once a first model with runs of their own pace was done.
DRAWN_ANEW = (
    (14336, 11264, 8832),
    (4608, 4864, 2176),
    (10752, 8192, 7040),
    (14080, 4864, 1152),
    (12544, 3072, 2304),
    (8960, 12544, 5120),
    (13824, 3840, 1536),
    (6656, 7424, 8320),
    (12800, 7168, 1408),
    (2816, 14336, 5120),
    (2816, 9728, 4608),
    (5120, 13824, 8576),
    (11520, 3840, 6016),
    (8704, 8448, 9216),
)

# Drawn and counted once a model with an L2 of two halves was done.
DRAWN_THIRD = (
    (13568, 3072, 5632),
    (5376, 13056, 1536),
    (8704, 7680, 1408),
    (11264, 13568, 5248),
    (10752, 8960, 1408),
    (3328, 3584, 7936),
    (7424, 2560, 8448),
    (13824, 13056, 5248),
    (12288, 9984, 8704),
    (13568, 4608, 7552),
    (13312, 8192, 6144),
    (14336, 3328, 1536),
    (2816, 13568, 1664),
    (4096, 8192, 1664),
)

# Drawn and counted once a model was done whose pace was read from timelines of other launches.
DRAWN_FOURTH = (
    (12032, 13312, 9216),
    (5376, 5632, 2560),
    (11520, 8960, 7424),
    (5632, 3072, 2304),
    (4352, 9728, 5504),
    (4608, 13824, 1920),
    (7424, 8192, 8704),
    (13568, 7936, 1792),
    (3584, 7168, 1920),
    (10496, 12032, 4992),
    (5888, 10496, 2944),
    (13056, 7936, 7808),
    (9216, 11264, 7168),
    (12288, 13312, 7936),
)

# Drawn and counted once the present model was done.
DRAWN_FIFTH = (
    (5632, 13824, 1152),
    (3328, 13824, 3328),
    (12544, 10240, 9088),
    (5376, 9984, 8064),
    (12032, 6656, 2304),
    (2816, 12288, 2048),
    (5120, 13056, 8448),
)

OTHERS: tuple[dict[str, Any], ...] = (
    *(
        {"kernel": kernel, "problem": {"M": m, "N": n, "K": k}, "config": {**config, "num_warps": 8}}
        for kernel, config in (
            ("matmul.persistent", {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}),
            ("matmul.fused_add_relu", {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}),
        )
        for m, n, k in ((8192, 8192, 8192), (16384, 16384, 4096))
    ),
    *(
        {
            "kernel": "matmul.grouped",
            "problem": {"M": 8192, "N": 8192, "K": 8192, "dtype": dtype},
            "config": {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": block_k, "num_warps": 8},
        }
        for dtype, block_k in (("float32", 32), ("float8_e4m3fn", 128))
    ),
    *(
        {
            "kernel": "matmul.grouped",
            "problem": {"M": 8192, "N": 4096, "K": 4096, "dtype": dtype},
            "config": {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4},
        }
        for dtype, block_m, block_n, block_k in (
            ("float32", 128, 64, 32),
            ("float8_e4m3fn", 64, 128, 64),
            ("bfloat16", 64, 128, 64),
        )
    ),
    {
        "kernel": "matmul.grid_2d",
        "problem": {"M": 8192, "N": 8192, "K": 4096},
        "config": {"BLOCK_M": 128, "BLOCK_N": 128},
    },
    {"kernel": "matmul.split_k_atomic", "problem": {"M": 4096, "N": 4096, "K": 8192}, "config": {"BLOCK_M": 128}},
    *(
        {"kernel": kernel, "problem": {"M": 8192, "N": 8192}}
        for kernel in ("transpose.flat", "transpose.row_strip", "transpose.tiled")
    ),
)


def wanted() -> Iterator[dict[str, Any]]:
    """The payloads, each with some GROUP_SIZE."""
    yield from (_grouped(shape, tile) for shape in SHAPES for tile in TILES)
    yield from OTHERS
    for drawn in (DRAWN, DRAWN_ANEW, DRAWN_THIRD, DRAWN_FOURTH, DRAWN_FIFTH):
        yield from map(_grouped, drawn, itertools.cycle(DRAWN_TILES))


def _grouped(shape: tuple[int, int, int], tile: tuple[int, int, int, int]) -> dict[str, Any]:
    m, n, k = shape
    block_m, block_n, block_k, warps = tile
    return {
        "kernel": "matmul.grouped",
        "problem": {"M": m, "N": n, "K": k},
        "config": {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": warps},
    }


def main() -> int:
    """Compare and record; returns the number of experiments that could not be."""
    flags = flags_of(__doc__).parse_args()
    held = _held(flags.file) if flags.append else []
    studies = submitted([(payload, "reuse") for payload in wanted() if payload not in held])
    return record(studies, said, flags.file, flags.append, kept=lambda study: bool(study.tool))


def said(study: Any) -> str:
    """Megabytes read by GROUP_SIZE, in the first of the counts."""
    if not study.tool:
        return f"not counted: {study.note}"
    return ", ".join(f"{row.group_size}: {row.dram_read_bytes[0] / 1e6:.0f}" for row in study.rows)


def _held(file: Path) -> list[dict[str, Any]]:
    """Those payloads that the file holds a comparison of."""
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.measuring.measurements.group_sizes_measurement import GROUP_SIZES

    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    held = {GROUP_SIZES.key(GROUP_SIZES.form.recording(line).measured.experiment) for line in lines}
    return [payload for payload in wanted() if GROUP_SIZES.key(from_json(payload, discover())) in held]


if __name__ == "__main__":
    sys.exit(main())
