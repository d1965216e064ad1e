"""Make the atlas on this machine's GPU: `python -m scripts.record_counters FILE [--seed 0] [--random 240]`.

Every kernel's default and presets, and experiments drawn at random: kernels in turn, dtypes, layouts and precisions,
sizes with and without whole 16 bytes a row, tiles from the smallest on, 1 to 8 warps. Each is compiled, launched once
under Nsight Compute, and recorded with what the compiler had made of it. FILE gets one Recording a line. Needs `ncu`.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Launches that one ncu counts: if it fails, so many are lost.
BATCH = 40

# Elements of a tile for each thread at most: with more, compiling takes minutes.
MOST_A_THREAD = 128


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
        if max(a * b for a, b in itertools.product(sides, repeat=2)) <= MOST_A_THREAD * 32 * config["num_warps"]:
            yield {"kernel": kernel.id, "problem": problem, "config": config}


def _size(dice: random.Random) -> int:
    """A multiple of 16, of 8, of 4, or any number, mostly some hundreds."""
    step = dice.choice((16, 16, 8, 4, 1))
    return step * dice.randint(1, dice.choice((200, 800, 1600)) // step)


def main() -> int:
    """Count and record; returns the number of experiments that could not be."""
    from kernels import discover
    from kernels.compiled.compiler import compiled_for
    from kernels.experiment import from_json
    from kernels.gpus import this_gpu
    from kernels.knobs import ConfigError
    from kernels.records import Recording
    from kernels.results import Compiled
    from kernels.runner import ncu
    from kernels.runner.processes import Workers, outcome

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", type=int, default=240, help="experiments drawn at random")
    flags = parser.parse_args()
    gpu = this_gpu()
    if gpu is None:
        print("There is no GPU here, so there is nothing to count.", file=sys.stderr)
        return 1

    taken = list(dict.fromkeys(from_json(payload, discover()) for payload in named()))
    wanted = len(taken) + flags.random
    for payload in drawn(flags.seed):
        try:
            experiment = from_json(payload, discover())
        except ConfigError:
            continue  # what the page would refuse, too
        if experiment not in taken:
            taken.append(experiment)
        if len(taken) == wanted:
            break

    failed = 0
    with tempfile.TemporaryDirectory() as cache:
        workers = Workers("compile", cache, count=os.cpu_count() or 1)
        try:
            calls = [workers.submit(compiled_for, "compile", experiment, gpu) for experiment in taken]
            outcomes = [outcome(call, "compile") for call in calls]
        finally:
            workers.close()
        compiled = [(e, made) for e, made in zip(taken, outcomes, strict=True) if isinstance(made, Compiled)]
        for experiment, made in zip(taken, outcomes, strict=True):
            if not isinstance(made, Compiled):
                failed += 1
                print(f"not compiled: {experiment.to_json()}: {made.message}", file=sys.stderr)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        with flags.file.open("w", encoding="utf-8") as file:
            for first in range(0, len(compiled), BATCH):
                batch = compiled[first : first + BATCH]
                try:
                    counted = ncu.count([experiment for experiment, _ in batch], cache)
                except ncu.CountingFailed as error:
                    failed += len(batch)
                    print(f"not counted: {len(batch)}: {error}", file=sys.stderr)
                    continue
                for (experiment, made), (launch, rows) in zip(batch, counted, strict=True):
                    try:
                        value = ncu.counters(experiment, made, launch, rows)
                    except ncu.CountingFailed as error:
                        failed += 1
                        print(f"not counted: {experiment.to_json()}: {error}", file=sys.stderr)
                        continue
                    file.write(Recording(gpu.name, date, value).to_line() + "\n")
                print(f"counted {len(batch)}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
