"""`tilescope sweep`: find the fastest config of a kernel, with a progress bar on stderr."""

import argparse
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tqdm import tqdm

from tilescope.cli.command import FAILED, INTERRUPTED, USAGE, CommandFailed, whole_number
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import from_json
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import Space, parse_varied, space
from tilescope.declare.spec import format_duration
from tilescope.export.script import config_line
from tilescope.measure.session import Session
from tilescope.numbers import count_noun, milliseconds, significant
from tilescope.output import check_output, replacing
from tilescope.results import Strategy, Sweep, SweepRow, codec
from tilescope.results.sweep import PATIENCE, STRATEGIES, ResumePoint
from tilescope.search.devices import SCHEDULER, TrialDevice, concurrent_compiles, connect
from tilescope.search.sweep_run import SweepRun, estimate_seconds, make_sweep
from tilescope.search.text import ENDINGS, STATUSES, knobs_text, sweep_unit, time_ms

_MAX_RANKED = 8


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags of `tilescope sweep`."""
    parser = argparse.ArgumentParser(
        prog="tilescope sweep",
        description="Find the fastest config of a kernel. Exit status: 0; 1 if a config failed or none was correct; "
        "2 for invalid flags; 130 after Ctrl+C, which keeps finished rows.",
        epilog="Example: tilescope sweep experiment.json --vary BLOCK_M=64,128 --vary num_warps=4,8 --out rows.jsonl",
    )
    add = parser.add_argument
    add(
        "experiment",
        type=Path,
        metavar="EXPERIMENT.json",
        help="the experiment, in the API's format",
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
    either("--anew", action="store_true", help="ignore stored rows, and try every config again")
    add(
        "--strategy",
        choices=STRATEGIES,
        default="guided",
        help="the search order (default: guided by the model)",
    )
    add("--seed", type=whole_number(0), default=0, help="the seed of --strategy random (0)")
    add("--budget", type=whole_number(1), metavar="N", help="time at most N configs")
    patience = f"guided: end after N configs without an improvement ({PATIENCE})"
    add("--patience", type=whole_number(1), default=PATIENCE, metavar="N", help=patience)
    gpus = f"number of GPUs on this host; more than one needs Dask (1); {SCHEDULER} names a cluster"
    count = whole_number(1)
    add(
        "--gpus",
        type=lambda text: None if text == "all" else count(text),
        default=1,
        metavar="N|all",
        help=gpus,
    )
    return parser


def sweep(arguments: Sequence[str], prepare: Callable[..., SweepRun] = make_sweep) -> None:
    """Sweep as the arguments say, and print the result.

    Args:
        prepare: makes a sweep, as `make_sweep` does.

    Raises:
        CommandFailed: see the parser's description.
    """
    flags = make_parser().parse_args(arguments)
    try:
        within, strategy, rows = _read_flags(flags)
        resume = ResumePoint(rows) if flags.resume or flags.anew else None  # None: the store's
        with ExitStack() as stack:
            session = stack.enter_context(closing(Session.here()))
            devices: Sequence[TrialDevice] = ()
            if flags.gpus != 1 or os.environ.get(SCHEDULER):
                devices = stack.enter_context(connect(flags.gpus, within.base, session))
            run = prepare(session, within, strategy, resume, devices)
            result = _run_sweep(run, flags, rows)
    except (ConfigError, ValueError) as error:
        raise CommandFailed(str(error), USAGE) from error
    print(summary(result))
    if result.ended == "cancelled":
        raise CommandFailed("Cancelled. Finished rows are kept.", INTERRUPTED)
    failed = result.count("failed")
    if failed or result.ended == "failed" or result.best is None:
        reason = f"{failed} of {len(result.rows)} configs failed."
        raise CommandFailed(reason if failed else "No config gave a correct result.", FAILED)


def _read_flags(flags: argparse.Namespace) -> tuple[Space, Strategy, tuple[SweepRow, ...]]:
    """Return the space, the strategy, and the rows of --resume. Raise ConfigError, UnreadableRecording or OSError."""
    if flags.out is not None:
        check_output(flags.out, MARKERS[check_suffix(flags.out).suffix])
    try:
        base = from_json(json.loads(flags.experiment.read_text(encoding="utf-8")))
    except ValueError as error:  # it is not JSON, or no experiment
        raise ConfigError("no_experiment", f"{flags.experiment}: {error}") from error
    within = space(base, parse_varied(flags.vary, "--vary"))
    rows = read_rows(flags.resume) if flags.resume is not None else ()
    if rows and not {row.experiment for row in rows} & set(within.experiments):
        reason = f"none of its {len(rows)} rows is for this experiment and these values."
        raise ConfigError("other_space", f"--resume is {flags.resume}; {reason}")
    return within, Strategy(flags.strategy, flags.seed, flags.budget, flags.patience), rows


def _run_sweep(run: SweepRun, flags: argparse.Namespace, rows: Sequence[SweepRow]) -> Sweep:
    """Run until the end or Ctrl+C, which cancels the sweep."""
    experiments = set(run.space.experiments)
    size = run.space.size
    unused = sum(row.experiment not in experiments or row.device != run.gpu.name for row in rows)
    if unused and flags.out is not None and flags.out.resolve() == flags.resume.resolve():
        rows_text = f"{flags.resume} holds {count_noun(unused, 'row')}"
        reason = f"{rows_text} for other configs or for a GPU other than {run.gpu.name}"
        raise ConfigError("other_space", f"{reason}: choose another --out file to keep them.")
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
        f"{count_noun(len(result.rows), 'config')} on {result.device.name}: {counts}. {ENDINGS[result.ended]}"
    ]
    if result.note:
        lines.append(result.note)
    if result.best is None:
        return "\n".join([*lines, "No config gave a correct result, so there is no best one."])
    unit, scale = sweep_unit(result)
    finalists = result.final.finalists if result.final else ()
    by_experiment = {finalist.experiment: finalist for finalist in finalists}
    for row in result.ranked[:_MAX_RANKED]:
        ratio = "" if result.is_timed else "predicted"
        if finalist := by_experiment.get(row.experiment):
            tie = " tie" if finalist.is_tie and finalist.ratio != 1 else ""
            ratio = f"× {finalist.ratio:.4f}{tie}"
        time = f"rank {result.ranks[id(row)]}"
        if result.has_times:
            time = f"{significant(time_ms(row, result.is_timed) * scale, 4)} {unit}"
        lines.append(f"  {time}  {ratio:14}  {knobs_text(row.experiment, result.space)}")
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


SUFFIXES = (".jsonl", ".json", ".csv")

# The first bytes of a file, by suffix.
MARKERS = {".jsonl": b'{"experiment":', ".json": b'{\n "space":', ".csv": b"kernel,"}

# No sweep resumes from a CSV file, which omits nested fields.
RESUMABLE = (".jsonl", ".json")


def check_suffix(path: Path, allowed: Sequence[str] = SUFFIXES) -> Path:
    """Return the path.

    Raises:
        ConfigError: if its suffix is not allowed.
    """
    if path.suffix not in allowed:
        *others, last = allowed
        raise ConfigError(
            "unknown_suffix",
            f"The file must end in {', '.join(others)} or {last} (got {str(path)!r}).",
        )
    return path


def _format_csv(rows: Sequence[SweepRow]) -> str:
    """Return one line per row: kernel, problem, config, outcome. Units are in the column names."""
    import pandas as pd

    lines = []
    for row in rows:
        plain = dict(vars(row))
        experiment = plain.pop("experiment")
        predicted = plain.pop("predicted")
        del plain["estimate"]
        line = {
            "kernel": experiment.kernel,
            **vars(experiment.problem),
            **vars(experiment.config),
            **plain,
        }
        line["predicted_ms"] = predicted.ms if predicted else None
        line["predicted_resource"] = predicted.resource if predicted else None
        lines.append(line)
    return str(pd.DataFrame(lines).to_csv(index=False))


def format_sweep(suffix: str, sweep: Sweep) -> str:
    """Return a sweep as the text of a file with one of SUFFIXES."""
    if suffix == ".csv":
        return _format_csv(sweep.rows)
    if suffix == ".json":
        return json.dumps(codec.to_json(sweep), ensure_ascii=False, indent=1) + "\n"
    return "".join(f"{json.dumps(codec.to_json(row), ensure_ascii=False)}\n" for row in sweep.rows)


def write_sweep(path: Path, sweep: Sweep) -> None:
    """Replace a file atomically: a reader never sees half a sweep."""
    with replacing(path) as partial:
        partial.write_text(format_sweep(check_suffix(path).suffix, sweep), encoding="utf-8")


def read_rows(path: Path) -> tuple[SweepRow, ...]:
    """Read the rows of a file that `write_sweep` wrote.

    Raises:
        ConfigError: the suffix is not in RESUMABLE.
        UnreadableRecording: a line is not a valid row. The message names the line and the reason.
        OSError: the file can't be read.
    """
    text = check_suffix(path, RESUMABLE).read_text(encoding="utf-8")
    if path.suffix == ".json":
        return codec.from_json(Sweep, codec.parse_json(text, str(path)), str(path)).rows
    return tuple(
        codec.from_json(SweepRow, fields, place)
        for place, fields in codec.parse_lines(text, str(path))
    )
