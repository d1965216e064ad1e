"""Count launches with Nsight Compute on this machine's GPU, beside what is predicted for them, and record the counts.

The atlas: every kernel's default and presets, and experiments drawn at random: kernels in turn, dtypes, layouts and
precisions, sizes with and without whole 16 bytes per row, tiles from the smallest on, 1 to 8 warps:

    python -m scripts.record_counters FILE [--append] [--seed 0] [--random 240]

To put the predictions to the test, another draw (`--draw SEED --launches 60`; with `--descriptors` of launches that
copy by tensor descriptor alone), or experiments of a file (`--these FILE`, a JSON object per line). `--repeat 5` counts
each so many times, and records the first count. FILE gets one recording a line. Needs `ncu`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.drawn_experiments import drawn, experiments, named, widely_drawn, with_descriptors
from scripts.recording import Wanted, flags_of, record

if TYPE_CHECKING:
    from kernels.experiment import Experiment
    from kernels.gpus import Gpu
    from kernels.measuring.processes import Workers
    from kernels.results import Compiled, Counters, Failure

# Launches that one ncu counts: if it fails, so many are lost.
BATCH = 40


def counted(
    wanted: Iterable[Experiment], gpu: Gpu, most: int = sys.maxsize, repeat: int = 1
) -> Iterator[tuple[Wanted, Counters | Failure]]:
    """Experiments with their counts or why there are none, a batch at a time.

    Args:
        most: how many are counted: those that don't compile are not.
        repeat: how often each is counted.
    """
    from kernels.measuring.processes import Workers
    from kernels.results import Failure

    rest = iter(wanted)
    with tempfile.TemporaryDirectory() as cache:
        workers = Workers("compile", cache, count=os.cpu_count() or 1)
        try:
            while batch := list(itertools.islice(rest, min(max(1, BATCH // repeat), most))):
                compiled = []
                for experiment, made in _compiled(batch, gpu, workers):
                    if isinstance(made, Failure):
                        yield (experiment.to_json(), "counters"), made
                    else:
                        compiled += [(experiment, made)] * repeat
                        most -= 1
                yield from _counted(compiled, cache)
        finally:
            workers.close()


def _compiled(
    batch: Sequence[Experiment], gpu: Gpu, workers: Workers
) -> Iterator[tuple[Experiment, Compiled | Failure]]:
    from kernels.compiling.compiler import compile_experiment
    from kernels.measuring.processes import outcome

    calls = [workers.submit(compile_experiment, "compile", experiment, gpu) for experiment in batch]
    yield from zip(batch, [outcome(call, "compile") for call in calls], strict=True)


def _counted(batch: Sequence[tuple[Experiment, Compiled]], cache: str) -> Iterator[tuple[Wanted, Counters | Failure]]:
    from kernels.measuring import ncu
    from kernels.measuring.measurements.counters_measurement import METRICS, join_counts

    if not batch:
        return
    try:
        found = ncu.count([experiment for experiment, _ in batch], METRICS, cache)
    except ncu.CountingFailed as error:
        yield from (((experiment.to_json(), "counters"), error.failure) for experiment, _ in batch)
        return
    for (experiment, compiled), counts in zip(batch, found, strict=True):
        wanted = experiment.to_json(), "counters"
        try:
            yield wanted, join_counts(experiment, compiled, counts)
        except ncu.CountingFailed as error:
            yield wanted, error.failure


@dataclass
class Tally:
    """How counts agree with what is predicted for the code that was counted."""

    gpu: Gpu
    counted: int = 0
    different: list[str] = field(default_factory=list)
    _seen: set[Experiment] = field(default_factory=set)

    def said(self, found: Counters) -> str:
        """Sectors and requests of the launch, predicted and counted."""
        from kernels import discover
        from kernels.spec import Launch
        from visualize.predict.agreement import launch_totals, verdicts
        from visualize.predict.textbook import Textbook

        experiment = found.experiment
        launch = Launch(experiment.problem, experiment.config, self.gpu)
        totals = launch_totals(verdicts(discover()[experiment.kernel], launch, Textbook(), None, found))
        parts = []
        for kind, (predicted, counted) in totals.items():
            names = ("requests", "sectors") if counted.has_requests else ("sectors",)
            pairs = {name: (getattr(predicted, name), getattr(counted, name)) for name in names}
            numbers = (f"{p:,} {what} predicted, {c:,} counted" for what, (p, c) in pairs.items())
            parts.append(f"{kind}: {', '.join(numbers)}: {counted.agreement}")
        text = "; ".join(parts)
        self.counted += 1
        if any(counted.agreement == "different" for _, counted in totals.values()):
            self.different.append(f"{experiment.kernel} {experiment.to_json()}: {text}")
        return text

    def is_first(self, found: Counters) -> bool:
        """Whether it is the first count of an experiment."""
        is_new = found.experiment not in self._seen
        self._seen.add(found.experiment)
        return is_new

    def summary(self) -> str:
        lines = [f"{self.counted:,} launches counted; {len(self.different):,} not as predicted."]
        return "\n".join(lines + [f"different: {one}" for one in self.different])


def wanted(flags: argparse.Namespace, gpu: Gpu) -> Iterator[Experiment]:
    """What the flags ask for, in order.

    Raises:
        ConfigError: where a line of a file holds no experiment.
    """
    from kernels import discover
    from kernels.experiment import from_json

    if flags.these:
        lines = flags.these.read_text(encoding="utf-8").splitlines()
        return iter([from_json(json.loads(line), discover()) for line in lines if line.strip()])
    if flags.draw is not None:
        payloads = widely_drawn(flags.draw)
        return experiments(with_descriptors(payloads, gpu) if flags.descriptors else payloads)
    every = experiments(itertools.chain(named(), drawn(flags.seed)))
    return itertools.islice(every, len(list(experiments(named()))) + flags.random)


def flags_of_counters() -> argparse.ArgumentParser:
    """The flags of this campaign."""
    parser = flags_of(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the atlas' dice")
    parser.add_argument("--random", type=int, default=240, help="experiments of the atlas that are drawn at random")
    parser.add_argument("--draw", type=int, metavar="SEED", help="another draw: any size up to 4096, 1 to 16 warps")
    parser.add_argument("--launches", type=int, default=60, help="of --draw: how many are counted")
    parser.add_argument("--descriptors", action="store_true", help="of --draw: those with tensor descriptors alone")
    parser.add_argument("--these", type=Path, metavar="FILE", help="experiments of a file, a JSON object per line")
    parser.add_argument("--repeat", type=int, default=1, help="how often each is counted")
    return parser


def main() -> int:
    """Count and record; returns the number of experiments that could not be."""
    from kernels.gpus import this_gpu

    flags, gpu = flags_of_counters().parse_args(), this_gpu()
    if gpu is None:
        return record((), str, flags.file)
    tally = Tally(gpu)
    most = flags.launches if flags.draw is not None else sys.maxsize
    outcomes = counted(wanted(flags, gpu), gpu, most, flags.repeat)
    failed = record(outcomes, tally.said, flags.file, flags.append, kept=tally.is_first)
    print(tally.summary())
    return failed


if __name__ == "__main__":
    sys.exit(main())
