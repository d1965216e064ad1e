"""Sweeps as files: rows as JSON lines or CSV, or a whole sweep as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from tilescope.declare.knobs import ConfigError
from tilescope.output import replacing
from tilescope.results import Sweep, SweepRow, codec

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
