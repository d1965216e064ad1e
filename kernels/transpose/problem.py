"""The transpose family: B[N, M] = A[M, N] transposed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels import orders
from tilescope.declare.jit import memory_lines, on_arrays
from tilescope.declare.knobs import knob, problem_size
from tilescope.declare.spec import DTYPE_BYTES, Access, Axis, Family, Launch, Tensors, TensorSpec


@dataclass(frozen=True)
class Problem:
    M: int = problem_size(1024, "Rows of A, columns of B.")
    N: int = problem_size(1024, "Columns of A, rows of B.")
    dtype: str = knob("float32", "Shape", "Type of A and B.", choices=tuple(DTYPE_BYTES))


def extents(launch: Launch[Problem]) -> dict[str, int]:
    """Return the number of tiles of A along M and N."""
    problem = launch.problem
    config = launch.config
    return {"m": -(-problem.M // config.BLOCK_M), "n": -(-problem.N // config.BLOCK_N)}


def accesses(
    jitted: Any, launch: Launch[Problem], stored: tuple[str, str] | None = None
) -> tuple[Access, ...]:
    """Return the load of a tile of A and the store of its transpose into B.

    Args:
        stored: the store's `pointers`.
    """
    start = on_arrays(orders.tile_start)
    config = launch.config
    m = Axis("m", config.BLOCK_M, start)
    n = Axis("n", config.BLOCK_N, start)
    load, store = memory_lines(jitted)
    return (
        Access("load", "A", m, n, ("m", "n"), load),
        Access("store", "B", n, m, ("m", "n"), store, transposed=True, pointers=stored),
    )


def arguments(tensors: Tensors, launch: Launch[Problem]) -> dict[str, Any]:
    """Return the arguments of every transpose kernel: two tensors, two sizes and the config."""
    return {
        "a": tensors["A"],
        "b": tensors["B"],
        "M": launch.problem.M,
        "N": launch.problem.N,
        **vars(launch.config),
    }


def _tensors(problem: Problem) -> dict[str, TensorSpec]:
    shape = problem.M, problem.N
    return {"A": TensorSpec(shape, is_input=True), "B": TensorSpec(shape[::-1], is_input=False)}


def _reference(inputs: Tensors, rows: slice) -> Any:
    return inputs["A"][:, rows].t()


def _baseline(inputs: Tensors, output: Any, problem: Problem) -> Callable[[], None]:
    return lambda: output.copy_(inputs["A"].t())


def _alternatives(inputs: Tensors, output: Any, problem: Problem) -> dict[str, Callable[[], Any]]:
    """Return the idiomatic call, and a plain copy of as many bytes, which is a practical limit for any transpose."""
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
