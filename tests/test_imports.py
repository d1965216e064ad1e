"""Importing a module loads no GPU library: the page's process starts without torch, and macOS has no Triton."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys
for name in ("torch", "triton", "distributed"):
    sys.modules[name] = None  # importing it raises ImportError
import app, kernels, visualize
for package in (kernels, visualize):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
"""


def test_every_module_imports_without_torch_triton_and_distributed() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
