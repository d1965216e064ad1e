"""Choose the config that a kernel opens with: its published default or, if that can't launch, the recommended one."""

from functools import lru_cache
from typing import Any

from tilescope.compiling.compile_cost import estimate_shared_bytes, explain_spill, uses_matrix_units
from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import Gpu
from tilescope.declare.spec import Kernel, Launch
from tilescope.measure.run import RUN
from tilescope.results import records
from visualize.predict.offer import offer

_KIB = 1024


# Cached, because each move of a slider repeats the call.
@lru_cache(maxsize=256)
def _choose_config(kernel: Kernel, problem: Any, gpu: Gpu) -> tuple[Any, str]:
    """Return a config, and why it is not the published default; "" if it is.

    The estimate of shared memory may be too high, but a recorded run proves that the default launches. Without matrix
    units, a kernel whose accumulator spills takes minutes to compile.
    """
    default = kernel.config()
    launch = Launch(problem, default, gpu)
    needed = estimate_shared_bytes(kernel, launch)
    most = gpu.shared_bytes_per_program
    why = ""
    if not uses_matrix_units(kernel, launch) and explain_spill(kernel, launch):
        why = "The default config would spill registers and take minutes to compile."
    if needed > most and not records.find(
        RUN.form, Experiment(kernel.id, problem, default), gpu.name
    ):
        needs = f"The default config takes {needed / _KIB:.0f} KiB of shared memory"
        why = f"{needs}; {gpu.name} has {most / _KIB:.0f} KiB."
    offered = offer(kernel, problem, gpu) if why else None
    if offered is None:
        return default, ""
    return offered.experiment.config, f"{why} The recommended config replaces it."


def opening_config(kernel: Kernel, problem: Any, gpu: Gpu) -> Any:
    """Return the config with which a kernel opens on a GPU."""
    return _choose_config(kernel, problem, gpu)[0]


def explain_opening(kernel: Kernel, launch: Launch) -> str:
    """Return why a launch has the offered config and not the published default; "" if it does not have it."""
    config, why = _choose_config(kernel, launch.problem, launch.gpu)
    return why if launch.config == config else ""
