"""What `make bench` times: which work, by which kernel, against which calls. Data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMPILED = "torch.compile"


@dataclass(frozen=True)
class Against:
    """One row of the table: the kernel beside the fastest of some calls.

    Attributes:
        title: what the row says of them.
        calls: their names, as the kernel's family has them, or COMPILED.
        is_bound: they don't compute the same result, and only move as many bytes.
    """

    title: str
    calls: tuple[str, ...]
    is_bound: bool = False


@dataclass(frozen=True)
class Case:
    """One problem, timed in one run with all calls that its rows name.

    Attributes:
        work: what it is, in words.
        problem: its fields.
        timer: as of an experiment's run.
        is_b_transposed_first: B is given row-major, and a launch that transposes it counts as the kernel's time.
    """

    work: str
    kernel: str
    problem: Mapping[str, int | str]
    rows: tuple[Against, ...]
    timer: str = "events"
    is_b_transposed_first: bool = field(default=False, kw_only=True)


_MATMUL = (Against("the faster of cuBLAS and cuBLASLt", ("torch.matmul", "torch.matmul, cuBLASLt")),)
_FLOAT8 = (Against("torch._scaled_mm", ("torch._scaled_mm (K-major B)",)),)
_TF32 = (Against("the faster of cuBLAS and cuBLASLt, tf32", _MATMUL[0].calls),)
_EAGER = "torch eager, three calls"
_FUSED = (
    Against("eager torch", (_EAGER,)),
    Against("the best of eager, addmm + relu_, torch.compile", (_EAGER, "torch.addmm, then relu_", COMPILED)),
)
_COPY = Against("device copy of the same bytes", ("plain copy of as many bytes",), is_bound=True)
_CONTIGUOUS = Against("x.t().contiguous()", ("A.t().contiguous()",))


def _matmul(kernel: str, shape: tuple[int, int, int], dtype: str, **others: str) -> tuple[str, Mapping[str, int | str]]:
    return kernel, {**dict(zip("MNK", shape, strict=True)), "dtype": dtype, **others}


def _sizes(*shape: int) -> str:
    return f"{shape[0]}³" if len(set(shape)) == 1 and len(shape) == 3 else " × ".join(map(str, shape))


def _large() -> tuple[Case, ...]:
    shapes = ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 6144, 4096))
    return tuple(
        Case(f"{dtype} {_sizes(*shape)}", *_matmul("matmul.persistent", shape, dtype), _MATMUL)
        for dtype in ("float16", "bfloat16")
        for shape in shapes
    )


def _short() -> tuple[Case, ...]:
    return tuple(
        Case(f"{dtype} {side}³, a graph of 20", *_matmul("matmul.persistent", (side,) * 3, dtype), _MATMUL, "graph")
        for dtype in ("float16", "bfloat16")
        for side in (2048, 1024)
    )


def _float8() -> tuple[Case, ...]:
    return tuple(
        Case(
            f"float8 e4m3 {side}³, B K-major",
            *_matmul("matmul.persistent", (side,) * 3, "float8_e4m3fn", layout="NT"),
            _FLOAT8,
        )
        for side in (8192, 4096)
    )


def _tf32() -> tuple[Case, ...]:
    def case(work: str, layout: str, is_first: bool) -> Case:
        made = _matmul("matmul.persistent", (4096,) * 3, "float32", layout=layout)
        return Case(f"tf32 4096³, {work}", *made, _TF32, is_b_transposed_first=is_first)

    return case("B K-major", "NT", False), case("B as given, its transposition counted", "NN", True)


def _fused() -> tuple[Case, ...]:
    return tuple(
        Case(f"relu(A@B + C), float16, M=N=8192, K={k}", *_matmul(_FUSED_KERNEL, (8192, 8192, k), "float16"), _FUSED)
        for k in (128, 512, 1024, 4096)
    )


_FUSED_KERNEL = "matmul.fused_add_relu"


def _transposes() -> tuple[Case, ...]:
    """The last one moves 4 bytes per lane, as the odd one before it does, and its rows begin at whole sectors."""
    shapes = (
        (8192, 8192, "float32"), (8192, 8192, "float16"), (7000, 6000, "float32"), (8191, 8193, "float32"),
        (8200, 8200, "float32"),
    )  # fmt: skip
    return tuple(
        Case(f"transpose {m} × {n}, {dtype}", "transpose.tiled", {"M": m, "N": n, "dtype": dtype}, (_COPY, _CONTIGUOUS))
        for m, n, dtype in shapes
    )


CASES = (*_large(), *_short(), *_float8(), *_tf32(), *_fused(), *_transposes())
