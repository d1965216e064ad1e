"""The text of one run: headline, card, tables, remarks and predicted time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from tilescope.compiling.estimates import estimate_time
from tilescope.declare.spec import Kernel, Launch
from tilescope.inside.report import Inside
from tilescope.numbers import bytes_of, milliseconds, percent, significant, source
from tilescope.reports.launch import describe_spills
from tilescope.reports.text import name_resource
from tilescope.results.run import (
    Baseline,
    Check,
    Closeup,
    Diff,
    Failure,
    LaunchOverhead,
    RunResult,
    Timing,
)
from tilescope.results.scores import TIMED_ON, summarize, unfitted_scores, unseen_scores
from tilescope.timing.changes import describe_changes, describe_savings, describe_warm_time
from visualize.predict.offer import offer
from visualize.views.prose import (
    Hint,
    Link,
    Mark,
    Sentence,
    Sourced,
    Strong,
    config_text,
    headline,
    hint,
    html,
    say,
    table,
    term,
)
from visualize.views.state import State, query

# The name of the kernel's own time, in the table and in the picture.
THIS_KERNEL = "this kernel"

_CHECK_HINT = "Compared with torch, element by element. Passed: no error beyond rounding."

# Event times shorter than this include a visible part of the launch.
_SHORT_MS = 0.05

# Below this share of its best rate, the page explains why a library call is slow. Below this share of torch's speed, it
# links to the recommended config.
_SLOW_SHARE = 0.5

# A config whose estimate is longer than the offered config's by this factor is not among the first ranks of Tune.
_CLEARLY = 1.25

# The best copy is the device's; the best product is torch's, which calls cuBLAS.
_PEAK_OWNERS = {"GB/s": "a copy's", "TFLOP/s": "cuBLAS's"}


def timed_run(result: RunResult) -> RunResult | None:
    """Return the run itself if it was timed, or else the recorded run beside it, if there is one."""
    run = result if result.timing else result.recorded
    return run if run and run.timing else None


def timings(run: RunResult) -> dict[str, Timing]:
    """Return the times of the kernel and of the library calls that were timed with it; {} for a run without times."""
    if run.timing is None:
        return {}
    return {THIS_KERNEL: run.timing} | {call.name: call.timing for call in run.baselines}


def rate(timing: Timing) -> str:
    if timing.tflops is None:
        return f"{significant(timing.gbps or 0)} GB/s"
    return f"{significant(timing.tflops)} TFLOP/s"


def _fits_l2(result: RunResult, kernel: Kernel, launch: Launch) -> bool:
    """Return whether a launch finds its inputs in the L2: the L2 is warm, and holds all tensors together."""
    return (
        result.experiment.run.l2 == "warm"
        and kernel.family.minimal_bytes(launch.problem) <= launch.gpu.l2_bytes
    )


def remarks(
    result: RunResult, kernel: Kernel, launch: Launch, failure: Failure | None = None
) -> Iterator[str]:
    """Yield the caveats of a run, except its own note, as plain text. Some may be empty.

    Args:
        failure: the reason why this launch can't be compiled for its GPU, if known.
    """
    problem = launch.problem
    timing = result.timing
    is_interpreted = result.backend == "interpreter"
    yield kernel.family.note(problem)
    yield kernel.note(launch)
    if is_interpreted and failure and failure.kind == "out_of_resources":
        yield f"This config can't launch on {launch.gpu.name}; the interpreter has no such limit. {failure.message}"
    if kernel.zeroed_output:
        yield "The output starts at zero; times exclude zeroing it."
    yield _explain_race(result, kernel, launch)
    if is_interpreted and problem.dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        yield f"Triton's interpreter lacks {problem.dtype}; Tilescope makes it multiply and round as a GPU does."
    if timing is None:
        return
    yield explain_slow_library(result, kernel, launch)
    for call in result.baselines:
        yield f"Compared with {call.name}: {_ratio(call)}."
    if _fits_l2(result, kernel, launch):
        size = bytes_of(kernel.family.minimal_bytes(problem))
        capacity = bytes_of(launch.gpu.l2_bytes)
        yield f"The working set of {size} fits in the L2 ({capacity}), so the rate does not measure DRAM bandwidth."
    if result.experiment.run.timer == "events" and timing.median_ms < _SHORT_MS:
        yield "Event times this short include launch overhead. Set Timer to graph to time 20 launches back to back."
    if result.clocks:
        yield result.clocks.note


def explain_slow_library(result: RunResult, kernel: Kernel, launch: Launch) -> str:
    """Explain a library call below half of its best rate; "" if it is faster, or if no rate is known."""
    baseline = result.baseline
    peak = result.peak
    rate = baseline.timing.tflops if baseline and peak and peak.unit == "TFLOP/s" else None
    if not baseline or not peak or not rate or rate >= _SLOW_SHARE * peak.rate:
        return ""
    why = kernel.family.why_library_is_slow(launch)
    return f"{baseline.name} reaches {percent(rate / peak.rate)} of its best rate" + (
        f": {why}." if why else "."
    )


def _explain_race(result: RunResult, kernel: Kernel, launch: Launch) -> str:
    """Return why a passed check does not disprove the kernel's race; "" without a race, or if the check failed."""
    race = kernel.race(launch)
    if not race or not result.check.passed:
        return ""
    why = "This run did not expose it."
    if result.backend == "interpreter":
        why = (
            "The interpreter finishes each program before the next starts, so it can't show a race."
        )
    return f"It passed, but it is still a race: {race}. {why}"


def _compare_overhead(overhead: LaunchOverhead | None, timing: Timing) -> str:
    if overhead is None:
        return ""
    call = milliseconds(overhead.enqueue_ms)
    kernel = milliseconds(timing.median_ms)
    times = f"A call from Python takes {call}; the kernel takes {kernel}"
    if overhead.enqueue_ms > timing.median_ms:
        return f"{times}. A loop of launches is bound by Python; a CUDA graph avoids it."
    return f"{times}, which hides the call."


def render_headline(
    result: RunResult, kernel: Kernel, launch: Launch, failure: Failure | None = None
) -> Markup:
    """Render the run's speed, or how much of it is wrong, with its verdict and remarks.

    Args:
        failure: as for `remarks`.
    """
    check = result.check
    baseline = result.baseline
    first = _explain_race(result, kernel, launch)
    # A race passes by luck, which matters more than its speed.
    if check.passed and baseline and result.timing and not first:
        number = speed(baseline)
        beside = f"the speed of {baseline.name}"
        if baseline.is_tie:
            number = "Tied"
            beside = f"with {baseline.name}: {baseline.ratio:.3f}"
        first = explain_slow_library(result, kernel, launch)
    elif check.elements == 1:
        number = f"The only element is {'correct' if check.passed else 'wrong'}"
        beside = ""
    elif check.passed or check.mismatched:
        verb = "is" if check.mismatched == 1 else "are"
        number = f"{check.mismatched:,}"
        beside = f"of {check.elements:,} elements {verb} wrong"
    else:
        number = "Wrong"
        beside = "as a whole"
    sentences = [
        first,
        _verdict(check, kernel),
        *(sentence for sentence in remarks(result, kernel, launch, failure) if sentence != first),
        "The error map was not recorded." if result.diff is None else "",
        result.note,
    ]
    what = Sourced(beside, source(result.backend))
    return headline(number, what, *filter(str, sentences), is_failure=not check.passed)


def _verdict(check: Check, kernel: Kernel) -> Sentence | str:
    error = significant(check.relative_rms)
    limit = significant(check.tolerance)
    if check.passed and kernel.family.is_exact:
        return "Every element equals the reference, bit for bit."
    if check.passed:
        return f"Every element is within its limit. Relative RMS error {error}; rounding can cause up to {limit}."
    if not check.mismatched:
        template = (
            "Relative RMS error {}; rounding can cause up to {}. No element exceeds its limit."
        )
        return say(template, Strong(error), limit)
    wrong = Strong("Wrong")
    place = list(check.worst_index)
    if kernel.family.is_exact or check.nonfinite:
        return say(
            "{}: element {} is {}; the reference is {}.", wrong, place, *_worst_values(check)
        )
    excess = significant(check.worst_over_allowed)
    return say(
        "{} beyond rounding: the largest error is {} × the limit, at element {}.",
        wrong,
        excess,
        place,
    )


def _worst_values(check: Check) -> tuple[str, str]:
    return significant(check.worst_got, 6), significant(check.worst_expected, 6)


def render_card(result: RunResult, kernel: Kernel, launch: Launch) -> Markup:
    """Render the card of a finished run: its check, its time and its ratio in one line, with their source.

    A recorded run replaces an interpreter's check, unless one of the two failed.
    """
    runs = [run for run in (result, result.recorded) if run]
    if all(run.check.passed for run in runs):
        runs = runs[-1:]
    return Markup("").join(_card_line(run, kernel, launch) for run in runs)


def _card_line(run: RunResult, kernel: Kernel, launch: Launch) -> Markup:
    check = run.check
    baseline = run.baseline
    verdict = "✓ 0 wrong, still a race" if kernel.race(launch) else "✓ 0 wrong"
    style = Markup()
    if not check.passed:
        count = (
            f"{check.mismatched:,} of {check.elements:,} wrong"
            if check.mismatched
            else "wrong overall"
        )
        verdict = f"✗ {count}"
        style = Markup(' class="failed"')
    parts: list[Any] = [Hint(verdict, _CHECK_HINT)]
    if check.passed and run.timing:
        parts.append(milliseconds(run.timing.median_ms))
        if baseline:  # every baseline is a torch call
            short = (
                f"tied with torch ({speed(baseline)})"
                if baseline.is_tie
                else f"{speed(baseline)} torch’s speed"
            )
            parts.append(Hint(short, f"The speed of {baseline.name}: {_ratio(baseline)}"))
    recommended: Link | Markup = Markup()
    if baseline and baseline.ratio < _SLOW_SHARE and not kernel.race(launch):
        recommended = _link_recommended(run, kernel, launch)
    return Markup("<p{}>{} {} {}</p>").format(
        style, Markup(" · ").join(parts), Mark(source(run.backend)), recommended
    )


def _link_recommended(run: RunResult, kernel: Kernel, launch: Launch) -> Link | Markup:
    """Link to the recommended config; empty if there is no other than the run's."""
    offered = offer(kernel, launch.problem, launch.gpu)
    if offered is None or offered.experiment.config == launch.config:
        return Markup()
    tile = config_text(offered.experiment.config).partition(",")[0]
    address = {**run.experiment.to_address(), **vars(offered.experiment.config)}
    return Link(f"Slow: try {tile}", query({**address, "tab": "result"}))


def suggest_config(state: State) -> Sentence | str:
    """Link to the offered config in Tune if it is expected to be clearly faster than the current one."""
    kernel = state.kernel
    launch = state.launch
    offered = offer(kernel, launch.problem, launch.gpu)
    if offered is None or kernel.race(launch):
        return ""
    config = offered.experiment.config
    own = estimate_time(kernel, launch)
    other = estimate_time(kernel, replace(launch, config=config))
    if not own or not other or own < _CLEARLY * other:
        return ""
    tile = config_text(config).partition(",")[0]
    link = Link(tile, state.link(tab="sweep", **vars(config)))
    return say("Tune expects {} to be clearly faster.", link)


def render_tables(result: RunResult, kernel: Kernel, launch: Launch) -> Markup:
    """Render the table of the check and, for a timed or recorded run, the table of times."""
    check = result.check
    device = result.device
    family = kernel.family
    rows = [
        (
            term("relative RMS error"),
            significant(check.relative_rms),
            f"at most {significant(check.tolerance)}",
        ),
        ("largest error", significant(check.max_abs_error)),
        (f"largest error / ({family.magnitude})", significant(check.max_scaled_error)),
    ]
    if not family.is_exact:
        rows.append(
            (
                "largest error beyond rounding / allowed",
                significant(check.worst_over_allowed),
                "at most 1",
            )
        )
    count = f"{check.mismatched:,} of {check.elements:,}"
    detail = f"{check.nonfinite:,} of them not written or not finite" if check.mismatched else ""
    rows += [
        ("wrong elements", count, detail),
        (
            "worst element",
            str(list(check.worst_index)),
            "got {}, expected {}".format(*_worst_values(check)),
        ),
    ]
    caption = f"Check, on {device.name}, torch {device.torch}, triton {device.triton}"
    checked = table(("check", "value", "limit, or detail"), rows, caption)
    timed = timed_run(result)
    return checked + _time_table(timed, _fits_l2(timed, kernel, launch)) if timed else checked


def _time_table(run: RunResult, is_in_l2: bool) -> Markup:
    options = run.experiment.run
    clocks = run.clocks
    times = timings(run)
    ratios = {call.name: _ratio(call) for call in run.baselines}
    # The longest time gives all rows one unit.
    longest = max(time.median_ms for time in times.values())

    def format_ms(ms: float) -> str:
        return milliseconds(ms, longest)

    rows: list[tuple[Any, ...]] = []
    for name, time in times.items():
        span = f"{format_ms(time.p20_ms)} – {format_ms(time.p80_ms)}"
        rows.append(
            (name, format_ms(time.median_ms), span, time.samples, rate(time), ratios.get(name, ""))
        )
    is_l2_rate = is_in_l2 and times[THIS_KERNEL].gbps is not None
    if (peak := run.peak) and not is_l2_rate:
        best = Hint(f"{_PEAK_OWNERS[peak.unit]} best rate on this GPU", peak.what)
        share = f"this kernel reaches {percent(peak.share)}"
        rows.append((best, "", "", "", f"{significant(peak.rate)} {peak.unit}", share))
    per_sample = f" of {run.launches_per_sample} launches" if run.launches_per_sample > 1 else ""
    clock = ""
    if clocks:
        span = f"{clocks.lowest_mhz:.0f}–{clocks.highest_mhz:.0f}"
        clock = f", SM clock {clocks.median_mhz:.0f} MHz ({span}, {clocks.how})"
    timer = f"{options.timer}{per_sample}, {options.distribution} inputs"
    header = (
        term("median"),
        "p20 – p80",
        "samples",
        "useful rate, in L2" if is_l2_rate else term("rate"),
    )
    caption = f"Time on {run.device.name}, L2 {options.l2}, {timer}{clock}"
    overhead = _compare_overhead(run.launch_overhead, times[THIS_KERNEL])
    return table((Mark(source(run.backend)), *header, term("paired ratio")), rows, caption) + hint(
        overhead
    )


def render_values(near: Closeup, check: Check, programs: Sequence[int], diff: Diff) -> Markup:
    """Render a table of the elements around the worst one: the kernel's value over the reference's.

    Args:
        programs: the programs that compute the worst element's tile.
    """
    where = f"Around the worst element {list(check.worst_index)}"
    if diff.tile:
        row, column = (
            place // size for place, size in zip(check.worst_index, diff.tile, strict=True)
        )
        where += f", in tile [{row}, {column}]"
        if programs:
            more = f" and {len(programs) - 1} more" * (len(programs) > 1)
            where += f", computed by pid {programs[0]}{more}"

    def render_value(got: float, expected: float, error: float) -> Markup:
        text = significant(got, 5) if np.isfinite(got) else str(got)
        style = "" if error <= (0 if diff.exact else 1) else Markup(' class="wrong-value"')
        return Markup("<span{}>{}</span><br><small class='quiet'>{}</small>").format(
            style, text, significant(expected, 5)
        )

    first_row, first_column = near.near
    values = (
        map(render_value, *row) for row in zip(near.got, near.expected, near.units, strict=True)
    )
    rows = ((first_row + index, *cells) for index, cells in enumerate(values))
    header = ("row", *(f"column {first_column + column}" for column in range(near.got.shape[1])))
    caption = f"{where}: the kernel's value over the reference's"
    return Markup('<div class="around">{}</div>').format(table(header, rows, caption))


def speed(baseline: Baseline) -> str:
    """Return the ratio, with a third decimal if its interval is known."""
    return f"{baseline.ratio:.3f} ×" if _interval(baseline) else f"{baseline.ratio:.2f} ×"


def _interval(baseline: Baseline) -> str:
    low, high = baseline.ratio_low, baseline.ratio_high
    return "" if low is None or high is None else f"95\u00a0% CI {low:.3f}–{high:.3f}"


def _ratio(baseline: Baseline) -> str:
    interval = _interval(baseline)
    return f"{'tied, ' * baseline.is_tie}{speed(baseline)}{interval and f', {interval}'}"


def render_predicted(
    inside: Inside,
    scoreboard: str,
    known_ms: float | None = None,
    is_warm: bool = False,
    faster: Sentence | str = "",
) -> Markup:
    """Render the predicted time of a launch, or the reason why there is none.

    Args:
        scoreboard: the address of the scoreboard.
        known_ms: the time that was measured or recorded; None if it is unknown.
        is_warm: whether this time is of launches that follow each other.
        faster: from `suggest_config`.
    """
    if inside.predicted_us is None or inside.range_us is None:
        return headline("", "", f"No predicted time: {inside.not_predicted}")
    cold_ms = inside.predicted_us / 1e3
    cold = milliseconds(cold_ms)
    low, high = (milliseconds(time_us / 1e3, cold_ms) for time_us in inside.range_us)
    warm_us = inside.predicted_warm_us or inside.predicted_us
    first, *others = describe_savings(inside) or [describe_changes(inside)]
    warm = describe_warm_time(inside)
    back_to_back = f"Predicted for back-to-back launches: {warm}." * bool(warm)
    comparison = ""
    if known_ms:
        scale = warm_us / inside.predicted_us if is_warm else 1.0
        shortest, longest = (scale * time_us / 1e3 for time_us in inside.range_us)
        if not shortest <= known_ms <= longest:
            error = "misses" if known_ms > longest else "overstates"
            comparison = (
                f"The launch took {milliseconds(known_ms)}, so the model {error} a cost here."
            )
    is_compared = bool(known_ms) and is_warm
    errors = summarize(unseen_scores())
    number, unit = cold.split()
    bound = name_resource(inside.bound_by)
    sentences = [
        html([describe_spills(inside), first, back_to_back * is_compared, comparison, faster]),
        *others,
        f"For nine in ten of {len(unfitted_scores())} launches of kernels that the model was not fitted to, such a "
        f"range contains the measured time. {errors.launches} of them were never used to change the model: their "
        f"median error is {percent(errors.median)}.",
        back_to_back * (not is_compared),
        inside.assumed,
        say(
            "{} shows predicted and measured times on {}.",
            Link("The scoreboard", scoreboard),
            TIMED_ON,
        ),
    ]
    what = say(
        "{} with a cold L2 ({} to {}), bound by {} {}",
        unit,
        low.removesuffix(f" {unit}"),
        high,
        bound,
        Mark("predicted"),
    )
    return headline(number, what, *filter(None, sentences))
