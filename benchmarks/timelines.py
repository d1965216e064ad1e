"""DRAM reads of launches whose timeline is taken, beside what was counted: `python -m benchmarks.timelines`. On a GPU.

Of the comparisons of GROUP_SIZE that were recorded on a GPU of this name, each float16 product in grouped order is
launched as it was counted: by itself, after a pause, its inputs not in the L2. Its programs write down when they ran,
and the model of the L2 is played on that. What is left of its error is the cache's; the rest was of when programs
start. Prints a line for each launch, and how far predictions are off. 418 launches take half a minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kernels.experiment import Experiment
    from kernels.gpus import Gpu
    from kernels.results import GroupSizeRow, GroupSizeStudy
    from visualize.predict.dispatch import Run

GROUP_SIZES = 1, 4, 16, 64
NAMES = "as is expected", "on the timeline"
MAX_PROGRAMS = 28_000

# The clock is up again after so long, and as in the launches that were counted the power limit is not reached.
_PAUSE_S = 0.03
_FLUSHED_BYTES = 256 << 20


def main() -> int:
    """Launch, predict and print; returns 1 where there is no GPU, or none of its comparisons."""
    from kernels.gpus import this_gpu
    from kernels.measuring import worker

    gpu = this_gpu()
    if gpu is None:
        print("There is no GPU here, so no timeline can be taken.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as cache:
        worker.start("cuda", cache)
        wanted = [(study, row) for study in _studies(gpu) for row in study.rows if row.group_size in GROUP_SIZES]
        if not wanted:
            print(f"No comparison of GROUP_SIZE is recorded on {gpu.name}.", file=sys.stderr)
            return 1
        experiments = [_experiment(study, row) for study, row in wanted]
        with ProcessPoolExecutor(max(1, (os.cpu_count() or 1) - 1), multiprocessing.get_context("spawn")) as pool:
            list(pool.map(_compile, [one.to_json() for one in experiments], [gpu.name] * len(experiments)))
        errors = []
        for (study, row), experiment in zip(wanted, experiments, strict=True):
            counted = statistics.median(row.dram_read_bytes)
            found = _expected(study, row, gpu), _played(study, experiment, gpu)
            errors.append([read_bytes / counted - 1 for read_bytes in found])
            what = f"{_sizes(experiment.problem, 'MNK')}, {_sizes(experiment.config, ('BLOCK_M', 'BLOCK_N'))} tiles"
            off = "; ".join(f"{name} {error:+.0%}" for name, error in zip(NAMES, errors[-1], strict=True))
            print(f"{what}, GROUP_SIZE {row.group_size}: {counted / 1e6:,.0f} MB counted; {off}", flush=True)
    for name, several in zip(NAMES, zip(*errors, strict=True), strict=True):
        off = np.abs(several)
        print(f"{name}: median error {np.median(off):.1%}, {np.count_nonzero(off <= 0.2)} of {len(off)} within 20 %")
    return 0


def _studies(gpu: Gpu) -> list[GroupSizeStudy]:
    """The recorded comparisons of float16 products in grouped order, but for the largest."""
    from kernels.measuring.measurements.group_sizes_measurement import GROUP_SIZES as MEASUREMENT
    from kernels.results import records

    studies = [recording.measured for recording in records.shipped(MEASUREMENT.form) if recording.gpu == gpu.name]
    of = [(study, study.experiment.kernel, study.experiment.problem) for study in studies]
    products = [study for study, kernel, problem in of if (kernel, problem.dtype) == ("matmul.grouped", "float16")]
    return [study for study in products if _programs(study.experiment, gpu) <= MAX_PROGRAMS]


def _programs(experiment: Experiment, gpu: Gpu) -> int:
    from kernels import discover
    from kernels.spec import Launch

    return discover()[experiment.kernel].programs(Launch(experiment.problem, experiment.config, gpu))


def _experiment(study: GroupSizeStudy, row: GroupSizeRow) -> Experiment:
    config: Any = study.experiment.config
    return dataclasses.replace(study.experiment, config=dataclasses.replace(config, GROUP_SIZE=row.group_size))


def _sizes(of: Any, names: Iterable[str]) -> str:
    return " × ".join(str(getattr(of, name)) for name in names)


def _compile(payload: dict[str, Any], gpu: str) -> None:
    """Into the cache that the environment names, in a process of its own."""
    from kernels import discover
    from kernels.compiling.compiler import compile_timed_build
    from kernels.experiment import from_json
    from kernels.gpus import GPUS

    compile_timed_build(from_json(payload, discover()), GPUS[gpu])


def _course(experiment: Experiment, gpu: Gpu) -> Run:
    """When each program ran, in units of the median program's time, and on which SM."""
    import torch

    from kernels.compiling.instrumented import TIMED_FIELDS, add_timer
    from kernels.measuring.prepared import prepare
    from visualize.predict.dispatch import Run

    plain = prepare(experiment, gpu)
    record = torch.empty((plain.kernel.programs(plain.setting), len(TIMED_FIELDS)), dtype=torch.int64, device="cuda")
    launch = dataclasses.replace(plain, kernel=add_timer(plain.kernel, record)).ready()
    launch()
    torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda").fill_(0)
    torch.cuda.synchronize()
    time.sleep(_PAUSE_S)
    launch()
    start, end, sm, _ = record.cpu().numpy().T
    took = end - start
    unit = np.median(took)
    return Run((start - start.min()) / unit, took / unit, sm)


def _expected(study: GroupSizeStudy, row: GroupSizeRow, gpu: Gpu) -> float:
    """Bytes read, as the scoreboard has them: with programs that start as is expected."""
    from visualize.scoreboard.predictions import shipped

    experiment = dataclasses.replace(study.experiment, gpu=gpu.name)
    reads = next(one.reads for one in shipped() if one.reads and one.experiment == experiment)
    return next(read_bytes for size, read_bytes, _ in reads if size == row.group_size)


def _played(study: GroupSizeStudy, experiment: Experiment, gpu: Gpu) -> float:
    """Bytes read on the course that a launch took."""
    from kernels import discover
    from kernels.spec import Launch
    from visualize.predict.reuse import read_bytes_on
    from visualize.predict.schedule import occupancy, schedule

    kernel, launch = discover()[experiment.kernel], Launch(experiment.problem, experiment.config, gpu)
    registers, shared_bytes = study.rows[0].registers, study.rows[0].shared_bytes
    held = occupancy(gpu, launch.config.num_warps, registers, shared_bytes)
    planned = schedule(kernel, launch, held.programs_per_sm, "compiled")
    return read_bytes_on(kernel, launch, planned, _course(experiment, gpu))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(main())
