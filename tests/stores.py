"""Write to a store and read from it, in this process and in others."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

from tests.experiments import experiment_of
from tests.results_made_up import H200, START
from tests.trees import ROOT
from tilescope.declare.gpus import GPUS
from tilescope.measure.session import MEASUREMENTS
from tilescope.results import Sweep
from tilescope.results.store import ResultFilter, Store

RUN = MEASUREMENTS["run"]
ONE = experiment_of(M=128)
OTHER = experiment_of(M=256)


def put(store, measured, gpu="H200", ended=START, kind=RUN):
    return store.put(kind, gpu, measured, ended)


def put_sweep(store, name, space, rows, ended="complete", began=START):
    """Write a sweep as its run does: first its beginning, then its rows, then its end."""
    sweep = Sweep(space, H200, (), None, ended, 1.0)
    assert store.begin_sweep(name, GPUS["H200"], began, sweep)
    assert store.add_to_sweep(name, rows, len(rows), 0.25)
    if ended != "running":
        assert store.end_sweep(name, replace(sweep, rows=tuple(rows.values())))


def again(store):
    """Open the same file again, as another process would."""
    return Store(store.path)


def execute(path, *statements):
    """Execute SQL statements as another program would, and return the last one's rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        *_, rows = (connection.execute(statement).fetchall() for statement in statements)
    return rows


ALL = ResultFilter()


def medians(store, wanted=ALL):
    return [result.summary["median_ms"] for result in store.latest(wanted, 1000)]


WRITING = """
import signal
import sys
from pathlib import Path
from tilescope.measure.session import MEASUREMENTS
from tilescope.results.codec import to_json
from tilescope.results.store import Store
from tests.experiments import experiment_of
from tests.results_made_up import START, run

store = Store(Path(sys.argv[1]))
to_json(run(experiment_of()))  # pydantic's import is not a write
print("ready", flush=True)
sys.stdin.readline()
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[4]))  # its signal kills a process at any instruction
for place in range(int(sys.argv[3])):
    of = experiment_of(M=1 + place % 50)
    assert store.put(MEASUREMENTS["run"], "H200", run(of, float(sys.argv[2]) + place), START), store.problem
    print(place, flush=True)
store.close()
"""


def writing(path, begin, count, killed_after_s=0.0):
    """Start a process that writes results once it reads a line, and prints the number of each stored one.

    Args:
        begin: the time in the first result, in ms; each later result has 1 ms more.
        killed_after_s: seconds of writing until the process is killed; 0 for never.
    """
    command = [sys.executable, "-c", WRITING, *map(str, (path, begin, count, killed_after_s))]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process
