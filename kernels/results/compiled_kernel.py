"""What the compiler made of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.lanes import CompiledFacts


@dataclass(frozen=True)
class Compiled(CompiledFacts):
    """What the compiler made of a kernel for one GPU.

    Attributes:
        ttgir, ptx, sass: the kernel's text at three stages, with the source lines that it came from.
        triton: the compiler's version.
        seconds: how long it took; little where it was in the cache.
    """

    gpu: str
    ttgir: str
    ptx: str
    sass: str
    triton: str
    seconds: float
