"""Configs as `triton.Config(...)` lines, to paste under `@triton.autotune`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from kernels.experiment import Experiment
from kernels.spec import Kernel

# What every config has besides the constants that the kernel takes.
_LAUNCH = ("num_warps", "num_stages")


def config_line(kernel: Kernel, experiment: Experiment) -> str:
    """One line: the constants that the kernel takes, by name, then warps and stages.

    A knob that the kernel does not take, as the grid alone reads it, stands in a comment.

    >>> from kernels import discover
    >>> from kernels.experiment import from_json
    >>> print(config_line(discover()["transpose.tiled"], from_json({"kernel": "transpose.tiled"}, discover())))
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=4, num_stages=3),
    """
    fields, taken = vars(experiment.config), inspect.signature(kernel.jitted.fn).parameters
    others = {name: value for name, value in fields.items() if name not in _LAUNCH}
    constants = ", ".join(f'"{name}": {value!r}' for name, value in others.items() if name in taken)
    launch = ", ".join(f"{name}={fields[name]!r}" for name in _LAUNCH)
    of_grid = ", ".join(f"{name}={value!r}" for name, value in others.items() if name not in taken)
    comment = f"  # grid: {of_grid}" if of_grid else ""
    return f"triton.Config({{{constants}}}, {launch}),{comment}"


def config_lines(kernel: Kernel, experiments: Iterable[Experiment]) -> str:
    """A line for each, as the list of `@triton.autotune(configs=[...])` takes them."""
    return "".join(f"{config_line(kernel, one)}\n" for one in experiments)
