"""`python app.py sweep`: a sweep in a terminal, with a progress bar on its error stream and the best on its output."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

from kernels import discover
from kernels.compiling.compile_cost import explain_spill
from kernels.export.script import config_line
from kernels.knobs import ConfigError
from kernels.measuring.session import Session
from kernels.measuring.worker import default_cache_directory
from kernels.results import Sweep, SweepRow
from kernels.results.codec import UnreadableRecording
from kernels.results.store import machine_store
from kernels.sweep.cluster import SCHEDULER, connect
from kernels.sweep.files import write_sweep
from kernels.sweep.stored_sweep import ResumePoint
from kernels.sweep.sweep_run import Progress, SweepRun, estimate_seconds, format_duration, sweep_here, sweep_on_cluster
from visualize.command.sweep_flags import Asked, asked, parser
from visualize.predict.launch_time import predict_time

FINE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

# Rows are written at most this often: a process that is killed loses no more.
_EVERY_S = 1.0

# Configs that are listed in the end.
_LISTED = 8


def main(arguments: Sequence[str]) -> int:
    """Sweep as the arguments say; the exit status."""
    flags = parser().parse_args(arguments)
    try:
        wanted = asked(flags)
        with _sweeping(wanted) as sweeping:
            found, is_interrupted = _carried_out(sweeping, wanted)
    except (ConfigError, UnreadableRecording, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    print(summary(found))
    if is_interrupted:
        return INTERRUPTED
    has_failed = found.count("failed") or found.ended == "failed" or found.best is None
    return FAILED if has_failed else FINE


@contextmanager
def _sweeping(wanted: Asked) -> Iterator[SweepRun]:
    """The sweep that is asked for, on this machine or on a cluster, whose processes are ended in the end."""
    what = wanted.space, wanted.strategy, predict_time, explain_spill, _resume_point(wanted)
    if wanted.gpus != 1 or os.environ.get(SCHEDULER):
        store = machine_store(default_cache_directory())
        try:
            with connect(wanted.gpus) as client:
                yield sweep_on_cluster(client, store, *what)
        finally:
            store.close()
        return
    session = Session.here()
    try:
        yield sweep_here(session, *what)
    finally:
        session.close()


def _resume_point(wanted: Asked) -> ResumePoint | None:
    """Return where the sweep resumes; None for the store."""
    return ResumePoint(wanted.done) if wanted.resume is not None or wanted.anew else None


def _carried_out(sweeping: SweepRun, wanted: Asked) -> tuple[Sweep, bool]:
    """Run it to its end, or until Ctrl+C; rows are stored either way, and in the file that is named."""
    _refuse_loss(sweeping, wanted)
    size, left = wanted.space.size, wanted.space.size - sweeping.progress.done
    if sweeping.resumed:
        again = "" if wanted.resume else " They are stored; --anew tries them again."
        print(f"{sweeping.resumed} of {size} configs were done before.{again}", file=sys.stderr)
    seconds = estimate_seconds(left, sweeping.concurrent_compiles)
    print(f"{left} configs to try, about {format_duration(seconds)} at most.", file=sys.stderr)
    is_interrupted = False
    sweeping.start()
    try:
        _shown(sweeping, wanted)
    except KeyboardInterrupt:
        is_interrupted = True
        print("Cancelled: what is done is kept.", file=sys.stderr)
        sweeping.cancel()
    found = sweeping.result()
    if wanted.out is not None:
        write_sweep(wanted.out, found)
    return found, is_interrupted


def _refuse_loss(sweeping: SweepRun, wanted: Asked) -> None:
    """Raise ConfigError where rows of another GPU would be overwritten: they are not resumed from."""
    others = {row.device for row in wanted.done} - {sweeping.gpu.name}
    files = {path.resolve() for path in (wanted.out, wanted.resume) if path is not None}
    if others and wanted.out is not None and len(files) == 1:
        raise ConfigError(
            "other_gpu",
            f"{wanted.resume} holds rows of {', '.join(sorted(others))}, and this sweep is for {sweeping.gpu.name}: "
            "name another file as --out, so that they are kept.",
        )


def _shown(sweeping: SweepRun, wanted: Asked) -> None:
    """Draw progress, and write rows as they come."""
    written, changes = 0.0, 0
    with tqdm(total=wanted.space.size, unit="config", bar_format=_BAR, file=sys.stderr) as bar:
        for progress in sweeping.updates():
            bar.n = progress.done
            bar.set_description_str(_PHASES[progress.phase], refresh=False)
            bar.set_postfix_str(postfix(progress))
            if wanted.out is not None and sweeping.changes > changes and time.monotonic() - written > _EVERY_S:
                write_sweep(wanted.out, sweeping.snapshot())
                written, changes = time.monotonic(), sweeping.changes


_BAR = "{desc} {bar} {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
_PHASES = {"explore": "Explore", "race": "Race", "final": "Final", "over": "Done"}


def postfix(progress: Progress) -> str:
    """What stands behind the bar: the fastest so far, and what remains."""
    best = f"fastest {progress.best.median_ms:.4f} ms" if progress.best and progress.best.median_ms else ""
    left = f"{format_duration(progress.remaining_s)} left" if progress.remaining_s else ""
    return ", ".join(filter(None, [left, best]))


def summary(found: Sweep) -> str:
    """What was found, in lines."""
    counts = ", ".join(f"{count} {status}" for status in _COUNTED if (count := found.count(status)))
    lines = [f"{len(found.rows)} configs on {found.device.name}: {counts}. {_ENDED[found.ended]}".rstrip()]
    if found.note:
        lines.append(found.note)
    lines += [_line(row, found) for row in found.ranked[:_LISTED]]
    if found.best is None:
        return "\n".join([*lines, "No config was right, so there is no best."])
    for one in found.final.baselines if found.final else ():
        lines.append(f"{one.name} takes {one.ratio:.3f} ({one.low:.3f}–{one.high:.3f}) times as long as the best.")
    kernel, by = discover()[found.best.experiment.kernel], "" if found.is_timed else " by prediction"
    return "\n".join([*lines, f"Best{by}, for @triton.autotune:", config_line(kernel, found.best.experiment)])


_COUNTED = ("timed", "checked", "predicted", "wrong", "set aside", "failed", "not tried")
_ENDED = {
    "complete": "",
    "patience": "It ended early: the last ones were no improvement.",
    "budget": "The budget is spent.",
    "cancelled": "It was cancelled.",
    "failed": "It ended, as no device was left.",
}


def _line(row: SweepRow, found: Sweep) -> str:
    """A ranked config: its time, how it compares, and its knobs that vary."""
    knobs = ", ".join(f"{name}={getattr(row.experiment.config, name)}" for name, _ in found.space.varied)
    if row.median_ms is None:
        return f"  {row.predicted.ms if row.predicted else 0:.4f} ms predicted  {knobs}"
    one = (
        next((one for one in found.final.finalists if one.experiment == row.experiment), None) if found.final else None
    )
    compared = f"× {one.ratio:.4f}{' tie' if one.is_tie and one.ratio != 1 else ''}" if one else ""
    return f"  {row.median_ms:.4f} ms  {compared:14}  {knobs}"
