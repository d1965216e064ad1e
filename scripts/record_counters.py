"""Make the atlas on this machine's GPU: `python -m scripts.record_counters FILE [--append] [--seed 0] [--random 240]`.

Every kernel's default and presets, and experiments drawn at random: kernels in turn, dtypes, layouts and precisions,
sizes with and without whole 16 bytes per row, tiles from the smallest on, 1 to 8 warps. Each is compiled, launched once
under Nsight Compute, and recorded with what the compiler made of it. FILE gets one recording a line. Needs `ncu`.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scripts.recording import Wanted, flags_of, record

if TYPE_CHECKING:
    from kernels.experiment import Experiment
    from kernels.gpus import Gpu
    from kernels.results import Compiled, Counters, Failure

# Launches that one ncu counts: if it fails, so many are lost.
BATCH = 40

# Elements of a tile per thread, at most: with more, compiling takes minutes.
MOST_PER_THREAD = 128


def named() -> Iterator[dict[str, Any]]:
    """Every kernel's default and presets."""
    from kernels import discover

    for kernel in discover().values():
        for preset in ({}, *({"problem": dict(p.problem), "config": dict(p.config)} for p in kernel.presets)):
            yield {"kernel": kernel.id, **preset}


def drawn(seed: int) -> Iterator[dict[str, Any]]:
    """Experiments without end, kernels in turn."""
    from kernels import discover
    from kernels.knobs import knobs

    dice = random.Random(seed)
    for kernel in itertools.cycle(discover().values()):
        problem: dict[str, Any] = {}
        for name, knob in kernel.problem_knobs().items():
            problem[name] = dice.choice(knob.choices) if knob.choices else _size(dice)
        config: dict[str, Any] = {}
        for name, knob in knobs(kernel.config).items():
            config[name] = dice.choice(knob.choices) if knob.choices else dice.randint(knob.low, min(knob.high, 8))
        config |= {"num_warps": dice.choice((1, 2, 4, 8)), "num_stages": dice.choice((1, 2, 3, 4))}
        sides = [config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if name in config] or [config["BLOCK"]]
        if max(a * b for a, b in itertools.product(sides, repeat=2)) <= MOST_PER_THREAD * 32 * config["num_warps"]:
            yield {"kernel": kernel.id, "problem": problem, "config": config}


def _size(dice: random.Random) -> int:
    """A multiple of 16, of 8, of 4, or any number, mostly some hundreds."""
    step = dice.choice((16, 16, 8, 4, 1))
    return step * dice.randint(1, dice.choice((200, 800, 1600)) // step)


def experiments(seed: int, random_ones: int) -> list[Experiment]:
    """Every kernel's default and presets, and so many drawn at random, each once."""
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.knobs import ConfigError

    taken = list(dict.fromkeys(from_json(payload, discover()) for payload in named()))
    wanted = len(taken) + random_ones
    for payload in drawn(seed):
        if len(taken) == wanted:
            break
        try:
            experiment = from_json(payload, discover())
        except ConfigError:
            continue  # what the page would refuse, too
        if experiment not in taken:
            taken.append(experiment)
    return taken


def counted(taken: Sequence[Experiment], gpu: Gpu) -> Iterator[tuple[Wanted, Counters | Failure]]:
    """Each experiment with its counts or why there are none, a batch at a time."""
    from kernels.compiled.compiler import compiled_for
    from kernels.results import Failure
    from kernels.runner.processes import Workers, outcome

    with tempfile.TemporaryDirectory() as cache:
        workers = Workers("compile", cache, count=os.cpu_count() or 1)
        try:
            calls = [workers.submit(compiled_for, "compile", experiment, gpu) for experiment in taken]
            outcomes = [outcome(call, "compile") for call in calls]
        finally:
            workers.close()
        compiled = []
        for experiment, made in zip(taken, outcomes, strict=True):
            if isinstance(made, Failure):
                yield (experiment.to_json(), "counters"), made
            else:
                compiled.append((experiment, made))
        for first in range(0, len(compiled), BATCH):
            yield from _counted(compiled[first : first + BATCH], cache)


def _counted(batch: Sequence[tuple[Experiment, Compiled]], cache: str) -> Iterator[tuple[Wanted, Counters | Failure]]:
    from kernels.runner import ncu
    from kernels.runner.measurements.counters_measurement import METRICS, counters

    try:
        found = ncu.count([experiment for experiment, _ in batch], METRICS, cache)
    except ncu.CountingFailed as error:
        yield from (((experiment.to_json(), "counters"), error.failure) for experiment, _ in batch)
        return
    for (experiment, compiled), (launch, rows) in zip(batch, found, strict=True):
        wanted = experiment.to_json(), "counters"
        try:
            yield wanted, counters(experiment, compiled, launch, rows)
        except ncu.CountingFailed as error:
            yield wanted, error.failure


def main() -> int:
    """Count and record; returns the number of experiments that could not be."""
    from kernels.gpus import this_gpu

    parser = flags_of(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", type=int, default=240, help="experiments drawn at random")
    flags, gpu = parser.parse_args(), this_gpu()
    outcomes = counted(experiments(flags.seed, flags.random), gpu) if gpu else ()
    return record(outcomes, lambda found: f"{found.launch['ld_requests']:.0f} load requests", flags.file, flags.append)


if __name__ == "__main__":
    sys.exit(main())
