"""`python app.py sweep`: a sweep in a terminal, with a progress bar on its error stream and the best on its output."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from tqdm import tqdm

from kernels import discover
from kernels.export.script import config_line
from kernels.knobs import ConfigError
from kernels.measuring.session import Session
from kernels.measuring.worker import default_cache_directory
from kernels.results import Sweep, SweepRow
from kernels.results.codec import UnreadableRecording
from kernels.results.store import machine_store
from kernels.results.sweep import ResumePoint
from kernels.spec import format_duration
from kernels.sweep.cluster import SCHEDULER, connect
from kernels.sweep.devices import concurrent_compiles
from kernels.sweep.files import write_sweep
from kernels.sweep.sweep_run import Progress, SweepRun, estimate_seconds, sweep_here, sweep_on_cluster
from visualize.command.sweep_flags import SweepRequest, make_parser, read_request
from visualize.predict.launch_time import predict_time

FINE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

# Rows are written at most this often: a process that is killed loses no more.
_EVERY_S = 1.0

# Configs that the summary lists.
_LISTED = 8


def main(arguments: Sequence[str], prepare: Callable[..., SweepRun] = sweep_here) -> int:
    """Carry out the sweep that the arguments describe, and return the exit status.

    Args:
        prepare: makes a sweep on this machine, as `sweep_here` does.
    """
    flags = make_parser().parse_args(arguments)
    try:
        request = read_request(flags)
        with _prepare_sweep(request, prepare) as run:
            sweep, is_interrupted = _run_sweep(run, request)
    except (ConfigError, UnreadableRecording, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    print(summary(sweep))
    if is_interrupted:
        return INTERRUPTED
    has_failed = sweep.count("failed") or sweep.ended == "failed" or sweep.best is None
    return FAILED if has_failed else FINE


@contextmanager
def _prepare_sweep(request: SweepRequest, prepare: Callable[..., SweepRun]) -> Iterator[SweepRun]:
    """Prepare a sweep on this machine or on a cluster, and end its processes afterwards."""
    has_resume_point = request.resume is not None or request.anew
    resume = ResumePoint(request.done) if has_resume_point else None  # otherwise the store's
    arguments = request.space, request.strategy, predict_time, resume
    if request.gpus != 1 or os.environ.get(SCHEDULER):
        with closing(machine_store(default_cache_directory())) as store, connect(request.gpus) as client:
            yield sweep_on_cluster(client, store, *arguments)
        return
    with closing(Session.here()) as session:
        yield prepare(session, *arguments)


def _run_sweep(run: SweepRun, request: SweepRequest) -> tuple[Sweep, bool]:
    """Run to the end or until Ctrl+C, and write the rows; return the sweep and whether it was interrupted."""
    _refuse_loss(run, request)
    size, left = request.space.size, request.space.size - run.progress.done
    if run.resumed:
        hint = "" if request.resume else " They are stored; --anew tries them again."
        print(f"{run.resumed} of {size} configs were done before.{hint}", file=sys.stderr)
    seconds = estimate_seconds(left, concurrent_compiles())
    print(f"{left} configs to try, about {format_duration(seconds)} at most.", file=sys.stderr)
    run.start()
    with _noted_interrupts() as interrupts:
        _show_progress(run, request, interrupts)
    if interrupts:
        print("Cancelled: finished rows are kept.", file=sys.stderr)
        run.cancel()
    sweep = run.result()
    if request.out is not None:
        write_sweep(request.out, sweep)
    return sweep, bool(interrupts)


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Collect Ctrl+C in a list: a KeyboardInterrupt may leave a lock held for which the sweep's threads would wait."""
    interrupts: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def _refuse_loss(run: SweepRun, request: SweepRequest) -> None:
    """Raise ConfigError if rows of another GPU would be overwritten: the sweep does not resume from them."""
    others = {row.device for row in request.done} - {run.gpu.name}
    files = {path.resolve() for path in (request.out, request.resume) if path is not None}
    if others and request.out is not None and len(files) == 1:
        raise ConfigError(
            "other_gpu",
            f"{request.resume} holds rows of {', '.join(sorted(others))}, and this sweep is for {run.gpu.name}: "
            "name another file as --out, so that they are kept.",
        )


def _show_progress(run: SweepRun, request: SweepRequest, interrupts: Sequence[int]) -> None:
    """Draw a progress bar, and write rows as they arrive, until the end or Ctrl+C."""
    written, changes = 0.0, 0
    with tqdm(total=request.space.size, unit="config", bar_format=_BAR, file=sys.stderr) as bar:
        for progress in itertools.takewhile(lambda _: not interrupts, run.updates()):
            bar.n = progress.done
            bar.set_description_str(_PHASES[progress.phase], refresh=False)
            bar.set_postfix_str(postfix(progress))
            if request.out is not None and run.changes > changes and time.monotonic() - written > _EVERY_S:
                write_sweep(request.out, run.snapshot())
                written, changes = time.monotonic(), run.changes


_BAR = "{desc} {bar} {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
_PHASES = {"explore": "Explore", "race": "Race", "final": "Final", "over": "Done"}


def postfix(progress: Progress) -> str:
    """Return the text after the bar: the remaining time and the fastest time so far."""
    best = f"fastest {progress.best.median_ms:.4f} ms" if progress.best and progress.best.median_ms else ""
    left = f"{format_duration(progress.remaining_s)} left" if progress.remaining_s else ""
    return ", ".join(filter(None, [left, best]))


def summary(sweep: Sweep) -> str:
    """Return the result of a sweep as lines of text."""
    counts = ", ".join(f"{count} {status}" for status in _COUNTED if (count := sweep.count(status)))
    lines = [f"{len(sweep.rows)} configs on {sweep.device.name}: {counts}. {_ENDED[sweep.ended]}".rstrip()]
    if sweep.note:
        lines.append(sweep.note)
    lines += [_line(row, sweep) for row in sweep.ranked[:_LISTED]]
    if sweep.best is None:
        return "\n".join([*lines, "No config was right, so there is no best."])
    for library in sweep.final.baselines if sweep.final else ():
        interval = f"{library.low:.3f}–{library.high:.3f}"
        lines.append(f"{library.name} takes {library.ratio:.3f} ({interval}) times as long as the best.")
    kernel, by = discover()[sweep.best.experiment.kernel], "" if sweep.is_timed else " by prediction"
    return "\n".join([*lines, f"Best{by}, for @triton.autotune:", config_line(kernel, sweep.best.experiment)])


_COUNTED = ("timed", "checked", "predicted", "wrong", "set aside", "failed", "not tried")
_ENDED = {
    "complete": "",
    "patience": "It ended early: the last ones were no improvement.",
    "budget": "The budget is spent.",
    "cancelled": "It was cancelled.",
    "failed": "It ended, as no device was left.",
}


def _line(row: SweepRow, sweep: Sweep) -> str:
    """Return a line for a ranked config: its time, its ratio to the fastest finalist, and the varied knobs."""
    knobs = ", ".join(f"{name}={getattr(row.experiment.config, name)}" for name, _ in sweep.space.varied)
    if row.median_ms is None:
        return f"  {row.predicted.ms if row.predicted else 0:.4f} ms predicted  {knobs}"
    ratio = ""
    for finalist in sweep.final.finalists if sweep.final else ():
        if finalist.experiment == row.experiment:
            ratio = f"× {finalist.ratio:.4f}{' tie' if finalist.is_tie and finalist.ratio != 1 else ''}"
    return f"  {row.median_ms:.4f} ms  {ratio:14}  {knobs}"
