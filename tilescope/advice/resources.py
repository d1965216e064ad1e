"""Find launches that do not fit on the GPU, and programs whose needs keep SMs idle."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from tilescope.advice.experiments import Alternatives, Candidate, TrialRunner, pass_options
from tilescope.declare.gpus import TENSOR_COLUMNS, Gpu
from tilescope.inside.report import SharedMap
from tilescope.inside.shared import fit_kernel
from tilescope.numbers import count_noun
from tilescope.timing.changes import GRID_KIND, MAX_WARPS

# The `share` of faults, of a lack of resources, and of a small grid.
FAULT = 2.0
_LACK = 0.5
_SMALL_GRID = -1.0
# Resident warps are reported if registers, shared or tensor memory limit them to less than this share.
_LOW_OCCUPANCY = 0.25


def examine_resources(runner: TrialRunner) -> Alternatives:
    """State that a program needs too much shared memory, or spills, or that its resources limit occupancy."""
    gpu = runner.gpu
    kernel = runner.kernel
    if gpu and kernel.shared_bytes > gpu.shared_bytes_per_program:
        return _explain_excess(runner, gpu)
    if gpu and kernel.tensor_columns > TENSOR_COLUMNS:
        return _explain_tensor_memory(runner, gpu)
    options = {"num_warps": 2 * kernel.num_warps, "num_stages": runner.num_stages - 1}
    trials = [
        pass_options({name: value}) for name, value in options.items() if 1 <= value <= MAX_WARPS
    ]
    if not trials:
        return []
    if kernel.spilled_bytes:
        text = f"Each thread spills {kernel.spilled_bytes:,} bytes of registers to local memory."
        cost = itemgetter("spilled_bytes")
        return [Candidate("spills", text, None, trials, cost=cost, share=_LACK)]
    if not gpu or math.prod(runner.launch.grid) <= gpu.sms:
        return []
    each = fit_kernel(gpu, kernel)
    limiting = {"registers", "shared memory", "tensor memory"}.intersection(each.limited_by)
    limits = " and ".join(sorted(limiting))
    if not limits or each.occupancy >= _LOW_OCCUPANCY:
        return []
    programs = count_noun(each.programs_per_sm, "program")
    warps = each.programs_per_sm * kernel.num_warps
    verb = "limit" if " and " in limits or limits == "registers" else "limits"
    text = f"A program's {limits} {verb} an SM to {programs} ({warps} warps)."
    return [
        Candidate(
            "occupancy",
            text,
            trials=trials,
            cost=lambda numbers: -numbers["resident_warps"],
            share=_LACK,
        )
    ]


def _explain_excess(runner: TrialRunner, gpu: Gpu) -> Alternatives:
    """State that a program needs more shared memory than the GPU has, and the lines with the largest buffers."""
    limit = gpu.shared_bytes_per_program
    shared = runner.inside.shared_map or SharedMap()
    fullest = Counter[str]()
    for step in range(len(shared.steps)):
        sizes = Counter[str]()
        for buffer in shared.buffers:
            if buffer.first <= step <= buffer.last:
                sizes[f"{buffer.file}:{buffer.line}"] += buffer.size_bytes
        fullest = max(fullest, sizes, key=Counter.total)
    need = f"{runner.kernel.shared_bytes:,} bytes of shared memory"
    fewer = range(runner.num_stages - 1, 0, -1)
    options = [{"num_stages": stages} for stages in fewer]
    return _fail("shared memory", gpu, need, limit, fullest, options, "shared_bytes")


def _explain_tensor_memory(runner: TrialRunner, gpu: Gpu) -> Alternatives:
    """State that a program needs more tensor memory than an SM has, and the lines with the largest accumulators."""
    columns = Counter[str]()
    for buffer in runner.inside.tensor_memory:
        columns[f"{buffer.file}:{buffer.line}"] += buffer.columns
    need = f"{runner.kernel.tensor_columns} columns of tensor memory"
    options = [{"num_warps": warps} for warps in (4, 8) if warps != runner.kernel.num_warps]
    options += [{"num_stages": stages} for stages in range(runner.num_stages - 1, 0, -1)]
    found = _fail("tensor memory", gpu, need, TENSOR_COLUMNS, columns, options, "tensor_columns")
    return [
        replace(each, text=f"{each.text} Smaller tl.dot blocks need fewer columns.")
        for each in found
    ]


def _fail(
    kind: str,
    gpu: Gpu,
    need: str,
    limit: int,
    lines: Counter[str],
    options: Sequence[Mapping[str, int]],
    cost: str,
) -> list[Candidate]:
    """State that a launch fails, with the two lines that need most, and the options that may make it fit."""
    largest = [f"{line} needs {size:,}" for line, size in lines.most_common(2)]
    parts = f" {' and '.join(largest)} of them." if largest else ""
    text = f"The launch fails on {gpu.device_name}: a program needs {need}, and the limit is {limit:,}.{parts}"
    trials = [pass_options(each) for each in options]
    return [
        Candidate(
            kind, text, trials=trials, cost=lambda numbers: numbers[cost] > limit, share=FAULT
        )
    ]


def examine_grid(runner: TrialRunner) -> Alternatives:
    programs = math.prod(runner.launch.grid)
    if not runner.gpu or programs >= runner.gpu.sms:
        return []
    idle = runner.gpu.sms - programs
    text = f"{idle} of {runner.gpu.sms} SMs stay idle, because the grid size is only {programs}."
    return [Candidate(GRID_KIND, text, share=_SMALL_GRID)]
