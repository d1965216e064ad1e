"""Inspect the programs of a captured launch."""

from kernels.capture.reader import Capture, CapturedLaunch
from kernels.inside.allocation import map_shared_memory
from kernels.inside.registers import count_spills
from kernels.inside.report import Inside
from kernels.inside.sass import parse


def inspect(capture: Capture, launch: CapturedLaunch) -> Inside:
    """Return what happens inside a launch's programs.

    Raises:
        UnreadableCapture: the compiled code is damaged.
    """
    instructions = parse(capture.read_code(launch.kernel, "sass"))
    return Inside(
        spills_by_line=count_spills(instructions),
        shared_map=map_shared_memory(capture, launch),
    )
