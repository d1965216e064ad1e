"""Kill run workers at random moments, and check that each run fails clearly and the next one passes.

python -m scripts.inject_deaths [--deaths 200] [--seed 0]. Uses the GPU, or Triton's interpreter without one.

A job whose worker dies before it starts goes to another worker, and passes: such a kill does not count as a death.
Every other run must be a Failure that names the death, the next run must pass its check, and the new worker must answer
within 5 s (8 s on a GPU).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilescope.declare.experiment import from_json
from tilescope.declare.gpus import this_gpu
from tilescope.results import Failure, RunResult

# Worker processes import this file before they set how Triton runs, so modules that import Triton are imported below.
if TYPE_CHECKING:
    from tilescope.measure.session import Session

READY_S, READY_ON_GPU_S = 5.0, 8.0
TIMEOUT_S = 120.0

KERNEL = "matmul.grouped"
TILE = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}

# Under the interpreter, LONG takes about a second, and QUICK some hundredths of a second.
LONG = {"kernel": KERNEL, "problem": {"M": 256, "N": 256, "K": 256}, "config": TILE}
QUICK = {"kernel": KERNEL, "problem": {"M": 33, "N": 33, "K": 33}, "config": TILE}

# On a GPU, the check and the timing take longest.
LONG_ON_GPU = {"kernel": KERNEL, "problem": {"M": 2048, "N": 2048, "K": 2048}, "config": TILE}


@dataclass
class Deaths:
    """Outcomes of runs whose worker was killed.

    Attributes:
        stages: number of failures that name the death, by the stage that they name.
        unharmed: number of runs that passed.
        unclear: all other outcomes.
        bad_next: outcomes of following runs that did not pass.
        ready_s: times until another worker answered.
    """

    stages: Counter[str] = field(default_factory=Counter)
    unharmed: int = 0
    unclear: list[str] = field(default_factory=list)
    bad_next: list[str] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)


def inject(session: Session, deaths: int, seed: int) -> Deaths:
    """Kill workers until that many runs have failed."""
    result, draw = Deaths(), random.Random(seed)
    long, quick = (from_json(payload) for payload in (LONG_ON_GPU if session.gpu else LONG, QUICK))
    session.submit(long).result(TIMEOUT_S)  # starts the worker
    began = time.monotonic()
    session.submit(long).result(TIMEOUT_S)
    run_s = time.monotonic() - began
    while result.stages.total() + len(result.unclear) < deaths:
        process, job = session.call_runner(os.getpid), session.submit(long)
        time.sleep(draw.uniform(0, run_s))
        os.kill(process, signal.SIGKILL)
        killed = time.monotonic()
        outcome = job.result(TIMEOUT_S)
        if _passed(outcome):
            result.unharmed += 1
        elif isinstance(outcome, Failure) and outcome.kind == "worker_died":
            result.stages[outcome.stage] += 1
        else:
            result.unclear.append(str(outcome))
        session.call_runner(os.getpid)
        result.ready_s.append(time.monotonic() - killed)
        if not _passed(following := session.submit(quick).result(TIMEOUT_S)):
            result.bad_next.append(str(following))
    return result


def _passed(outcome: object) -> bool:
    return isinstance(outcome, RunResult) and outcome.check.passed


def main(deaths: int, seed: int) -> None:
    from tilescope.measure.session import Session

    with (
        tempfile.TemporaryDirectory() as cache,
        closing(Session(this_gpu(), Path(cache))) as session,
    ):
        result = inject(session, deaths, seed)
    print(
        f"{result.stages.total()} clear failures, by stage: {dict(result.stages)}; {result.unharmed} unharmed runs"
    )
    print(f"{len(result.unclear)} unclear", *result.unclear[:5], sep="\n  ")
    print(f"{len(result.bad_next)} next runs did not pass", *result.bad_next[:5], sep="\n  ")
    limit_s = READY_ON_GPU_S if session.gpu else READY_S
    late = sum(seconds > limit_s for seconds in result.ready_s)
    ready = f"median {statistics.median(result.ready_s):.1f} s, at most {max(result.ready_s):.1f} s"
    print(f"time to the next worker: {ready}; {late} of {len(result.ready_s)} over {limit_s:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    main(flags.deaths, flags.seed)
