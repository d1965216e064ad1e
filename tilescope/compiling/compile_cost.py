"""Estimate a compile's time and the kernel's accumulator registers and shared memory, before compiling."""

import contextlib
import dataclasses
import itertools
import math

from tilescope.declare.knobs import ConfigError, knobs
from tilescope.declare.spec import Access, Kernel, Launch, format_duration
from tilescope.evaluate.sectors import LANES
from tilescope.results import Failure

MOST_REGISTERS = 255

# Seconds after which a compile is killed.
COMPILE_DEADLINE_S = 60.0

# Longest compile that may use the worker reserved for short jobs.
QUICK_COMPILE_S = 5.0

# Factor by which the estimate may be wrong, because machines differ and the model is incomplete.
_UNCERTAINTY = 2.0

# Largest part of a product's tile that changes its layout at once.
_LARGEST_PART_BYTES = 64 * 1024

# Compile time of a matrix-unit kernel whose accumulator fits in registers.
_BASE_S = 3.0


def explain_spill(kernel: Kernel, launch: Launch) -> str:
    """Explain that the config's accumulator does not fit in registers, or return "" if it fits.

    Such a config is not worth compiling: it can take minutes, and the kernel then spills to local memory.
    """
    registers = accumulator_registers(kernel, launch)
    if registers <= MOST_REGISTERS:
        return ""
    rows, columns = kernel.output_tile(launch) or (0, 0)
    return (
        f"The accumulator of a {rows} × {columns} tile takes {registers} registers per thread with num_warps "
        f"{launch.config.num_warps}; a thread has {MOST_REGISTERS}, so it would spill. "
        "Make the tile smaller or num_warps larger."
    )


def refuse_compile(kernel: Kernel, launch: Launch) -> Failure | None:
    """Return a Failure if the kernel would spill and its compile would exceed the deadline."""
    seconds = compile_seconds(kernel, launch)
    spill = explain_spill(kernel, launch)
    if not spill or seconds <= _UNCERTAINTY * COMPILE_DEADLINE_S:
        return None
    duration = f"Compiling it for {launch.gpu.name} would take about {format_duration(seconds)}"
    reason = f"{spill} {duration}; the limit is {COMPILE_DEADLINE_S:.0f} s."
    return Failure("compile", "too_slow_to_compile", reason)


def accumulator_registers(kernel: Kernel, launch: Launch) -> int:
    """Return the number of float32 accumulators per thread; 0 for a kernel without matrix products."""
    tile = kernel.output_tile(launch)
    if tile is None or not kernel.family.work(launch.problem):
        return 0
    return -(-math.prod(tile) // (LANES * launch.config.num_warps))


def compile_seconds(kernel: Kernel, launch: Launch) -> float:
    """Estimate the compile time on one core, in seconds.

    The formulas are fitted to a dozen compiles with Triton 3.7.1 on an x86 server core. With matrix units, a compile
    takes a few seconds while the accumulators fit in registers. Beyond that, doubling the accumulators takes ten times
    as long. Without matrix units, each product is a separate instruction.
    """
    sums = accumulator_registers(kernel, launch)
    if not sums:
        most = max(access.elements for access in kernel.accesses(launch))
        return 1.0 + 14.0 * (most // (LANES * launch.config.num_warps)) / 2048
    if uses_matrix_units(kernel, launch):
        return _BASE_S * max(1.0, sums / (MOST_REGISTERS + 1)) ** 3.3
    rows, _ = kernel.output_tile(launch) or (1, 1)
    depth = next((access.elements // rows for access in panel_loads(kernel, launch)), 1)
    return 1.0 + 3.1 * (sums / 128) ** 1.45 * (depth / 16) ** 0.9


def uses_matrix_units(kernel: Kernel, launch: Launch) -> bool:
    """Return whether Triton multiplies on matrix units: from compute capability 8.0 on, except for IEEE float32."""
    return (
        launch.gpu.compute_capability >= (8, 0) and kernel.family.matrix_passes(launch.problem) > 0
    )


def panel_loads(kernel: Kernel, launch: Launch) -> list[Access]:
    """Return the loads of the A and B panels in the loop over K, A first."""
    accesses = kernel.accesses(launch) if kernel.family.panels else ()
    return [access for access in accesses if isinstance(access, Access) and "k" in access.over]


def estimate_shared_bytes(kernel: Kernel, launch: Launch) -> int:
    """Estimate the shared memory of one program in bytes, usually from above.

    The panels of A and B have a buffer per stage on compute capability 9.0 and 10.0, whose matrix units read shared
    memory, one fewer elsewhere, and one before 8.0. With TMA, each tensor after the loop needs a tile; without it, one
    tile may change its layout there. Of 740 recorded compiles (Triton 3.7.1, H100 and H200), six need 1 % to 20 % more.
    """
    panels = panel_loads(kernel, launch)
    accesses = kernel.accesses(launch)
    capability = launch.gpu.compute_capability
    buffers = max(1, launch.config.num_stages - (capability not in ((9, 0), (10, 0))))
    if capability < (8, 0):  # without asynchronous copies, loads are not pipelined
        buffers = 1
    uses_tma = any(access.op == "descriptor" for access in accesses)
    blocks = [access for access in accesses if isinstance(access, Access) and access not in panels]
    tiles = {access.tensor: access.elements for access in blocks if uses_tma}
    pipelined = buffers * sum(access.elements for access in panels) + sum(tiles.values())
    size = launch.element_bytes
    largest = size * max(access.elements for access in accesses)
    # A tile of a product changes its layout in parts.
    return max(size * pipelined, min(largest, _LARGEST_PART_BYTES) if panels else largest)


def suggest_smaller_config(kernel: Kernel, launch: Launch, shared_bytes: int) -> str:
    """Name the smallest change to a config that should fit in shared memory, such as "num_stages 2"; "" without one.

    It changes as few knobs as possible. Among those changes, it picks the one that uses the most shared memory.

    Args:
        shared_bytes: shared memory of the compiled config. It corrects the estimate if that is too low.
    """
    config = launch.config
    correction = max(1.0, shared_bytes / estimate_shared_bytes(kernel, launch))
    lower = {
        name: [
            value
            for value in reversed(knob.choices or range(knob.low, knob.high))
            if value < getattr(config, name)
        ]
        for name, knob in knobs(type(config)).items()
        if name.startswith("BLOCK") or name == "num_stages"
    }
    for count in range(1, len(lower) + 1):
        fitting: dict[str, int] = {}
        for names in itertools.combinations(reversed(lower), count):
            for values in itertools.product(*(lower[name] for name in names)):
                changes = dict(zip(names, values, strict=True))
                smaller = dataclasses.replace(launch, config=dataclasses.replace(config, **changes))
                with contextlib.suppress(ConfigError):
                    kernel.family.refuse(smaller.problem, smaller.config)
                    needed = estimate_shared_bytes(kernel, smaller)
                    if needed * correction <= launch.gpu.shared_bytes_per_program:
                        fitting[", ".join(f"{name} {value}" for name, value in changes.items())] = (
                            needed
                        )
        if fitting:
            return max(fitting, key=lambda change: fitting[change])
    return ""
