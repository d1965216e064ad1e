"""The text of one run: headline, card, tables and remarks, and its place below the roofline."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels.results.run import Baseline, Check, Closeup, Diff, Failure, LaunchOverhead, RunResult, Timing
from kernels.spec import Kernel, Launch
from visualize.predict.bounds import Bound, Point, Roof
from visualize.views.numbers import bytes_of, milliseconds, percent, significant
from visualize.views.numbers import source as source_of
from visualize.views.prose import Hint, Mark, Sentence, Sourced, Strong, headline, say, term
from visualize.views.tables import table

# The names of a run's times, in its table and in its picture.
THIS_KERNEL, ENQUEUED, SYNCHRONIZED = "this kernel", "launch from Python", "launch and wait"

NO_WORK = "This kernel does no arithmetic, so it has no roofline. Its bound is a copy of the same bytes."
NO_ROOF = "No peak rates of this GPU are recorded for this dtype, so there is no roof to draw."

_CHECK_HINT = "Compared with torch, element by element. Passed: no error beyond rounding."

# Event times shorter than this include a visible part of the launch.
_SHORT_MS = 0.05


def _fits_l2(result: RunResult, kernel: Kernel, launch: Launch) -> bool:
    """Return whether a launch finds its inputs in the L2: the L2 is warm, and holds all tensors together."""
    return result.experiment.run.l2 == "warm" and kernel.family.minimal_bytes(launch.problem) <= launch.gpu.l2_bytes


def remarks(result: RunResult, kernel: Kernel, launch: Launch, failure: Failure | None = None) -> list[str]:
    """Return the caveats of a run, except its own note, as plain text.

    Args:
        failure: the reason why this launch can't be compiled for its GPU, if known.
    """
    problem, timing = launch.problem, result.timing
    is_interpreted = result.backend == "interpreter"
    sentences = [kernel.family.note(problem), kernel.note(launch)]
    if is_interpreted and failure is not None and failure.kind == "out_of_resources":
        sentences.append(
            f"This config can't launch on {launch.gpu.name}; the interpreter has no such limit. {failure.message}"
        )
    if kernel.zeroed_output:
        sentences.append("The output starts at zero; no time includes zeroing it.")
    sentences.append(_explain_race(result, kernel, launch))
    if is_interpreted and problem.dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        sentences.append(
            f"Triton's interpreter lacks {problem.dtype}; Tilescope makes it multiply and round as a GPU does."
        )
    if timing is not None:
        sentences += [f"Compared with {call.name}: {_ratio(call)}." for call in result.baselines[1:]]
        if _fits_l2(result, kernel, launch):
            size, capacity = bytes_of(kernel.family.minimal_bytes(problem)), bytes_of(launch.gpu.l2_bytes)
            sentences.append(
                f"The working set of {size} fits in the L2 ({capacity}), so the rate is no DRAM bandwidth."
            )
        if result.experiment.run.timer == "events" and timing.median_ms < _SHORT_MS:
            sentences.append("Event times this short include launch overhead; timer graph times 20 launches in a row.")
        if result.clocks and result.clocks.note:
            sentences.append(result.clocks.note)
        if result.launch_overhead:
            sentences.append(_compare_overhead(result.launch_overhead, timing))
    return [sentence for sentence in sentences if sentence]


def _explain_race(result: RunResult, kernel: Kernel, launch: Launch) -> str:
    """Return why a passed check does not disprove the kernel's race; "" without a race, or if the check failed."""
    race = kernel.race(launch)
    if not race or not result.check.passed:
        return ""
    why = (
        "The interpreter finishes each program before the next starts, so it can't show a race."
        if result.backend == "interpreter"
        else "It did not show in this result."
    )
    return f"It passed, but it is still a race: {race}. {why}"


def _compare_overhead(cost: LaunchOverhead, timing: Timing) -> str:
    call, kernel = milliseconds(cost.enqueue_ms), milliseconds(timing.median_ms)
    times = f"A call from Python takes {call}; the kernel takes {kernel}"
    if cost.enqueue_ms <= timing.median_ms:
        return f"{times}, so the call hides behind it."
    return f"{times}. In a loop, Python is the bottleneck; a CUDA graph avoids it."


def render_headline(result: RunResult, kernel: Kernel, launch: Launch, failure: Failure | None = None) -> Markup:
    """Render the run's speed, or how much of it is wrong, with its verdict and remarks.

    Args:
        failure: as for `remarks`.
    """
    check, baseline, timing, cost = result.check, result.baseline, result.timing, result.launch_overhead
    mark, first = Mark(source_of(result.backend)), _explain_race(result, kernel, launch)
    number: Any = f"{check.mismatched:,}"
    beside: Any = say("of {:,} elements {} wrong {}", check.elements, "is" if check.mismatched == 1 else "are", mark)
    if not check.passed and not check.mismatched:
        number, beside = "Wrong", say("as a whole {}", mark)
    elif check.elements == 1:
        number, beside = f"The only element is {'correct' if check.passed else 'wrong'}", mark
    # A race passes by luck, which matters more than its speed.
    if check.passed and baseline and timing and not first:
        interval = _interval(baseline)
        number, detail = speed(baseline), interval and f" ({interval})"
        beside = say("the speed of {}{} {}", baseline.name, detail, mark)
        if baseline.is_tie:
            number, beside = "Tied", say("with {}: {} {}", baseline.name, f"{baseline.ratio:.3f}, {interval}", mark)
        # If Python is the bottleneck, no kernel would be faster.
        if cost and cost.enqueue_ms > timing.median_ms:
            first = _compare_overhead(cost, timing)
    address = result.experiment.to_address()
    settings = ", ".join(f"{name} {value}" for name, value in address.items() if name != "kernel")
    stages = [f"{name} {seconds:.2f}" for name, seconds in result.stages.items() if name != "worker"]
    rest = [
        _verdict(check, kernel),
        *(sentence for sentence in remarks(result, kernel, launch, failure) if sentence != first),
        "The picture of the error was not recorded." if result.diff is None else "",
        result.note,
        f"Seconds by stage: {', '.join(stages)}." if stages else "",
        f"{result.experiment.kernel}: {settings}.",
    ]
    return headline(number, beside, *([first] if first else []), *rest, is_failure=not check.passed)


def _verdict(check: Check, kernel: Kernel) -> Sentence | str:
    error, limit = significant(check.relative_rms), significant(check.tolerance)
    if check.passed and kernel.family.is_exact:
        return "Every element equals the reference, bit for bit."
    if check.passed:
        return (
            f"Correct: every element is within rounding. Relative RMS error {error}; "
            f"the limit for {kernel.family.limit_follows} is {limit}."
        )
    if not check.mismatched:
        return say("Relative RMS error {} exceeds the limit {}, though no single element does.", Strong(error), limit)
    wrong, place = Strong("Wrong"), list(check.worst_index)
    if kernel.family.is_exact or check.nonfinite:
        return say("{}: element {} is {}; the reference is {}.", wrong, place, *_worst_values(check))
    excess = significant(check.worst_over_allowed)
    return say("{} beyond rounding: the largest error is {} × the limit, at element {}.", wrong, excess, place)


def _worst_values(check: Check) -> tuple[str, str]:
    return significant(check.worst_got, 6), significant(check.worst_expected, 6)


def render_card(result: RunResult, kernel: Kernel, launch: Launch, when: object = "") -> Markup:
    """Render the card of a finished run: its check, its time and its ratio in one line, with their source.

    A recorded run beside an interpreter's check is a second line.

    Args:
        when: when the run ended, if it was stored; "" for a run that has just ended.
    """
    lines = [_card_line(run, kernel, launch) for run in (result, result.recorded) if run is not None]
    return Markup("").join(lines) + (Markup('<p class="when">{}</p>').format(when) if when else Markup())


def _card_line(run: RunResult, kernel: Kernel, launch: Launch) -> Markup:
    check, baseline = run.check, run.baseline
    if check.passed:
        parts: list[Any] = ["✓ 0 wrong, still a race" if kernel.race(launch) else "✓ 0 wrong"]
        parts += [milliseconds(run.timing.median_ms)] if run.timing else []
        if run.timing and baseline:
            # Every baseline is a torch call.
            short = f"tied with torch ({speed(baseline)})" if baseline.is_tie else f"{speed(baseline)} torch"
            parts.append(Hint(short, f"The speed of {baseline.name}: {_ratio(baseline)}"))
    else:
        parts = [f"✗ {_failed(check)}"]
    style = "" if check.passed else Markup(' class="failed"')
    line = Markup(" · ").join([Hint(parts[0], _CHECK_HINT), *parts[1:]])
    return Markup("<p{}>{} {}</p>").format(style, line, Mark(source_of(run.backend)))


def _failed(check: Check) -> str:
    return f"{check.mismatched:,} of {check.elements:,} wrong" if check.mismatched else "wrong as a whole"


def _peak_owner(unit: str) -> str:
    # The best product is torch's, which calls cuBLAS.
    return "a copy's" if unit == "GB/s" else "cuBLAS's"


def render_tables(result: RunResult, kernel: Kernel, launch: Launch) -> Markup:
    """Render the table of the check and, for a timed or recorded run, the table of times."""
    check, device = result.check, result.device
    rows = [
        (term("relative RMS error"), significant(check.relative_rms), f"at most {significant(check.tolerance)}"),
        ("largest error", significant(check.max_abs_error), ""),
        (f"largest error / ({kernel.family.magnitude})", significant(check.max_scaled_error), ""),
        ("largest error beyond rounding / allowed", significant(check.worst_over_allowed), "at most 1"),
        (
            "wrong elements",
            f"{check.mismatched:,} of {check.elements:,}",
            f"{check.nonfinite:,} of them not written or not finite",
        ),
        ("worst element", str(list(check.worst_index)), "got {}, expected {}".format(*_worst_values(check))),
    ]
    if kernel.family.is_exact:
        del rows[3]
    where = f"Check, on {device.name}, torch {device.torch}, triton {device.triton}"
    checked = table(("check", "value", "limit, or detail"), rows, where)
    timed = result if result.timing else result.recorded
    if timed is None or timed.timing is None:
        return checked
    return checked + _time_table(timed, timed.timing, _fits_l2(result, kernel, launch))


def _time_table(result: RunResult, timing: Timing, is_in_l2: bool) -> Markup:
    library = result.baselines or ((result.baseline,) if result.baseline else ())
    cost, run, clocks = result.launch_overhead, result.experiment.run, result.clocks
    timings = [(THIS_KERNEL, timing, ""), *((call.name, call.timing, _ratio(call)) for call in library)]
    # The longest time gives all rows one unit.
    longest = max([row.median_ms for _, row, _ in timings] + ([cost.synchronized_ms] if cost else []))
    rows: list[tuple[Any, ...]] = [
        (name, milliseconds(row.median_ms, longest), _spread(row, longest), row.samples, _rate(row), ratio)
        for name, row, ratio in timings
    ]
    is_l2_rate = is_in_l2 and timing.gbps is not None
    if (peak := result.peak) and not is_l2_rate:
        best = Hint(f"{_peak_owner(peak.unit)} best rate on this GPU", peak.what)
        reached = f"this kernel reaches {percent(peak.share)}"
        rows.append((best, "", "", "", f"{significant(peak.rate)} {peak.unit}", reached))
    if cost:
        rows.append((ENQUEUED, milliseconds(cost.enqueue_ms, longest), "", cost.calls, "", ""))
        rows.append((SYNCHRONIZED, milliseconds(cost.synchronized_ms, longest), "", "", "", ""))
    per_sample = f" of {result.launches_per_sample} launches" if result.launches_per_sample > 1 else ""
    clock = f", SM clock {result.clock_mhz} MHz" if result.clock_mhz else ""
    if clocks:
        span = f"{clocks.lowest_mhz:.0f}–{clocks.highest_mhz:.0f}"
        clock = f", SM clock {clocks.median_mhz:.0f} MHz ({span}, {clocks.how})"
    caption = f"Time on {result.device.name}, L2 {run.l2}, {run.timer}{per_sample}, {run.distribution} inputs{clock}"
    rate = "useful rate, in L2" if is_l2_rate else term("rate")
    mark = Mark(source_of(result.backend))
    return table((mark, term("median"), "p20 – p80", "samples", rate, term("paired ratio")), rows, caption)


def render_values(near: Closeup, check: Check, programs: Mapping[tuple[int, int], list[int]], diff: Diff) -> Markup:
    """Render a table of the elements around the worst one: the kernel's value over the reference's.

    Args:
        programs: [tile row, tile column] → pids of the programs that compute the tile.
    """
    where = f"Around the worst element {list(check.worst_index)}"
    if diff.tile:
        row, column = (place // size for place, size in zip(check.worst_index, diff.tile, strict=True))
        where += f", in tile [{row}, {column}]"
        if pids := programs.get((row, column)):
            where += f", computed by pid {pids[0]}" + f" and {len(pids) - 1} more" * (len(pids) > 1)
    rows, columns = near.got.shape
    limit = 0 if diff.exact else 1

    def render_value(row: int, column: int) -> Markup:
        got, expected = float(near.got[row, column]), float(near.expected[row, column])
        text = significant(got, 5) if np.isfinite(got) else str(got)
        style = "" if near.units[row, column] <= limit else Markup(' class="wrong-value"')
        return Markup("<span{}>{}</span><br><small>{}</small>").format(style, text, significant(expected, 5))

    header = ("row", *(f"column {near.near[1] + column}" for column in range(columns)))
    body = [(near.near[0] + row, *(render_value(row, column) for column in range(columns))) for row in range(rows)]
    caption = f"{where}: the kernel's value over the reference's"
    return Markup('<div class="around">{}</div>').format(table(header, body, caption))


def describe_roofline(roof: Roof, own: Point | None, bound: tuple[Point, Bound] | None) -> tuple[Sentence, ...]:
    """Describe a launch's share of its roof, its side of the ridge, and its predicted bottleneck."""
    at = own or (bound[0] if bound else None)
    if at is None:
        return ()
    sentences = []
    if own:
        top = Sourced(f"{significant(roof.at(own.intensity))} TFLOP/s", roof.source)
        share = Strong(percent(own.tflops / roof.at(own.intensity)))
        sentences.append(say("This kernel reaches {} of its roof of {}.", share, top))
    limit = "arithmetic" if at.intensity >= roof.ridge else "DRAM"
    intensity, ridge = significant(at.intensity), significant(roof.ridge)
    sentences.append(
        say("At {} FLOP per byte, {} is the roof of the {}; its ridge is at {}.", intensity, limit, roof.gpu, ridge)
    )
    if bound:
        point, slowest = bound
        rate = Sourced(f"{significant(point.tflops)} TFLOP/s", "predicted")
        sentences.append(say("The slowest resource alone is {}: {}; {}.", slowest.name, rate, slowest.why))
    return tuple(sentences)


def speed(baseline: Baseline) -> str:
    """Return the ratio, with a third decimal if its interval is known."""
    return f"{baseline.ratio:.3f} ×" if _interval(baseline) else f"{baseline.ratio:.2f} ×"


def _interval(baseline: Baseline) -> str:
    low, high = baseline.ratio_low, baseline.ratio_high
    return "" if low is None or high is None else f"95\u00a0% CI {low:.3f}–{high:.3f}"


def _ratio(baseline: Baseline) -> str:
    interval = _interval(baseline)
    return f"{'tied, ' * baseline.is_tie}{speed(baseline)}{interval and f', {interval}'}"


def _spread(timing: Timing, longest: float) -> str:
    return f"{milliseconds(timing.p20_ms, longest)} – {milliseconds(timing.p80_ms, longest)}"


def _rate(timing: Timing) -> str:
    return (
        f"{significant(timing.tflops)} TFLOP/s"
        if timing.tflops is not None
        else f"{significant(timing.gbps or 0)} GB/s"
    )
