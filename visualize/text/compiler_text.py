"""What the Compiler tab says: registers, shared memory, and how many programs an SM holds."""

from __future__ import annotations

from markupsafe import Markup
from pandas import DataFrame

from kernels.results import Compiled
from kernels.spec import Launch
from visualize.predict.schedule import Occupancy
from visualize.views.numbers import bytes_of, counted, enumerated
from visualize.views.prose import Mark, Sourced, Strong, headline, say, term
from visualize.views.tables import frame


def claim(launch: Launch, compiled: Compiled, held: Occupancy) -> Markup:
    """The occupancy, and what a thread and a program need for it."""
    gpu = compiled.gpu
    spills = f"{compiled.spilled_bytes:,} bytes spilled" if compiled.spilled_bytes else "none spilled"
    return headline(
        f"{100 * held.occupancy:.3g} %",
        say("occupancy on {} {}", gpu, Mark("predicted")),
        say(
            "An SM holds {}, {} of its {} warps, limited by {}. {} of shared memory per program, {} per thread, {}.",
            Strong(counted(held.programs_per_sm, "program")),
            held.programs_per_sm * launch.config.num_warps,
            launch.gpu.max_warps_per_sm,
            enumerated(held.limited_by),
            bytes_of(compiled.shared_bytes),
            counted(compiled.registers, "register"),
            Sourced(spills, "compiled"),
        ),
        say("Triton {} compiled it.", compiled.triton),
        launch.gpu.caveat,
    )


def resources(launch: Launch, compiled: Compiled, held: Occupancy) -> DataFrame:
    """What the kernel needs of each resource, what an SM has, and how many programs that allows."""
    gpu = launch.gpu
    needs = {
        "warps": (f"{launch.config.num_warps} per program", f"{gpu.max_warps_per_sm} per SM"),
        "programs": ("1", f"{gpu.max_programs_per_sm} per SM"),
        "registers": (f"{compiled.registers} per thread", f"{gpu.registers_per_sm:,} per SM"),
        "shared memory": (f"{compiled.shared_bytes:,} bytes per program", f"{gpu.shared_bytes_per_sm:,} bytes per SM"),
    }
    header = ("resource", "this kernel needs", "the GPU has", term("programs per SM"))
    return frame(header, [(name, *needs[name], str(allowed)) for name, allowed in held.limits.items()])
