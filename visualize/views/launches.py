"""Draw a script's launches in the slots of the page's views: requests, code, program order and results."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from tilescope.captures.content import CapturedLaunch, Finding
from tilescope.captures.listings import isolate
from tilescope.declare.experiment import Json
from tilescope.declare.gpus import ALL_GPUS
from tilescope.declare.knobs import knob
from tilescope.evaluate.causes import ALIGNMENT, explain
from tilescope.evaluate.counts import OperationCounts, sum_costs
from tilescope.evaluate.declared import Matrix, Requests
from tilescope.evaluate.global_memory import STORAGE_STEP, storage_number
from tilescope.evaluate.sectors import LINE_BYTES
from tilescope.numbers import count_noun, join_names, milliseconds, significant
from tilescope.reports.comparison import compare
from tilescope.reports.findings import (
    describe_findings,
    describe_variants,
    list_findings,
    name_launches,
)
from tilescope.reports.launch import Launches, LaunchReport
from tilescope.reports.sentences import describe_counts, describe_time
from tilescope.reports.text import describe_total, settings_text, wrong_counters
from visualize.views import slots
from visualize.views.inside.figures import captured_program
from visualize.views.inside.view import INSIDE
from visualize.views.memory.compiler import Sources, inspection_slots, list_texts, resource_slots
from visualize.views.memory.flow import Flow, flow_plot
from visualize.views.memory.text import cost_row, operations_table
from visualize.views.memory.view import NO_CONTRAST
from visualize.views.order.captured import draw_launch_order
from visualize.views.panel import Slots
from visualize.views.prose import Code, Link, Mark, Strong, headline, render_alert, say, table, term
from visualize.views.result.figures import plot_predicted
from visualize.views.result.text import render_predicted
from visualize.views.result.view import NO_PLOTS
from visualize.views.slots import NONE
from visualize.views.state import query

# The tabs that a script has, with the slots of their headlines.
_HEADLINES = {
    "requests": "requests-headline",
    "compiler": "compiler-headline",
    "program-order": "program-order-headline",
    "result": "result",
    **{name: f"{name}-headline" for name in INSIDE},
}
TABS = tuple(_HEADLINES)

# Maximum number of cells in a picture of requests. A report in a file has no others.
_MOST_CELLS = 1 << 20

_UNCHANGED = "No counts, registers or memory sizes changed."


@dataclass(frozen=True)
class LaunchView:
    """The open tab, and the launch, operation and request in it."""

    tab: str = knob(TABS[0], "", "The open view.", choices=TABS)
    launch: int = knob(0, "Launch", "Number of the launch, from 0.", low=0, high=100_000)
    operation: int = knob(
        -1,
        "Picture",
        "Number of the memory operation in the kernel; -1: the one that wastes the most sectors.",
        low=-1,
        high=10_000,
    )
    model: str = knob(
        "compiled",
        "",
        "Lane layout: as compiled, or as in the textbook model.",
        choices=("compiled", "textbook"),
    )
    request: int = knob(
        -1, "", "The warp request that is drawn; -1: the most wasteful one.", low=-1, high=2**20
    )
    step: int = knob(0, "", "The step of the player. 0: the whole launch.", low=0, high=2**21)


def clip(launches: Launches, view: LaunchView) -> LaunchView:
    """Limit the view's launch and operation to existing ones, and choose an operation if it has none.

    The first of equal launches is shown.
    """
    reports = launches.report().launches
    if not reports:
        return view
    number = min(view.launch, len(reports) - 1)
    equal = reports[number].equal_to
    number = number if equal is None else equal
    # Lanes issue no requests of a TMA copy, which has no picture.
    wasted = [bool(op.width_bytes) * (op.sectors - op.ideal_sectors) for op in reports[number].ops]
    operation = min(view.operation, max(0, len(wasted) - 1))
    if view.operation < 0:
        operation = max(range(len(wasted)), key=lambda place: wasted[place], default=0)
    return replace(view, launch=number, operation=operation)


def draw(
    launches: Launches, view: LaunchView, address: Json, before: LaunchReport | None = None
) -> Slots:
    """Fill the slots of the open view.

    Args:
        address: the URL parameters of the view.
        before: the launch in the capture before the latest one, to compare with.
    """
    if not launches.content.launches:
        stopped = launches.content.stopped
        none = f"{launches.content.script} launched no Triton kernels."
        summary = headline("0", "launches", stopped.message if stopped else none, is_failure=True)
        return {"launches": "", **dict.fromkeys(_HEADLINES.values(), summary)}
    link = {"kernel": address["kernel"], "tab": view.tab}
    return {
        "launches": launches_table(launches, link, view.launch),
        **draw_launch(launches, view, address, before),
    }


@isolate(
    lambda why, launches, view, *_: {_HEADLINES[view.tab]: headline("–", "", why, is_failure=True)}
)
def draw_launch(
    launches: Launches,
    view: LaunchView,
    address: Json,
    before: LaunchReport | None = None,
) -> Slots:
    """Fill the slots of the open view that depend on its launch. The arguments are those of `draw`."""
    launch = launches.report().launches[view.launch]
    summary = _headline(launch, before)
    match view.tab:
        case "requests":
            chosen = "operation", "request"
            link = query({name: value for name, value in address.items() if name not in chosen})
            return {
                "requests-headline": summary,
                "request-plot": _flow(launches, view) if launch.ops else NONE,
                "flow-title": "",
                "flow-launch": "",
                **NO_CONTRAST,
                "requests-table": _operations(launches, view.launch, link) if launch.ops else "",
                "lanes-view": _lanes_form(launch, view),
            }
        case "compiler":
            resources: Slots = {"resources": ""}
            if gpu := ALL_GPUS.get(launches.gpu):
                kernel = launches.kernel(view.launch)
                triton = launches.content.triton
                resources = resource_slots(gpu, kernel.num_warps, kernel, triton)
            return {
                "compiler-headline": summary,
                "listing": _listing(launches, view.launch, view.operation),
                **inspection_slots(launch, launches.caption, _sources(launches, view.launch)),
                **resources,
            }
        case "result":
            scoreboard = query({"tab": "scoreboard"})
            return {
                **NO_PLOTS,
                "result": _result(launches.content.launches[view.launch]),
                "predicted-time": render_predicted(launch, scoreboard),
                "predicted-plot": plot_predicted(launch, launches.caption),
            }
        case "program-order":
            return draw_launch_order(launches, view.launch, view.step)
        case name:
            return INSIDE[name].draw_program(captured_program(launches, view.launch))


def launches_table(launches: Launches, address: Json, chosen: int | None = None) -> Markup:
    """Render the list of launches.

    Args:
        address: the URL parameters of each link, without the launch.
        chosen: the launch that is emphasized.
    """
    rows: list[Json] = []
    report = launches.report()
    for numbers, launch in report.distinct:
        name = name_launches(numbers)
        results = (launch.results or {}).values()
        is_passed = all(errors.passed for errors in results)
        grid = " × ".join(map(str, launch.grid))
        agreement = ", ".join(wrong_counters(launch)) or "agree"
        rows.append(
            {
                "": Strong(name) if numbers[0] == chosen else name,
                "kernel": Link(launch.kernel, query({**address, "launch": numbers[0]})),
                "grid": grid.removesuffix(" × 1").removesuffix(" × 1"),
                "case": settings_text(launch.settings),
                "config": settings_text(launch.config),
                "tuned": f"{launch.tuned.number} of {launch.tuned.of}" if launch.tuned else "",
                "time": "" if launch.elapsed_ms is None else milliseconds(launch.elapsed_ms),
                "check": ("passed" if is_passed else "FAILED") if results else "",
                "sectors": describe_total([launch], "sectors"),
                "vs. ideal": f"{significant(launch.ratio)} ×" if launch.ratio else "",
                "counters": agreement if launch.counted else "",
                "not counted": next((refusal.why for refusal in launch.refused), ""),
            }
        )
    faults, _ = describe_findings(report)
    wrong = Markup().join(map(render_alert, faults))
    content = launches.content
    unknown = ("sectors", "not counted") if content.not_modelled else ()
    used = [n for n in rows[0] if n not in unknown and any(str(row[n]) for row in rows)]
    notes = [
        f"{content.script}, compiled by Triton {content.triton} for {launches.gpu}.",
        *report.remarks,
        *describe_variants(report),
    ]
    sentences = Markup(" ").join(filter(None, notes))
    shown = table(used, ([row[name] for name in used] for row in rows))
    return wrong + Markup('<p class="note">{}</p>').format(sentences) + shown


def _headline(launch: LaunchReport, before: LaunchReport | None) -> Markup:
    ratio = f"{significant(launch.ratio)} ×" if launch.ratio else "–"
    findings = [row.finding for row in list_findings([((0,), launch)])]
    others = [finding for finding in findings if not finding.is_fault]  # see launches_table
    none = f"No {'other ' if findings else ''}findings for this launch."
    sentences = []
    if before:
        changed = [each.sentence for each in compare((before,), (launch,))]
        old_ratio = significant(before.ratio)
        start = [f"Before: {old_ratio} ×."] if old_ratio != significant(launch.ratio) else []
        sentences.append(" ".join([*start, *changed]) or _UNCHANGED)
    sentences += [
        _sum_up(others) if others else none,
        _findings_table(others) if others else "",
    ]
    reasons = [refusal.why for refusal in launch.refused if refusal.line == launch.line]
    if reasons and not launch.ops:
        return headline("", "", *reasons, *sentences)
    what = say("the {}: {} {}", term("ideal sectors"), Code(launch.kernel), Mark("predicted"))
    return headline(ratio, what, *sentences, *reasons, *wrong_counters(launch))


def _sum_up(findings: Sequence[Finding]) -> str:
    """Count the findings, and name the place of the first."""
    first = findings[0]
    time = describe_time(first)
    effect = f": predicted time {time}" if time else ""
    which = "the first " if len(findings) > 1 else ""
    return f"{count_noun(len(findings), 'finding')}, {which}on line {first.line}{effect}."


def _findings_table(findings: Iterable[Finding]) -> Markup:
    header = "line", "finding", "change", "before → after", "predicted time"
    rows = (
        (
            f"{finding.file}:{finding.line}",
            finding.text,
            f"{finding.change} {finding.needs}".strip(),
            describe_counts(finding),
            describe_time(finding),
        )
        for finding in findings
    )
    return table(header, rows)


def _lanes_form(launch: LaunchReport, view: LaunchView) -> str:
    _, operation = slots.controls(LaunchView)
    labels = [f"{op.name}, line {op.line}" for op in launch.ops]
    operation |= {"kind": "menu", "choices": list(range(len(labels))), "labels": labels}
    return slots.form_value([operation], {"operation": view.operation})


def _flow(launches: Launches, view: LaunchView) -> str:
    group = launches.counts(view.launch).by_line()[view.operation]
    op = next((op for op in group if op.tally.example), group[0])
    is_compiled = view.model == "compiled"
    shown, other = (
        _read_requests(launches, view.launch, op, model) for model in (is_compiled, not is_compiled)
    )
    if shown is None or other is None:
        return NONE
    flow = Flow(op, shown, is_compiled)
    switched = Flow(op, other, not is_compiled)
    return flow_plot(flow, view.request, launches.caption, switched, most_cells=_MOST_CELLS)


@lru_cache(maxsize=2)
def _sources(launches: Launches, launch: int) -> Sources:
    kernel = launches.kernel(launch)
    return {Path(kernel.file).name: (kernel.line, kernel.source.splitlines())}


def _listing(launches: Launches, launch: int, chosen: int) -> str:
    ((source, (first, lines)),) = _sources(launches, launch).items()
    numbered = [f"{number:>4}  {text}" for number, text in enumerate(lines, first)]
    report = launches.report().launches[launch]
    # Without counts, the lines whose instructions access global memory
    accesses = [(op.name, op.file, op.line) for op in report.ops] or [
        (row.kind, *row.user_lines[0])
        for row in report.instructions_by_line
        if re.match("global|async", row.kind)
    ]
    operations = [
        (f"{name}, {file}:{line}", file, range(line, line + 1)) for name, file, line in accesses
    ]
    codes = launches.capture.build(launches.content.launches[launch].kernel).codes
    return list_texts({source: (first, numbered)}, codes, operations, chosen)


def _result(launch: CapturedLaunch) -> Markup:
    """Render the time of a launch, and the errors of its outputs or the reason why there are none."""
    time: tuple[Any, ...] = "", "Not run"
    if launch.elapsed_ms is not None:
        number, unit = milliseconds(launch.elapsed_ms).split()
        time = number, say("{} {}", unit, Mark("measured"))
    results = launch.results
    if not results:
        none = (
            "There is no expected output to compare with. A case can return one: see docs/show.md."
        )
        idle = "It was captured without a GPU. To run it in Triton's interpreter, use tilescope show --values."
        return headline(*time, none if launch.ran else idle)
    failed = [name for name, errors in results.items() if not errors.passed]
    equal = "All outputs match the expected values within rounding."
    verdict = f"Wrong: {join_names(failed)}." if failed else equal
    header = "output", "relative RMS error", "largest absolute error", "check"
    rows = (
        (
            name,
            f"{errors.relative_rms:.3g}",
            f"{errors.max_abs_error:.3g}",
            "passed" if errors.passed else "FAILED",
        )
        for name, errors in results.items()
    )
    return headline(*time, verdict) + table(header, rows)


@lru_cache(maxsize=2)
def _operations(launches: Launches, number: int, link: str) -> Markup:
    """Render the textbook and compiled cost of each operation, and the reasons for its cost if no finding has them.

    Args:
        link: the query of an operation's picture, without the operation.
    """
    report = launches.report().launches[number]
    arguments = launches.content.launches[number].arguments
    converted = {(each.file, each.line) for each in report.conversions}
    gpu = ALL_GPUS.get(launches.gpu)
    values = {each.name: each.value for each in arguments if type(each.value) is int}
    textbook = {_identity(group): group for group in launches.textbook(number).by_line()}
    rows = []
    reasons = []
    pairs = zip(launches.counts(number).by_line(), report.ops, strict=True)
    for at, (group, op) in enumerate(pairs):
        place = Link(f"{op.file}:{op.line}", f"{link}&operation={at}")
        first = group[0]
        cost = sum_costs(group)
        expected = None
        if (other := textbook.get(_identity(group))) and other[0].width_bytes:
            expected = sum_costs(other)
            rows.append(cost_row("textbook", other[0], place, expected))
        rows.append(cost_row("compiled", first, place, cost))
        lanes = _read_requests(launches, number, first)
        sizes = _find_odd_sizes(first, values)
        why = explain(first, cost, expected, lanes, sizes, converted, gpu)
        if op.refused or not op.why:
            reasons.append((op.name, op.refused or why))
    return operations_table(rows, reasons)


def _find_odd_sizes(op: OperationCounts, values: Mapping[str, int]) -> dict[str, int]:
    """Return the arguments that may make accesses narrow: those in the addresses, or else those in the mask.

    The mask alone also depends on the number of rows, which makes no access narrow.
    """
    odd = {name: value for name, value in values.items() if value != 1 and value % ALIGNMENT}
    for names in (op.addressed_by, op.masked_by):
        if sizes := {name: value for name, value in odd.items() if name in names}:
            return sizes
    return {}


def _identity(group: Sequence[OperationCounts]) -> tuple[Any, ...]:
    return group[0].source, group[0].op, group[0].tensors


def _read_requests(
    launches: Launches, number: int, op: OperationCounts, is_compiled: bool = True
) -> Requests | None:
    """Return the requests of one execution of an operation, as compiled or as in the textbook, if they are known."""
    code = op.instruction
    example = op.tally.example
    if code is None or code.layout is None or example is None:
        return None
    instruction = code if is_compiled else code.textbook
    lowest = int(example.address.min())
    storage = int(storage_number(lowest))
    # Addresses begin at the line in which the storage starts.
    start = 0
    if storage < len(launches.content.storages):
        start = launches.content.storages[storage].address_bytes
    address, active = example.lanes(instruction)
    address = np.where(active, address, lowest) - start // LINE_BYTES * LINE_BYTES
    address %= STORAGE_STEP
    tensor = launches.content.launches[number].find_tensor(op.tensors)
    columns = max(1, tensor.shape[-1] if tensor and tensor.shape else 1)
    rows = int(address.max()) // instruction.element_bytes // columns + 1
    matrix = Matrix(rows, columns, instruction.element_bytes)
    return Requests(address, active, instruction.width_bytes, matrix)
