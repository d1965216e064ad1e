"""Compiles that are kept, and those under way: one for all who wait for the same, ended where nobody does any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress

from kernels import discover
from kernels.compile_cost import compile_seconds, never_compiled
from kernels.compiled import compiler
from kernels.equivalence import same_launch
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.results import Compiled, Failure
from kernels.runner.bounded_cache import BoundedCache
from kernels.runner.processes import cancelled, outcome
from kernels.runner.turns import Client, Shared, Turn
from kernels.spec import Kernel, Launch

# Seconds that a compile may go on that nobody wants any more: ending it costs its worker, and another one's start.
PATIENCE_S = 3.0

# Compiled kernels whose texts (a few hundred kilobytes each) are kept.
MOST_KEPT = 64

Outcome = Future[Compiled | Failure]


class _UnderWay:
    """A compile that several may wait for."""

    def __init__(self, turn: Turn[Compiled | Failure]) -> None:
        self.turn = turn
        self.waiting: list[Outcome] = []
        self.began = time.monotonic()


class Compiles:
    """What the workers compiled, by launch and specialization."""

    def __init__(self, workers: Shared) -> None:
        self._workers = workers
        self._kept: BoundedCache[tuple[Experiment, str], Compiled] = BoundedCache(MOST_KEPT)
        self._under_way: dict[tuple[Experiment, str], _UnderWay] = {}
        self._lock = threading.Lock()

    def known(self, experiment: Experiment, gpu: Gpu, specialization: str) -> Compiled | None:
        """What is kept. Returns at once."""
        return self._kept.get((same_launch(experiment, gpu.name), specialization))

    def asked(self, experiment: Experiment, gpu: Gpu, specialization: str, client: Client) -> Outcome:
        """What is kept, or what a worker makes of the experiment. Returns at once, and waits without a thread.

        Who wants it no more cancels what is returned. A compile that nobody wants is ended, unless it is about to end.
        """
        asked: Outcome = Future()
        outcome = self.known(experiment, gpu, specialization) or refused_compile(*_launch(experiment, gpu))
        if outcome is None:
            outcome = self._joined(asked, experiment, gpu, specialization, client)
        if outcome is not None:
            asked.set_result(outcome)
        return asked

    def _joined(
        self, asked: Outcome, experiment: Experiment, gpu: Gpu, specialization: str, client: Client
    ) -> Failure | None:
        """Have one wait for a compile, which is started where there is none yet; or why it can't be."""
        key = same_launch(experiment, gpu.name), specialization
        with self._lock:
            under_way = self._under_way.get(key)
            is_new = under_way is None
            if under_way is None:
                seconds = compile_seconds(*_launch(experiment, gpu))
                call = compiler.compiled_for, "compile", experiment, gpu, specialization
                turn = self._workers.submit(*call, client=client, seconds=seconds)
                if isinstance(turn, Failure):
                    return turn
                self._under_way[key] = under_way = _UnderWay(turn)
            under_way.waiting.append(asked)
        joined = under_way
        asked.add_done_callback(lambda one: self._left(key, joined) if one.cancelled() else None)
        if is_new:
            joined.turn.add_done_callback(lambda _: self._ended(key, joined))
        return None

    def _ended(self, key: tuple[Experiment, str], under_way: _UnderWay) -> None:
        """Tell all who wait."""
        result = outcome(under_way.turn, "compile")
        if isinstance(result, Compiled):
            self._kept.put(key, result)
        with self._lock:
            if self._under_way.get(key) is under_way:
                del self._under_way[key]
            waiting, under_way.waiting = under_way.waiting, []
        for asked in waiting:
            with suppress(InvalidStateError):  # cancelled
                asked.set_result(result)

    def _left(self, key: tuple[Experiment, str], under_way: _UnderWay) -> None:
        """One who waited has left. The last one ends the compile, at once where it has not begun."""
        left_s = PATIENCE_S - (time.monotonic() - under_way.began) if under_way.turn.running() else 0.0
        timer = threading.Timer(max(0.0, left_s), self._end_unwanted, (key, under_way))
        timer.daemon = True
        timer.start()

    def _end_unwanted(self, key: tuple[Experiment, str], under_way: _UnderWay) -> None:
        with self._lock:
            if any(not asked.cancelled() for asked in under_way.waiting):
                return
            if self._under_way.get(key) is under_way:
                del self._under_way[key]
        under_way.turn.cancel()


def refused_compile(kernel: Kernel, launch: Launch) -> Failure | None:
    """Why a launch is not compiled, where that would not end before its deadline."""
    why = never_compiled(kernel, launch)
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
