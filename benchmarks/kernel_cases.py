"""The cases of `make bench`: problems, kernels, and the library's calls to compare them with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMPILED = "torch.compile"


@dataclass(frozen=True)
class Against:
    """One row of the table: the kernel against the fastest of some calls.

    Attributes:
        title: the row's name for these calls.
        calls: names of the kernel's family, or COMPILED.
        is_bound: whether the calls only move as many bytes, and compute a different result.
    """

    title: str
    calls: tuple[str, ...]
    is_bound: bool = False


@dataclass(frozen=True)
class Case:
    """One problem, timed in one run with all calls that its rows name.

    Attributes:
        work: the title of the case.
        problem: fields of the problem.
        timer: "events" or "graph", as in an experiment's run.
        is_b_transposed_first: whether B is row-major, and the kernel's time includes a launch that transposes it.
    """

    work: str
    kernel: str
    problem: Mapping[str, int | str]
    rows: tuple[Against, ...]
    timer: str = "events"
    is_b_transposed_first: bool = field(default=False, kw_only=True)


_MATMUL = (
    Against("the faster of cuBLAS and cuBLASLt", ("torch.matmul", "torch.matmul, cuBLASLt")),
)
_FLOAT8 = (Against("torch._scaled_mm", ("torch._scaled_mm (K-major B)",)),)
_TF32 = (Against("the faster of cuBLAS and cuBLASLt, tf32", _MATMUL[0].calls),)
_EAGER = "torch eager, three calls"
_FUSED = (
    Against("eager torch", (_EAGER,)),
    Against(
        "the best of eager, addmm + relu_, torch.compile",
        (_EAGER, "torch.addmm, then relu_", COMPILED),
    ),
)
_COPY = Against("device copy of the same bytes", ("plain copy of as many bytes",), is_bound=True)
_CONTIGUOUS = Against("x.t().contiguous()", ("A.t().contiguous()",))


_HALVES = ("float16", "bfloat16")
_COPIES = (
    *((8192, 8192, "float32"), (8192, 8192, "float16"), (7000, 6000, "float32")),
    # Both move 4 bytes per lane. Only the rows of the second shape begin at sector boundaries.
    *((8191, 8193, "float32"), (8200, 8200, "float32")),
)


def _product(shape: Sequence[int], dtype: str, **more: str) -> Mapping[str, int | str]:
    return {**dict(zip("MNK", shape, strict=True)), "dtype": dtype, **more}


_PERSISTENT = "matmul.persistent"
CASES = (
    *(
        Case(f"{dtype} {name}", _PERSISTENT, _product(shape, dtype), _MATMUL)
        for dtype in _HALVES
        for name, shape in (
            ("8192³", (8192,) * 3),
            ("4096³", (4096,) * 3),
            ("8192 × 6144 × 4096", (8192, 6144, 4096)),
        )
    ),
    *(
        Case(
            f"{dtype} {side}³, a graph of 20",
            _PERSISTENT,
            _product((side,) * 3, dtype),
            _MATMUL,
            "graph",
        )
        for dtype in _HALVES
        for side in (2048, 1024)
    ),
    *(
        Case(
            f"float8 e4m3 {side}³, B K-major",
            *(_PERSISTENT, _product((side,) * 3, "float8_e4m3fn", layout="NT"), _FLOAT8),
        )
        for side in (8192, 4096)
    ),
    *(
        Case(
            f"tf32 4096³, {work}",
            *(_PERSISTENT, _product((4096,) * 3, "float32", layout=layout), _TF32),
            is_b_transposed_first=layout == "NN",
        )
        for work, layout in (("B K-major", "NT"), ("B as given, its transposition counted", "NN"))
    ),
    *(
        Case(
            f"relu(A@B + C), float16, M=N=8192, K={k}",
            *("matmul.fused_add_relu", _product((8192, 8192, k), "float16"), _FUSED),
        )
        for k in (128, 512, 1024, 4096)
    ),
    *(
        Case(
            f"transpose {m} × {n}, {dtype}",
            "transpose.tiled",
            {"M": m, "N": n, "dtype": dtype},
            (_COPY, _CONTIGUOUS),
        )
        for m, n, dtype in _COPIES
    ),
)
