"""What a compile costs, before it starts: registers that the tile's sums take, and seconds."""

from __future__ import annotations

import math

from kernels.spec import Access, Kernel, Launch

LANES, MOST_REGISTERS = 32, 255


def hopeless(kernel: Kernel, launch: Launch) -> str:
    """Why a config is not worth a compile, as a sentence, or "": its accumulator alone does not fit in registers.

    Such a kernel can compile for minutes, and then keeps its accumulator in local memory.
    """
    needed = accumulator_registers(kernel, launch)
    return "" if needed <= MOST_REGISTERS else f"{_too_many(kernel, launch)} {_SMALLER}"


_SMALLER = "Make the tile smaller or num_warps larger."


def _too_many(kernel: Kernel, launch: Launch) -> str:
    rows, columns = kernel.output_tile(launch) or (0, 0)
    return (
        f"The accumulator of a {rows} × {columns} tile takes {accumulator_registers(kernel, launch)} registers per "
        f"thread with num_warps {launch.config.num_warps}; a thread has {MOST_REGISTERS}, so it would spill."
    )


def accumulator_registers(kernel: Kernel, launch: Launch) -> int:
    """float32 sums of one thread; 0 for a kernel that multiplies nothing."""
    tile = kernel.output_tile(launch)
    if tile is None or not kernel.family.work(launch.problem):
        return 0
    return -(-math.prod(tile) // (LANES * launch.config.num_warps))


# Seconds after which a compile is ended.
COMPILE_DEADLINE_S = 60.0

# A compile that takes no longer may take the place that is kept for quick ones.
QUICK_COMPILE_S = 5.0

# What the estimate below may be wrong by, as a factor: another machine, and what it leaves out.
_UNSURE = 2.0


def compile_seconds(kernel: Kernel, launch: Launch) -> float:
    """Seconds of a core that a compile takes, roughly: fitted to a dozen by triton 3.7.1 on one x86 server core.

    For matrix units: a few up to the registers that a thread has, and ten times as many for twice the sums. Without
    them each product is an instruction of its own.
    """
    sums = accumulator_registers(kernel, launch)
    if not sums:
        return 1.0 + 14.0 * _moved(kernel, launch) / 2048
    if _has_matrix_units(kernel, launch):
        return _FEW_S * max(1.0, sums / (MOST_REGISTERS + 1)) ** 3.3
    return 1.0 + 3.1 * (sums / 128) ** 1.45 * (_depth(kernel, launch) / 16) ** 0.9


_FEW_S = 3.0


def _moved(kernel: Kernel, launch: Launch) -> int:
    """Elements that a thread moves at a time."""
    return max(one.elements for one in kernel.accesses(launch)) // (LANES * launch.config.num_warps)


def never_compiled(kernel: Kernel, launch: Launch) -> str:
    """Why a launch is not compiled, as a sentence, or "": it would spill, and not be done by its deadline."""
    seconds = compile_seconds(kernel, launch)
    if not hopeless(kernel, launch) or seconds <= _UNSURE * COMPILE_DEADLINE_S:
        return ""
    return (
        f"{_too_many(kernel, launch)} Compiling it for {launch.gpu.name} would take about {seconds:,.0f} s, and "
        f"{COMPILE_DEADLINE_S:.0f} s are allowed. {_SMALLER}"
    )


def _has_matrix_units(kernel: Kernel, launch: Launch) -> bool:
    """Whether Triton multiplies on matrix units: from compute capability 8.0 on, and not float32 as it is."""
    return launch.gpu.compute_capability >= (8, 0) and bool(kernel.family.matrix_passes(launch.problem))


def _depth(kernel: Kernel, launch: Launch) -> int:
    """Products of one step of the loop over K that each sum takes."""
    rows, _ = kernel.output_tile(launch) or (1, 1)
    return next((one.elements // rows for one in operands(kernel, launch)), 1)


def operands(kernel: Kernel, launch: Launch) -> list[Access]:
    """The loads of panels, by tile row first: what a loop over K fetches."""
    panels = kernel.family.panels or ()
    return [one for one in kernel.accesses(launch) if isinstance(one, Access) and one.tensor in panels]
