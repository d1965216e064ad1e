"""Print a report: as a table, in Markdown, in HTML for notebooks, and in at most 4 KB. List its findings."""

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from tilescope.inside.report import Inside
from tilescope.numbers import count_noun, join_names, milliseconds, percent
from tilescope.reports.comparison import Difference
from tilescope.reports.findings import describe_findings, describe_variants, name_launches, truncate
from tilescope.reports.launch import MAIN_AMOUNTS, LaunchReport, Report
from tilescope.reports.sentences import in_words
from tilescope.sass.instructions import find_opcode
from tilescope.timing.changes import describe_warm_time

_PLACE_WIDTH = 24
_SETTINGS_WIDTH = 100
# The kinds of access to shared memory.
_ACCESSES = {"loads": "load", "stores": "store", "copies": "copy", "atomics": "atomic"}
# The resources of a predicted time whose names are explained.
_RESOURCES = {
    "issue": "instruction issue",
    "L1": "L1 and shared memory",
    "alu": "integers and logic (ALU)",
    "fma": "float32 arithmetic (FMA)",
    "fma heavy": "integer products (FMA heavy)",
    "xu": "special functions (XU)",
    "fp64": "float64 arithmetic",
    "tensor": "tensor cores",
}
_HEADINGS = ("line", "op", "tensor", "bytes", *MAIN_AMOUNTS, "ideal%")
# Maximum bytes of the whole summary without the empty lines between its parts, of its totals, and of a remark; bytes
# reserved for the number of omitted lines.
_MOST_BYTES = 4096 - 3
_MOST_TOTALS_BYTES = 1024
_NUMBER_BYTES = 64

# Share of the predicted time from which instruction issue matters, and the number of source lines that are then named.
_BUSY = 0.5
_MOST_PLACES = 3


@dataclass(frozen=True)
class Section:
    """The printed report of equal launches.

    Attributes:
        rows: the cells of each operation.
        notes: live registers, spills, counters, and reasons why counts are incomplete.
    """

    title: str
    facts: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        width = max([20, *(len(cells[2]) for cells in self.rows)])

        def align(cells: Sequence[str]) -> str:
            place, op, tensor, width_bytes, *amounts, ideal = cells
            file, colon, line = place.rpartition(":")
            space = _PLACE_WIDTH - len(colon + line)
            file = file if len(file) <= space else f"{file[: space - 1]}…"
            counts = " ".join(f"{amount:>13}" for amount in amounts)
            start = f"{file + colon + line:{_PLACE_WIDTH}} {op:11} {tensor:{width}}"
            return f"{start} {width_bytes:>5} {counts} {ideal:>6}"

        settings, *facts = self.facts
        lines = [*textwrap.wrap(settings, _SETTINGS_WIDTH), *facts]
        lines += map(align, [_HEADINGS, *self.rows] if self.rows else [])
        return "\n   ".join([self.title, *lines, *self.notes])

    @property
    def markdown(self) -> str:
        table = markdown_table(_HEADINGS, self.rows, 3) if self.rows else ""
        heading = f"### {_in_markdown(self.title)}"
        items = "\n".join(f"- {_in_markdown(note)}" for note in self.notes)
        facts = "; ".join(fact.removesuffix(".") for fact in self.facts)
        parts = [heading, _in_markdown(facts), table, items]
        return "\n\n".join(filter(None, parts))


def sections(report: Report) -> list[Section]:
    """Return the printed report of each of the distinct launches."""
    return [_make_section(report, numbers, launch) for numbers, launch in report.distinct]


def table(report: Report, differences: Sequence[str] = ()) -> str:
    """Return a report as text: faults, differences, other findings, launches, and what is missing."""
    faults, findings = describe_findings(report)
    launches = [f"\n{section.text}" for section in sections(report)]
    title = [_title(report), *describe_variants(report)]
    parts = faults, differences, findings, [*title, *launches, *report.remarks]
    return "\n\n".join("\n".join(part) for part in parts if part)


def describe_changes(report: Report, differences: Sequence[str]) -> str:
    """Return the faults of a report, its differences from another one, and what it lacks."""
    faults, _ = describe_findings(report)
    missing = [each for each in report.remarks if each != report.untried]
    return "\n\n".join("\n".join(part) for part in (faults, differences, missing) if part)


def markdown(report: Report) -> str:
    """Return a report in GitHub's Markdown."""
    parts = [section.markdown for section in sections(report)]
    title = f"**{_in_markdown(_title(report))}**"
    remarks = map(_in_markdown, report.remarks)
    faults, findings = describe_findings(report)
    items = [f"- {_in_markdown(text)}" for text in (*findings, *describe_variants(report))]
    return "\n\n".join([*_mark_faults(faults), "\n".join(items), title, *parts, *remarks])


def html(text: str) -> str:
    """Return a report's text as HTML for a notebook's output cell, where lines scroll."""
    return Markup('<pre style="white-space: pre">{}</pre>').format(text)


def _mark_faults(faults: Iterable[str]) -> list[str]:
    return [f"- **{_in_markdown(fault)}**" for fault in faults]


def markdown_growth(title: str, changed: Sequence[Difference], report: Report) -> str:
    """Return the regressions, and what is missing in the report, in GitHub's Markdown."""
    headings = ("where", "what", "before", "after", "change")
    rows = []
    for each in filter(lambda difference: difference.is_worse, changed):
        change = f"{each.after / each.before - 1:+.1%}" if each.before else ""
        numbers = f"{each.before:,}", f"{each.after:,}", change
        rows.append((each.subject, in_words(each.what), *numbers))
    heading = f"### {_in_markdown(title)}: {count_noun(len(rows), 'regression')}"
    tables = [markdown_table(headings, rows, 2)] if rows else []
    missing = [each for each in report.remarks if each != report.untried]
    faults, _ = describe_findings(report)
    return "\n\n".join([*_mark_faults(faults), heading, *tables, *map(_in_markdown, missing)])


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], labels: int) -> str:
    """Return a table. Its columns of numbers are aligned to the right.

    Args:
        labels: number of the first columns, which hold text.
    """
    rule = ["---"] * labels + ["--:"] * (len(headings) - labels)
    lines = (headings, rule, *(map(_in_markdown, row) for row in rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def wrong_counters(launch: LaunchReport) -> list[str]:
    """Describe each of Nsight Compute's counters that differs from its prediction."""
    counted = launch.counted or {}
    return [
        f"{in_words(name)} {counted[name]:,} (predicted {_known(launch.totals[name])})"
        for name in launch.wrong_counters
    ]


def settings_text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _known(number: int | None, bound: str = "") -> str:
    return "unknown" if number is None else f"{bound}{number:,}"


def _title(report: Report) -> str:
    return f"Triton {report.triton}, {report.gpu}: {count_noun(len(report.launches), 'launch')}"


def _make_section(report: Report, numbers: Sequence[int], launch: LaunchReport) -> Section:
    grid = " × ".join(map(str, launch.grid))
    tuned = f", config {launch.tuned.number} of {launch.tuned.of}" if launch.tuned else ""
    rows = []
    for op in launch.ops:
        bound = "≥ " if op.refused else ""
        if op.is_upper_bound:
            bound = "≤ "
        amounts = [f"{bound}{getattr(op, name):,}" for name in MAIN_AMOUNTS]
        efficiency = "" if op.efficiency is None else f"{op.efficiency:.0%}"
        width = str(op.width_bytes or "")
        place = f"{op.file}:{op.line}"
        rows.append((place, op.op, op.tensor, width, *amounts, efficiency))
    notes = [*_describe_spills(launch), *_describe_unknown(launch)]
    if launch.counted:
        compared = len(launch.counted) - len(launch.uncompared)
        agreement = ", ".join(wrong_counters(launch)) or f"all {compared} counters agree"
        names = ", ".join(map(in_words, launch.uncompared))
        unknown = f"; not predicted: {names}" if names else ""
        notes.append(f"Nsight Compute: {agreement}{unknown}")
    elif any(each.counted for each in report.launches):
        notes.append("Nsight Compute: not counted")
    notes += [
        f"Line {refusal.line}: {refusal.why}"
        for refusal in launch.refused
        if refusal.why != launch.not_predicted
    ]
    return Section(
        title=f"{name_launches(numbers)}  {launch.kernel}  {launch.source}:{launch.line}  grid {grid}{tuned}",
        facts=(
            settings_text({**launch.settings, **launch.config}),
            _describe_needs(launch),
            *_describe_instructions(report, launch),
        ),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _describe_needs(launch: LaunchReport) -> str:
    needs = f"{launch.registers} registers, {launch.spilled_bytes} bytes spilled"
    needs += f", {launch.shared_bytes:,} bytes of shared memory"
    if launch.programs_per_sm is not None:
        programs = count_noun(launch.programs_per_sm, "program")
        needs += f": {programs} per SM, limited by {join_names(launch.limited_by)}"
    return needs


def _is_modelled(report: Report) -> bool:
    """Return whether requests and times are modelled for the GPU. If not, a remark says so."""
    return all(each.not_predicted not in report.not_captured for each in report.launches[:1])


def _describe_instructions(report: Report, launch: LaunchReport) -> Iterator[str]:
    if _is_modelled(report):
        yield from _describe_executions(launch)
        yield from _describe_time(launch, report.gpu or "the GPU")
    else:
        compiled = sum(row.compiled for row in launch.instructions_by_line)
        yield f"compiled instructions: {compiled:,}; most on {_list_busiest(launch, 'compiled')}"


def _describe_spills(launch: LaunchReport) -> Iterator[str]:
    """Describe the line with the most live registers, and the lines that spill."""
    if not launch.spills_by_line:
        return
    for peak in launch.registers_by_line[:1]:
        writers = _list_largest(launch, launch.registers_at_peak, "registers")
        place = launch.describe_place(peak)
        yield f"Live registers: {peak.live} at {place}, written at {writers}"
    stores = _list_largest(launch, launch.spills_by_line, "stored_bytes")
    reloads = _list_largest(launch, launch.spills_by_line, "reloads")
    moved = launch.spill_traffic_bytes
    total = "" if moved is None else f"; {moved:,} bytes moved"
    yield f"Spilled bytes: {stores}; reloads: {reloads}{total}"


def _list_largest(launch: LaunchReport, lines: Iterable[Any], amount: str) -> str:
    """Return up to four places with the largest amounts, and the sum over the others."""
    amounts = Counter[str]()
    for each in lines:
        amounts[launch.describe_place(each)] += getattr(each, amount)
    ranked = amounts.most_common()
    largest = [f"{place} ({number:,})" for place, number in ranked[:4] if number]
    if rest := sum(number for _, number in ranked[4:]):
        largest.append(f"other lines ({rest:,})")
    return ", ".join(largest)


def _describe_executions(launch: LaunchReport) -> Iterator[str]:
    """Describe the executed instructions, and the wavefronts and bank conflicts of shared memory."""
    if not launch.is_executed:
        return
    bound = "at least " if launch.may_retry else ""
    is_busy = launch.resource_shares.get("issue", 0.0) >= _BUSY
    busiest = _list_busiest(launch, "executed") if is_busy and launch.instructions_executed else ""
    executed = _known(launch.instructions_executed, bound)
    yield f"warp instructions executed: {executed}" + (f"; most at {busiest}" if busiest else "")
    used = {access.opcode for access in launch.shared}
    wavefronts = []
    for name, kind in _ACCESSES.items():
        if opcodes := [each for each in used if find_opcode(each).smem == kind]:
            wavefronts.append(f"{name} {_known(launch.sum_wavefronts(*opcodes), bound)}")
    if launch.gmma_wavefronts:
        wavefronts.append(f"matrix instructions {launch.gmma_wavefronts:,}")
    if wavefronts:
        yield f"shared-memory wavefronts: {', '.join(wavefronts)}"
    if used:
        yield f"bank conflicts: {_known(launch.bank_conflicts, bound)}"


def _list_busiest(launch: LaunchReport, amount: str) -> str:
    """Return the lines with the most executed or compiled instructions, and their main kinds."""
    lines = Counter[str]()
    kinds = defaultdict[str, Counter[str]](Counter)
    for row in launch.instructions_by_line:
        place = launch.describe_place(row)
        lines[place] += getattr(row, amount) or 0
        kinds[place][row.kind] += getattr(row, amount) or 0
    return ", ".join(
        f"{place} ({percent(number / lines.total())}, mostly {kinds[place].most_common(1)[0][0]})"
        for place, number in lines.most_common(_MOST_PLACES)
    )


def name_resource(name: str) -> str:
    """Return the name of a resource, or of "latency", for sentences and figures."""
    return _RESOURCES.get(name, name)


def describe_bound(inside: Inside) -> str:
    """Describe what bounds a launch whose time is predicted."""
    shares = inside.resource_shares
    name = max(shares, key=lambda name: shares[name])
    resource = name_resource(name)
    share = shares[name]
    if inside.bound_by == "latency":
        return f"bound by latency; {resource} {percent(share)} busy"
    return f"bound by {resource} ({percent(share)})"


def _describe_time(launch: LaunchReport, gpu: str) -> Iterator[str]:
    if launch.predicted_us and launch.range_us:
        time, low, high = (
            milliseconds(time_us / 1e3) for time_us in (launch.predicted_us, *launch.range_us)
        )
        yield f"Predicted: {time} on {gpu} ({low} to {high}), {describe_bound(launch)}."
    elif launch.not_predicted:
        yield f"No predicted time: {launch.not_predicted}"
    if launch.assumed:
        yield launch.assumed
    if launch.elapsed_ms is not None:
        predicted = ""
        if time := describe_warm_time(launch):
            predicted = f" with a warm L2, for which the predicted time is {time}"
        yield f"Measured: {milliseconds(launch.elapsed_ms)}{predicted}."


def _describe_unknown(launch: LaunchReport) -> Iterator[str]:
    """Say why numbers of shared memory or executions are unknown."""
    for access in launch.shared:
        if access.why:
            yield f"{access.opcode} at {launch.describe_place(access)}: {access.why}"
    if launch.not_executed not in ("", launch.not_predicted):
        yield launch.not_executed


def _in_markdown(text: str) -> str:
    """Escape characters that GitHub would read as HTML, emphasis or the end of a cell."""
    return re.sub(r"([\\`*|<\[&~$]|\b_|_\b)", r"\\\1", " ".join(text.split()))


def brief(report: Report, differences: Sequence[str] = ()) -> str:
    """Return a summary of a report, in at most 4096 bytes of UTF-8: faults, differences, other findings, totals."""
    totals = _fit(map(truncate, _describe_totals(report)), _MOST_TOTALS_BYTES, "remarks")
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


def describe_total(launches: Sequence[LaunchReport], amount: str) -> str:
    """Return the sum of an amount over launches. If it is a bound, it says so."""
    ops = [op for launch in launches for op in launch.ops]
    upper = {op.refused for op in ops if op.is_upper_bound}
    bound = "at most " if upper else ""
    if {refusal.why for launch in launches for refusal in launch.refused} - upper:
        bound = "at least "
        ops = [op for op in ops if not op.is_upper_bound]
    return f"{bound}{sum(getattr(op, amount) for op in ops):,}"


def _describe_totals(report: Report) -> Iterable[str]:
    sectors = Counter[str]()
    for launch in report.launches:
        sectors[launch.kernel] += launch.sectors
    yield f"Triton {report.triton}, {report.gpu}: {_sum_up(report, sectors)}"
    yield from report.remarks
    if len(sectors) > 1:
        for kernel, _ in sectors.most_common():
            yield f"{kernel}: {_sum_up(report, [kernel])}"
    yield from describe_variants(report)


def _sum_up(report: Report, kernels: Collection[str]) -> str:
    groups = [numbers for numbers, launch in report.distinct if launch.kernel in kernels]
    launches = [report.launches[number] for numbers in groups for number in numbers]
    name = count_noun(len(launches), "launch")
    if len(groups) == 1 < len(launches):
        name = name_launches(groups[0])
    if not _is_modelled(report):
        return f"{name}. {_describe_needs(launches[0])}." if len(groups) == 1 else f"{name}."
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
        number = count_noun(conflicts, "bank conflict")
        total += f" Shared memory: {bound}{wavefronts:,} wavefronts, {bound}{number}"
        total += f"{_note_unknown(len(launches) - len(known))}."
    return total + _sum_times(launches)


def _note_unknown(launches: int) -> str:
    return f"; unknown in {count_noun(launches, 'launch')}" if launches else ""


def _sum_times(launches: Sequence[LaunchReport]) -> str:
    """Return a space and a sentence with the launches' predicted time and its range; "" if no time is known."""
    spans = [(each.predicted_us or 0.0, *each.range_us) for each in launches if each.range_us]
    if not spans:
        return ""
    time, low, high = (milliseconds(sum(times_us) / 1e3) for times_us in zip(*spans, strict=True))
    unknown = _note_unknown(len(launches) - len(spans))
    return f" Predicted time: {time} ({low} to {high}){unknown}."


def _fit(lines: Iterable[str], most: int, what: str) -> list[str]:
    """Return the first lines that fit in a number of bytes, and a line that counts the others."""
    whole = [*lines]
    if _count_bytes(whole) <= most:
        return whole
    sizes = accumulate(_count_bytes([line]) for line in whole)
    count = sum(size <= most - _NUMBER_BYTES for size in sizes)
    return [*whole[:count], f"{len(whole) - count:,} more {what}: see --text."]


def _count_bytes(lines: Sequence[str]) -> int:
    return sum(len(f"{line}\n".encode(errors="replace")) for line in lines)
