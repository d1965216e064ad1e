"""The kernel that the Memory view contrasts with the experiment's: another way to access the same tensor."""

import functools
from dataclasses import dataclass, replace
from typing import Any

from kernels import discover
from kernels.accesses import Access, FlatAccess
from kernels.experiment import Experiment, from_json, resolve_gpu
from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.measuring.counters import COUNTERS
from kernels.results import records
from kernels.spec import Kernel, Launch
from visualize.predict import coalescing
from visualize.predict.traffic import Operation
from visualize.views.state import State

# From this ratio of efficiencies, a contrast shows waste; below, it shows lanes beside boxes.
_NOTABLE_RATIO = 1.1

# Triton's launcher records of each integer argument whether this divides it.
DIVISOR = 16


@dataclass(frozen=True)
class Contrast:
    """Another kernel's access of the same tensor of the same problem, as its recorded code carries it out.

    Attributes:
        experiment: the other kernel with its own default config.
        operations: its accesses of the tensor in the same direction; `operation` wastes the most sectors of them.
        is_alike: whether this kernel's operation costs about the same, so that a second picture would show nothing new.
    """

    experiment: Experiment
    launch: Launch
    operations: tuple[Operation, ...]
    is_alike: bool = False

    @property
    def kernel(self) -> Kernel:
        return discover()[self.experiment.kernel]

    @property
    def operation(self) -> Operation:
        return max(self.operations, key=lambda op: op.launch.wasted_sectors)


def find_contrast(state: State, own: Operation) -> Contrast | None:
    """Return the kernel of the same family whose access of a tensor differs most from this kernel's.

    The largest ratio of efficiencies wins. If all are alike, a TMA box is a contrast to lanes, and lanes to a box. The
    layouts are those of recorded code, so that no compile is needed.

    Returns:
        None if no such kernel was recorded for a problem that compiles to the same code.
    """
    contrasts = []
    for kernel in discover().values():
        if kernel.id == state.kernel.id or kernel.family.root is not state.kernel.family.root:
            continue
        if recorded := _recorded_launch(kernel.id, state.experiment.problem, state.gpu.name):
            experiment, launch, operations = recorded
            if same := tuple(op for op in operations if same_access(op.access, own.access)):
                contrasts.append(Contrast(experiment, launch, same))

    def difference(contrast: Contrast) -> tuple[float, bool, int, bool]:
        op = contrast.operation
        ratio = max(op.launch.efficiency, own.launch.efficiency) / min(op.launch.efficiency, own.launch.efficiency)
        return (
            ratio if ratio >= _NOTABLE_RATIO else 1.0,
            op.is_box != own.is_box,
            -abs(op.launch.sectors - own.launch.sectors),
            contrast.kernel.family is state.kernel.family,
        )

    best = max(contrasts, key=difference, default=None)
    return best and replace(best, is_alike=difference(best)[:2] == (1.0, False))


def same_access(access: Access | FlatAccess, other: Access | FlatAccess) -> bool:
    """Return whether two accesses read, or write, the same tensor. A descriptor's direction is that of its tensor."""
    is_box = "descriptor" in (access.op, other.op)
    return access.tensor == other.tensor and (is_box or (access.op == "load") == (other.op == "load"))


@functools.lru_cache(256)
def _recorded_launch(kernel_id: str, problem: Any, gpu: str) -> tuple[Experiment, Launch, tuple[Operation, ...]] | None:
    """Return a kernel's experiment for a problem, its launch, and the operations as the recorded code carries them out.

    The kernel has its default config. The result is None if no code was recorded, or code for another type or layout,
    or if 16 does not divide a size that differs: the compiler then chooses other layouts.
    """
    if gpu not in GPUS:  # this machine's GPU is of another model
        return None
    recorded = from_json({"kernel": kernel_id, "gpu": gpu})
    counters = records.find(COUNTERS.form, recorded, gpu)
    fields, recorded_fields = vars(problem), vars(recorded.problem)
    if counters is None or fields.keys() != recorded_fields.keys():
        return None
    changed = [fields[name] for name, value in recorded_fields.items() if fields[name] != value]
    if any(isinstance(value, str) or value % DIVISOR for value in changed):
        return None
    try:
        experiment = from_json({**recorded.to_json(), "problem": fields})
    except ConfigError:
        return None
    launch = Launch(experiment.problem, experiment.config, resolve_gpu(experiment, None))
    return experiment, launch, coalescing.operations(discover()[kernel_id], launch, counters.compiled.operations)
