"""WHAT runs, and how it is run. `discover()` finds every kernel file that declares a KERNEL."""

from __future__ import annotations

import functools
import importlib.util
import pkgutil
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kernels.spec import Kernel


@functools.cache
def discover() -> Mapping[str, Kernel[Any, Any]]:
    """Return every declared kernel by id, families and files in alphabetical order. A family has a `problem.py`."""
    found: dict[str, Kernel[Any, Any]] = {}
    for folder in pkgutil.iter_modules(__path__):
        if not folder.ispkg or importlib.util.find_spec(f"{__name__}.{folder.name}.problem") is None:
            continue
        package = importlib.import_module(f"{__name__}.{folder.name}")
        for file in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{file.name}")
            if kernel := getattr(module, "KERNEL", None):
                found[kernel.id] = kernel
    return MappingProxyType(found)
