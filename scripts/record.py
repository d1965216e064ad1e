"""Record measurements on this machine's GPU: `python -m scripts.record KIND FILE`.

KIND is run, timeline, reuse (DRAM reads by GROUP_SIZE) or counters (compared with the prediction); the last two need
`ncu`. FILE gets one recording per line. Its earlier recordings stay, unless their experiments are measured again.

By default, the script measures all experiments with a shipped recording of the kind. Runs and counters add the defaults
and presets of every kernel, and runs also the recommended configs. `--these FILE` names other experiments, one JSON
object per line. `--draw SEED` measures random launches, to test the predictions.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.drawn_experiments import draw, presets, valid_experiments, with_descriptors
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, from_json
from tilescope.declare.gpus import Gpu, this_gpu
from tilescope.declare.spec import Launch
from tilescope.results import (
    Counters,
    Failure,
    GroupSizeStudy,
    RunResult,
    Timeline,
    records,
)

# Worker processes import this file before they set how Triton runs, so modules that import Triton are imported below.
if TYPE_CHECKING:
    from tilescope.measure.session import Session

KINDS = ("run", "timeline", "reuse", "counters")

# Clients of the session, so that experiments are compiled while another one runs.
CLIENTS = 8

# Launches that one ncu process counts; all are lost if it fails.
BATCH = 40

Outcome = tuple[Experiment, Any]


def choose_experiments(flags: argparse.Namespace, gpu: Gpu) -> list[Experiment]:
    """Return the experiments that the flags ask for, in order.

    Raises:
        ConfigError: a line of `--these` holds no valid experiment.
    """
    if flags.these:
        lines = flags.these.read_text(encoding="utf-8").splitlines()
        return [from_json(json.loads(line)) for line in lines if line.strip()]
    if flags.draw is not None:
        payloads = draw(flags.draw)
        drawn = valid_experiments(
            with_descriptors(payloads, gpu) if flags.descriptors else payloads
        )
        return list(itertools.islice(drawn, flags.launches))
    from visualize.predict import offer

    chosen = [recording.measured.experiment for recording in records.shipped(_form(flags.kind))]
    if flags.kind in ("run", "counters"):
        chosen += valid_experiments(presets(every_dtype=flags.kind == "run"))
    if flags.kind == "run":
        chosen += [config.experiment for config in offer.shipped()]
    return list(
        {_form(flags.kind).key(experiment): experiment for experiment in reversed(chosen)}.values()
    )[::-1]


def measure(kind: str, experiments: Sequence[Experiment]) -> Iterator[Outcome]:
    """Yield each experiment with its result or Failure, in order, as a session on this machine measures it."""
    from tilescope.measure.session import Session

    session = Session.here()
    pictured = {
        one.measured.experiment for one in records.shipped(_form("run")) if one.measured.diff
    }
    try:
        with ThreadPoolExecutor(CLIENTS) as clients:
            results = clients.map(
                lambda experiment: session.submit(experiment, kind).result(), experiments
            )
            for experiment, result in zip(experiments, results, strict=True):
                # A picture of the error takes some kilobytes, and most show only rounding.
                has_picture = (
                    not isinstance(result, RunResult)
                    or experiment in pictured
                    or not result.check.passed
                )
                yield experiment, result if has_picture else dataclasses.replace(result, diff=None)
    finally:
        session.close()


def count(experiments: Sequence[Experiment], gpu: Gpu) -> Iterator[Outcome]:
    """Yield each experiment with its Counters or Failure; one ncu process counts a batch."""
    from tilescope.measure.session import Session

    with tempfile.TemporaryDirectory() as cache:
        session = Session(gpu, Path(cache))
        try:
            for start in range(0, len(experiments), BATCH):
                yield from _count_batch(experiments[start : start + BATCH], session, cache)
        finally:
            session.close()


def _count_batch(batch: Sequence[Experiment], session: Session, cache: str) -> Iterator[Outcome]:
    from tilescope.measure.counters import count, join_counts
    from tilescope.measure.ncu import LAUNCH, CountingFailed

    futures = {experiment: session.compile(experiment) for experiment in batch}
    outcomes = {experiment: future.result() for experiment, future in futures.items()}
    compiled = {
        experiment: made for experiment, made in outcomes.items() if not isinstance(made, Failure)
    }
    yield from (pair for pair in outcomes.items() if pair[0] not in compiled)
    try:
        counts = count(list(compiled), LAUNCH, cache) if compiled else []
    except CountingFailed as error:
        yield from ((experiment, error.failure) for experiment in compiled)
        return
    for (experiment, made), launch_counts in zip(compiled.items(), counts, strict=True):
        try:
            yield experiment, join_counts(experiment, made, launch_counts)
        except CountingFailed as error:
            yield experiment, error.failure


def record(kind: str, outcomes: Iterable[Outcome], file: Path, gpu: str) -> int:
    """Write and print outcomes as they arrive; return the number of failures and wrong predictions."""
    form, lines, wrong = _form(kind), _lines(file), 0
    for experiment, outcome in outcomes:
        if isinstance(outcome, GroupSizeStudy) and not outcome.tool:
            outcome = Failure("launch", "not_counted", outcome.note)
        if isinstance(outcome, Failure):
            wrong += 1
            print(f"not recorded: {kind} {experiment.to_json()}: {outcome}", file=sys.stderr)
            continue
        line = form.line(
            records.Recording(gpu, datetime.datetime.now(datetime.UTC).date().isoformat(), outcome)
        )
        lines[_key(line)] = line
        file.write_text("".join(f"{each}\n" for each in lines.values()), encoding="utf-8")
        summary = describe(outcome, gpu)
        wrong += summary.startswith("DIFFERENT")
        print(f"{kind} {experiment.to_json()}: {summary}", flush=True)
    return wrong


def describe(result: Any, gpu: str) -> str:
    """Summarize a result in one line, which begins with "DIFFERENT" if counters differ from their prediction."""
    if isinstance(result, Timeline):
        cost = result.instrumented.median_ms / result.plain.median_ms - 1
        return (
            f"{len(result.sm):,} programs on {len(set(result.sm))} SMs, span {result.span_ns / 1e6:.4f} ms, launch "
            f"{result.kernel_ms:.4f} ms, tick {result.tick_ns} ns, instrumentation {cost:+.1%}, registers "
            f"{result.registers}, output {'right' if result.passed else 'WRONG'}"
        )
    if isinstance(result, GroupSizeStudy):
        reads = {row.group_size: row.read_bytes / 1e6 for row in result.rows}
        return ", ".join(f"{size}: {megabytes:.0f} MB" for size, megabytes in reads.items())
    if isinstance(result, Counters):
        return _describe_counters(result, gpu)
    return (
        f"{result.timing.median_ms:.4f} ms"
        if result.timing
        else f"{result.check.mismatched:,} wrong"
    )


def _describe_counters(result: Counters, gpu: str) -> str:
    from tilescope.declare.gpus import GPUS
    from visualize.predict.costs import LaunchCosts, launch_totals

    experiment = result.experiment
    launch = Launch(experiment.problem, experiment.config, GPUS[gpu])
    totals = launch_totals(LaunchCosts(discover()[experiment.kernel], launch, None, result))
    parts = []
    for kind, (predicted, counted) in totals.items():
        names = ("requests", "sectors") if counted.has_requests else ("sectors",)
        numbers = (
            f"{getattr(predicted, n):,} {n} predicted, {getattr(counted, n):,} counted"
            for n in names
        )
        parts.append(f"{kind}: {', '.join(numbers)}: {counted.agreement}")
    is_different = any(counted.agreement == "different" for _, counted in totals.values())
    return "DIFFERENT " * is_different + "; ".join(parts)


def _form(kind: str) -> Any:
    from tilescope.measure.session import MEASUREMENTS

    return MEASUREMENTS[kind].form


def _lines(file: Path) -> dict[tuple[str, str, Any], str]:
    """The recordings of a file by kind, GPU, and experiment key."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {_key(line): line for line in lines}


def _key(line: str) -> tuple[str, str, Any]:
    fields = json.loads(line)
    form = next(form for form in map(_form, KINDS) if form.word in fields)
    return form.word, fields["gpu"], form.key(form.recording(fields).measured.experiment)


def parse_flags(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--these",
        type=Path,
        metavar="FILE",
        help="experiments to measure, one JSON object per line",
    )
    parser.add_argument(
        "--draw", type=int, metavar="SEED", help="random experiments, with any size up to 4096"
    )
    parser.add_argument(
        "--launches", type=int, default=60, help="the number of --draw's experiments (%(default)s)"
    )
    parser.add_argument(
        "--descriptors",
        action="store_true",
        help="only --draw's experiments with tensor descriptors",
    )
    return parser.parse_args(arguments)


def main() -> int:
    """Measure and record; return the number of failures and wrong predictions."""
    flags, gpu = parse_flags(), this_gpu()
    if gpu is None:
        print("There is no GPU here, so there is nothing to record.", file=sys.stderr)
        return 1
    experiments = choose_experiments(flags, gpu)
    outcomes = (
        count(experiments, gpu) if flags.kind == "counters" else measure(flags.kind, experiments)
    )
    wrong = record(flags.kind, outcomes, flags.file, gpu.name)
    print(f"{len(experiments):,} experiments; {wrong:,} failed or were not as predicted.")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
