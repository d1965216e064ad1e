"""Compiles that are kept, and those under way: one for all who wait for the same, ended where nobody does any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

from kernels.compiled import compiler
from kernels.equivalence import same_launch
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.results import Compiled, Failure
from kernels.runner.bounded_cache import BoundedCache
from kernels.runner.processes import Workers, cancelled, outcome

# Seconds that a compile may go on that nobody wants any more: ending it costs its worker, and another one's start.
PATIENCE_S = 3.0

# Compiled kernels whose texts (a few hundred kilobytes each) are kept.
MOST_KEPT = 64


@dataclass
class _UnderWay:
    """A compile that several may wait for."""

    future: Any
    waiting: int = 0


class Compiles:
    """What the workers compiled, by launch and specialization."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._kept: BoundedCache[tuple[Experiment, str], Compiled] = BoundedCache(MOST_KEPT)
        self._under_way: dict[tuple[Experiment, str], _UnderWay] = {}
        self._lock = threading.Lock()

    def known(self, experiment: Experiment, gpu: Gpu, specialization: str) -> Compiled | None:
        """What is kept. Returns at once."""
        return self._kept.get((same_launch(experiment, gpu.name), specialization))

    def of(
        self, experiment: Experiment, gpu: Gpu, specialization: str, wanted: Callable[[], bool]
    ) -> Compiled | Failure:
        """What is kept, or what a worker makes of the experiment; waits for it.

        Args:
            wanted: asked now and then; what nobody wants any more is ended, unless it is about to end anyway.
        """
        if (kept := self.known(experiment, gpu, specialization)) is not None:
            return kept
        key = same_launch(experiment, gpu.name), specialization
        with self._lock:
            if key not in self._under_way:
                call = self._workers.submit(compiler.compiled_for, "compile", experiment, gpu, specialization)
                self._under_way[key] = _UnderWay(call)
            under_way = self._under_way[key]
            under_way.waiting += 1
        try:
            result = _waited_for(under_way.future, wanted)
        finally:
            with self._lock:
                under_way.waiting -= 1
                if not under_way.waiting:
                    self._under_way.pop(key, None)
                    under_way.future.cancel()
        if isinstance(result, Compiled):
            self._kept.put(key, result)
        return result


def _waited_for(future: Any, wanted: Callable[[], bool]) -> Compiled | Failure:
    """The outcome, or a Failure once it is not wanted."""
    began = time.monotonic()
    # A call of a pool that was stopped is cancelled, and nobody is left to tell those who wait.
    while not (future.cancelled() or wait([future], timeout=0.1).done):
        if not wanted() and (not future.running() or time.monotonic() - began > PATIENCE_S):
            return cancelled("compile")
    return outcome(future, "compile")
