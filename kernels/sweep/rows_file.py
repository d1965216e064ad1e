"""A sweep as a file, by its suffix: rows as JSON lines or CSV, or all of it as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.knobs import ConfigError
from kernels.results import Sweep, SweepRow
from kernels.results.codec import UnreadableRecording, from_json, to_json

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".jsonl", ".json", ".csv")

# Those that hold all of a row.
RESUMABLE = (".jsonl", ".json")


def frame(rows: Sequence[SweepRow]) -> pd.DataFrame:
    """Rows as a table: kernel, problem and config, then what became of each. Units are in the columns' names."""
    import pandas as pd

    return pd.DataFrame([_flat(row) for row in rows])


def _flat(row: SweepRow) -> dict[str, Any]:
    """A row without anything nested."""
    plain = dict(vars(row))
    experiment, predicted = plain.pop("experiment"), plain.pop("predicted")
    return {
        "kernel": experiment.kernel,
        **vars(experiment.problem),
        **vars(experiment.config),
        **plain,
        "predicted_ms": predicted.ms if predicted else None,
        "predicted_resource": predicted.resource if predicted else None,
    }


def checked_path(path: Path, allowed: Sequence[str] = SUFFIXES) -> Path:
    """The path, if its suffix is one of those allowed.

    Raises:
        ConfigError: with what is allowed.
    """
    if path.suffix not in allowed:
        raise ConfigError(
            "unknown_suffix", f"{path} ends in {path.suffix or 'no suffix'!r}; allowed are {', '.join(allowed)}."
        )
    return path


def write(path: Path, sweep: Sweep) -> None:
    """Write what is known of a sweep in place of what the file holds, at once: a reader never sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text(checked_path(path).suffix, sweep), encoding="utf-8")
    beside.replace(path)


def text(suffix: str, sweep: Sweep) -> str:
    """What a file of a suffix, one of SUFFIXES, holds of a sweep."""
    return {".jsonl": _lines, ".json": _whole, ".csv": _table}[suffix](sweep)


def _lines(sweep: Sweep) -> str:
    return "".join(f"{json.dumps(to_json(row), ensure_ascii=False)}\n" for row in sweep.rows)


def _whole(sweep: Sweep) -> str:
    return json.dumps(to_json(sweep), ensure_ascii=False, indent=1) + "\n"


def _table(sweep: Sweep) -> str:
    return str(frame(sweep.rows).to_csv(index=False))


def read(path: Path) -> tuple[SweepRow, ...]:
    """The rows of a file that `write` wrote, to resume from.

    Raises:
        ConfigError: where its suffix is another.
        UnreadableRecording: where it holds anything else, with the line and what is wrong.
        OSError: where it can't be read.
    """
    text = checked_path(path, RESUMABLE).read_text(encoding="utf-8")
    if path.suffix == ".json":
        sweep: Sweep = from_json(Sweep, _parsed(text, str(path)), str(path))
        return sweep.rows
    lines = [(f"{path}, line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return tuple(from_json(SweepRow, _parsed(line, place), place) for place, line in lines)


def _parsed(text: str, place: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableRecording(f"{place}: this is no JSON: {error}.") from error
    if not isinstance(fields, dict) or ("experiment" not in fields and "space" not in fields):
        raise UnreadableRecording(f"{place}: this is no row of a sweep.")
    return fields
