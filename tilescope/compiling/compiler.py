"""Compile a kernel for any GPU, on a machine with or without one, and inspect its launches like those of a script.

Runs in a compile worker.

Triton's own launcher binds the arguments: stand-in tensors and the real sizes. The kernel is therefore specialized
exactly as in a launch (sizes divisible by 16, or equal to 1), and the run worker finds it in the shared cache.
"""

import errno
import functools
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from tilescope.captures.listings import UnsupportedOperation
from tilescope.captures.reader import BaseCapture, Content
from tilescope.compiling.compile_cost import compile_seconds, suggest_smaller_config
from tilescope.compiling.instrumented import TIMED_FIELDS, add_timer
from tilescope.declare.experiment import Experiment, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.declare.jit import display_path
from tilescope.declare.knobs import ConfigError, knobs, read_fields
from tilescope.declare.spec import Kernel, Launch, Specs, TensorSpec
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.matching import find_conversions, read_operations
from tilescope.evaluate.sectors import LANES
from tilescope.inside.inspect import Inspection, inspect, join_launches
from tilescope.inside.report import ChangedTime, Inside
from tilescope.results import Compiled, Failure, SweepPrediction
from tilescope.timing.changes import LEAST_SAVING, list_options, name_options, sort_changes
from tilescope.timing.launches import add_time, predict_captured
from tilescope.timing.model import find_bound

_TOO_FEW_REGISTERS = re.compile(r"Insufficient registers \((\d+)\).*register target of (\d+)")
# "ptxas fatal   : (C7602) text", "ptxas a.ptx, line 7; error   : text", "/a/b.py:29:0: error: text"
_ERROR = re.compile(r"(?<!PTXAS )\b(?:error|fatal)\s*: (?:\(\w+\) )?(.+)")
_QUOTED_PATH = re.compile(r'"(/[^"\n]+)"')
_PATH = re.compile(r"(?<![\w.])/\w[^\s\"':,;]+")

# The most changes of an experiment to compile.
MOST_TRIALS = 2
# The longest compilation of a change, in seconds.
_MOST_TRIAL_S = 10.0


def compile_into_cache(experiment: Experiment, gpu: Gpu, is_timed: bool = False) -> Failure | None:
    """Compile the experiment's kernel for `gpu` into the shared cache. Return the Failure, if any.

    Args:
        is_timed: compile the instrumented build, whose programs record when they ran.
    """
    declared, launch = launch_of(experiment, gpu)
    kernels = (timed_build(declared, launch) if is_timed else declared).launches(launch)
    compiled = (compile_kernel(kernel, launch) for kernel in kernels)
    return next((result for result in compiled if isinstance(result, Failure)), None)


def timed_build(declared: Kernel, launch: Launch) -> Kernel:
    """Return a kernel's timed build with a stand-in record tensor. It can be compiled but not launched."""
    rows = TensorSpec((declared.programs(launch), len(TIMED_FIELDS)), is_input=False)
    return add_timer(declared, _stand_in_tensor("int64", rows))


def compile_experiment(experiment: Experiment, gpu: Gpu) -> Compiled | Failure:
    """Compile the experiment's kernel for `gpu`. Return its registers, memory operations, IR, PTX and SASS."""
    return compile_launch(*launch_of(experiment, gpu))


def compile_launch(declared: Kernel, launch: Launch) -> Compiled | Failure:
    """Compile a launch of any declared kernel, and the launch that it needs first. See `compile_experiment`."""
    first: Compiled | None = None
    for kernel in declared.launches(launch):
        if isinstance(compiled := _compile_one(kernel, launch), Failure):
            return compiled
        if first:
            unreadable = first.unreadable or compiled.unreadable
            operations = () if unreadable else first.operations + compiled.operations
            seconds = first.seconds + compiled.seconds
            compiled = replace(
                compiled, operations=operations, unreadable=unreadable, seconds=seconds, first=first
            )
        first = compiled
    return compiled


def _compile_one(declared: Kernel, launch: Launch) -> Compiled | Failure:
    import triton

    from tilescope.record.compiled import disassemble, read_resources

    start = time.perf_counter()
    kernel = compile_kernel(declared, launch)
    if isinstance(kernel, Failure):
        return kernel
    asm = kernel.asm
    sass = disassemble(asm["cubin"])
    registers, spilled_bytes = read_resources(asm["cubin"])
    accesses = declared.accesses(launch)
    tensors = declared.tensors(launch)
    shapes = [tensors[access.tensor].stored for access in accesses]
    try:
        operations = read_operations(accesses, shapes, asm["ttgir"], asm["ptx"], sass)
        unreadable = ""
    except UnsupportedOperation as error:
        operations = ()
        unreadable = str(error)
    return Compiled(
        gpu=launch.gpu.name,
        registers=registers,
        spilled_bytes=spilled_bytes,
        shared_bytes=kernel.metadata.shared,
        operations=operations,
        conversions=find_conversions(asm["ttgir"]),
        ttgir=hide_paths(asm["ttgir"]),
        ptx=hide_paths(asm["ptx"]),
        sass=hide_paths(sass),
        triton=triton.__version__,
        seconds=time.perf_counter() - start,
        unreadable=unreadable,
    )


def hide_paths(text: str) -> str:
    """Shorten the absolute paths quoted in TTGIR, PTX or SASS, as `display_path` does."""
    return _QUOTED_PATH.sub(lambda match: f'"{display_path(match[1])}"', text)


def compile_kernel(declared: Kernel, launch: Launch) -> Any:
    """Return Triton's compiled kernel or a Failure."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    gpu = launch.gpu
    major, minor = gpu.compute_capability
    capability = 10 * major + minor
    # This driver only names the target. Triton caches kernels by device, so each target gets its own device number.
    stand_in = SimpleNamespace(
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_current_device=lambda: capability,
    )
    driver.set_active(stand_in)
    tensors = stand_in_tensors(declared.tensors(launch), launch)
    with capture_output() as printed:
        try:
            arguments = declared.arguments(tensors, launch)
            kernel = declared.jitted.warmup(**arguments, grid=declared.grid(launch))
        except Exception as error:  # the compiler can raise any type
            if _discard_entry(error):
                return compile_kernel(declared, launch)
            return explain_rejection(error, printed(), launch)
    shared = kernel.metadata.shared
    if shared > gpu.shared_bytes_per_program:
        change = suggest_smaller_config(declared, launch, shared)
        message = (
            f"This config needs {shared:,} bytes of shared memory per program; {gpu.name} allows "
            f"{gpu.shared_bytes_per_program:,}. Make the tile or num_stages smaller"
        )
        message += f"; with {change} it should fit." if change else "."
        return _too_large(message, launch)
    return kernel


def _too_large(message: str, launch: Launch) -> Failure:
    """Return the failure of a config that cannot launch, at the first size of its tile."""
    return Failure("compile", "out_of_resources", message, next(iter(knobs(type(launch.config)))))


def _discard_entry(error: Exception) -> bool:
    """Delete a kernel's folder in Triton's cache if one of its files can't be read. Return whether it was deleted."""
    from triton import knobs

    folder = Path(getattr(error, "filename", None) or "/").parent
    if folder.parent != Path(knobs.cache.dir):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def stand_in_tensors(specs: Specs, launch: Launch) -> dict[str, Any]:
    """Return a tensor without storage for each spec."""
    return {
        name: _stand_in_tensor(spec.dtype_in(launch.problem), spec) for name, spec in specs.items()
    }


def _stand_in_tensor(dtype: str, spec: TensorSpec) -> Any:
    """Return a tensor without storage. Its address, 0, is aligned at least as well as any torch allocation."""
    import torch

    return torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, dtype), device="meta")


@contextmanager
def capture_output() -> Iterator[Callable[[], str]]:
    """Capture output, including native output: MLIR and ptxas dump whole kernels when they fail.

    Yields:
        A function that returns the text printed so far.
    """
    with (
        tempfile.TemporaryFile("w", encoding="utf-8", errors="replace") as file,
        ExitStack() as stack,
    ):

        def printed() -> str:
            file.flush()
            return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(
                "utf-8", "replace"
            )

        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        for number in (1, 2):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(file.fileno(), number)
        stack.enter_context(redirect_stdout(file))
        stack.enter_context(redirect_stderr(file))
        yield printed


def explain_rejection(error: Exception, printed: str, launch: Launch) -> Failure:
    """Convert an exception from the compiler to a Failure.

    Args:
        printed: the compiler's output up to the exception.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = (
            f"The disk of {Path(os.environ['TRITON_CACHE_DIR']).name} is full ({error.strerror}), so the compiled "
            "kernel can't be saved. Free some space, or point TILESCOPE_CACHE to another folder."
        )
        return Failure("compile", "disk_full", message)
    text = f"{error}\n{printed}"
    if match := _TOO_FEW_REGISTERS.search(text):
        message = (
            f"This config needs at least {match[2]} registers per thread; with {LANES * launch.config.num_warps} "
            f"threads per program, {launch.gpu.name} allows {match[1]}. Make the tile smaller."
        )
        return _too_large(message, launch)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if match := _ERROR.search(text):
        reason = match[1].strip()
    elif lines and lines[0].startswith(
        "PTXAS error: "
    ):  # ptxas crashed; the following lines say how to reproduce it
        reason = lines[0].removeprefix("PTXAS error: ")
    else:  # the last line of a Python exception's message gives the reason
        reason = f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
    reason = _PATH.sub(lambda match: display_path(match[0]), reason)
    return Failure("compile", "compile_error", f"Triton could not compile this config: {reason}")


def inspect_experiment(experiment: Experiment, gpu: Gpu) -> Inspection | Failure:
    """Compile the experiment's kernel for `gpu`, and inspect the programs of its launches."""
    capture = capture_launches(*launch_of(experiment, gpu))
    if isinstance(capture, Failure):
        return capture
    launches = capture.content.launches
    inspections = []
    for each in launches:
        counts = count_launch(capture, each)
        inspection = inspect(capture, each, counts)
        inspections.append((add_time(capture, each, counts, inspection), inspection[1]))
    return functools.reduce(join_launches, inspections)


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
    return trials[:MOST_TRIALS]


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
        inspection = inspect_experiment(trial, gpu)
        if isinstance(inspection, tuple) and (time_us := inspection[0].predicted_us):
            changes.append(ChangedTime(name_options(options), time_us, options, is_compiled=True))
    return replace(inside, changes=sort_changes(changes))


def predict_experiment(experiment: Experiment, gpu: Gpu) -> SweepPrediction | None:
    """Predict the time of the experiment's launches from their compiled code; None if it is unknown."""
    capture = capture_launches(*launch_of(experiment, gpu))
    if isinstance(capture, Failure):
        return None
    try:
        launches = [predict_captured(capture, each) for each in capture.content.launches]
    except UnsupportedOperation:
        return None
    is_warm = experiment.run.l2 == "warm"
    total_us = sum(each.warm_us if is_warm else each.total_us for each in launches)
    by_resource = {
        name: sum(each.by_resource_us[name] for each in launches) / 1e3
        for name in launches[0].by_resource_us
    }
    ms = total_us / 1e3
    return SweepPrediction(ms, find_bound(by_resource, ms), tuple(by_resource.items()))


class LaunchCapture(BaseCapture):
    """The launches of an experiment. Only tensors that start zeroed have known contents.

    Args:
        codes: the code of each kernel, by stage.
        sizes: the sizes of the arrays, in elements.
    """

    def __init__(
        self, content: Content, codes: Sequence[Mapping[str, str]], sizes: Sequence[int]
    ) -> None:
        self.content = content
        self._codes = codes
        self._sizes = sizes

    def read_code(self, kernel: int, stage: str) -> str:
        return self._codes[kernel][stage]

    def read_array(self, number: int) -> np.ndarray:
        return np.zeros(self._sizes[number], np.int32)


def capture_launches(declared: Kernel, launch: Launch) -> LaunchCapture | Failure:
    """Compile each launch of a declared kernel, and return them."""
    from tilescope.record.compiled import describe_kernel, disassemble, read_resources

    specs = declared.tensors(launch)
    tensors = stand_in_tensors(specs, launch)
    zeroed = [name for name, spec in specs.items() if spec.starts_zeroed]
    kernels = []
    codes = []
    launches: list[dict[str, Any]] = []
    for kernel in declared.launches(launch):
        compiled = compile_kernel(kernel, launch)
        if isinstance(compiled, Failure):
            return compiled
        registers, spilled = read_resources(compiled.asm["cubin"])
        kernels.append(
            {**describe_kernel(compiled), "registers": registers, "spilled_bytes": spilled}
        )
        codes.append({**compiled.asm, "sass": disassemble(compiled.asm["cubin"])})
        launches.append(
            {
                "kernel": len(launches),
                "grid": [*kernel.grid(launch), 1, 1][:3],
                "caller": {"file": "", "line": 0},
                "config": {"num_stages": compiled.metadata.num_stages},
                "tuned": None,
                "ran": False,
                "elapsed_ms": None,
                "case": None,
                "arguments": _describe_arguments(kernel, launch, specs, tensors, zeroed),
            }
        )
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
            "kernels": kernels,
            "arrays": [{"why_missing": ""} for _ in zeroed],
            "storages": [
                {"bytes": spec.stored_bytes(launch.problem), "address_bytes": 0}
                for spec in specs.values()
            ],
            "launches": launches,
        }
    )
    return LaunchCapture(content, codes, [math.prod(specs[name].shape) for name in zeroed])


def _describe_arguments(
    kernel: Kernel,
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

    given = kernel.arguments(tensors, launch)
    values = {name: as_compiled(given.pop(name)) for name in kernel.jitted.arg_names}
    capability = list(launch.gpu.compute_capability)
    return describe_arguments(kernel.jitted, values, given, describe_tensor, capability)
