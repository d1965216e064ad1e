"""`tilescope tune`: find the fastest configs of a kernel for many problems, with a progress bar on stderr."""

import argparse
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tqdm import tqdm

from tilescope.cli.command import FAILED, INTERRUPTED, USAGE, CommandFailed, whole_number
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import OPTIONS, Experiment, Run, Settings, from_json
from tilescope.declare.gpus import DEFAULT_GPU, GPUS, Gpu, find_gpu
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import Space, combinations, nearby_values, parse_varied, space
from tilescope.declare.spec import format_duration
from tilescope.measure.fair_queue import Call
from tilescope.measure.pool import preload_triton, start_fork_server
from tilescope.measure.session import Session
from tilescope.numbers import count_noun, join_names
from tilescope.processes import check_output, replacing
from tilescope.results import Failure, Sweep
from tilescope.search import cluster
from tilescope.search.cases import CaseDescription, combine, describe_case
from tilescope.search.trial import concurrent_compiles
from tilescope.search.tune import LocalTuner, StoredRows, Tuner, tuned_json, tuned_text
from tilescope.search.tune import tune as tune_spaces

# The first bytes of a result file.
MARKER = b'{"kernel":'


def make_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `tilescope tune`."""
    parser = argparse.ArgumentParser(
        prog="tilescope tune",
        description="Find the fastest configs of a kernel for many problems. Exit status: 0; 1 if a problem has no "
        "correct config, or the Dask cluster has ended; 2 for invalid flags; 130 after Ctrl+C or SIGTERM, which keep "
        "finished rows.",
        epilog="Example: tilescope tune softmax.py:case --over rows=1024,4096 --over cols=1000,4096 "
        "--set BLOCK=1024,4096 --set num_warps=2,4,8 --out table.json",
    )
    add = parser.add_argument
    add("kernel", nargs="?", help="a case of a script (script.py:case), a Tilescope kernel (matmul.grouped), or a "
        "JSON file with an experiment in the API's format")  # fmt: skip
    values = "NAME=VALUE,VALUE"
    add("--over", action="append", default=[], metavar=values,
        help="a problem parameter and its values; repeatable: all combinations are tuned")  # fmt: skip
    add("--set", "--vary", dest="set", action="append", default=[], metavar=values,
        help="a config parameter and its values; repeatable (default: the configs of the kernel's autotuner; "
        "for a Tilescope kernel, values near its default)")  # fmt: skip
    add("--out", type=Path, metavar="FILE.json", help="write the result as JSON")
    add(
        "--all",
        action="store_true",
        help="time every config (default: one in four, in order of predicted time)",
    )
    add(
        "--l2",
        choices=("cold", "warm"),
        help="cold: other data fills the L2 before each launch (default for scripts); warm: not (default for our "
        "kernels, as on the page)",
    )
    add("--load", choices=("sustained", "single"), default="sustained",
        help="sustained (default): launches follow each other, so clocks may fall; single: the GPU rests")  # fmt: skip
    add("--from-scratch", "--anew", action="store_true", help="ignore stored rows")
    add(
        "--gpu",
        metavar="NAME",
        help=f"compile and predict for this GPU (default: this machine's, or {DEFAULT_GPU})",
    )
    count = whole_number(1)
    add("--gpus", type=lambda text: 0 if text == "all" else count(text), default=1, metavar="N|all",
        help=f"use N of this host's GPUs (default: 1); {cluster.SCHEDULER} names a Dask scheduler instead")  # fmt: skip
    add(
        "--join",
        metavar="tcp://HOST:PORT",
        help="only work for this Dask scheduler, with all GPUs of this host",
    )
    return parser


def tune(arguments: Sequence[str]) -> None:
    """Run `tilescope tune`, and print the result.

    Raises:
        CommandFailed: with the exit status that the parser describes.
    """
    flags = make_parser().parse_args(arguments)
    try:
        if flags.out is not None:
            check_output(flags.out, MARKER)
        with ExitStack() as stack:
            stack.enter_context(_temporary_folder())
            if flags.join:
                cluster.join(flags.join)
                return
            if _is_script(flags.kernel):
                preload_triton()
                start_fork_server()
            session = stack.enter_context(closing(Session.here(concurrent_compiles())))
            rows = StoredRows(session.store)
            gpu = GPUS[find_gpu(flags.gpu, GPUS)] if flags.gpu else session.gpu or GPUS[DEFAULT_GPU]
            # Both start their workers now, which takes as long as reading a script
            tuner: Tuner | None = None
            if flags.gpus == 1 and not os.environ.get(cluster.SCHEDULER):
                tuner = LocalTuner(session, gpu, rows)
            else:
                client = stack.enter_context(cluster.connect(flags.gpus))
            spaces = [replace(each, load=flags.load) for each in read_spaces(flags, session, gpu)]
            tuner = tuner or cluster.ClusterTuner(client, spaces[0].base, rows)
            sweeps = _tune(flags, session, spaces, tuner, rows)
    except cluster.ClusterLost as error:
        raise CommandFailed(str(error), FAILED) from error
    except (ConfigError, ValueError) as error:
        raise CommandFailed(str(error), USAGE) from error
    done = [sweep for sweep in sweeps if sweep and (sweep.best or sweep.ended != "cancelled")]
    if done:
        print(tuned_text(done))
        if flags.out is not None:
            with replacing(flags.out) as partial:
                partial.write_text(json.dumps(tuned_json(done)) + "\n", encoding="utf-8")
    if session.store.problem:
        print(session.store.problem, file=sys.stderr)
    _refuse_incomplete(sweeps)


def _refuse_incomplete(sweeps: Sequence[Sweep | None]) -> None:
    if any(sweep is None or sweep.ended == "cancelled" for sweep in sweeps):
        raise CommandFailed("Cancelled. Finished rows are stored.", INTERRUPTED)
    if failed := [sweep for sweep in sweeps if sweep and not sweep.best]:
        problems = count_noun(len(failed), "problem")
        raise CommandFailed(f"No config is usable for {problems}.", FAILED)


def _tune(
    flags: argparse.Namespace,
    session: Session,
    spaces: Sequence[Space],
    tuner: Tuner,
    rows: StoredRows,
) -> Sequence[Sweep | None]:
    """Tune until the end, or until Ctrl+C cancels all sweeps. Show progress on a terminal."""
    total = len(spaces) * spaces[0].size
    sweeps: list[Sweep | None] = []
    bar_format = "{desc} {bar} [{elapsed}{postfix}]"
    with (
        _collect_interrupts() as interrupts,
        tqdm(total=len(spaces), bar_format=bar_format, file=sys.stderr, disable=None) as bar,
    ):
        for sweeps in tune_spaces(tuner, spaces, session.store, flags.all, flags.from_scratch):
            if interrupts:
                tuner.cancel()
            ended = sum(sweep is not None for sweep in sweeps)
            bar.n = ended
            bar.set_description_str(
                f"{ended} of {count_noun(len(spaces), 'problem')}, {sum(rows.done.values()):,} of {total:,} configs",
                refresh=False,
            )
            elapsed_s = bar.format_dict["elapsed"]
            left = format_duration(elapsed_s / ended * (len(spaces) - ended)) if ended else ""
            bar.set_postfix_str(f"about {left} left" if left else "")
    return sweeps


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """Give the workers a folder for temporary files, because they are killed, and cannot remove theirs."""
    with (
        tempfile.TemporaryDirectory(prefix="tilescope-", ignore_cleanup_errors=True) as name,
        patch.dict(os.environ, TMPDIR=name),
    ):
        yield


@contextmanager
def _collect_interrupts() -> Iterator[list[int]]:
    """Collect SIGINT (Ctrl+C) and SIGTERM in a list.

    A KeyboardInterrupt could leave a lock held, which would block the sweeps' threads.
    """
    interrupts: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as Ctrl+C in a background job of a script
            signal.signal(number, lambda number, _: interrupts.append(number))
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_spaces(flags: argparse.Namespace, session: Session, gpu: Gpu) -> list[Space]:
    """Return a space for each problem.

    Args:
        gpu: this machine's GPU, or the GPU to predict for.

    Raises:
        ConfigError: the kernel, a name or a value is invalid.
    """
    over = parse_varied(flags.over, "--over")
    chosen = parse_varied(flags.set, "--set")
    name = flags.kernel or ""
    path, colon, case = name.rpartition(":")
    if _is_script(name):
        target = f"{Path(path or name).resolve()}:{case if colon else 'case'}"
        run = Run(l2=flags.l2 or "cold")
        named = gpu.name if flags.gpu else ""
        described = describe(target, gpu, session)
        base = Experiment(target, Settings(), Settings(), named, run)
        return _case_spaces(base, described, over, chosen)
    if name.endswith(".json"):
        base = _read_experiment(Path(name))
        base = replace(base, run=replace(base.run, l2=flags.l2 or base.run.l2))
    elif name in discover():
        base = from_json({"kernel": name, "run": {"l2": flags.l2} if flags.l2 else {}})
    else:
        known = join_names(list(discover()))
        raise ConfigError(
            "unknown_kernel",
            f"The kernel must be a case such as softmax.py:case, a file with an experiment, or one of {known} "
            f"(got {name!r}).",
        )
    base = replace(base, gpu=gpu.name if flags.gpu else base.gpu)
    payload = base.to_json()
    spaces = []
    for problem in combinations(over):
        payload["problem"] = {**vars(base.problem), **problem}
        experiment = from_json(payload)
        spaces.append(space(experiment, chosen or nearby_values(experiment)))
    return spaces


def _is_script(kernel: str | None) -> bool:
    return bool(re.search(r"\.py(:[^:]*)?$", kernel or ""))


def _read_experiment(path: Path) -> Experiment:
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:  # invalid JSON, or not an experiment
        raise ConfigError("no_experiment", f"{path}: {error}") from error


def _case_spaces(
    base: Experiment,
    described: CaseDescription,
    over: Mapping[str, Sequence[str]],
    chosen: Mapping[str, Sequence[str]],
) -> list[Space]:
    """Return the spaces of a script's case.

    Args:
        base: an experiment whose problem and config are still empty.
    """
    varied = {name: parse_values(described, name, texts) for name, texts in chosen.items()}
    problems = {name: parse_values(described, name, texts) for name, texts in over.items()}
    if both := varied.keys() & problems.keys():
        raise ConfigError(
            "varied_twice", f"{join_names(sorted(both))}: give --over or --set, not both."
        )
    if not (varied or described.configs):
        has = join_names([*described.defaults]) if described.defaults else "no parameters"
        raise ConfigError(
            "nothing_varied",
            f"The kernel has no autotuner, so --set must vary a parameter of the case. It has {has}.",
        )
    tuned = set().union(*described.configs)
    if both := tuned & varied.keys():
        names = join_names(sorted(both))
        raise ConfigError(
            "varied_twice", f"{names}: the configs of the kernel's autotuner set it; --set cannot."
        )
    # A config to paste includes the options of the launch
    for name in OPTIONS:
        if name in described.defaults and name not in {*varied, *problems, *tuned}:
            varied[name] = [described.defaults[name]]
    combined, listed = combine(varied, described.configs)
    config = {name: value for name, value in described.defaults.items() if name in varied}
    if described.configs:
        config |= described.configs[0]
    config = {name: config.get(name) for name, _ in combined}
    rest = {name: value for name, value in described.defaults.items() if name not in varied}
    return [
        Space(
            replace(base, problem=Settings(**{**rest, **problem}), config=Settings(**config)),
            combined,
            listed,
            described.source,
            described.parameters,
        )
        for problem in combinations(problems)
    ]


def describe(target: str, gpu: Gpu, session: Session) -> CaseDescription:
    """Describe a case in a compile worker.

    Raises:
        ConfigError: there is no script, the script fails, or the case is unknown or returns no launch.
    """
    script = target.rpartition(":")[0]
    if not Path(script).is_file():
        raise ConfigError("no_script", f"There is no script {script}.")
    described = session.compilers.submit(Call("compile", describe_case, (target, gpu)))
    result = described.result()
    if isinstance(result, Failure):
        message = result.message
        if result.kind in ("worker_died", "timeout"):
            message = f"{Path(target).name}: {message}"
        raise ConfigError("script_failed", message)
    return result


def parse_values(described: CaseDescription, name: str, texts: Sequence[str]) -> list[Any]:
    """Convert the values of a case's parameter to the type of its default.

    Raises:
        ConfigError: the case has no such parameter, or a value can't be converted.
    """
    if name not in described.defaults:
        allowed = join_names([*described.defaults]) if described.defaults else "none"
        raise ConfigError(
            "unknown_field",
            f"The case has no parameter {name!r} whose default is a number, text or bool. It has {allowed}.",
        )
    default = described.defaults[name]
    kind: Callable[[str], Any] = type(default)
    try:
        if isinstance(default, bool):
            texts = [text.lower() for text in texts]  # of JSON or Python
            kind = {"true": True, "false": False}.__getitem__
        return list(dict.fromkeys(kind(text) for text in texts))
    except (KeyError, ValueError):
        message = f"{name} must have values like its default, {default!r} (got {', '.join(texts)})."
        raise ConfigError("bad_value", message) from None
