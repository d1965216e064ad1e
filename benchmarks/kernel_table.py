"""The table of `make bench`: rows, rendered as Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

_HEADER = (
    "work",
    "against",
    "kernel and config",
    "ratio (95 %)",
    "ms",
    "theirs, ms",
    "error",
    "their error",
)


@dataclass(frozen=True)
class Entry:
    """One row: the kernel against the fastest of some calls.

    Attributes:
        fastest: the name of that call.
        ratio, ratio_low, ratio_high: its time over the kernel's, paired, with the 95 % interval.
        pairs: timed turns.
        error, their_error: relative RMS error against the reference; None if the call computes a different result.
        failure: the reason for a missing time.
        note: a remark for the reader, such as a changed clock or a missing call.
    """

    work: str
    against: str
    kernel: str
    config: dict[str, int]
    config_from: str
    fastest: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    pairs: int = 0
    ms: float | None = None
    their_ms: float | None = None
    error: float | None = None
    their_error: float | None = None
    failure: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """All rows of one run, on one device on one day."""

    date: str
    device: str
    torch: str
    triton: str
    entries: list[Entry]

    def markdown(self) -> str:
        """Return a title line, the table, and the notes below it."""
        versions = f"torch {self.torch}, triton {self.triton}"
        title = f"Measured on {self.date} on one {self.device}, {versions}; all in one run."
        lines = [
            f"| {' | '.join(_HEADER)} |",
            "|---" * len(_HEADER) + "|",
            *map(_line, self.entries),
        ]
        notes = dict.fromkeys(f"{entry.work}: {entry.note}" for entry in self.entries if entry.note)
        return "\n".join(
            [title, "", *lines, *([""] if notes else []), *(f"- {note}" for note in notes), ""]
        )

    def write(self, path: Path) -> None:
        """Write the table as Markdown to `path`.md, and every field as JSON to `path`.json."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.md").write_text(self.markdown(), encoding="utf-8")
        fields = json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=1)
        path.with_name(f"{path.name}.json").write_text(f"{fields}\n", encoding="utf-8")


def _line(entry: Entry) -> str:
    config = ", ".join(f"{name} {value}" for name, value in entry.config.items())
    start = (entry.work, _against(entry), f"`{entry.kernel}` {config}")
    if entry.failure:
        return f"| {' | '.join((*start, entry.failure, '', '', '', ''))} |"
    times = (f"{entry.ms:.4f}", f"{entry.their_ms:.4f}")
    return f"| {' | '.join((*start, _ratio(entry), *times, _error(entry.error), _error(entry.their_error)))} |"


def _against(entry: Entry) -> str:
    return (
        f"{entry.against}: {entry.fastest}"
        if entry.fastest and " of " in entry.against
        else entry.against
    )


def _ratio(entry: Entry) -> str:
    interval = (
        f" ({entry.ratio_low:.3f}–{entry.ratio_high:.3f})"
        if entry.ratio_low and entry.ratio_high
        else ""
    )
    return f"{entry.ratio:.3f}{interval}"


def _error(error: float | None) -> str:
    if error is None:
        return "–"
    return f"{error:.1e}" if error else "0"
