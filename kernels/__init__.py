"""WHAT runs, and how it is run. `discover()` finds every kernel file that declares a KERNEL."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernels.spec import Kernel

_NOT_FAMILIES = {"runner", "records"}


@functools.cache
def discover() -> Mapping[str, Kernel]:
    """Return every declared kernel by id, families and files in alphabetical order."""
    found: dict[str, Kernel] = {}
    for family in pkgutil.iter_modules(__path__):
        if not family.ispkg or family.name in _NOT_FAMILIES:
            continue
        package = importlib.import_module(f"{__name__}.{family.name}")
        for file in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{file.name}")
            if kernel := getattr(module, "KERNEL", None):
                found[kernel.id] = kernel
    return MappingProxyType(found)
