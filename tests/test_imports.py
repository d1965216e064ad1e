"""Where there is no torch, no Triton (macOS) and no Dask, every module imports, and the page still predicts."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys
for name in ("torch", "triton", "distributed"):
    sys.modules[name] = None  # importing it raises ImportError
import app, kernels, visualize
from visualize.startup import quick_import
with quick_import():
    for package in (kernels, visualize):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
print("imported")

from kernels import discover
from kernels.experiment import from_json
from kernels.results import Failure
from kernels.measuring.session import Session
from visualize.views.tabs import SETTINGS, TABS
from visualize.views.state import Snapshot

panels = {tab.name: tab.panels[0]() for tab in TABS}
for name, kernel in discover().items():
    known = Snapshot(SETTINGS.state({"kernel": name}, None))
    for tab, said in (("schedule", "program"), ("coalescing", "transactions"), ("reuse", "DRAM")):
        assert said in panels[tab].draw(known)[f"{tab}-claim"], (name, tab)
session = Session(None)
outcome = session.submit(from_json({"kernel": "matmul.grouped"})).result()
session.close()
assert isinstance(outcome, Failure) and outcome.kind == "no_triton", outcome
print("predicted")
"""


def test_without_gpu_libraries_every_module_imports_and_every_kernel_is_predicted() -> None:
    """The page's process starts without torch, and a run says that Triton is missing."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["imported", "predicted"], done.stderr
