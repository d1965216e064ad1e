"""Compiles ahead of the timing, on all cores but one: a sweep is mostly compiling."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import Future
from pathlib import Path

from kernels import discover
from kernels.compiling.compiler import compile_experiment
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.jit import HAS_TRITON
from kernels.knobs import ConfigError
from kernels.measuring.fair_queue import Call
from kernels.measuring.pool import Pool, died
from kernels.measuring.worker import as_failure
from kernels.results import Failure, SweepRow
from kernels.results.sweep import Status
from kernels.spec import Launch
from kernels.sweep.device import NO_WORKER, Build, Predict

# A compile's failures that say something of the config: it can't launch. Others say something of this machine.
_OF_THE_CONFIG = {"out_of_resources", "compile_error", "timeout"}


# Compile processes at most: each takes some hundred megabytes.
_MOST = 64


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@as_failure("compile")
def built(experiment: Experiment, gpu: Gpu, predict: Predict) -> Build | Failure:
    """Compile into the shared cache, and predict from what the compiler made of it. In a compile worker."""
    compiled = compile_experiment(experiment, gpu)
    if isinstance(compiled, Failure):
        return compiled
    launch = Launch(experiment.problem, experiment.config, gpu)
    try:
        predicted = predict(discover()[experiment.kernel], launch, compiled)
    except ConfigError:  # too many tiles for the model, which is no fault of the config
        predicted = None
    return Build(compiled.registers, compiled.spilled_bytes, compiled.shared_bytes, compiled.seconds, predicted)


def compiles_at_once() -> int:
    """Compile processes that a sweep starts here: one per core, one core left to the timing."""
    return max(1, min(_MOST, usable_cores() - 1))


# What is said where no worker starts. Each imports the script that the sweep is in.
_NO_WORKER = (
    "Nothing can be compiled, as no compile worker starts: each died before it took any work. A script must "
    'start a sweep below `if __name__ == "__main__":`, as each worker imports that script.'
)


class LocalBuilder:
    """A `Builder` of worker processes on this machine, whose results the run worker finds in the same cache.

    Args:
        predict: a function of a module: the workers find it by name.
        count: of processes; None for one per core that this process may use, one core left to the timing.
    """

    def __init__(self, gpu: Gpu, predict: Predict, cache: Path, count: int | None = None) -> None:
        self._gpu, self._predict = gpu, predict
        self.at_once = count or compiles_at_once()
        self._pool = Pool("compile", str(cache), self.at_once)

    def submit(self, experiment: Experiment) -> Future[Build | Failure]:
        """Start a compile. One whose worker dies is compiled once more."""
        result: Future[Build | Failure] = Future()
        if not HAS_TRITON:
            result.set_result(Failure("compile", "no_triton", "Triton is not installed: nothing can be compiled."))
        else:
            self._start(experiment, result, tries=2)
        return result

    def _start(self, experiment: Experiment, result: Future[Build | Failure], tries: int) -> None:
        def end(call: Future[Build | Failure]) -> None:
            value = call.result()
            has_died = isinstance(value, Failure) and value.kind == "worker_died"
            if has_died and tries > 1:
                self._start(experiment, result, tries - 1)
            elif has_died and not self._pool.has_started:
                result.set_result(Failure("compile", NO_WORKER, _NO_WORKER))
            else:
                result.set_result(died("compile", "twice") if has_died else value)

        call = Call("compile", built, (experiment, self._gpu, self._predict))
        self._pool.submit(call).add_done_callback(end)

    def close(self) -> None:
        """Kill the workers."""
        self._pool.close()


def unbuilt(row: SweepRow, failure: Failure) -> SweepRow | None:
    """The row of a config that was not compiled: set aside where it can't be, else failed; None where cancelled."""
    if failure.kind == "cancelled":
        return None
    status: Status = "set aside" if failure.kind in _OF_THE_CONFIG else "failed"
    return dataclasses.replace(row, status=status, reason=failure.message)
