"""The config that a kernel opens with: its published default or, if that does not launch on the GPU, the offer."""

from typing import Any

from kernels.compiling.compile_cost import estimate_shared_bytes, explain_spill, uses_matrix_units
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.measuring.run import RUN
from kernels.results import records
from kernels.spec import Kernel, Launch
from visualize.predict.offer import offer

_KIB = 1024


def explain_misfit(kernel: Kernel, problem: Any, gpu: Gpu) -> str:
    """Return why a kernel's published default config does not launch on a GPU, as a sentence; "" if it does.

    The estimate of shared memory may be too high, but a recorded run proves that the config launches. Without matrix
    units, a kernel whose accumulator spills takes minutes to compile.
    """
    launch = Launch(problem, kernel.config(), gpu)
    needed = estimate_shared_bytes(kernel, launch)
    if needed > gpu.shared_bytes_per_program:
        if records.find(RUN.form, Experiment(kernel.id, problem, kernel.config()), gpu.name):
            return ""
        return (
            f"The default config takes {needed / _KIB:.0f} KiB of shared memory per program; "
            f"{gpu.name} has {gpu.shared_bytes_per_program / _KIB:.0f} KiB."
        )
    if not uses_matrix_units(kernel, launch) and (spill := explain_spill(kernel, launch)):
        return f"The default config would compile for minutes. {spill.partition(' Make ')[0]}"
    return ""


def opening_config(kernel: Kernel, problem: Any, gpu: Gpu) -> Any:
    """Return the config with which a kernel opens on a GPU."""
    offered = offer(kernel, problem, gpu) if explain_misfit(kernel, problem, gpu) else None
    return offered.experiment.config if offered else kernel.config()


def explain_opening(kernel: Kernel, launch: Launch) -> str:
    """Return why a launch has the offered config and not the published default; "" if it does not have it."""
    why = explain_misfit(kernel, launch.problem, launch.gpu)
    offered = offer(kernel, launch.problem, launch.gpu) if why else None
    if offered is None or launch.config != offered.experiment.config:
        return ""
    return f"{why} This is the config offered for {launch.gpu.name}: {offered.origin}."
