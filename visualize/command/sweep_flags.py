"""The flags of `python app.py sweep`: a space, a strategy, files."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from kernels.experiment import Experiment, from_json
from kernels.knobs import ConfigError
from kernels.results import Strategy, SweepRow
from kernels.results.sweep import PATIENCE, STRATEGIES
from kernels.space import Space, parse_varied, space
from kernels.sweep.files import SUFFIXES, check_suffix, read_rows


@dataclass(frozen=True)
class SweepRequest:
    """What a command line requests.

    Attributes:
        out: the file to write rows to; None for no file.
        resume: the file to resume from; None for the store.
        done: its rows of this space.
        anew: ignore the stored rows of the space.
        gpus: of this host; None for all visible GPUs.
    """

    space: Space
    strategy: Strategy
    out: Path | None
    resume: Path | None
    done: tuple[SweepRow, ...]
    anew: bool
    gpus: int | None


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags, with their help."""
    parser = argparse.ArgumentParser(
        prog="app.py sweep",
        description="Find the fastest config of a kernel. Exit status: 0; 1 where a config failed or none was right; "
        "2 for invalid flags; 130 after Ctrl+C, which keeps the rows that are done.",
        epilog="Example: app.py sweep experiment.json --vary BLOCK_M=64,128 --vary num_warps=4,8 --out rows.jsonl",
    )
    add = parser.add_argument
    add("experiment", type=Path, metavar="EXPERIMENT.json", help="the experiment, as the API takes it")
    add("--vary", action="append", default=[], metavar="KNOB=VALUE,VALUE", help="a knob and its values; repeatable")
    add("--out", type=Path, metavar="FILE", help=f"write rows here as they arrive: {', '.join(SUFFIXES)}")
    add("--resume", type=Path, metavar="FILE", help="skip the rows of an earlier sweep (the stored rows)")
    add("--anew", action="store_true", help="try every config again, and ignore the stored rows")
    add("--strategy", choices=STRATEGIES, default="guided", help="the order (guided, by the model)")
    add("--seed", type=int, default=0, help="of --strategy random (0)")
    add("--budget", type=int, metavar="N", help="time N configs at most")
    patience = f"guided: end after N configs without an improvement ({PATIENCE})"
    add("--patience", type=int, default=PATIENCE, metavar="N", help=patience)
    gpus = "GPUs of this host to sweep on, more than one through Dask (1); TILESCOPE_SCHEDULER names a cluster"
    add("--gpus", default="1", metavar="N|all", help=gpus)
    return parser


def read_request(flags: argparse.Namespace) -> SweepRequest:
    """Return the request that parsed flags describe; read the files that they name.

    Raises:
        ConfigError: if the flags are invalid, with the reason as a sentence.
        UnreadableRecording: if the file of --resume holds no rows.
        OSError: if a file can't be read.
    """
    for name, least in (("budget", 1), ("patience", 1), ("seed", 0)):
        value = getattr(flags, name)
        if value is not None and value < least:
            raise ConfigError("out_of_range", f"--{name} must be a whole number from {least} (got {value}).")
    if flags.anew and flags.resume is not None:
        raise ConfigError("anew", f"--anew tries every config, and --resume {flags.resume} skips some: pass only one.")
    if flags.out is not None and not check_suffix(flags.out).parent.is_dir():
        raise ConfigError("no_folder", f"The folder {flags.out.parent} of --out does not exist.")
    swept = space(_read_experiment(flags.experiment), parse_varied(flags.vary, "--vary"))
    strategy = Strategy(flags.strategy, flags.seed, flags.budget, flags.patience)
    rows = read_rows(flags.resume) if flags.resume is not None else ()
    experiments = set(swept.experiments)
    done = tuple(row for row in rows if row.experiment in experiments)
    if rows and not done:
        reason = f"none of its {len(rows)} rows is of this experiment and these values."
        raise ConfigError("other_space", f"--resume is {flags.resume}; {reason}")
    if len(done) < len(rows) and flags.out is not None and flags.out.resolve() == flags.resume.resolve():
        raise ConfigError(
            "other_space",
            f"{flags.resume} holds {len(rows) - len(done)} rows of other configs: name another file as --out, so that "
            "they are kept.",
        )
    return SweepRequest(swept, strategy, flags.out, flags.resume, done, flags.anew, _parse_gpus(flags.gpus))


def _parse_gpus(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError("not_a_number", f"--gpus must be all or a whole number from 1 (got {text!r}).")
    return int(text)


def _read_experiment(path: Path) -> Experiment:
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("not_json", f"{path} is not JSON: {error}.") from error
    try:
        return from_json(payload)
    except ConfigError as error:
        raise ConfigError(error.kind, f"{path}: {error}", error.field) from error
