"""What is said of one run: its numbers, its check, its time, and the values around its worst element. HTML."""

from __future__ import annotations

import html

import numpy as np
from markupsafe import Markup

from kernels.results import Check, Closeup, Diff, RunResult, Timing
from kernels.spec import Kernel, Launch
from visualize.text import words

_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def remarks(result: RunResult, kernel: Kernel, launch: Launch) -> list[str]:
    """What a reader must know of a run, besides its own note: one sentence or two each."""
    said = [kernel.family.note(launch.problem), kernel.note(launch)]
    if kernel.zeroed_output:
        said.append("The output starts at zero; what zeroing it takes is in no time here.")
    if (race := kernel.race(launch)) and result.check.passed:
        why = (
            "The interpreter runs one program to its end before the next, so a race can't show under it."
            if result.backend == "interpreter"
            else "This time it did not show in the result."
        )
        said.append(f"Passed, and is still a race: {race}. {why}")
    if result.backend == "interpreter" and result.experiment.problem.dtype in ("bfloat16", *_FLOAT8):
        said.append(
            f"Triton's interpreter takes {result.experiment.problem.dtype} for whole numbers; here it is mended to "
            "multiply and round as a GPU does."
        )
    return [sentence for sentence in said if sentence]


def values(near: Closeup, check: Check, programs: dict[tuple[int, int], list[int]], diff: Diff) -> str:
    """The elements around the worst: what the kernel wrote over what the reference holds."""
    rows, columns = near.got.shape
    header = ("row", *(f"column {near.near[1] + column}" for column in range(columns)))
    body = []
    for row in range(rows):
        cells = [f"{near.near[0] + row}"]
        for column in range(columns):
            got, expected = float(near.got[row, column]), float(near.expected[row, column])
            right = near.units[row, column] <= (0 if diff.exact else 1)
            written = words.significant(got, 5) if np.isfinite(got) else str(got)
            mark = "" if right else ' class="wrong-value"'
            cells.append(f"<span{mark}>{written}</span><br><small>{words.significant(expected, 5)}</small>")
        body.append(tuple(cells))
    who = ""
    if diff.tile:
        place = check.worst_index[0] // diff.tile[0], check.worst_index[1] // diff.tile[1]
        who = f", in tile [{place[0]}, {place[1]}]"
        if pids := programs.get(place):
            who += f", computed by pid {pids[0]}" + (f" and {len(pids) - 1} more" if len(pids) > 1 else "")
    worst = f"[{check.worst_index[0]}, {check.worst_index[1]}]"
    caption = f"Around the worst element {worst}{who}: the kernel's value over the reference's"
    return f'<div class="around">{words.table(header, body, caption)}</div>'


def numbers(result: RunResult, race: str) -> str:
    source = {"cuda": "measured"}.get(result.backend, result.backend)
    check = result.check
    verdict = ("passed, still a race" if race else "passed") if check.passed else _failed(check)
    parts = [words.figure(verdict, "check", source, "Against torch, within what rounding explains")]
    parts += _timed(result, source)
    if result.backend == "interpreter" and result.recorded is None:
        parts.append(words.figure("no time", "the interpreter runs on the CPU"))
    if recorded := result.recorded:
        if not recorded.check.passed:
            parts.append(words.figure(_failed(recorded.check), f"check on {recorded.device.name}", "recorded"))
        parts += _timed(recorded, "recorded")
    return "".join(parts)


def _timed(result: RunResult, source: str) -> list[Markup]:
    timing, baseline, peak = result.timing, result.baseline, result.peak
    if timing is None:
        return []
    spread = (timing.p80_ms - timing.p20_ms) / 2 / timing.median_ms
    parts = [
        words.figure(
            f"{words.milliseconds(timing.median_ms)} ± {words.percent(spread)}",
            f"median of {timing.samples}",
            source,
            f"{result.device.name}; p20 to p80: {_spread(timing)}",
        ),
        words.figure(_rate(timing), "rate", source),
    ]
    if baseline:
        parts.append(
            words.figure(
                f"{baseline.ratio:.2f} ×", baseline.name, source, f"The speed of {baseline.name}, timed in turns"
            )
        )
    if peak:
        parts.append(
            words.figure(
                words.percent(peak.share), "of the device's best", source, f"{peak.rate:.0f} {peak.unit}: {peak.what}"
            )
        )
    return parts


def _spread(timing: Timing) -> str:
    return f"{words.milliseconds(timing.p20_ms)} – {words.milliseconds(timing.p80_ms)}"


def _rate(timing: Timing) -> str:
    if timing.tflops is not None:
        return f"{words.significant(timing.tflops)} TFLOP/s"
    return f"{words.significant(timing.gbps or 0)} GB/s"


def claim(result: RunResult, kernel: Kernel, launch: Launch) -> str:
    """What was run, whether it is right, and what else a reader must know."""
    settings = ", ".join(
        f"{name} {value}" for name, value in result.experiment.to_address().items() if name != "kernel"
    )
    said = [html.escape(sentence) for sentence in remarks(result, kernel, launch)]
    if result.diff is None:
        said.append("The picture of the error was not recorded.")
    verdict = _verdict(result.check, exact=kernel.family.is_exact)
    return f'<p class="hint">{result.experiment.kernel}: {settings}</p><p class="claim">{verdict} {" ".join(said)}</p>'


def tables(result: RunResult, kernel: Kernel) -> str:
    """The check and the times."""
    check = result.check
    where = f"{result.device.name}, torch {result.device.torch}, triton {result.device.triton}"
    beyond = ("largest error beyond rounding / allowed", words.significant(check.worst_over_allowed), "at most 1")
    rows = [
        ("relative RMS error", words.significant(check.relative_rms), f"at most {words.significant(check.tolerance)}"),
        ("largest error", words.significant(check.max_abs_error), ""),
        (f"largest error / ({kernel.family.magnitude})", words.significant(check.max_scaled_error), ""),
        *([] if kernel.family.is_exact else [beyond]),
        (
            "wrong elements",
            f"{check.mismatched:,} of {check.elements:,}",
            f"{check.nonfinite:,} of them never written or not finite",
        ),
        (
            "worst element",
            f"[{check.worst_index[0]}, {check.worst_index[1]}]",
            f"got {words.significant(check.worst_got, 6)}, expected {words.significant(check.worst_expected, 6)}",
        ),
    ]
    table = words.table(("check", "value", "allowed, or detail"), rows, f"Check, on {where}")
    timed = result if result.timing else result.recorded
    return table + (_timing_table(timed) if timed is not None and timed.timing is not None else "")


def _failed(check: Check) -> str:
    return f"failed: {check.mismatched:,} wrong" if check.mismatched else "failed as a whole"


def _verdict(check: Check, exact: bool) -> str:
    if check.passed:
        if exact:
            return "Every element equals the reference, bit for bit."
        return (
            f"The error, {words.significant(check.relative_rms)} of the result, is what rounding explains "
            f"(up to {words.significant(check.tolerance)} for this type and K)."
        )
    if not check.mismatched:
        return (
            f"<b>Wrong</b> as a whole: the error, {words.significant(check.relative_rms)} of the result, is more than "
            f"rounding explains (up to {words.significant(check.tolerance)}), though no single element shows it."
        )
    return (
        f"<b>Wrong</b>: {check.mismatched:,} of {check.elements:,} elements are further from the reference than "
        f"rounding explains, the worst at [{check.worst_index[0]}, {check.worst_index[1]}]."
    )


def _timing_table(result: RunResult) -> str:
    timings = [("this kernel", result.timing)]
    if result.baseline:
        timings.append((result.baseline.name, result.baseline.timing))
    rows = [
        (
            html.escape(name),
            words.milliseconds(timing.median_ms),
            _spread(timing),
            str(timing.samples),
            _rate(timing),
        )
        for name, timing in timings
        if timing is not None
    ]
    if peak := result.peak:
        best = html.escape(f"device's best ({peak.what})")
        rows.append((best, "", "", "", f"{words.significant(peak.rate)} {peak.unit}"))
    clock = f", SM clock {result.clock_mhz} MHz" if result.clock_mhz else ""
    run = result.experiment.run
    source = words.mark("recorded" if result.backend == "recorded" else "measured")
    caption = f"Time on {result.device.name}, L2 {run.l2}, {run.timer}, {run.distribution} inputs{clock}"
    return words.table((source, "median", "p20 – p80", "samples", "rate"), rows, caption)
