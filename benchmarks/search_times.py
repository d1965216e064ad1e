"""Time every config of eight shapes, for a search to be replayed on. Needs a GPU.

A line of the file holds all configs of one shape: what the model predicted of each once it was compiled, and its time
over that of one reference, in the same turns, several times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.measuring.session import Session
from kernels.results import Device, Failure
from kernels.space import Space, space, space_from_json
from kernels.sweep.builder import LocalBuilder
from kernels.sweep.device import Build, Builder, Trial, TrialDevice
from kernels.sweep.local_device import LocalDevice
from visualize.predict.launch_time import predict_time

# M, N and K. The first five were in use while the model was made, the last three were not.
SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (8192, 6144, 4096),
    (16384, 1024, 2048),
    (1536, 6144, 8192),
    (3072, 3072, 768),
)

VARY = {
    "BLOCK_M": (64, 128, 256),
    "BLOCK_N": (64, 128, 256),
    "BLOCK_K": (32, 64),
    "GROUP_SIZE": (4, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}

# Samples of each config, and again of the fastest, in turns with each other.
TURNS, FASTEST, MORE_TURNS = 40, 12, 400

# Of which so many are kept, evenly spaced.
KEPT = 12


@dataclass(frozen=True)
class Timed:
    """What was found of one config.

    Attributes:
        config: the values of the varied knobs, in the space's order.
        predicted_ms: by the model, once compiled; None where it says nothing.
        median_ms: of one launch; None where it was not timed, as its result was wrong or it could not be launched.
        relative: its time over the reference's, the median over all turns.
        samples: some of what `relative` is the median of.
    """

    config: tuple[int | str, ...]
    predicted_ms: float | None
    median_ms: float | None
    relative: float | None
    samples: tuple[float, ...]


@dataclass(frozen=True)
class Found:
    """What was found of all configs of one shape that could be compiled."""

    gpu: str
    device: Device
    space: Space
    rows: dict[Experiment, Timed]


def read(path: Path) -> list[Found]:
    """The shapes of a file that `record` wrote."""
    return [_found(json.loads(text)) for text in path.read_text(encoding="utf-8").splitlines()]


def _found(fields: dict[str, Any]) -> Found:
    within = space_from_json(fields["space"], discover())
    names = [name for name, _ in within.varied]
    by_config = {tuple(getattr(one.config, name) for name in names): one for one in within.experiments}
    rows = [
        Timed(**{**row, "config": tuple(row["config"]), "samples": tuple(row["samples"])}) for row in fields["rows"]
    ]
    return Found(fields["gpu"], Device(**fields["device"]), within, {by_config[row.config]: row for row in rows})


def spaces() -> list[Space]:
    """One of each shape: float16 products of `matmul.grouped`."""
    kernels = discover()
    problems = [dict(zip("MNK", shape, strict=True)) for shape in SHAPES]
    bases = [from_json({"kernel": "matmul.grouped", "problem": problem}, kernels) for problem in problems]
    return [space(base, VARY, kernels) for base in bases]


def timed(within: Space, device: TrialDevice, builder: Builder) -> list[Timed]:
    """Time every config of a space that can be compiled, in trials beside one reference."""
    names = [name for name, _ in within.varied]
    calls = [(experiment, builder.submit(experiment)) for experiment in within.experiments]
    builds = {experiment: build for experiment, call in calls if isinstance(build := call.result(), Build)}
    estimates = {one: build.predicted.ms if build.predicted else np.inf for one, build in builds.items()}
    ranked = sorted(builds, key=lambda experiment: estimates[experiment])
    found: dict[Experiment, tuple[np.ndarray, np.ndarray]] = {}
    reference: Experiment | None = None
    for begin in range(0, len(ranked), device.at_once):
        taken = _taken(device, Trial(tuple(ranked[begin : begin + device.at_once]), reference, TURNS, is_checked=True))
        reference = reference or next(iter(taken))
        found |= taken
    fastest = sorted(found, key=lambda experiment: _relative(found[experiment]))[:FASTEST]
    found |= _taken(device, Trial(tuple(fastest), reference, MORE_TURNS))
    return [_row(experiment, names, builds[experiment], found.get(experiment)) for experiment in builds]


def _taken(device: TrialDevice, trial: Trial) -> dict[Experiment, tuple[np.ndarray, np.ndarray]]:
    """Times of what was right, and of the reference beside it."""
    outcomes = device.attempt(trial)
    if isinstance(outcomes, Failure):
        raise SystemExit(outcomes.message)
    each = zip(trial.experiments, outcomes.each, strict=True)
    return {one: (outcome.times_ms, outcome.reference_ms) for one, outcome in each if len(outcome.times_ms)}


def _relative(times: tuple[np.ndarray, np.ndarray]) -> float:
    return float(np.median(times[0] / times[1]))


def _row(experiment: Experiment, names: Sequence[str], build: Build, times: Any) -> Timed:
    config = tuple(getattr(experiment.config, name) for name in names)
    predicted_ms = build.predicted.ms if build.predicted else None
    if times is None:
        return Timed(config, predicted_ms, None, None, ())
    ratios = times[0] / times[1]
    kept = ratios[np.unique(np.linspace(0, len(ratios) - 1, KEPT).round().astype(int))]
    median_ms = round(float(np.median(times[0])), 6)
    return Timed(config, predicted_ms, median_ms, round(_relative(times), 5), tuple(round(float(r), 5) for r in kept))


def line(within: Space, device: Device, gpu: str, rows: Iterable[Timed]) -> str:
    """What the file holds of one space."""
    return json.dumps({"gpu": gpu, "device": asdict(device), "space": within.to_json(), "rows": [*map(asdict, rows)]})


def record(path: Path, last: int = 0) -> None:
    """Time the configs of every shape on this machine's GPU, and append a line of each to the file.

    Args:
        last: of the last so many shapes alone; 0 for all.

    Raises:
        SystemExit: where there is no GPU, or it fails.
    """
    session = Session.here()
    if session.gpu is None:
        raise SystemExit("There is no GPU here, so nothing can be timed.")
    builder = LocalBuilder(session.gpu, predict_time, Path(session.machine.cache))
    try:
        for within in spaces()[-last:]:
            device = LocalDevice(session.machine, within.base, session.gpu)
            described = device.describe()
            if isinstance(described, Failure):
                raise SystemExit(described.message)
            rows = timed(within, device, builder)
            with path.open("a", encoding="utf-8") as file:
                file.write(line(within, described, session.gpu.name, rows) + "\n")
            best = min((row for row in rows if row.relative is not None), key=lambda row: row.relative or np.inf)
            print(within.base.problem, len(rows), "configs; best", best, flush=True)
    finally:
        builder.close()
        session.close()
