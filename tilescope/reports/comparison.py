"""The numbers that differ between two reports of a script."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from tilescope.reports.launch import MAIN_AMOUNTS, LaunchReport, OperationReport, in_words

# Maximum number of lines that explain a difference.
_MOST_LINES = 3

# Growth of these is not a regression if the predicted time does not grow. They move no data to or from memory.
_RESOURCES = ("registers", "shared_bytes", "shared_wavefronts", "bank_conflicts")

# Totals of a launch, with the field of the lines that explain a difference, and their amounts.
_TOTALS = {
    "spilled_bytes": ("spills_by_line", "stored_bytes"),
    "shared_bytes": ("", ""),
    "shared_wavefronts": ("shared", "wavefronts"),
    "bank_conflicts": ("shared", "conflicts"),
    "spill_traffic_bytes": ("", ""),
}

# Smaller differences of predicted times are omitted.
_LEAST_TIME_CHANGE = 0.05


@dataclass(frozen=True)
class Difference:
    """A number that differs between two reports.

    Attributes:
        where: a kernel, or an operation as file:line, kernel and tensor.
        what: "registers", "sectors" and so on.
        times: number of launches with this difference.
        lines: describes the source lines that explain it; "" if they are unknown.
        file, line: its place; "" and 0 without one.
        is_affordable: whether the launch needs more of a resource, and its predicted time does not grow.
    """

    where: str
    what: str
    before: float
    after: float
    times: int = 1
    lines: str = ""
    file: str = ""
    line: int = 0
    is_affordable: bool = False

    @property
    def is_worse(self) -> bool:
        """Whether it increased. Fewer launches are worse, because the numbers of missing ones are unknown.

        A predicted time, which has an error, is never worse.
        """
        if self.what == "predicted_us" or self.is_affordable:
            return False
        return (self.after < self.before) == (self.what == "launches")

    @property
    def subject(self) -> str:
        return f"{self.where} ({self.times} launches)" if self.times > 1 else self.where

    @property
    def sentence(self) -> str:
        verb = "rose" if self.after > self.before else "fell"
        lines = f" ({self.lines})" if self.lines else ""
        unit = " µs" if self.what == "predicted_us" else ""
        numbers = f"from {self.before:,}{unit} to {self.after:,}{unit}{lines}"
        time = ", but the predicted time did not" if self.is_affordable else ""
        return f"{self.subject}: {in_words(self.what)} {verb} {numbers}{time}."


def differences(
    before: Sequence[LaunchReport], after: Sequence[LaunchReport]
) -> Sequence[Difference]:
    """Return the numbers that differ between the launches of two reports: missing launches, the largest increase first.

    Each kernel's launches are compared in order. Added or missing ones appear as a different number of its launches.
    """
    pairs = Counter(pair for pair in _compare(before, after) if pair.before != pair.after)
    merged = [replace(pair, times=times) for pair, times in pairs.items()]
    return sorted(merged, key=_rank)


def _rank(difference: Difference) -> tuple[bool, bool, float]:
    increase = (difference.after - difference.before) * difference.times
    return not difference.is_worse, difference.what != "launches", -increase


def _compare(before: Sequence[LaunchReport], after: Sequence[LaunchReport]) -> Iterator[Difference]:
    kernels: dict[str, tuple[list[LaunchReport], list[LaunchReport]]] = {}
    for side, launches in enumerate((before, after)):
        for launch in launches:
            kernels.setdefault(launch.kernel, ([], []))[side].append(launch)
    for name, (old_launches, new_launches) in kernels.items():
        yield Difference(name, "launches", len(old_launches), len(new_launches))
        for old, new in zip(old_launches, new_launches, strict=False):
            is_slower = not new.predicted_us or new.predicted_us > (old.predicted_us or 0.0)
            for each in _compare_launches(old, new):
                is_affordable = each.what in _RESOURCES and each.after > each.before
                yield replace(
                    each,
                    file=each.file or new.source,
                    line=each.line or new.line,
                    is_affordable=is_affordable and not is_slower,
                )


def _compare_launches(old: LaunchReport, new: LaunchReport) -> Iterator[Difference]:
    for was, now in _pair_lines(old.ops, new.ops):
        op = (now or was)[0]
        where = f"{op.file}:{op.line} in {new.kernel}, {op.op} {op.tensor}"
        for unit in reversed(MAIN_AMOUNTS):
            before, after = (sum(getattr(op, unit) for op in ops) for ops in (was, now))
            yield Difference(where, unit, before, after, file=op.file, line=op.line)
    where = f"{new.source}:{new.line} {new.kernel}"
    yield Difference(where, "registers", old.registers, new.registers, lines=_peaks(old, new))
    for total, (source, amount) in _TOTALS.items():
        before = getattr(old, total)
        after = getattr(new, total)
        if before is not None and after is not None:
            lines = _changed_lines(
                (
                    f"{launch.describe_place(each)} {getattr(each, 'opcode', '')}".strip(),
                    sign * getattr(each, amount),
                )
                for sign, launch in ((-1, old), (1, new))
                for each in getattr(launch, source, ())
            )
            yield Difference(where, total, before, after, lines=lines)
    if old.predicted_us and new.predicted_us:
        change = new.predicted_us / old.predicted_us - 1
        if abs(change) > _LEAST_TIME_CHANGE:
            times = round(old.predicted_us, 1), round(new.predicted_us, 1)
            yield Difference(where, "predicted_us", *times)


def _peaks(old: LaunchReport, new: LaunchReport) -> str:
    """Describe the line with the most live registers in each of two reports."""
    if not (old.registers_by_line and new.registers_by_line):
        return ""
    was, now = (
        f"{peak.live} live at {launch.describe_place(peak)}"
        for launch in (old, new)
        for peak in launch.registers_by_line[:1]
    )
    return f"peak before: {was}; now: {now}"


def _changed_lines(amounts: Iterable[tuple[str, int]]) -> str:
    """Describe the lines whose amounts differ the most. Amounts of the old report are negative."""
    changes = Counter[str]()
    for place, amount in amounts:
        changes[place] += amount
    changed = [(place, change) for place, change in changes.items() if change]
    changed.sort(key=lambda each: -abs(each[1]))
    rest = ", …" if len(changed) > _MOST_LINES else ""
    return ", ".join(f"{place} {change:+,}" for place, change in changed[:_MOST_LINES]) + rest


def _pair_lines(
    old: Sequence[OperationReport], new: Sequence[OperationReport]
) -> Iterator[tuple[list[OperationReport], ...]]:
    """Pair the operations of two launches, by source line. Lines correspond in order, because edits move them.

    Another compiler may turn a load into an asynchronous copy whose pipeline stages access different tensors.
    """
    groups: dict[Any, tuple[list[Any], list[Any]]] = {}
    for side, ops in enumerate((old, new)):
        lines: dict[Any, list[OperationReport]] = {}
        for op in ops:
            kind = op.counter.removeprefix("tma_").replace("red", "atom")
            lines.setdefault((kind, op.file, op.line), []).append(op)
        for (kind, *_), on_line in lines.items():
            tensors = {name for op in on_line for name in op.tensor.split(", ")}
            groups.setdefault((kind, *sorted(tensors)), ([], []))[side].append(on_line)
    for pair in groups.values():
        yield from zip_longest(*pair, fillvalue=[])
