"""The numbers that differ between two reports of a script, and the source lines where they changed."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import Any

from tilescope.numbers import count_noun, milliseconds
from tilescope.reports.launch import MAIN_AMOUNTS, LaunchReport, OperationReport
from tilescope.reports.sentences import in_words

# Maximum number of lines that explain a difference.
_MOST_LINES = 3
# Maximum number of numbers that describe a changed launch, besides its time and resources.
_MOST_NUMBERS = 8

# Growth of these is not a regression if the predicted time does not grow: they move no data to or from memory.
_NEEDS = ("registers", "shared_bytes", "shared_wavefronts", "bank_conflicts")

# Those that limit the programs per SM.
_RESOURCES = ("registers", "shared_bytes")

# Totals of a launch whose growth is a regression.
_TOTALS = (
    "registers",
    "spilled_bytes",
    "shared_bytes",
    "shared_wavefronts",
    "bank_conflicts",
    "spill_traffic_bytes",
)
_NUMBERS = (*_TOTALS, "programs_per_sm", "predicted_us")

# The rows of source lines that explain a difference, and the field with their amounts.
_ROWS = {
    "spilled_bytes": ("spills_by_line", "stored_bytes"),
    "shared_wavefronts": ("shared", "wavefronts"),
    "bank_conflicts": ("shared", "conflicts"),
}
_INSTRUCTIONS = ("instructions_by_line", "compiled")

# Smaller relative differences are omitted: predictions have errors, and any change of the compiler changes arithmetic.
_LEAST_CHANGES = {
    "predicted_us": 0.05,
    "float arithmetic": 0.1,
    "integer arithmetic": 0.1,
    "type conversions": 0.1,
    "control and others": math.inf,
}


@dataclass(frozen=True)
class Difference:
    """A number that differs between two reports.

    Attributes:
        where: a kernel, or an operation as file:line, kernel and tensor.
        what: "registers", "sectors" and so on.
        times: number of launches with this difference.
        lines: describes the source lines that explain it; "" if they are unknown.
        file, line: its place; "" and 0 without one.
        op: the operation and its tensor, such as "load x"; "" for a number of the whole launch.
        is_affordable: whether the launch needs more of a resource, and its predicted time does not grow.
        is_informational: whether it is never a regression: a predicted time, which has an error, the programs per SM,
            and numbers of instructions.
    """

    where: str
    what: str
    before: float
    after: float
    times: int = 1
    lines: str = ""
    file: str = ""
    line: int = 0
    op: str = ""
    is_affordable: bool = False
    is_informational: bool = False

    @property
    def is_worse(self) -> bool:
        """Whether it increased. Fewer launches are worse, because the numbers of missing ones are unknown."""
        if self.is_informational or self.is_affordable:
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

    @property
    def factor(self) -> float:
        """The larger of its numbers / the smaller one; infinite if one is 0."""
        low, high = sorted((self.before, self.after))
        return high / low if low else math.inf

    @property
    def change(self) -> str:
        lines = f" ({self.lines})" if self.lines else ""
        return f"{in_words(self.what)} {self.before:,} → {self.after:,}{lines}"


@dataclass(frozen=True)
class ChangedLaunch:
    """A pair of launches whose costs differ, or several pairs with the same differences.

    Attributes:
        file, line: where the kernel is defined; "" and 0 if launches are missing or added.
        pairs: number of pairs.
    """

    kernel: str
    differences: tuple[Difference, ...]
    file: str = ""
    line: int = 0
    pairs: int = 1

    @property
    def rank(self) -> tuple[bool, float, bool]:
        """For sorting: missing and added launches first, then the largest increase of the predicted time."""
        time = self._of_launch.get("predicted_us")
        added_us = (time.after - time.before) * self.pairs if time else 0.0
        is_worse = any(each.is_worse for each in self.differences)
        return bool(self.file), -added_us, not is_worse

    @property
    def sentence(self) -> str:
        """The predicted time and resources, then the operations and the other numbers that changed."""
        others = [
            each
            for name, each in self._of_launch.items()
            if name not in ("predicted_us", "programs_per_sm", *_RESOURCES)
        ]
        others.sort(key=lambda each: -each.factor)
        rest = ", …" if len(others) > _MOST_NUMBERS else ""
        numbers = ", ".join(each.change for each in others[:_MOST_NUMBERS]) + rest
        parts = [*self._describe_cost(), *self._describe_operations(), numbers]
        text = ". ".join(part[0].upper() + part[1:] for part in parts if part)
        place = f"{self.file}:{self.line} " if self.file else ""
        pairs = f" ({self.pairs} launches)" if self.pairs > 1 else ""
        return f"{place}{self.kernel}{pairs}: {text}."

    @property
    def _of_launch(self) -> dict[str, Difference]:
        return {each.what: each for each in self.differences if not each.op}

    def _describe_cost(self) -> Iterator[str]:
        changes = self._of_launch
        if time := changes.get("predicted_us"):
            before, after = (milliseconds(number / 1e3) for number in (time.before, time.after))
            yield f"predicted {before} → {after} ({time.after / time.before:.2f} ×)"
        needs = [changes[name] for name in _RESOURCES if name in changes]
        causes = [each.change for each in needs]
        if resident := changes.get("programs_per_sm"):
            programs = count_noun(int(resident.after), "program")
            fewer = resident.after < resident.before
            so = (
                "so "
                if needs and all((each.after > each.before) == fewer for each in needs)
                else ""
            )
            causes.append(f"{so}{programs} per SM instead of {resident.before:,}")
        yield ", ".join(causes)

    def _describe_operations(self) -> Iterator[str]:
        of_operations = (each for each in self.differences if each.op)
        for where, group in groupby(of_operations, lambda each: (each.file, each.line, each.op)):
            file, line, op = where
            place = f"line {line}" if file == self.file else f"line {line} of {file}"
            yield f"{place}, {op}: {', '.join(each.change for each in group)}"


def compare(
    before: Sequence[LaunchReport], after: Sequence[LaunchReport]
) -> Sequence[ChangedLaunch]:
    """Return the launches that differ, the worst first. Each kernel's launches are compared in order."""
    pairs = Counter(_compare(before, after))
    changed = [replace(pair, pairs=number) for pair, number in pairs.items()]
    return sorted(changed, key=lambda each: each.rank)


def differences(
    before: Sequence[LaunchReport], after: Sequence[LaunchReport]
) -> Sequence[Difference]:
    """Return the numbers that differ between the launches of two reports: missing launches, the largest increase first.

    Each kernel's launches are compared in order. Added or missing ones appear as a different number of its launches.
    """
    found = Counter(each for pair in _compare(before, after) for each in pair.differences)
    merged = [replace(each, times=times) for each, times in found.items()]
    return sorted(merged, key=_rank)


def _rank(difference: Difference) -> tuple[bool, bool, float]:
    increase = (difference.after - difference.before) * difference.times
    return not difference.is_worse, difference.what != "launches", -increase


def _compare(
    before: Sequence[LaunchReport], after: Sequence[LaunchReport]
) -> Iterator[ChangedLaunch]:
    kernels: dict[str, tuple[list[LaunchReport], list[LaunchReport]]] = {}
    for side, launches in enumerate((before, after)):
        for launch in launches:
            kernels.setdefault(launch.kernel, ([], []))[side].append(launch)
    for name, (old_launches, new_launches) in kernels.items():
        if len(old_launches) != len(new_launches):
            missing = Difference(name, "launches", len(old_launches), len(new_launches))
            yield ChangedLaunch(name, (missing,))
        for old, new in zip(old_launches, new_launches, strict=False):
            moved = _move_lines(old, new)
            changed = tuple(
                each for each in _compare_launches(moved, new) if each.before != each.after
            )
            if changed:
                yield ChangedLaunch(name, changed, new.source, new.line)


def _move_lines(old: LaunchReport, new: LaunchReport) -> LaunchReport:
    """Give the source lines of a launch the numbers that they have in another version of the script.

    A line moves with the last operation before it or, without one, with the kernel's first line.
    """
    moves = {old.line: new.line - old.line}
    for was, now in _pair_lines(old.ops, new.ops):
        if was and now and was[0].file == old.source:
            moves[was[0].line] = now[0].line - was[0].line

    def move(file: str, line: int) -> int:
        before = [start for start in moves if start <= line]
        return line + moves[max(before)] if file == old.source and before else line

    lists = "instructions_by_line", "registers_by_line", "shared", "spills_by_line"
    moved: dict[str, Any] = {
        name: tuple(replace(row, line=move(row.file, row.line)) for row in getattr(old, name))
        for name in lists
    }
    return replace(old, **moved)


def _compare_launches(old: LaunchReport, new: LaunchReport) -> Iterator[Difference]:
    for was, now in _pair_lines(old.ops, new.ops):
        op = (now or was)[0]
        where = f"{op.file}:{op.line} in {new.kernel}, {op.op} {op.tensor}"
        for unit in reversed(MAIN_AMOUNTS):
            before, after = (sum(getattr(op, unit) for op in ops) for ops in (was, now))
            yield Difference(where, unit, before, after, file=op.file, line=op.line, op=op.name)
    is_slower = not new.predicted_us or new.predicted_us > (old.predicted_us or 0.0)
    numbers, others = map(_list_numbers, (old, new))
    # A report of an earlier version lists no instructions
    missing = 0 if old.instructions_by_line and new.instructions_by_line else None
    kinds = sorted({*numbers, *others}.difference(_NUMBERS))
    for name in (*_NUMBERS[:-1], *kinds, _NUMBERS[-1]):
        before, after = (each.get(name, missing) for each in (numbers, others))
        if before is None or after is None:
            continue
        if abs(after - before) > _LEAST_CHANGES.get(name, 0.0) * before:
            yield Difference(
                f"{new.source}:{new.line} {new.kernel}",
                name,
                round(before, 1),
                round(after, 1),
                lines=_peaks(old, new) if name == "registers" else _changed_lines(old, new, name),
                file=new.source,
                line=new.line,
                is_affordable=name in _NEEDS and after > before and not is_slower,
                is_informational=name not in _TOTALS,
            )


def _list_numbers(launch: LaunchReport) -> dict[str, float | None]:
    """Return a launch's totals, and its instructions of each kind."""
    kinds = Counter[str]()
    for row in launch.instructions_by_line:
        kinds[row.kind] += row.compiled
    return {**kinds, **{name: getattr(launch, name) for name in _NUMBERS}}


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


def _changed_lines(old: LaunchReport, new: LaunchReport, name: str) -> str:
    """Describe the lines on which a total, or the number of instructions of a kind, differs the most."""
    rows, amount = _ROWS.get(name, _INSTRUCTIONS)
    changes = Counter[str]()
    for sign, launch in ((-1, old), (1, new)):
        for row in getattr(launch, rows):
            if getattr(row, "kind", name) == name:
                place = f"{launch.describe_place(row)} {getattr(row, 'opcode', '')}".strip()
                changes[place] += sign * getattr(row, amount)
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
