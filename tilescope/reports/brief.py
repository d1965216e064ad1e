"""List the findings of a report, faults and then the largest saving first, and summarize a report in at most 4 KB."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tilescope.captures.reader import TIME, Finding
from tilescope.numbers import count_noun, milliseconds
from tilescope.reports.launch import (
    MAIN_AMOUNTS,
    LaunchReport,
    Report,
    describe_finding,
)

# Maximum bytes of the whole summary without the empty lines between its parts, of its totals, and of a remark; bytes
# reserved for the number of omitted lines.
_MOST_BYTES = 4096 - 3
_MOST_TOTALS_BYTES = 1024
_MOST_REMARK_BYTES = 480
_NUMBER_BYTES = 64


# Weights of savings, which rank findings: time comes first.
_WEIGHTS = {TIME: 1e9, "requests": 1, "sectors": 1, "shared_wavefronts": 1}


def brief(report: Report, differences: Sequence[str] = ()) -> str:
    """Return a summary of a report, in at most 4096 bytes of UTF-8: faults, differences, other findings, totals."""
    totals = _fit(map(_truncate, _describe_totals(report)), _MOST_TOTALS_BYTES, "remarks")
    room = _MOST_BYTES - _count_bytes(totals)
    faults, findings = describe_findings(report)
    faults = _fit(faults, room // 2, "faults")
    room -= _count_bytes(faults)
    changes = _fit(differences, room // 2, "differences")
    findings = _fit(findings, room - _count_bytes(changes), "findings")
    parts = (faults, changes, findings) if changes else (faults + findings,)
    return "\n\n".join("\n".join(part) for part in (*parts, totals) if part)


def to_json(report: Report) -> dict[str, Any]:
    """Return the object that `show --json` prints, which begins with the faults."""
    faults, _ = describe_findings(report, " ")
    return {"faults": faults, "brief": brief(report), **report.to_json()}


@dataclass(frozen=True)
class Row:
    """A finding in the list of a report, with the numbers of the launch in which it costs most.

    Attributes:
        launches: the numbers of this launch and of its equals.
        others: how many similar findings of the kernel this row represents.
    """

    finding: Finding
    kernel: str
    launches: Sequence[int]
    others: int

    @property
    def where(self) -> str:
        finding = self.finding
        op = f", {finding.op} {finding.tensor}".rstrip(", ")
        place = f"{finding.file}:{finding.line} in {self.kernel}{op}"
        name = name_launches(self.launches)
        more = f"; {self.others:,} more like it" if self.others else ""
        is_single = len(self.launches) == 1
        return (
            f"{_truncate(place)} (launch {name}{more})"
            if is_single
            else f"{_truncate(place)}, {name}{more}"
        )

    def describe(self, separator: str) -> str:
        """Return its place and its sentences.

        Args:
            separator: between sentences.
        """
        return f"{self.where}: {separator.join(describe_finding(self.finding))}"


def describe_total(launches: Sequence[LaunchReport], amount: str) -> str:
    """Return the sum of an amount over launches. If it is a bound, it says so."""
    ops = [op for launch in launches for op in launch.ops]
    upper = {op.refused for op in ops if op.is_upper_bound}
    bound = "at most " if upper else ""
    if {refusal.why for launch in launches for refusal in launch.refused} - upper:
        bound = "at least "
        ops = [op for op in ops if not op.is_upper_bound]
    return f"{bound}{sum(getattr(op, amount) for op in ops):,}"


def name_launches(numbers: Sequence[int]) -> str:
    """Return the number of a launch, or the numbers of equal launches.

    >>> name_launches([3]), name_launches([0, 1, 2]), name_launches([0, 2, 4, 6])
    ('3', '3 equal launches (0 to 2)', '4 equal launches (0, …, 6)')
    """
    first = numbers[0]
    last = numbers[-1]
    if first == last:
        return str(first)
    between = " to " if last - first == len(numbers) - 1 else ", …, "
    return f"{len(numbers):,} equal launches ({first}{between}{last})"


def list_findings(launches: Iterable[tuple[Sequence[int], LaunchReport]]) -> list[Row]:
    """List the findings of launches: faults, then the largest saving of time.

    Args:
        launches: the numbers of equal launches, and their report.
    """
    groups = defaultdict[Any, list[tuple[float, Sequence[int], Finding]]](list)
    for numbers, launch in launches:
        found = [*launch.findings, *_find_conflicts(launch)]
        for name, errors in (launch.results or {}).items():
            if not errors.passed:
                text = f"It is wrong: its relative RMS error is {errors.relative_rms:.3g}."
                found.append(Finding("check", launch.source, launch.line, "output", name, text))
        for finding in found:
            cost = _cost(launch, finding) * len(numbers)
            key = launch.kernel, finding.kind, finding.change or finding.place
            groups[key].append((cost, numbers, finding))
    rows = []
    for key in sorted(groups, key=lambda key: -sum(cost for cost, *_ in groups[key])):
        group = groups[key]
        _, numbers, finding = max(group, key=lambda each: each[0])
        others = sum(len(each) for _, each, _ in group) - len(numbers)
        rows.append(Row(finding, key[0], numbers, others))
    return rows


def describe_findings(report: Report, separator: str = "\n   ") -> tuple[list[str], list[str]]:
    """Return the text of each fault, and of each other finding.

    Args:
        separator: between the sentences of a finding.
    """
    faults = [report.stopped] if report.failed and report.stopped else []
    findings = list[str]()
    for row in list_findings(report.distinct):
        (faults if row.finding.is_fault else findings).append(row.describe(separator))
    if not faults + findings:
        findings.append("No findings.")
    return faults, findings


def _find_conflicts(launch: LaunchReport) -> Iterator[Finding]:
    """Yield a finding for each line with bank conflicts, most conflicts first, unless one explains them."""
    if any(finding.kind == "bank conflicts" for finding in launch.findings):
        return
    for access in sorted(launch.shared, key=lambda access: -(access.conflicts or 0)):
        if access.conflicts:
            file, line = access.user_lines[0]
            conflicts = count_noun(access.conflicts, "bank conflict")
            text = f"{conflicts} in {count_noun(access.wavefronts or 0, 'wavefront')}."
            yield Finding("conflicts", file, line, access.opcode, text=text)


def _cost(launch: LaunchReport, finding: Finding) -> float:
    """Return the weighted saving of a finding's change; without a change, the sectors beyond the ideal."""
    if finding.is_fault:
        return math.inf
    if finding.after:
        return sum(
            weight * (finding.before.get(name, 0) - finding.after.get(name, 0))
            for name, weight in _WEIGHTS.items()
        )
    return sum(op.sectors - op.ideal_sectors for op in launch.ops if op.place == finding.place)


def _describe_totals(report: Report) -> Iterable[str]:
    sectors = Counter[str]()
    for launch in report.launches:
        sectors[launch.kernel] += launch.sectors
    yield f"Triton {report.triton}, {report.gpu}: {_sum_up(report, sectors)}"
    yield from report.remarks
    if len(sectors) > 1:
        for kernel, _ in sectors.most_common():
            yield f"{kernel}: {_sum_up(report, [kernel])}"


def _sum_up(report: Report, kernels: Collection[str]) -> str:
    groups = [numbers for numbers, launch in report.distinct if launch.kernel in kernels]
    launches = [report.launches[number] for numbers in groups for number in numbers]
    name = count_noun(len(launches), "launch")
    if len(groups) == 1 < len(launches):
        name = name_launches(groups[0])
    counts = ", ".join(f"{describe_total(launches, name)} {name}" for name in MAIN_AMOUNTS)
    bounded = sum(bool(launch.refused) for launch in launches)
    remark = f"; {bounded} with incomplete counts" if bounded else ""
    ideal = describe_total(launches, "ideal_sectors")
    total = f"{name}{remark}, {counts} (ideal: {ideal})."
    known = [each for each in launches if each.bank_conflicts is not None]
    wavefronts = sum(launch.shared_wavefronts or 0 for launch in known)
    if wavefronts:
        conflicts = sum(launch.bank_conflicts or 0 for launch in known)
        bound = "at least " if any(launch.may_retry for launch in known) else ""
        total += (
            f" Shared memory: {bound}{wavefronts:,} wavefronts, "
            f"{bound}{count_noun(conflicts, 'bank conflict')}"
        )
        missing = len(launches) - len(known)
        total += f"; unknown in {count_noun(missing, 'launch')}." if missing else "."
    return total + _sum_times(launches)


def _sum_times(launches: Sequence[LaunchReport]) -> str:
    """Return a space and a sentence with the launches' predicted time and its range; "" if no time is known."""
    spans = [
        (each.predicted_us, *each.range_us)
        for each in launches
        if each.predicted_us and each.range_us
    ]
    if not spans:
        return ""
    time, low, high = (milliseconds(sum(times_us) / 1e3) for times_us in zip(*spans, strict=True))
    missing = len(launches) - len(spans)
    unknown = f"; unknown in {count_noun(missing, 'launch')}" if missing else ""
    return f" Predicted time: {time} ({low} to {high}){unknown}."


def _fit(lines: Iterable[str], most: int, what: str) -> list[str]:
    """Return the first lines that fit in a number of bytes, and a line that counts the others."""
    whole = [*lines]
    if _count_bytes(whole) <= most:
        return whole
    sizes = accumulate(_count_bytes([line]) for line in whole)
    count = sum(size <= most - _NUMBER_BYTES for size in sizes)
    return [*whole[:count], f"{len(whole) - count:,} more {what}: see --text."]


def _truncate(line: str) -> str:
    code = line.encode(errors="replace")
    if len(code) <= _MOST_REMARK_BYTES:
        return line
    return code[: _MOST_REMARK_BYTES - len("…".encode())].decode(errors="ignore") + "…"


def _count_bytes(lines: Sequence[str]) -> int:
    return sum(len(f"{line}\n".encode(errors="replace")) for line in lines)
