"""List the findings of a report: faults, then the largest saving of time. List the variants of its kernels."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilescope.captures.content import TIME, Finding
from tilescope.declare.gpus import ALL_GPUS
from tilescope.numbers import count_noun
from tilescope.reports.launch import LaunchReport, Report
from tilescope.reports.sentences import describe_finding
from tilescope.timing.changes import GRID_KIND, estimate_equal_work

_NOT_SEARCHED = (
    "Accesses are not examined for AMD. To find faults and wasted requests, choose an NVIDIA GPU."
)
# Triton's assumption about an argument, by the kind of specialization, and the number of launches that are named.
_ASSUMPTIONS = {
    "divisible by 16": "divisible by 16",
    "equal to 1": "equal to 1",
    "alignment": "aligned to 16 bytes",
}
_MOST_NUMBERS = 8

_MOST_BYTES = 480
# The counts whose savings rank findings that save equally much time.
_RANKED = ("requests", "sectors", "shared_wavefronts")


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

    def describe(self, separator: str) -> str:
        """Return its place and its sentences, with a separator between sentences."""
        finding = self.finding
        op = f", {finding.op} {finding.tensor}".rstrip(", ")
        place = f"{finding.file}:{finding.line} in {self.kernel}{op}"
        more = f"; {count_noun(self.others, 'similar finding')}" if self.others else ""
        name = f"{name_launches(self.launches)}{more}"
        numbers = f" (launch {name})" if len(self.launches) == 1 else f", {name}"
        return f"{truncate(place)}{numbers}: {separator.join(describe_finding(finding))}"


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
    """List the findings of reports with the numbers of equal launches.

    Faults come first, then the largest predicted saving of time. Findings without one follow, the largest waste first.
    """
    groups = defaultdict[Any, list[tuple[tuple[float, ...], Sequence[int], Finding]]](list)
    for numbers, launch in launches:
        found = [*launch.findings, *_find_conflicts(launch)]
        for name, errors in (launch.results or {}).items():
            if not errors.passed:
                text = f"It is wrong: its relative RMS error is {errors.relative_rms:.3g}."
                found.append(Finding("check", launch.source, launch.line, "output", name, text))
        for finding in found:
            cost = tuple(len(numbers) * each for each in _cost(launch, finding))
            key = launch.kernel, finding.kind, finding.change or finding.place
            groups[key].append((cost, numbers, finding))

    def add_costs(key: Any) -> list[float]:
        return [-sum(each) for each in zip(*(cost for cost, *_ in groups[key]), strict=True)]

    rows = []
    for key in sorted(groups, key=add_costs):
        group = groups[key]
        _, numbers, finding = max(group, key=lambda each: each[0])
        others = sum(len(each) for _, each, _ in group) - len(numbers)
        rows.append(Row(finding, key[0], numbers, others))
    return rows


def describe_variants(report: Report) -> Iterator[str]:
    """Describe what distinguishes the variants of each kernel, with the numbers of the launches."""
    for kernel in report.variants:
        launches = defaultdict[str, list[int]](list)
        for variant in kernel.variants:
            for each in variant.specializations:
                text = f"{each.argument} = {each.value}"
                if each.kind in _ASSUMPTIONS:
                    text = (
                        f"{each.argument} {'' if each.value else 'not '}{_ASSUMPTIONS[each.kind]}"
                    )
                launches[text] += variant.launches
        causes = []
        for text, own in sorted(launches.items()):
            numbers = sorted(own)
            more = ", …" if len(numbers) > _MOST_NUMBERS else ""
            causes.append(f"{text} ({', '.join(map(str, numbers[:_MOST_NUMBERS]))}{more})")
        count = len(kernel.variants)
        yield f"{kernel.kernel}: {count} variants in {len(kernel.launches)} launches: {', '.join(causes)}."


def describe_findings(report: Report, separator: str = "\n   ") -> tuple[list[str], list[str]]:
    """Return the text of each fault, and of each other finding, with a separator between sentences."""
    faults = [report.stopped] if report.failed and report.stopped else []
    findings = list[str]()
    for row in list_findings(report.distinct):
        (faults if row.finding.is_fault else findings).append(row.describe(separator))
    if not faults + findings:
        is_amd = report.gpu in ALL_GPUS and ALL_GPUS[report.gpu].arch
        findings.append(_NOT_SEARCHED if is_amd else "No findings.")
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


def _cost(launch: LaunchReport, finding: Finding) -> tuple[float, float, float]:
    """Return infinity for a fault, the ns that a change saves, and the requests, sectors and wavefronts that it saves.

    Without a change, the last number is the sectors beyond the ideal.
    """
    if finding.is_fault:
        return math.inf, 0.0, 0.0
    wasted = sum(op.sectors - op.ideal_sectors for op in launch.ops if op.place == finding.place)
    saved_ns = 0.0
    if finding.after:
        saved_ns, *amounts = (
            finding.before.get(name, 0) - finding.after.get(name, 0) for name in (TIME, *_RANKED)
        )
        wasted = sum(amounts)
    elif finding.kind == GRID_KIND:
        saved_ns = 1e3 * estimate_equal_work(launch)[0]
    return 0.0, saved_ns, wasted


def truncate(line: str) -> str:
    code = line.encode(errors="replace")
    if len(code) <= _MOST_BYTES:
        return line
    return code[: _MOST_BYTES - len("…".encode())].decode(errors="ignore") + "…"
