"""The softmax family: neither a product nor a copy. Problem, tensors, reference, what rounding explains."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilescope.declare.knobs import ConfigError, knob
from tilescope.declare.spec import Allowance, Family, TensorSpec


@dataclass(frozen=True)
class Problem:
    M: int = knob(1024, "Shape", "Rows of A and B.", low=1, high=16384, stops="powers")
    N: int = knob(1000, "Shape", "Columns of A and B.", low=1, high=4096, stops="powers")
    dtype: str = knob(
        "float32", "Shape", "Type of A and B; sums are float32.", choices=("float16", "float32")
    )


def _tensors(problem: Problem) -> dict[str, TensorSpec]:
    shape = (problem.M, problem.N)
    return {"A": TensorSpec(shape, is_input=True), "B": TensorSpec(shape, is_input=False)}


def _reference(inputs: Mapping[str, Any], rows: slice) -> Any:
    return inputs["A"][rows].softmax(dim=1)


def _baseline(inputs: Mapping[str, Any], output: Any, problem: Problem) -> Callable[[], None]:
    import torch

    return lambda: torch.softmax(inputs["A"], dim=1, out=output)


def _allowance(
    problem: Problem, partial_sums: int, distribution: str, capability: tuple[int, int] | None
) -> Allowance:
    """float32 throughout: a few roundings of each exponential, and those of the sum of N."""
    roundoff = 2.0**-24
    sums = math.sqrt(problem.N)
    reference_dtype = "float64" if problem.dtype == "float32" else "float32"
    return Allowance((32 + sums) * roundoff, 0.0, (8 + sums / 4) * roundoff, 0.0, reference_dtype)


def _refuse(problem: Problem, config: Any) -> None:
    """A program holds whole rows."""
    if config.BLOCK_N < problem.N:
        message = f"BLOCK_N must be at least N, which is {problem.N:,} (got {config.BLOCK_N})."
        raise ConfigError("out_of_range", message, "BLOCK_N")


FAMILY = Family(
    id="softmax",
    problem=Problem,
    tensors=_tensors,
    reference=_reference,
    baseline=_baseline,
    baseline_name=lambda problem: "torch.softmax",
    magnitude="|B|",
    allowance=_allowance,
    refuse=_refuse,
)
