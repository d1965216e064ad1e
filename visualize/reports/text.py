"""Print a report as a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from visualize.numbers import count_noun
from visualize.reports.launch import MAIN_AMOUNTS, LaunchReport, OperationReport, Report

_PLACE_WIDTH = 24


def table(report: Report) -> str:
    """Return a report as text."""
    lines = [f"Triton {report.triton}, {report.gpu}: {count_noun(len(report.launches), 'launch')}"]
    is_counted = any(launch.counted for launch in report.launches)
    for number, launch in enumerate(report.launches):
        lines += _launch_lines(number, launch)
        if launch.counted is None and is_counted:
            lines.append("   Nsight Compute: not counted")
        lines += [f"   → {finding.text}" for finding in launch.findings if not finding.op]
        if launch.counted:
            wrong = ", ".join(wrong_counters(launch))
            lines.append(f"   Nsight Compute: {wrong or 'all ten counters agree'}")
        lines += [f"   Line {refusal.line}: {refusal.why}" for refusal in launch.refused]
    lines += filter(None, [report.stopped, report.untried])
    return "\n".join([*lines, *report.not_captured])


def wrong_counters(launch: LaunchReport) -> list[str]:
    """Describe each of Nsight Compute's counters that differs from its prediction."""
    texts = []
    for name, counted in (launch.counted or {}).items():
        total = launch.totals[name]
        if counted != total:
            predicted = "unknown" if total is None else f"{total:,}"
            texts.append(f"{name} {counted:,} (predicted {predicted})")
    return texts


def settings_text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def bounded_count(op: OperationReport, count: int) -> str:
    """Return a count of an operation, with a sign if it is a bound."""
    bound = "≤ " if op.is_upper_bound else "≥ "
    return f"{bound if op.refused else ''}{count:,}"


def _launch_lines(number: int, launch: LaunchReport) -> Iterator[str]:
    grid = " × ".join(map(str, launch.grid))
    tuned = f", config {launch.tuned.number} of {launch.tuned.of}" if launch.tuned else ""
    yield f"\n{number}  {launch.kernel}  {launch.source}:{launch.line}  grid {grid}{tuned}"
    yield f"   {settings_text({**launch.settings, **launch.config})}"
    registers = f"{launch.registers} registers, {launch.spilled_bytes} bytes spilled"
    yield f"   {registers}, {launch.shared_bytes:,} bytes of shared memory"
    width = max([20, *(len(op.tensor) for op in launch.ops)])
    headings = " ".join(f"{name:>13}" for name in MAIN_AMOUNTS)
    counts = f"{'bytes':>5} {headings} {'ideal%':>6}"
    yield f"   {'line':{_PLACE_WIDTH}} {'op':11} {'tensor':{width}} {counts}"
    for op in launch.ops:
        line = f":{op.line}"
        space = _PLACE_WIDTH - len(line)
        file = op.file if len(op.file) <= space else f"{op.file[: space - 1]}…"
        amounts = " ".join(f"{bounded_count(op, getattr(op, name)):>13}" for name in MAIN_AMOUNTS)
        efficiency = "" if op.efficiency is None else f"{op.efficiency:.0%}"
        counts = f"{op.width_bytes or '':>5} {amounts} {efficiency:>6}"
        yield f"   {file + line:{_PLACE_WIDTH}} {op.op:11} {op.tensor:{width}} {counts}"
        if op.why:
            yield f"      → {op.why}"
