"""Inspect the programs of a captured launch."""

from kernels.capture.reader import Capture, CapturedLaunch
from kernels.evaluate.listings import UnsupportedOperation
from kernels.evaluate.ttgir import parse as parse_ttgir
from kernels.inside.conversions import read_conversions, read_layouts
from kernels.inside.encodings import Encodings
from kernels.inside.pipeline import read_pipelines
from kernels.inside.registers import count_spills
from kernels.inside.report import Inside
from kernels.inside.sass import parse


def inspect(capture: Capture, launch: CapturedLaunch) -> Inside:
    """Return what happens inside a launch's programs.

    Raises:
        UnreadableCapture: the compiled code is damaged.
    """
    kernel, codes = capture.build(launch.kernel)
    is_gluon = "gluon.jit" in kernel.source
    num_stages = None if is_gluon else launch.config["num_stages"]
    return inspect_code(codes["ttgir"], codes["ptx"], codes["sass"], num_stages)


def inspect_code(ttgir: str, ptx: str, sass: str, num_stages: int | None) -> Inside:
    """Return what the compiled code of a kernel says.

    Args:
        num_stages: the compiler's option; None if Triton's pipeliner did not compile the kernel, as for Gluon.
    """
    spills = count_spills(parse(sass))
    try:
        body = parse_ttgir(ttgir)
        encodings = Encodings(ttgir)
        return Inside(
            spills_by_line=spills,
            layouts=read_layouts(body, encodings),
            conversions=read_conversions(body, encodings),
            pipelines=read_pipelines(body, ttgir, ptx, num_stages),
        )
    except UnsupportedOperation as error:
        return Inside(spills_by_line=spills, unread=str(error))
