"""The report of a capture: each launch as frozen dataclasses that JSON can store, and its findings in words.

The JSON of earlier versions lacks some of the fields that have defaults.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from tilescope.advice.experiments import MOST_SECONDS
from tilescope.advice.findings import Compiler, find
from tilescope.advice.same_work import find_equal_launches
from tilescope.advice.variants import KernelVariants, find_variants
from tilescope.caching import once
from tilescope.captures.content import (
    CapturedKernel,
    CapturedLaunch,
    Content,
    Finding,
    OutputErrors,
    Tuned,
)
from tilescope.captures.reader import Capture
from tilescope.declare.gpus import Gpu, captured_gpu
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.counts import COUNTER_NAMES, LaunchCounts, OperationCounts, sum_costs
from tilescope.inside.inspect import correct_counts, inspect
from tilescope.inside.report import (
    INSIDE_COUNTERS,
    HeldRegisters,
    Inside,
    LineInstructions,
    LineRegisters,
    LineSpills,
    SharedAccess,
)
from tilescope.inside.shared import fit_kernel
from tilescope.numbers import bytes_of
from tilescope.reports.sentences import describe_finding
from tilescope.results.codec import from_json, parse_json, to_json
from tilescope.timing.changes import add_times, describe_changes
from tilescope.timing.launches import add_time

# The amounts of an operation that its `Cost` has, with their terms in the glossary: fields of `show --json`, and the
# columns of tables on the page.
COST_COLUMNS = {
    "requests": "request",
    "sectors": "sector",
    "lines": "line",
    "ideal_sectors": "ideal sectors",
}

# Those in the terminal's table. Two reports are compared by them.
MAIN_AMOUNTS = ("requests", "sectors")


@dataclass(frozen=True)
class OperationReport:
    """A memory operation of a launch, summed over the copies that pipelining or unrolling created.

    Attributes:
        op: "load", "async copy", "store", "atomic" or "descriptor".
        counter: "ld", "st", "red", "atom", "tma_ld" or "tma_st".
        tensor: names of the arguments that it addresses, separated by commas.
        width_bytes: bytes per lane; 0 for a descriptor, or if that is unknown.
        efficiency: ideal sectors / sectors; None without sectors, or if the counts are incomplete.
        refused: why the counts are incomplete or a bound; "" if they are exact.
        why: its findings.
    """

    op: str
    counter: str
    tensor: str
    file: str
    line: int
    requests: int
    sectors: int
    width_bytes: int = 0
    lines: int = 0
    ideal_sectors: int = 0
    efficiency: float | None = None
    refused: str = ""
    is_upper_bound: bool = False
    why: str = ""

    @property
    def place(self) -> tuple[str, int, str, str]:
        """Its identity in its kernel: see `Finding.place`."""
        return self.file, self.line, self.op, self.tensor

    @property
    def name(self) -> str:
        return f"{self.op} {self.tensor}"


@dataclass(frozen=True)
class Refusal:
    line: int
    why: str


@dataclass(frozen=True)
class LaunchReport(Inside):
    """A launch, and the inspection of its programs.

    Attributes:
        source, line: where its kernel is defined.
        source_path: of the source when it was captured.
        programs_per_sm: that an SM can hold at once; None if the GPU is unknown, or in a report of an earlier version.
        limited_by: the resources that allow no more.
        settings: the case's parameters that were set.
        arguments: the numbers that are passed. Triton makes an integer that is equal to 1 a constant.
        findings: without the changes that save too little time.
        first_change: which of the changes shorten the predicted time most, and by how much; "" if none was tried.
        totals: the launch-wide counters; None where the count of an operation is incomplete or a bound, where
            executions are unknown, and for all of INSIDE_COUNTERS if an atomic may retry.
        lower_bound: for each counter of global memory without a total, the sum over the other operations.
        counted: Nsight Compute's counters; None if they were not collected.
        agrees: whether the totals equal them. INSIDE_COUNTERS without a total are not compared.
        equal_to: the number of the first launch that does the same; None if this one does.
    """

    kernel: str
    source: str
    line: int
    grid: tuple[int, ...]
    registers: int
    spilled_bytes: int
    shared_bytes: int
    ops: tuple[OperationReport, ...]
    programs_per_sm: int | None = None
    limited_by: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    tuned: Tuned | None = None
    elapsed_ms: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, OutputErrors] | None = None
    findings: tuple[Finding, ...] = ()
    first_change: str = ""
    totals: Mapping[str, int | None] = field(default_factory=dict)
    lower_bound: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    counted: Mapping[str, int] | None = None
    agrees: bool | None = None
    equal_to: int | None = None
    source_path: str = ""

    @property
    def may_retry(self) -> bool:
        """Whether an atomic may retry, so that the launch executes more instructions than predicted."""
        return any(op.refused and op.counter in ("red", "atom") for op in self.ops)

    @property
    def wrong_counters(self) -> tuple[str, ...]:
        """The counters that differ from their prediction."""
        counted = self.counted or {}
        return tuple(
            name
            for name, count in counted.items()
            if count != self.totals[name] and name not in self.uncompared
        )

    @property
    def uncompared(self) -> tuple[str, ...]:
        """The counters without a total that `agrees` ignores."""
        names = self.counted or ()
        return tuple(n for n in names if n in INSIDE_COUNTERS and self.totals[n] is None)

    @property
    def spill_traffic_bytes(self) -> int | None:
        """The bytes that all warps move to and from local memory; None if unknown."""
        moved = [each.moved_bytes for each in self.spills_by_line]
        if None in moved or (self.spilled_bytes and not moved):
            return None
        return sum(filter(None, moved))

    @property
    def sectors(self) -> int:
        return sum(op.sectors for op in self.ops)

    @property
    def ratio(self) -> float:
        """Sectors divided by ideal sectors, over all operations except TMA copies; 0 if there are none."""
        counted = [op for op in self.ops if op.width_bytes]
        ideal = sum(op.ideal_sectors for op in counted)
        return sum(op.sectors for op in counted) / ideal if ideal else 0.0

    def describe_place(
        self,
        place: LineInstructions | LineRegisters | HeldRegisters | LineSpills | SharedAccess,
    ) -> str:
        """Return a place as "line N", or as "FILE:N" outside the kernel's file."""
        own = ((place.file, place.line),)
        lines = getattr(place, "user_lines", own)
        names = (
            f"line {line}"
            if file == self.source
            else f"{file}:{line}"
            if line
            else "no source line"
            for file, line in lines
        )
        return " and ".join(names)


@dataclass(frozen=True)
class Report:
    """The launches of a script.

    Attributes:
        untried: why the findings contain no experiments; "" if they do.
        stopped: why the script ended early.
        failed: whether it raised an exception, or a signal killed it.
        not_captured: a sentence for each kind of launch that could not be recorded.
        variants: the kernels that Triton compiled more than once.
    """

    triton: str
    gpu: str | None
    launches: tuple[LaunchReport, ...]
    untried: str = ""
    stopped: str | None = None
    not_captured: tuple[str, ...] = ()
    failed: bool = False
    variants: tuple[KernelVariants, ...] = ()

    @property
    def distinct(self) -> list[tuple[list[int], LaunchReport]]:
        """The numbers of equal launches, and the first of them with the median of their times."""
        groups = defaultdict[int, list[int]](list)
        for number, launch in enumerate(self.launches):
            groups[number if launch.equal_to is None else launch.equal_to].append(number)
        distinct = []
        for first, numbers in groups.items():
            time_ms = median(self.launches[number].elapsed_ms or 0.0 for number in numbers)
            distinct.append((numbers, replace(self.launches[first], elapsed_ms=time_ms or None)))
        return distinct

    @property
    def remarks(self) -> list[str]:
        """Sentences on what the report does not contain, with reasons."""
        stopped = "" if self.failed else self.stopped
        return [*filter(None, [stopped, self.untried]), *self.not_captured]

    def to_json(self) -> dict[str, Any]:
        """Return the fields of its JSON. Numbers that are not finite become null."""
        return orjson.loads(orjson.dumps(to_json(self)))


class Launches:
    """The launches of a capture, counted when they are first shown."""

    def __init__(self, capture: Capture, compiler: Compiler | None = None) -> None:
        self.capture = capture
        self.content = capture.content
        self.gpu = str(self.content.gpu.get("name", ""))
        launches = self.content.launches
        memoize = lru_cache(maxsize=256)
        evaluate = memoize(lambda number: count_launch(capture, launches[number]))
        self.textbook = memoize(
            lambda number: count_launch(capture, launches[number], is_textbook=True)
        )
        self.inspections = memoize(
            lambda number: inspect(capture, launches[number], evaluate(number))
        )
        self.counts = memoize(
            lambda number: correct_counts(
                capture, launches[number], evaluate(number), self.inspections(number)[1]
            )
        )
        # The first call tries changes.
        self.report = once(lambda: make_report(capture, compiler, counted=self))

    @property
    def caption(self) -> str:
        """The line below a saved picture."""
        return f"{self.content.script}, {self.gpu}, Triton {self.content.triton}"

    def kernel(self, number: int) -> CapturedKernel:
        return self.content.kernels[self.content.launches[number].kernel]

    def programs(self, number: int) -> int:
        return math.prod(self.content.launches[number].grid)


def make_report(
    capture: Capture,
    compiler: Compiler | None = None,
    most_seconds: float = MOST_SECONDS,
    counted: Launches | None = None,
) -> Report:
    """Count and explain every launch of a capture.

    Args:
        compiler, most_seconds: see `findings.find`.
        counted: the launches of the capture, if the caller also shows their counts.
    """
    content = capture.content
    launches = content.launches
    counted = counted or Launches(capture)
    counts = cache(counted.counts)
    inspections = cache(counted.inspections)
    firsts = find_equal_launches(content)
    timed = cache(
        lambda number: add_time(capture, launches[number], counts(number), inspections(number))
    )
    why = content.not_modelled
    findings = find(capture, counts, timed, None if why else compiler, most_seconds)
    reports = cache(
        lambda number: _report_launch(
            launches[number],
            content.kernels[launches[number].kernel],
            captured_gpu(content.gpu),
            counts(number),
            findings[number],
            timed(number),
        )
    )
    stopped = content.stopped
    is_tried = capture.findings is not None or why
    return Report(
        triton=content.triton,
        gpu=content.gpu.get("name"),
        launches=tuple(
            replace(
                reports(first),
                elapsed_ms=launch.elapsed_ms,
                equal_to=first if first < number else None,
            )
            for number, (launch, first) in enumerate(zip(launches, firsts, strict=True))
        ),
        untried="" if is_tried else "No changes were tried: the capture holds no experiments.",
        stopped=stopped.message if stopped else None,
        not_captured=(*_explain_amd(content), *content.not_captured),
        failed=stopped is not None and stopped.kind == "exception",
        variants=find_variants(content),
    )


def _explain_amd(content: Content) -> Iterator[str]:
    """Say what a report on an AMD GPU lacks, what its terms mean there, and which compiler it is about."""
    if content.not_modelled:
        yield content.not_modelled
        yield (
            "Here, a warp is a wave of 64 lanes, an SM is a compute unit (CU), shared memory is the LDS, local memory "
            "is scratch memory, and registers are VGPRs and AGPRs."
        )
        yield (
            f"Compiled with {content.package}. Other builds of Triton, such as AMD's for ROCm, bundle another LLVM, "
            "and may produce other registers, spills and instructions."
        )


def read_report(path: Path) -> Report:
    """Read the JSON of a report. Unknown fields are ignored.

    Raises:
        OSError: the file can't be read.
        ValueError: it holds something else.
    """
    payload = parse_json(path.read_text(encoding="utf-8"), path.name)
    return from_json(Report, payload, path.name, ignores_unknown=True)


def _report_launch(
    launch: CapturedLaunch,
    kernel: CapturedKernel,
    gpu: Gpu | None,
    counts: LaunchCounts,
    findings: Sequence[Finding],
    inside: Inside,
) -> LaunchReport:
    inside, findings = add_times(inside, findings)
    memory = counts.totals()
    refused = {(op.source[1], op.tally.refused) for op in counts.operations if op.tally.refused}
    if counts.refused:
        refused.add((kernel.line, counts.refused))
    resident = None
    if gpu:
        resident = fit_kernel(gpu, kernel)
    report = LaunchReport(
        kernel=kernel.name,
        source=Path(kernel.file).name,
        line=kernel.line,
        grid=launch.grid,
        registers=kernel.registers,
        spilled_bytes=kernel.spilled_bytes,
        shared_bytes=kernel.shared_bytes,
        programs_per_sm=resident.programs_per_sm if resident else None,
        limited_by=resident.limited_by if resident else (),
        ops=tuple(report_operation(group, findings) for group in counts.by_line()),
        config=launch.config,
        tuned=launch.tuned,
        settings=launch.settings,
        arguments={each.name: each.value for each in launch.arguments if each.value is not None},
        results=launch.results,
        findings=tuple(findings),
        first_change=describe_changes(inside),
        totals={**memory, **inside.predict_counters()},
        lower_bound={
            name: counts.lower_bound(name) for name in COUNTER_NAMES if memory[name] is None
        },
        refused=tuple(Refusal(*each) for each in sorted(refused)),
        counted=launch.counters,
        source_path=kernel.file,
        **vars(inside),
    )
    if report.may_retry:
        report = replace(report, totals={**memory, **dict.fromkeys(INSIDE_COUNTERS)})
    if report.counted is None:
        return report
    return replace(report, agrees=not report.wrong_counters)


def describe_spills(inside: Inside) -> str:
    """Describe the bytes that each thread spills, and the launch's spill traffic; "" without spills."""
    lines = inside.spills_by_line
    if not lines:
        return ""
    stored = sum(line.stored_bytes for line in lines)
    moved = sum(line.moved_bytes or 0 for line in lines)
    traffic = f" ({bytes_of(moved)} of traffic)" if moved else ""
    return f"Each thread spills {stored:,} bytes of registers{traffic}."


def report_operation(
    group: Sequence[OperationCounts], findings: Sequence[Finding]
) -> OperationReport:
    """Add up the copies of an operation."""
    first = group[0]
    cost = sum_costs(group)
    refused = next((op.tally.refused for op in group if op.tally.refused), "")
    tensor = ", ".join(first.tensors)
    place = *first.source, first.op, tensor
    return OperationReport(
        op=first.op,
        counter=first.counter,
        tensor=tensor,
        file=first.source[0],
        line=first.source[1],
        width_bytes=first.width_bytes,
        **{name: getattr(cost, name) for name in COST_COLUMNS},
        efficiency=None if refused or not cost.ideal_sectors else cost.efficiency,
        refused=refused,
        is_upper_bound=any(op.tally.is_upper_bound for op in group),
        why=" ".join(
            " ".join(describe_finding(finding)) for finding in findings if finding.place == place
        ),
    )
