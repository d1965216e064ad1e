"""Which experiments the campaigns count: what is named, and what dice draw, for the atlas and to put it to the test."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.experiment import Experiment
    from kernels.gpus import Gpu

# Elements of a tile per thread, at most: with more, compiling takes minutes.
MOST_PER_THREAD = 128

# The tensor memory accelerator takes tensors whose rows are multiples of so many bytes.
ROW_BYTES = 16

# Sizes of the wide draw: from 1 to this one.
LARGEST = 4096


def named() -> Iterator[dict[str, Any]]:
    """Every kernel's default and presets."""
    from kernels import discover

    for kernel in discover().values():
        for preset in ({}, *({"problem": dict(p.problem), "config": dict(p.config)} for p in kernel.presets)):
            yield {"kernel": kernel.id, **preset}


def drawn(seed: int) -> Iterator[dict[str, Any]]:
    """The atlas' experiments without end, kernels in turn: sizes of some hundreds, mostly multiples of 4 or more."""
    yield from _drawn(random.Random(seed), _size, (1, 2, 4, 8), (1, 2, 3, 4))


def widely_drawn(seed: int) -> Iterator[dict[str, Any]]:
    """Another draw without end: sizes up to LARGEST, primes, powers of two ± 1 and tiny ones; more warps and stages."""
    yield from _drawn(random.Random(seed), _any_size, (1, 2, 4, 8, 16), (1, 2, 3, 4, 5))


def _drawn(
    dice: random.Random, size: Callable[[random.Random], int], warps: tuple[int, ...], stages: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    from kernels import discover
    from kernels.knobs import knobs

    for kernel in itertools.cycle(discover().values()):
        problem: dict[str, Any] = {}
        for name, knob in kernel.problem_knobs().items():
            problem[name] = dice.choice(knob.choices) if knob.choices else size(dice)
        config: dict[str, Any] = {}
        for name, knob in knobs(kernel.config).items():
            config[name] = dice.choice(knob.choices) if knob.choices else dice.randint(knob.low, min(knob.high, 8))
        config |= {"num_warps": dice.choice(warps), "num_stages": dice.choice(stages)}
        sides = [config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if name in config] or [config["BLOCK"]]
        if max(a * b for a, b in itertools.product(sides, repeat=2)) <= MOST_PER_THREAD * 32 * config["num_warps"]:
            yield {"kernel": kernel.id, "problem": problem, "config": config}


def _size(dice: random.Random) -> int:
    """A multiple of 16, of 8, of 4, or any number, mostly some hundreds."""
    step = dice.choice((16, 16, 8, 4, 1))
    return step * dice.randint(1, dice.choice((200, 800, 1600)) // step)


def _any_size(dice: random.Random) -> int:
    kind = dice.choice(("any", "any", "prime", "power", "tiny"))
    if kind == "power":
        return min(2 ** dice.randint(1, LARGEST.bit_length() - 1) + dice.choice((-1, 0, 1)), LARGEST)
    number = dice.randint(1, 40 if kind == "tiny" else LARGEST)
    while kind == "prime" and any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number


def with_descriptors(payloads: Iterator[dict[str, Any]], gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Those that copy by descriptor, once sizes that are rows of a tensor as it is stored are rounded up for them."""
    from kernels import discover
    from kernels.spec import DTYPE_BYTES, Launch

    for payload in payloads:
        kernel = discover()[payload["kernel"]]
        problem = payload["problem"]
        step = ROW_BYTES // DTYPE_BYTES[problem["dtype"]]
        rows = {tensor.stored[1] for tensor in kernel.family.tensors(kernel.family.problem(**problem)).values()}
        problem |= {name: -(-size // step) * step for name, size in problem.items() if size in rows}
        launch = Launch(kernel.family.problem(**problem), kernel.config(**payload["config"]), gpu)
        if any(access.op == "descriptor" for access in kernel.accesses(launch)):
            yield payload


def experiments(payloads: Iterator[dict[str, Any]]) -> Iterator[Experiment]:
    """Each experiment once; what the page would refuse is left out."""
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.knobs import ConfigError

    taken: set[Experiment] = set()
    for payload in payloads:
        try:
            experiment = from_json(payload, discover())
        except ConfigError:
            continue
        if experiment not in taken:
            taken.add(experiment)
            yield experiment
