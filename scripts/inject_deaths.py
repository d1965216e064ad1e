"""Kill the worker of runs at random moments, and see that each run says so and the next one is good.

python -m scripts.inject_deaths [--deaths 200] [--seed 0]. On the GPU, or without one under Triton's interpreter.

A run whose worker died with nothing of it under way is given to another one, and ends well: then it is no death, and
one more is tried. The bar: every other run is a Failure that names the death, the run after it passes its check, and
the worker in its place answers within 5 s, on a GPU within 8 s.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.gpus import this_gpu
from kernels.results import Failure, RunResult

# Worker processes import this file before they set how Triton runs, so modules that import Triton are imported below.
if TYPE_CHECKING:
    from kernels.measuring.session import Session

READY_S, READY_ON_GPU_S = 5.0, 8.0
PATIENCE_S = 120.0

KERNEL = "matmul.grouped"
TILE = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}

# Under the interpreter, about a second, and some hundredths.
LONG = {"kernel": KERNEL, "problem": {"M": 256, "N": 256, "K": 256}, "config": TILE}
QUICK = {"kernel": KERNEL, "problem": {"M": 33, "N": 33, "K": 33}, "config": TILE}

# On a GPU the check and the times take longest.
LONG_ON_GPU = {"kernel": KERNEL, "problem": {"M": 2048, "N": 2048, "K": 2048}, "config": TILE}


@dataclass
class Deaths:
    """What became of runs whose worker was killed.

    Attributes:
        struck: stages in which the failures say that it died.
        unharmed: runs that ended well all the same.
        unclear: outcomes that are neither.
        bad_after: outcomes of runs after a death that did not pass.
        ready_s: how long it took until another worker answered.
    """

    struck: list[str] = field(default_factory=list)
    unharmed: int = 0
    unclear: list[str] = field(default_factory=list)
    bad_after: list[str] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)


def inject(session: Session, deaths: int, seed: int) -> Deaths:
    """Kill until so many runs have failed."""
    found, draw = Deaths(), random.Random(seed)
    long, quick = (from_json(payload, discover()) for payload in (LONG_ON_GPU if session.gpu else LONG, QUICK))
    took_s = _took_s(session, long)
    while len(found.struck) + len(found.unclear) < deaths:
        process = session.ask_runner(os.getpid)
        job = session.submit(long)
        time.sleep(draw.uniform(0, took_s))
        os.kill(process, signal.SIGKILL)
        killed = time.monotonic()
        outcome = job.result(PATIENCE_S)
        if isinstance(outcome, RunResult) and outcome.check.passed:
            found.unharmed += 1
        elif isinstance(outcome, Failure) and outcome.kind == "worker_died":
            found.struck.append(outcome.stage)
        else:
            found.unclear.append(str(outcome))
        session.ask_runner(os.getpid)
        found.ready_s.append(time.monotonic() - killed)
        after = session.submit(quick).result(PATIENCE_S)
        if not (isinstance(after, RunResult) and after.check.passed):
            found.bad_after.append(str(after))
    return found


def _took_s(session: Session, experiment: Experiment) -> float:
    """How long a run takes: the second one, as the first one starts the worker."""
    for _ in range(2):
        began = time.monotonic()
        session.submit(experiment).result(PATIENCE_S)
    return time.monotonic() - began


def main(deaths: int, seed: int) -> None:
    from kernels.measuring.session import Session

    with tempfile.TemporaryDirectory() as cache:
        session = Session(this_gpu(), Path(cache))
        try:
            found = inject(session, deaths, seed)
        finally:
            session.close()
    stages = {stage: found.struck.count(stage) for stage in sorted(set(found.struck))}
    print(f"{len(found.struck)} clear failures, by stage: {stages}; {found.unharmed} runs were unharmed")
    print(f"{len(found.unclear)} unclear", *found.unclear[:5], sep="\n  ")
    print(f"{len(found.bad_after)} runs after a death were not good", *found.bad_after[:5], sep="\n  ")
    bar_s = READY_ON_GPU_S if session.gpu else READY_S
    late = sum(seconds > bar_s for seconds in found.ready_s)
    print(
        f"another worker answered after {statistics.median(found.ready_s):.1f} s (median), "
        f"{max(found.ready_s):.1f} s at most; {late} of {len(found.ready_s)} over {bar_s:.0f} s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    main(given.deaths, given.seed)
