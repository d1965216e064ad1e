"""Find the package of declared kernels: `kernels`, or the package that TILESCOPE_KERNELS names."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescope.declare.spec import Kernel

PACKAGE = os.environ.get("TILESCOPE_KERNELS", "kernels")


@functools.cache
def package_folder() -> Path:
    """Return the folder of the package of kernels."""
    return Path(importlib.import_module(PACKAGE).__path__[0]).resolve()


def setting(name: str, default: Any) -> Any:
    """Return a value that the package declares, such as the page's first experiment, or the default."""
    return getattr(importlib.import_module(PACKAGE), name, default)


def opening() -> dict[str, Any]:
    """Return the flat fields of the page's first experiment and options, by default those of the first kernel."""
    return setting("OPENING", {"kernel": next(iter(discover()))})


def read_text(name: str) -> str:
    """Return the text of a file in the package, or "" if there is no such file."""
    path = package_folder() / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


@functools.cache
def discover() -> Mapping[str, Kernel[Any, Any]]:
    """Return every declared kernel by id, in alphabetical order. A package with a `problem.py` is a family."""
    kernels = {}
    for problem in sorted(package_folder().glob("*/problem.py")):
        for file in sorted(problem.parent.glob("[!_]*.py")):
            module = importlib.import_module(f"{PACKAGE}.{problem.parent.name}.{file.stem}")
            if kernel := getattr(module, "KERNEL", None):
                kernels[kernel.id] = kernel
    return MappingProxyType(kernels)


def examples() -> tuple[str, ...]:
    """Return the paths of the package's example scripts, in the order of the page's list."""
    if not (package_folder() / "examples").is_dir():
        return ()
    return importlib.import_module(f"{PACKAGE}.examples").EXAMPLES
