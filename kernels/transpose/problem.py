"""The transpose family: B[N, M] = A[M, N] transposed. Problem, tensors, reference, costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kernels import orders
from kernels.accesses import Access, Axis
from kernels.jit import on_arrays
from kernels.knobs import knob
from kernels.source import memory_lines
from kernels.spec import DTYPE_BYTES, ConfigFields, Family, Launch, TensorSpec


@dataclass(frozen=True)
class Problem:
    M: int = knob(1024, "Shape", "Rows of A, columns of B.", low=1, high=16384, stops="powers")
    N: int = knob(1024, "Shape", "Columns of A, rows of B.", low=1, high=16384, stops="powers")
    dtype: str = knob("float32", "Shape", "Type of A and B.", choices=tuple(DTYPE_BYTES))


class TileConfig(ConfigFields, Protocol):
    """What the config of a transpose in tiles has."""

    @property
    def BLOCK_M(self) -> int: ...

    @property
    def BLOCK_N(self) -> int: ...


def extents(launch: Launch[Problem, TileConfig]) -> dict[str, int]:
    """Tiles of A along M and N."""
    problem, config = launch.problem, launch.config
    return {"m": -(-problem.M // config.BLOCK_M), "n": -(-problem.N // config.BLOCK_N)}


def accesses(
    jitted: Any, launch: Launch[Problem, TileConfig], stored: tuple[str, str] | None = None
) -> tuple[Access, ...]:
    """The load of a tile of A, and the store of the same tile, transposed, into B.

    Args:
        stored: the `pointers` of the store.
    """
    start, config = on_arrays(orders.tile_start), launch.config
    m, n = Axis("m", config.BLOCK_M, start), Axis("n", config.BLOCK_N, start)
    load, store = memory_lines(jitted)
    return (
        Access("load", "A", m, n, ("m", "n"), load),
        Access("store", "B", n, m, ("m", "n"), store, transposed=True, pointers=stored),
    )


def arguments(tensors: Mapping[str, Any], launch: Launch[Problem, Any]) -> dict[str, Any]:
    """What every transpose kernel takes: two tensors, two sizes, its config."""
    problem = launch.problem
    return {
        **{"a": tensors["A"], "b": tensors["B"], "M": problem.M, "N": problem.N},
        **dataclasses.asdict(launch.config),
    }


def _tensors(problem: Problem) -> dict[str, TensorSpec]:
    return {
        "A": TensorSpec((problem.M, problem.N), is_input=True),
        "B": TensorSpec((problem.N, problem.M), is_input=False),
    }


def _reference(inputs: Mapping[str, Any], rows: slice) -> Any:
    return inputs["A"][:, rows].t()


def _baseline(inputs: Mapping[str, Any], output: Any, problem: Problem) -> Callable[[], None]:
    return lambda: output.copy_(inputs["A"].t())


def _alternatives(inputs: Mapping[str, Any], output: Any, problem: Problem) -> dict[str, Callable[[], Any]]:
    """What a person would write, and a copy of the same bytes, which no transposition outruns by much."""
    a = inputs["A"]
    return {
        "A.t().contiguous()": lambda: a.t().contiguous(),
        "plain copy of as many bytes": lambda: output.view(-1).copy_(a.view(-1)),
    }


FAMILY = Family(
    id="transpose",
    problem=Problem,
    tensors=_tensors,
    reference=_reference,
    baseline=_baseline,
    baseline_name=lambda problem: "torch copy_ of A.t()",
    alternatives=_alternatives,
    magnitude="|A|",
)
