"""Compiles that are kept, and those under way. What would never be done is not started."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait

from kernels import discover
from kernels.compiling import compiler
from kernels.compiling.compile_cost import compile_seconds, explain_refusal
from kernels.equivalence import same_launch
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.measuring.bounded_cache import BoundedCache
from kernels.measuring.processes import cancelled
from kernels.measuring.turns import Client, Shared
from kernels.measuring.under_way import UnderWay
from kernels.results import Compiled, Failure
from kernels.spec import Kernel, Launch

# Compiled kernels that are kept, and characters of their texts: some 100,000 each, millions where a tile spills.
MOST_KEPT, MOST_CHARACTERS = 64, 16_000_000

Outcome = Future[Compiled | Failure]


class Compiles:
    """What the workers compiled, by launch and specialization."""

    def __init__(self, workers: Shared) -> None:
        self._workers = workers
        self._kept: BoundedCache[tuple[Experiment, str], Compiled] = BoundedCache(
            MOST_KEPT, lambda one: len(one.ttgir) + len(one.ptx) + len(one.sass), MOST_CHARACTERS
        )
        self._under_way: UnderWay[tuple[Experiment, str], Compiled] = UnderWay("compile", self._kept.put)

    def known(self, experiment: Experiment, gpu: Gpu, specialization: str) -> Compiled | None:
        """What is kept. Returns at once."""
        return self._kept.get((same_launch(experiment, gpu.name), specialization))

    def asked(self, experiment: Experiment, gpu: Gpu, specialization: str, client: Client) -> Outcome:
        """What is kept, or what a worker makes of the experiment. Returns at once, and waits without a thread.

        Who wants it no more cancels what is returned. A compile that nobody wants is ended, unless it is about to end.
        """
        outcome = self.known(experiment, gpu, specialization) or refused_compile(*_launch(experiment, gpu))
        if outcome is not None:
            asked: Outcome = Future()
            asked.set_result(outcome)
            return asked
        return self._under_way.joined(
            (same_launch(experiment, gpu.name), specialization),
            lambda: self._workers.submit(
                *(compiler.compile_experiment, "compile", experiment, gpu, specialization),
                client=client,
                seconds=compile_seconds(*_launch(experiment, gpu)),
            ),
        )


def refused_compile(kernel: Kernel, launch: Launch) -> Failure | None:
    """Why a launch is not compiled, where that would not end before its deadline."""
    why = explain_refusal(kernel, launch)
    return Failure("compile", "too_slow_to_compile", why) if why else None


def waited_for(asked: Outcome, wanted: Callable[[], bool]) -> Compiled | Failure:
    """Wait for a compile that was asked for, as long as it is wanted, which is asked now and then."""
    while not wait([asked], timeout=0.1).done:
        if not wanted():
            asked.cancel()
            return cancelled("compile")
    return asked.result()


def _launch(experiment: Experiment, gpu: Gpu) -> tuple[Kernel, Launch]:
    return discover()[experiment.kernel], Launch(experiment.problem, experiment.config, gpu)
