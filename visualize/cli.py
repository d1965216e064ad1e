"""The commands of `app.py` that serve no page: `sweep`, with a progress bar on stderr, and `--doctor`."""

import argparse
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kernels import discover
from kernels.experiment import from_json
from kernels.export.script import config_line
from kernels.gpus import Gpu
from kernels.jit import HAS_TRITON
from kernels.knobs import ConfigError
from kernels.measuring import worker
from kernels.measuring.counters import tool
from kernels.measuring.session import JOB_LIMITS, Session
from kernels.results import Failure, RunResult, Strategy, Sweep, SweepRow
from kernels.results.codec import UnreadableRecording
from kernels.results.store import Store, machine_store
from kernels.results.sweep import PATIENCE, STRATEGIES, ResumePoint
from kernels.space import Space, parse_varied, space
from kernels.spec import format_duration
from kernels.sweep.devices import SCHEDULER, concurrent_compiles, connect
from kernels.sweep.files import SUFFIXES, check_suffix, read_rows, write_sweep
from kernels.sweep.sweep_run import SweepRun, estimate_seconds, sweep_here, sweep_on_cluster
from visualize import startup
from visualize.predict.launch_time import predict_time
from visualize.views.numbers import milliseconds, significant
from visualize.views.tune.text import ENDINGS, STATUSES, knobs_text, sweep_unit, time_ms

# Exit statuses of a sweep.
FINE = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
_MAX_RANKED = 8


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags of `app.py sweep`."""
    parser = argparse.ArgumentParser(
        prog="app.py sweep",
        description="Find the fastest config of a kernel. Exit status: 0; 1 if a config failed or none was correct; "
        "2 for invalid flags; 130 after Ctrl+C, which keeps finished rows.",
        epilog="Example: app.py sweep experiment.json --vary BLOCK_M=64,128 --vary num_warps=4,8 --out rows.jsonl",
    )
    add = parser.add_argument
    add(
        "experiment",
        type=Path,
        metavar="EXPERIMENT.json",
        help="the experiment, as the API takes it",
    )
    add(
        "--vary",
        action="append",
        default=[],
        metavar="KNOB=VALUE,VALUE",
        help="a knob and its values; repeatable",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"write rows here as they arrive: {', '.join(SUFFIXES)}",
    )
    either = parser.add_mutually_exclusive_group().add_argument
    either(
        "--resume",
        type=Path,
        metavar="FILE",
        help="skip the rows of an earlier sweep (default: the stored rows)",
    )
    either("--anew", action="store_true", help="try every config again, and ignore the stored rows")
    add(
        "--strategy",
        choices=STRATEGIES,
        default="guided",
        help="the order (default: guided, by the model)",
    )
    add("--seed", type=startup.whole_number(0), default=0, help="the seed of --strategy random (0)")
    add("--budget", type=startup.whole_number(1), metavar="N", help="time at most N configs")
    patience = f"guided: end after N configs without an improvement ({PATIENCE})"
    add("--patience", type=startup.whole_number(1), default=PATIENCE, metavar="N", help=patience)
    gpus = f"GPUs of this host, several through Dask (1); {SCHEDULER} names a cluster"
    count = startup.whole_number(1)
    add(
        "--gpus",
        type=lambda text: None if text == "all" else count(text),
        default=1,
        metavar="N|all",
        help=gpus,
    )
    return parser


def sweep(arguments: Sequence[str], prepare: Callable[..., SweepRun] = sweep_here) -> int:
    """Sweep as the arguments say, print the result, and return the exit status.

    Args:
        prepare: makes a sweep on this machine, as `sweep_here` does.
    """
    flags = make_parser().parse_args(arguments)
    try:
        within, strategy, rows = _read_flags(flags)
        resume = ResumePoint(rows) if flags.resume or flags.anew else None  # None: the store's
        with ExitStack() as stack:
            session = stack.enter_context(closing(Session.here()))
            if flags.gpus != 1 or os.environ.get(SCHEDULER):
                devices = stack.enter_context(connect(flags.gpus, within.base))
                run = sweep_on_cluster(
                    devices, session.store, within, strategy, predict_time, resume
                )
            else:
                run = prepare(session, within, strategy, predict_time, resume)
            result = _run_sweep(run, flags, rows)
    except (ConfigError, UnreadableRecording, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    print(summary(result))
    if result.ended == "cancelled":
        return INTERRUPTED
    return (
        FAILED
        if result.count("failed") or result.ended == "failed" or result.best is None
        else FINE
    )


def _read_flags(flags: argparse.Namespace) -> tuple[Space, Strategy, tuple[SweepRow, ...]]:
    """Return the space, the strategy, and the rows of --resume. Raise ConfigError, UnreadableRecording or OSError."""
    if flags.out is not None and not check_suffix(flags.out).parent.is_dir():
        raise ConfigError("no_folder", f"The folder {flags.out.parent} of --out does not exist.")
    try:
        base = from_json(json.loads(flags.experiment.read_text(encoding="utf-8")))
    except ValueError as error:  # it is not JSON, or no experiment
        raise ConfigError("no_experiment", f"{flags.experiment}: {error}") from error
    within = space(base, parse_varied(flags.vary, "--vary"))
    rows = read_rows(flags.resume) if flags.resume is not None else ()
    if rows and not {row.experiment for row in rows} & set(within.experiments):
        reason = f"none of its {len(rows)} rows is of this experiment and these values."
        raise ConfigError("other_space", f"--resume is {flags.resume}; {reason}")
    return within, Strategy(flags.strategy, flags.seed, flags.budget, flags.patience), rows


def _run_sweep(run: SweepRun, flags: argparse.Namespace, rows: Sequence[SweepRow]) -> Sweep:
    """Run until the end or Ctrl+C, which cancels the sweep."""
    experiments = set(run.space.experiments)
    size = run.space.size
    unused = sum(row.experiment not in experiments or row.device != run.gpu.name for row in rows)
    if unused and flags.out is not None and flags.out.resolve() == flags.resume.resolve():
        unused_rows = f"{flags.resume} holds {unused} rows of other configs or of another GPU than {run.gpu.name}"
        raise ConfigError("other_space", f"{unused_rows}: name another file as --out to keep them.")
    if run.resumed:
        hint = "" if flags.resume else " They are stored; --anew tries them again."
        print(f"{run.resumed} of {size} configs were done before.{hint}", file=sys.stderr)
    remaining = size - run.progress.done
    duration = format_duration(estimate_seconds(remaining, concurrent_compiles()))
    print(f"{remaining} configs to try, about {duration} at most.", file=sys.stderr)
    run.start()
    with _collect_interrupts() as interrupts:
        _show_progress(run, flags.out, interrupts)
    if interrupts:
        print("Cancelled. Finished rows are kept.", file=sys.stderr)
        run.cancel()
    result = run.result()
    if flags.out is not None:
        write_sweep(flags.out, result)
    return result


@contextmanager
def _collect_interrupts() -> Iterator[list[int]]:
    """Collect Ctrl+C in a list. A KeyboardInterrupt may leave a lock held for which the sweep's threads would wait."""
    interrupts: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def _show_progress(run: SweepRun, out: Path | None, interrupts: Sequence[int]) -> None:
    """Show progress and write rows until the end or Ctrl+C: a bar on a terminal, otherwise a line at the end."""
    bar_format = "{desc} {bar} {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
    with tqdm(
        total=run.space.size, unit="config", bar_format=bar_format, file=sys.stderr, disable=None
    ) as bar:
        for progress in itertools.takewhile(lambda _: not interrupts, run.updates(every_s=1.0)):
            bar.n = progress.done
            bar.set_description_str(progress.phase.capitalize(), refresh=False)
            remaining = (
                f"{format_duration(progress.remaining_s)} left" if progress.remaining_s else ""
            )
            best_ms = progress.best.median_ms if progress.best else None
            fastest = f"fastest {milliseconds(best_ms)}" if best_ms else ""
            bar.set_postfix_str(", ".join(filter(None, [remaining, fastest])))
            if out is not None:
                write_sweep(out, run.snapshot())
    if bar.disable:
        now = run.progress
        print(
            f"{now.done} of {now.total} configs done in {format_duration(now.seconds)}.",
            file=sys.stderr,
        )


def summary(result: Sweep) -> str:
    """Return the result of a sweep as lines of text."""
    counts = ", ".join(
        f"{count} {status}" for status in STATUSES if (count := result.count(status))
    )
    lines = [
        f"{len(result.rows)} configs on {result.device.name}: {counts}. {ENDINGS[result.ended]}"
    ]
    if result.note:
        lines.append(result.note)
    if result.best is None:
        return "\n".join([*lines, "No config is correct, so there is no best one."])
    unit, scale = sweep_unit(result)
    finalists = {
        finalist.experiment: finalist
        for finalist in (result.final.finalists if result.final else ())
    }
    for row in result.ranked[:_MAX_RANKED]:
        ratio = "" if result.is_timed else "predicted"
        if finalist := finalists.get(row.experiment):
            ratio = (
                f"× {finalist.ratio:.4f}{' tie' if finalist.is_tie and finalist.ratio != 1 else ''}"
            )
        ms = time_ms(row, result.is_timed)
        lines.append(
            f"  {significant(ms * scale, 4)} {unit}  {ratio:14}  {knobs_text(row.experiment, result.space)}"
        )
    for library in result.baselines:
        interval = f"{library.low:.3f}–{library.high:.3f}"
        lines.append(
            f"{library.name} takes {library.ratio:.3f} ({interval}) times as long as the best."
        )
    kernel = discover()[result.best.experiment.kernel]
    by = "" if result.is_timed else " by prediction"
    return "\n".join(
        [*lines, f"Best{by}, for @triton.autotune:", config_line(kernel, result.best.experiment)]
    )


WORKS = "works"
LIMITED = "limited"
FAILS = "fails"

# The versions that the Makefile and CI use.
PYTHONS = ((3, 11), (3, 13))
_PACKAGES = ("gradio", "torch", "triton", "plotly", "pandas")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Triton's cache grows by about 100 kB per kernel.
_MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class Check:
    """One check of this machine.

    Attributes:
        state: WORKS, LIMITED or FAILS.
        remedy: printed unless it works.
    """

    name: str
    state: str
    detail: str
    remedy: str = ""


def doctor(checks: Iterable[Check]) -> int:
    """Print each check when it is done. Return 1 if one of them fails, else 0."""
    failed = False
    for check in checks:
        failed |= check.state == FAILS
        line = f"{check.state:8} {check.name:12} {check.detail}"
        print(
            textwrap.fill(line, 110, subsequent_indent=" " * 22, break_on_hyphens=False), flush=True
        )
        if check.remedy and check.state != WORKS:
            print(f"{'':21} {check.remedy}", flush=True)
    return int(failed)


def run_checks(host: str, port: int, gpu: Gpu | None) -> Iterator[Check]:
    """Check this machine. The checks that start workers come last, and take some seconds each."""
    from visualize.web.guard import LIMITS, max_connections

    yield check_python(sys.version_info[:2])
    yield check_packages({package.name: package.version for package in metadata.distributions()})
    yield check_gpu(gpu)
    obstacle = startup.obstacle(host, port)
    yield Check("address", FAILS if obstacle else WORKS, obstacle or f"{host}, port {port}")
    yield Check("limits", WORKS, f"{LIMITS}; {max_connections()} connections; {JOB_LIMITS}")
    yield check_cache(worker.default_cache_directory())
    with closing(machine_store(worker.default_cache_directory())) as store:
        yield check_database(store)
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    yield Check(
        "browser", WORKS if browser else LIMITED, browser or "no Chromium; `make test` installs one"
    )
    if not HAS_TRITON:
        detail = "not installed: the page predicts with the textbook model alone"
        yield Check("Triton", LIMITED, detail, "pip install triton (Linux).")
        return
    with closing(Session(gpu)) as session:
        yield from check_workers(session)


def check_python(version: tuple[int, ...]) -> Check:
    detail, low, high = (".".join(map(str, each)) for each in (version, *PYTHONS))
    state = WORKS if PYTHONS[0] <= version <= PYTHONS[1] else FAILS
    return Check(
        "Python", state, detail, f"Use Python {low} to {high}: make PYTHON=python{high} run."
    )


def check_packages(installed: Mapping[str, str]) -> Check:
    """Check that all packages are installed, except Triton, which only exists for Linux.

    Args:
        installed: the version of each package.
    """
    detail = ", ".join(f"{name} {installed.get(name, 'missing')}" for name in _PACKAGES)
    state = WORKS if {*_PACKAGES} - {"triton"} <= {*installed} else FAILS
    return Check("packages", state, detail, "pip install -r requirements.txt.")


def check_gpu(gpu: Gpu | None) -> Check:
    if gpu is not None:
        return Check(
            "GPU", WORKS, f"{gpu.name}, {gpu.sms} SMs" + (f"; {gpu.assumed}" if gpu.assumed else "")
        )
    detail = (
        "none: Triton's interpreter checks results, and nothing is timed or counted on this machine"
    )
    remedy = (
        "With an NVIDIA GPU: install its driver, and pass it to containers (docker run --gpus all)."
    )
    return Check("GPU", LIMITED, detail, remedy)


def check_cache(directory: Path, min_free_bytes: int = _MIN_FREE_BYTES) -> Check:
    """Check that compiled kernels can be stored."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        return Check(
            "cache",
            FAILS,
            f"{directory}: {error.strerror}",
            "Set TILESCOPE_CACHE to a writable directory.",
        )
    state = LIMITED if free < min_free_bytes else WORKS
    detail = f"{directory}, {free / 1e9:,.0f} GB free"
    return Check(
        "cache", state, detail, "Free some space, or set TILESCOPE_CACHE to another directory."
    )


def check_database(store: Store) -> Check:
    """Check that results can be stored."""
    detail = store.problem or str(
        store.path or "off (TILESCOPE_DB): results are lost when the app ends"
    )
    state = LIMITED if store.problem or store.path is None else WORKS
    return Check("database", state, detail, "Set TILESCOPE_DB to a writable file.")


def check_workers(session: Session) -> Iterator[Check]:
    """Start a worker, compile a small kernel, check its result, and count its requests with Nsight Compute."""
    tile = {"BLOCK_M": 32, "BLOCK_N": 32}
    gpu = "this" if session.gpu else ""
    small = from_json(
        {"kernel": "transpose.tiled", "problem": {"M": 128, "N": 128}, "config": tile, "gpu": gpu}
    )

    def check(name: str, outcome: Any, detail: str, otherwise: str = FAILS) -> Check:
        """Return a check whose detail may contain the outcome's attributes."""
        if isinstance(outcome, Failure):
            return Check(name, otherwise, outcome.message)
        return Check(name, WORKS, detail.format(outcome))

    yield check(
        "worker",
        session.call_runner(worker.describe),
        "{0.name}; torch {0.torch}, Triton {0.triton}",
    )
    yield check(
        "compiler",
        session.compile(small).result(),
        "transpose.tiled: {0.registers} registers per thread",
    )
    run = session.submit(small).result()
    if isinstance(run, RunResult) and not run.check.passed:
        run = Failure("check", "wrong", f"transpose.tiled differs from torch ({run.backend})")
    yield check("run", run, "transpose.tiled equals torch ({0.backend})")
    if session.gpu is None:
        yield Check("counters", LIMITED, "no GPU: counts are predicted or recorded")
    else:
        counters = session.submit(small, "counters").result()
        yield check("counters", counters, f"{tool()} counts requests and sectors", LIMITED)
