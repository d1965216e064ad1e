"""Summarize a report in at most 4 KB: a sentence per finding, largest cost first, and totals."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from kernels.capture.reader import Finding
from kernels.inside.report import SharedAccess
from visualize.numbers import count_noun
from visualize.reports.launch import MAIN_AMOUNTS, LaunchReport, Report
from visualize.reports.text import describe_conflicts

# Maximum bytes of the whole summary, its totals, and a line; bytes reserved for the number of omitted lines.
_MOST_BYTES = 4096
_MOST_TOTALS_BYTES = 1024
_MOST_LINE_BYTES = 480
_REMARK_BYTES = 64

# The kinds of findings about wrong results.
_WRONG = ("outside", "overflow", "race", "autotuner")


def brief(report: Report, differences: Sequence[str] = ()) -> str:
    """Return a summary of a report, in at most 4096 bytes of UTF-8. It begins with the differences, in at most half."""
    totals = _fit(_describe_totals(report), _MOST_TOTALS_BYTES, "more kernels or remarks")
    room = _MOST_BYTES - sum(map(_count_bytes, totals))
    findings = list(_describe_findings(report)) or ["No findings."]
    changes = _fit(differences, room // 2, "more differences: see --text")
    findings += _describe_conflicts(report)
    lines = _fit(findings, room - sum(map(_count_bytes, changes)), "more lines: see --text")
    return "\n\n".join("\n".join(part) for part in (changes, lines, totals) if part)


def _describe_findings(report: Report) -> Iterable[str]:
    """Describe similar findings of a kernel's launches once, with their total cost and the numbers of the costliest."""
    groups = defaultdict[tuple[object, ...], list[tuple[float, int, Finding]]](list)
    for number, launch in enumerate(report.launches):
        for finding in launch.findings:
            key = (launch.kernel, finding.kind, finding.place)
            groups[key].append((_cost(launch, finding), number, finding))
    ranked = sorted(groups.values(), key=lambda group: -sum(cost for cost, *_ in group))
    for group in ranked:
        _, number, finding = max(group, key=lambda each: each[0])
        others = f"; {len(group) - 1} more like it" if len(group) > 1 else ""
        op = f", {finding.op} {finding.tensor}" if finding.op else ""
        place = f"{finding.file}:{finding.line} in {report.launches[number].kernel}{op}"
        yield f"{place} (launch {number}{others}): {_join(finding)}"


def _describe_conflicts(report: Report) -> Iterable[str]:
    """Describe the lines with bank conflicts, most conflicts first. The launches of a kernel share a description."""
    groups = defaultdict[tuple[str, Any, str], list[tuple[int, int, SharedAccess]]](list)
    for number, launch in enumerate(report.launches):
        for access in launch.shared:
            if conflicts := access.conflicts:
                key = (launch.kernel, access.user_lines, access.opcode)
                groups[key].append((conflicts, -number, access))
    for key, group in sorted(groups.items(), key=lambda item: -sum(each[0] for each in item[1])):
        kernel, lines, opcode = key
        _, number, access = max(group, key=lambda each: each[:2])
        others = f"; {len(group) - 1} more like it" if len(group) > 1 else ""
        places = " and ".join(f"{file}:{line}" for file, line in lines)
        where = f"{places} in {kernel}, {opcode} (launch {-number}{others})"
        yield f"{where}: {describe_conflicts(access)}."


def _cost(launch: LaunchReport, finding: Finding) -> float:
    """Return the requests and sectors that a change saves or, without a change, the sectors beyond the ideal."""
    if finding.kind in _WRONG:
        return math.inf
    if finding.after:
        return sum(
            finding.before.get(name, 0) - finding.after.get(name, 0) for name in MAIN_AMOUNTS
        )
    return sum(op.sectors - op.ideal_sectors for op in launch.ops if op.place == finding.place)


def _join(finding: Finding) -> str:
    """Return a finding as one sentence."""
    fact, *_ = re.split(r"(?<=[\w)])\. (?=[A-Z])", finding.text.rstrip("."))
    advice = filter(None, (finding.change, finding.needs))
    parts = [fact, *(text[0].lower() + text[1:].rstrip(".") for text in advice)]
    effect = ", ".join(
        f"{name.replace('_', ' ')} {number:,} → {finding.after[name]:,}"
        for name, number in finding.before.items()
        if number != finding.after[name]
    )
    return f"{'; '.join(parts)}{f' ({effect})' if effect else ''}."


def _describe_totals(report: Report) -> Iterable[str]:
    kernels = defaultdict[str, list[LaunchReport]](list)
    for launch in report.launches:
        kernels[launch.kernel].append(launch)
    yield f"Triton {report.triton}, {report.gpu}: {_sum_up(report.launches)}"
    yield from filter(None, [report.stopped, report.untried])
    yield from report.not_captured
    if len(kernels) > 1:
        for name in sorted(kernels, key=lambda name: -sum(each.sectors for each in kernels[name])):
            yield f"{name}: {_sum_up(kernels[name])}"


def _sum_up(launches: Sequence[LaunchReport]) -> str:
    ops = [op for launch in launches for op in launch.ops]
    requests, sectors, ideal = (
        sum(getattr(op, name) for op in ops) for name in ("requests", "sectors", "ideal_sectors")
    )
    counts = f"{count_noun(requests, 'request')}, {count_noun(sectors, 'sector')}"
    bounded = sum(bool(launch.refused) for launch in launches)
    remark = f"; {bounded} with incomplete counts" if bounded else ""
    total = f"{count_noun(len(launches), 'launch')}{remark}, {counts} (ideal: {ideal:,})."
    known = [each for each in launches if each.bank_conflicts is not None]
    wavefronts = sum(launch.shared_wavefronts or 0 for launch in known)
    if wavefronts:
        conflicts = sum(launch.bank_conflicts or 0 for launch in known)
        bound = "≥ " if any(launch.may_retry for launch in known) else ""
        total += (
            f" Shared memory: {bound}{wavefronts:,} wavefronts, "
            f"{bound}{count_noun(conflicts, 'bank conflict')}"
        )
        missing = len(launches) - len(known)
        total += f"; unknown in {count_noun(missing, 'launch')}." if missing else "."
    return total


def _fit(lines: Iterable[str], most: int, what: str) -> list[str]:
    """Truncate long lines, and keep those that fit in a number of bytes. The last line counts the omitted ones."""
    short = [_truncate(line) for line in lines]
    sizes = accumulate(map(_count_bytes, short))
    count = sum(size <= most - _REMARK_BYTES for size in sizes)
    return short if count == len(short) else [*short[:count], f"{len(short) - count:,} {what}."]


def _truncate(line: str) -> str:
    code = line.encode()
    if len(code) <= _MOST_LINE_BYTES:
        return line
    end = "…"
    return code[: _MOST_LINE_BYTES - len(end.encode())].decode(errors="ignore") + end


def _count_bytes(line: str) -> int:
    return len(f"{line}\n".encode())
