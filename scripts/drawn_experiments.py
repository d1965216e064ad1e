"""Experiments to record: every kernel's defaults and presets, and random experiments that test the predictions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, from_json
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError, knobs
from tilescope.declare.spec import DTYPE_BYTES, Launch

# Maximum elements of a tile per thread. With more, compiling takes minutes.
MAX_PER_THREAD = 128

# The tensor memory accelerator requires rows of a multiple of this many bytes.
ROW_BYTES = 16

# Largest random size.
LARGEST = 4096


def presets(every_dtype: bool = False) -> Iterator[dict[str, Any]]:
    """Yield every kernel's default and presets; with `every_dtype`, those that set no dtype once per dtype."""
    for kernel in discover().values():
        dtypes = kernel.problem_knobs()["dtype"].choices or () if every_dtype else ()
        for problem, config in (
            ({}, {}),
            *((dict(preset.problem), dict(preset.config)) for preset in kernel.presets),
        ):
            for dtype in (
                [{}] if "dtype" in problem or not dtypes else [{"dtype": dtype} for dtype in dtypes]
            ):
                yield {"kernel": kernel.id, "problem": {**problem, **dtype}, "config": config}


def draw(seed: int) -> Iterator[dict[str, Any]]:
    """Yield random experiments forever, kernels in turn: any size up to LARGEST, 1 to 16 warps, 1 to 5 stages."""
    dice = random.Random(seed)
    for kernel in itertools.cycle(discover().values()):
        problem: dict[str, Any] = {}
        for name, knob in kernel.problem_knobs().items():
            problem[name] = dice.choice(knob.choices) if knob.choices else _size(dice)
        config: dict[str, Any] = {}
        for name, knob in knobs(kernel.config).items():
            config[name] = (
                dice.choice(knob.choices)
                if knob.choices
                else dice.randint(knob.low, min(knob.high, 8))
            )
        config |= {
            "num_warps": dice.choice((1, 2, 4, 8, 16)),
            "num_stages": dice.choice((1, 2, 3, 4, 5)),
        }
        sides = [config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if name in config] or [
            config["BLOCK"]
        ]
        if (
            max(a * b for a, b in itertools.product(sides, repeat=2))
            <= MAX_PER_THREAD * 32 * config["num_warps"]
        ):
            yield {"kernel": kernel.id, "problem": problem, "config": config}


def _size(dice: random.Random) -> int:
    """Any number, a prime, a power of two or its neighbour, or a tiny number."""
    kind = dice.choice(("any", "any", "prime", "power", "tiny"))
    if kind == "power":
        return min(
            2 ** dice.randint(1, LARGEST.bit_length() - 1) + dice.choice((-1, 0, 1)), LARGEST
        )
    number = dice.randint(1, 40 if kind == "tiny" else LARGEST)
    while kind == "prime" and any(
        number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)
    ):
        number -= 1
    return number


def with_descriptors(payloads: Iterator[dict[str, Any]], gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Yield the experiments that copy by tensor descriptor, with sizes rounded up as a descriptor requires."""
    for payload in payloads:
        kernel = discover()[payload["kernel"]]
        problem = payload["problem"]
        step = ROW_BYTES // DTYPE_BYTES[problem["dtype"]]
        rows = {
            tensor.stored[1]
            for tensor in kernel.family.tensors(kernel.family.problem(**problem)).values()
        }
        problem |= {name: -(-size // step) * step for name, size in problem.items() if size in rows}
        launch = Launch(kernel.family.problem(**problem), kernel.config(**payload["config"]), gpu)
        if any(access.op == "descriptor" for access in kernel.accesses(launch)):
            yield payload


def valid_experiments(payloads: Iterator[dict[str, Any]]) -> Iterator[Experiment]:
    """Yield each valid experiment once."""
    taken: set[Experiment] = set()
    for payload in payloads:
        try:
            experiment = from_json(payload)
        except ConfigError:
            continue
        if experiment not in taken:
            taken.add(experiment)
            yield experiment
