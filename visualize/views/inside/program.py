"""What the pictures of a program's inside are drawn from, for a kernel of ours and for a script's launch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.capture.reader import CapturedKernel
from kernels.gpus import Gpu
from kernels.inside.banks import Access
from kernels.inside.report import Inside
from kernels.instructions import CompiledFacts
from visualize.views.prose import picture_caption
from visualize.views.state import Snapshot

@dataclass(frozen=True)
class Program:
    """The inside of a launch's programs, with what only the pictures show.

    Attributes:
        accesses: an execution of each instruction that accesses shared memory, by its index in the SASS.
        live: live registers at each instruction of the SASS.
        about: the line below a saved picture.
    """

    inside: Inside
    facts: CompiledFacts | CapturedKernel
    num_warps: int
    gpu: Gpu | None
    sass: str
    about: str
    accesses: Mapping[int, Access] = field(default_factory=dict)
    live: tuple[int, ...] = ()


def describe(snapshot: Snapshot) -> Program:
    """Return the inside of an experiment's programs, as compiled."""
    compiled = snapshot.compiled
    assert compiled is not None, "only a compiled kernel has an inside"
    state = snapshot.state
    return Program(
        inside=Inside(),
        facts=compiled,
        num_warps=state.experiment.config.num_warps,
        gpu=state.gpu,
        sass=compiled.sass,
        about=picture_caption(state.experiment, state.gpu.name, "compiled"),
    )

