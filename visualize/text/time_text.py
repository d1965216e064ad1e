"""What is said of a run's time: the strip's numbers, the ratios to the library's calls, the clock, a call's cost."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from kernels.results.run import Baseline, Clocks, LaunchOverhead, Peak, RunResult, Timing
from kernels.spec import Kernel, Launch
from visualize.views.numbers import bytes_of, figure, milliseconds, percent, significant
from visualize.views.numbers import source as source_of
from visualize.views.prose import Hint, Mark, Sentence, say, term
from visualize.views.tables import frame, table

# Below this, part of a launch shows in the time between the two events around it.
_SHORT_MS = 0.05


def in_l2(result: RunResult, kernel: Kernel, launch: Launch) -> bool:
    """Whether a launch found its inputs in the L2: it was warm, and all tensors fit in it together."""
    return result.experiment.run.l2 == "warm" and kernel.family.minimal_bytes(launch.problem) <= launch.gpu.l2_bytes


def strip(result: RunResult, source: str, is_in_l2: bool) -> list[Markup]:
    """The numbers of the strip: time, rate, ratio, share of the device's best; none for a run that was not timed."""
    timing, baseline, peak = result.timing, result.baseline, result.peak
    if timing is None:
        return []
    spread = (timing.p80_ms - timing.p20_ms) / 2 / timing.median_ms
    median = f"{milliseconds(timing.median_ms)} ± {percent(spread)}"
    where = f"{result.device.name}; p20 to p80: {_spread(timing)}"
    of_l2 = is_in_l2 and timing.gbps is not None
    parts = [
        figure(median, f"median of {timing.samples}", source, where),
        figure(_rate(timing), "useful rate, in L2" if of_l2 else "rate", source),
    ]
    if baseline:
        how = f"The speed of {baseline.name}, timed in turns: {_ratio(baseline)}"
        value = f"tie ({baseline.ratio:.3f} ×)" if baseline.is_tie else speed(baseline)
        parts.append(figure(value, f"speed of {baseline.name}", source, how))
    if peak and not of_l2:
        best = f"The best on this GPU: {peak.rate:,.0f} {peak.unit}, {peak.what}"
        parts.append(figure(percent(peak.share), f"of {_peak(peak)} best", source, best))
    return parts


def _peak(peak: Peak) -> str:
    """Whose rate the device's best is: torch calls cuBLAS for products."""
    return "a copy's" if peak.unit == "GB/s" else "cuBLAS's"


def lead(baseline: Baseline, source: Mark) -> tuple[str, Sentence]:
    """The number that a run opens with, and the words beside it: how fast it is beside the library."""
    if baseline.is_tie:
        beside = say("with {}: {}, {} {}", baseline.name, f"{baseline.ratio:.3f}", _interval(baseline), source)
        return "Tied", beside
    interval = f" ({_interval(baseline)})" if _interval(baseline) else ""
    return speed(baseline), say("the speed of {}{} {}", baseline.name, interval, source)


def speed(baseline: Baseline) -> str:
    """The ratio, to as many places as its interval needs."""
    return f"{baseline.ratio:.3f} ×" if _interval(baseline) else f"{baseline.ratio:.2f} ×"


def overhead(cost: LaunchOverhead, timing: Timing) -> str:
    """What a call from Python costs beside what the kernel takes."""
    call, kernel = milliseconds(cost.enqueue_ms), milliseconds(timing.median_ms)
    said = f"A call from Python takes {call}; the kernel takes {kernel}"
    if cost.enqueue_ms <= timing.median_ms:
        return f"{said}, so the call hides behind it."
    return f"{said}. Python is the limit in a loop; a CUDA graph is the way out."


def remarks(result: RunResult, kernel: Kernel, launch: Launch) -> list[str]:
    """What a reader must know of the times: one sentence or two each, without markup."""
    timing = result.timing
    if timing is None:
        return []
    said = [f"Beside {one.name}: {_ratio(one)}." for one in result.baselines[1:]]
    if in_l2(result, kernel, launch):
        size, room = bytes_of(kernel.family.minimal_bytes(launch.problem)), bytes_of(launch.gpu.l2_bytes)
        said.append(f"The working set of {size} fits in the L2 ({room}): this is no DRAM bandwidth.")
    if result.experiment.run.timer == "events" and timing.median_ms < _SHORT_MS:
        said.append("Of a launch this short, events time a part of its start too; timer graph takes 20 in a row.")
    if result.clocks and result.clocks.note:
        said.append(result.clocks.note)
    if cost := result.launch_overhead:
        said.append(overhead(cost, timing))
    return said


def times(result: RunResult, is_in_l2: bool) -> Markup:
    """The table of times: this kernel, the library's calls, the device's best, a call from Python.

    Args:
        result: a run that was timed.
    """
    assert result.timing is not None
    library = result.baselines or ((result.baseline,) if result.baseline else ())
    cost = result.launch_overhead
    longest = max(timing.median_ms for timing in (result.timing, *(one.timing for one in library)))
    longest = max(longest, cost.synchronized_ms) if cost else longest
    rows: list[tuple[Any, ...]] = [_row("this kernel", result.timing, "", longest)]
    rows += [_row(one.name, one.timing, _ratio(one), longest) for one in library]
    of_l2 = is_in_l2 and result.timing.gbps is not None
    if (peak := result.peak) and not of_l2:
        best = Hint(f"{_peak(peak)} best rate on this GPU", peak.what)
        rows.append((best, "", "", "", f"{significant(peak.rate)} {peak.unit}", ""))
    if cost:
        rows.append(("launch from Python", milliseconds(cost.enqueue_ms, longest), "", cost.calls, "", ""))
        rows.append(("launch and wait", milliseconds(cost.synchronized_ms, longest), "", "", "", ""))
    run = result.experiment.run
    per_sample = f" of {result.launches_per_sample} launches" if result.launches_per_sample > 1 else ""
    clock = _clock(result.clocks, result.clock_mhz)
    caption = f"Time on {result.device.name}, L2 {run.l2}, {run.timer}{per_sample}, {run.distribution} inputs{clock}"
    rate = "useful rate, in L2" if of_l2 else term("rate")
    source = Mark(source_of(result.backend))
    header = (source, term("median"), "p20 – p80", "samples", rate, term("paired ratio"))
    return table(frame(header, rows), caption)


def _row(name: str, timing: Timing, ratio: str, longest: float) -> tuple[Any, ...]:
    time = milliseconds(timing.median_ms, longest)
    return name, time, _spread(timing, longest), timing.samples, _rate(timing), ratio


def _clock(clocks: Clocks | None, clock_mhz: int | None) -> str:
    if clocks is None:
        return f", SM clock {clock_mhz} MHz" if clock_mhz else ""
    span = f"{clocks.lowest_mhz:.0f}–{clocks.highest_mhz:.0f}"
    return f", SM clock {clocks.median_mhz:.0f} MHz ({span}, {clocks.how})"


def _interval(baseline: Baseline) -> str:
    """The 95 % interval of a ratio; "" where there is none."""
    low, high = baseline.ratio_low, baseline.ratio_high
    return "" if low is None or high is None else f"95\u00a0% CI {low:.3f}–{high:.3f}"


def _ratio(baseline: Baseline) -> str:
    """The ratio with its interval."""
    interval = _interval(baseline)
    if not interval:
        return f"{baseline.ratio:.2f} ×"
    return f"{'tied, ' if baseline.is_tie else ''}{baseline.ratio:.3f} ×, {interval}"


def _spread(timing: Timing, longest: float | None = None) -> str:
    longest = timing.p80_ms if longest is None else longest
    return f"{milliseconds(timing.p20_ms, longest)} – {milliseconds(timing.p80_ms, longest)}"


def _rate(timing: Timing) -> str:
    if timing.tflops is not None:
        return f"{significant(timing.tflops)} TFLOP/s"
    return f"{significant(timing.gbps or 0)} GB/s"
