"""Compile an experiment, and inspect its launch like those of a captured script. Runs in a compile worker."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from tilescope.captures.content import Content
from tilescope.captures.reader import BaseCapture
from tilescope.compiling.compiler import compile_kernel, stand_in_tensors
from tilescope.compiling.estimates import compile_seconds
from tilescope.declare.experiment import Experiment, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError, knobs, read_fields
from tilescope.declare.spec import Kernel, Launch, TensorSpec
from tilescope.evaluate.captured import count_launch
from tilescope.inside.inspect import Inspection, correct_counts, inspect
from tilescope.inside.report import ChangedTime, Inside
from tilescope.numbers import significant
from tilescope.results import Stopped
from tilescope.timing.changes import LEAST_SAVING, list_options, name_options, sort_changes
from tilescope.timing.launches import add_time

# The most changes of an experiment to compile.
MAX_TRIALS = 2
# The longest compilation of a change, in seconds.
_MOST_TRIAL_S = 10.0


def inspect_experiment(experiment: Experiment, gpu: Gpu) -> Inspection:
    """Compile the experiment's kernel for `gpu`, and inspect the programs of its launch.

    Raises:
        Stopped: as for `compile_kernel`.
    """
    kernel, setting = launch_of(experiment, gpu)
    capture = capture_launch(kernel, setting)
    (launch,) = capture.content.launches
    counts = count_launch(capture, launch)
    inspection = inspect(capture, launch, counts)
    executions = inspection[1]
    counts = correct_counts(capture, launch, counts, executions)
    inside = add_time(capture, launch, counts, inspection)
    return _add_copies(inside, 1e3 * kernel.copies_ms(setting)), executions


def _add_copies(inside: Inside, copies_us: float) -> Inside:
    """Add the assumed time of the copies that precede the launch to its predicted times."""
    if not copies_us or not inside.range_us:
        return inside
    low, high = inside.range_us
    assumed = (
        f"The predicted time assumes {significant(copies_us)} µs for the copies before the launch."
    )
    return replace(
        inside,
        predicted_us=copies_us + (inside.predicted_us or 0.0),
        predicted_warm_us=copies_us + (inside.predicted_warm_us or 0.0),
        range_us=(copies_us + low, copies_us + high),
        changes=tuple(
            replace(each, predicted_us=copies_us + each.predicted_us) for each in inside.changes
        ),
        assumed=f"{inside.assumed} {assumed}".strip(),
    )


def list_trials(
    experiment: Experiment, gpu: Gpu, inside: Inside
) -> Sequence[tuple[Mapping[str, int], Experiment]]:
    """Return options that are worth a compilation, each with the changed experiment; none if some were compiled."""
    if any(each.is_compiled for each in inside.changes):
        return []
    config = experiment.config
    options = list_options(inside, config.num_warps, config.num_stages)
    trials = []
    for option in (*_fill_grid(experiment, gpu), *options):
        with suppress(ConfigError):
            changed = read_fields(type(config), {**vars(config), **option}, "the config")
            trial = replace(experiment, config=changed)
            if compile_seconds(*launch_of(trial, gpu)) <= _MOST_TRIAL_S:
                trials.append((option, trial))
    return trials[:MAX_TRIALS]


def _fill_grid(experiment: Experiment, gpu: Gpu) -> Sequence[Mapping[str, int]]:
    """Return the block size that divides the work most equally among the SMs; () if none helps."""
    kernel, launch = launch_of(experiment, gpu)

    def imbalance(change: Mapping[str, int]) -> float:
        changed = replace(launch, config=replace(launch.config, **change))
        programs = kernel.programs(changed)
        return math.ceil(programs / gpu.sms) * gpu.sms / programs

    sizes = [
        {name: size}
        for name, knob in knobs(type(launch.config)).items()
        if name.startswith("BLOCK")
        for size in (getattr(launch.config, name) // 2, getattr(launch.config, name) * 2)
        if size in (knob.choices or ())
    ]
    best = min(sizes, key=imbalance, default={})
    return [best] if imbalance(best) <= (1 - LEAST_SAVING) * imbalance({}) else []


def try_changes(experiment: Experiment, gpu: Gpu, inside: Inside) -> Inside:
    """Compile the changes that may shorten an experiment, and return the inspection with the predicted times."""
    changes = [*inside.changes]
    for options, trial in list_trials(experiment, gpu, inside):
        with suppress(Stopped):
            tried, _ = inspect_experiment(trial, gpu)
            if time_us := tried.predicted_us:
                name = name_options(options)
                changes.append(ChangedTime(name, time_us, options, is_compiled=True))
    return replace(inside, changes=sort_changes(changes))


class LaunchCapture(BaseCapture):
    """The launch of an experiment. Only tensors that start zeroed have known contents.

    Args:
        code: the kernel's code, by stage.
        sizes: the sizes of the arrays, in elements.
    """

    def __init__(self, content: Content, code: Mapping[str, str], sizes: Sequence[int]) -> None:
        self.content = content
        self._code = code
        self._sizes = sizes

    def read_code(self, kernel: int, stage: str) -> str:
        return self._code[stage]

    def read_array(self, number: int) -> np.ndarray:
        return np.zeros(self._sizes[number], np.int32)


def capture_launch(kernel: Kernel, launch: Launch, maps_memory: bool = True) -> LaunchCapture:
    """Compile a launch of a declared kernel, and return it.

    Args:
        maps_memory: as for `describe_kernel`.

    Raises:
        Stopped: as for `compile_kernel`.
    """
    from tilescope.record.compiled import describe_kernel, disassemble, read_resources

    specs = kernel.tensors(launch)
    tensors = stand_in_tensors(specs, launch)
    zeroed = [name for name, spec in specs.items() if spec.starts_zeroed]
    compiled = compile_kernel(kernel, launch)
    registers, spilled = read_resources(compiled.asm["cubin"])
    gpu = launch.gpu
    content = TypeAdapter(Content).validate_python(
        {
            "format": 1,
            "triton": "",
            "script": "",
            "gpu": {"name": gpu.name, "sms": gpu.sms, "compute_capability": gpu.compute_capability},
            "stopped": None,
            "not_captured": (),
            "cases": {},
            "kernels": [
                {
                    **describe_kernel(compiled, maps_memory),
                    "registers": registers,
                    "spilled_bytes": spilled,
                }
            ],
            "arrays": [{"why_missing": ""} for _ in zeroed],
            "storages": [
                {"bytes": spec.stored_bytes(launch.problem), "address_bytes": 0}
                for spec in specs.values()
            ],
            "launches": [
                {
                    "kernel": 0,
                    "grid": [*kernel.grid(launch), 1, 1][:3],
                    "caller": {"file": "", "line": 0},
                    "config": {"num_stages": compiled.metadata.num_stages},
                    "tuned": None,
                    "ran": False,
                    "elapsed_ms": None,
                    "case": None,
                    "arguments": _describe_arguments(
                        compiled.src.signature,
                        kernel.arguments(tensors, launch),
                        launch,
                        specs,
                        tensors,
                        zeroed,
                    ),
                }
            ],
        }
    )
    code = {**compiled.asm, "sass": disassemble(compiled.asm["cubin"])}
    return LaunchCapture(content, code, [math.prod(specs[name].shape) for name in zeroed])


def _describe_arguments(
    signature: dict[str, Any],
    given: Mapping[str, Any],
    launch: Launch,
    specs: Mapping[str, TensorSpec],
    tensors: Mapping[str, Any],
    zeroed: Sequence[str],
) -> Any:
    """Return the JSON of a launch's arguments. Each tensor has its own storage, and an array if it starts zeroed."""
    from tilescope.record.arguments import as_compiled, describe_arguments

    names = {tensor.untyped_storage()._cdata: name for name, tensor in tensors.items()}

    def describe_tensor(stand_in: Any) -> dict[str, Any]:
        tensor = stand_in.base
        name = names[tensor.untyped_storage()._cdata]
        return {
            "dtype": specs[name].dtype_in(launch.problem),
            "element_bytes": tensor.element_size(),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "storage": [*specs].index(name),
            "offset_bytes": stand_in.offset_bytes,
            "array": zeroed.index(name) if name in zeroed else None,
            "is_known": True,
        }

    values = {name: as_compiled(given[name]) for name in signature}
    return describe_arguments(signature, values, describe_tensor, launch.gpu.has_tma)
