"""An estimate of the time that Triton's interpreter takes for a launch."""

import math

from tilescope.declare.spec import Kernel, Launch, format_duration, shape_text

LIMIT_S = 20.0

# Seconds per execution of a memory operation (with its addresses and its share of the loop), per element moved, and per
# multiply-add: fitted by benchmarks/interpreter.py, triton 3.7.1, one x86 server core.
_PER_OPERATION_S = 1.2e-3
_PER_ELEMENT_S = 4e-8
_PER_PRODUCT_S = 6e-11


def estimate_seconds(kernel: Kernel, launch: Launch) -> float:
    """Estimate how long the interpreter takes for one launch."""
    extents = kernel.extents(launch)
    seconds = _PER_PRODUCT_S * kernel.family.work(launch.problem) / 2
    for access in kernel.all_accesses(launch):
        executions = math.prod(extents[index] for index in access.over)
        seconds += executions * (_PER_OPERATION_S + _PER_ELEMENT_S * access.elements)
    return seconds


def explain_slow_launch(kernel: Kernel, launch: Launch) -> str:
    """Return why a launch is too slow for the interpreter, as sentences; "" if it would finish in about LIMIT_S."""
    seconds = estimate_seconds(kernel, launch)
    if seconds <= LIMIT_S:
        return ""
    return (
        f"There is no GPU here, and the interpreter would take about {format_duration(seconds)} for "
        f"{shape_text(launch.problem)} with these tiles. The limit is about {LIMIT_S:.0f} s. Make the shape smaller."
    )
