"""The flags of `python app.py sweep`, and what they say: a space, a strategy, files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.knobs import ConfigError
from kernels.results import Strategy, SweepRow
from kernels.results.sweep import PATIENCE, STRATEGIES
from kernels.space import Space, parse_varied, space
from kernels.sweep.files import SUFFIXES, check_suffix, read_rows


@dataclass(frozen=True)
class Asked:
    """What a command line asks for.

    Attributes:
        out: the file that rows are kept in; None for none.
        resume: the file to resume from; None for none.
        done: its rows, those of this space.
        anew: what is stored of the space is left aside.
        gpus: of this host; None for all that are visible.
    """

    space: Space
    strategy: Strategy
    out: Path | None
    resume: Path | None
    done: tuple[SweepRow, ...]
    anew: bool
    gpus: int | None


def parser() -> argparse.ArgumentParser:
    """The flags, with their help."""
    found = argparse.ArgumentParser(
        prog="app.py sweep",
        description="Find the fastest config of a kernel. Exit status: 0; 1 where a config failed or none was right; "
        "2 for flags that make no sense; 130 after Ctrl+C, which keeps the rows that are done.",
        epilog="Example: app.py sweep experiment.json --vary BLOCK_M=64,128 --vary num_warps=4,8 --out rows.jsonl",
    )
    found.add_argument("experiment", type=Path, metavar="EXPERIMENT.json", help="the experiment, as the API takes it")
    found.add_argument(
        "--vary", action="append", default=[], metavar="KNOB=VALUE,VALUE", help="a knob and its values; repeat for more"
    )
    found.add_argument("--out", type=Path, metavar="FILE", help=f"rows, as they come: {', '.join(SUFFIXES)}")
    found.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="rows of an earlier sweep, which are skipped (those that are stored)",
    )
    found.add_argument("--anew", action="store_true", help="try every config again, whatever is stored of it")
    found.add_argument("--strategy", choices=STRATEGIES, default="guided", help="the order (guided, by the model)")
    found.add_argument("--seed", type=int, default=0, help="of --strategy random (0)")
    found.add_argument("--budget", type=int, metavar="N", help="time N configs at most")
    found.add_argument(
        "--patience", type=int, default=PATIENCE, metavar="N",
        help=f"guided: end after N configs without an improvement ({PATIENCE})",
    )  # fmt: skip
    found.add_argument(
        "--gpus", default="1", metavar="N|all",
        help="GPUs of this host to sweep on, more than one through Dask (1); TILESCOPE_SCHEDULER names a cluster",
    )  # fmt: skip
    return found


def asked(flags: argparse.Namespace) -> Asked:
    """What parsed flags ask for.

    Raises:
        ConfigError: for what makes no sense, in a sentence.
        UnreadableRecording: where --resume names no rows.
        OSError: where a file can't be read.
    """
    for name, least in (("budget", 1), ("patience", 1), ("seed", 0)):
        value = getattr(flags, name)
        if value is not None and value < least:
            raise ConfigError("out_of_range", f"--{name} is {value}; allowed are whole numbers from {least}.")
    if flags.anew and flags.resume is not None:
        raise ConfigError("anew", f"--anew tries every config, and --resume {flags.resume} skips some: give one.")
    if flags.out is not None and not check_suffix(flags.out).parent.is_dir():
        raise ConfigError("no_folder", f"--out is {flags.out}; there is no folder {flags.out.parent}.")
    found = space(_experiment(flags.experiment), parse_varied(flags.vary, "--vary"), discover())
    strategy = Strategy(flags.strategy, flags.seed, flags.budget, flags.patience)
    done = read_rows(flags.resume) if flags.resume is not None else ()
    rows = _of_space(done, found, flags.resume)
    if len(rows) < len(done) and flags.out is not None and flags.out.resolve() == flags.resume.resolve():
        raise ConfigError(
            "other_space",
            f"{flags.resume} holds {len(done) - len(rows)} rows of other configs: name another file as --out, so that "
            "they are kept.",
        )
    return Asked(found, strategy, flags.out, flags.resume, rows, flags.anew, _gpus(flags.gpus))


def _gpus(given: str) -> int | None:
    """The number of --gpus; None for all."""
    if given == "all":
        return None
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError("not_a_number", f"--gpus is {given!r}; allowed are all and whole numbers from 1.")
    return int(given)


def _experiment(path: Path) -> Experiment:
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("not_json", f"{path}: this is no JSON: {error}.") from error
    try:
        return from_json(payload, discover())
    except ConfigError as error:
        raise ConfigError(error.kind, f"{path}: {error}", error.field) from error


def _of_space(done: Sequence[SweepRow], within: Space, path: Path | None) -> tuple[SweepRow, ...]:
    """Those of the rows that are of this space.

    Raises:
        ConfigError: where there are rows and none of them is.
    """
    wanted = set(within.experiments)
    found = tuple(row for row in done if row.experiment in wanted)
    if done and not found:
        raise ConfigError(
            "other_space", f"--resume is {path}; none of its {len(done)} rows is of this experiment and these values."
        )
    return found
