"""What tests of the store write and ask, in this process and in others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

from kernels.measuring.session import MEASUREMENTS
from kernels.results.store import Store
from kernels.results.stored import ResultFilter
from tests.kernels.results_made_up import START, experiment
from tests.kernels.trees import ROOT

RUN = MEASUREMENTS["run"]
ONE, OTHER = experiment(M=128), experiment(M=256)


def put(store, measured, gpu="H200", ended=START, kind=RUN):
    return store.put(kind, gpu, measured, ended)


def again(store):
    """Another process' view of the same file."""
    return Store(store.path)


ALL = ResultFilter()


def medians(store, wanted=ALL):
    return [one.summary.median_ms for one in store.latest(wanted, 1000)]


def counted(path):
    with sqlite3.connect(path) as connection:
        (number,) = connection.execute("SELECT count(*) FROM result").fetchone()
    connection.close()
    return number


WRITING = """
import sys
from pathlib import Path
from kernels.measuring.session import MEASUREMENTS
from kernels.results.codec import to_json
from kernels.results.store import Store
from tests.kernels.results_made_up import START, experiment, run

store = Store(Path(sys.argv[1]))
to_json(run(experiment()))  # pydantic's import is not a write
print("ready", flush=True)
sys.stdin.readline()
for place in range(int(sys.argv[3])):
    of = experiment(M=1 + place % 50)
    assert store.put(MEASUREMENTS["run"], "H200", run(of, float(sys.argv[2]) + place), START), store.problem
    print(place, flush=True)
store.close()
"""


def writing(path, begin, count):
    """A process that writes `count` results, and prints each number once it is stored."""
    command = [sys.executable, "-c", WRITING, str(path), str(begin), str(count)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process
