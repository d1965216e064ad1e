"""What is said of one run: its numbers, its check, its time, and the values around its worst element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels.results.run import Check, Closeup, Diff, RunResult
from kernels.spec import Family, Kernel, Launch, shape_text
from visualize.text import time_text
from visualize.views.numbers import figure, significant
from visualize.views.prose import Mark, Sentence, Strong, headline, say, term
from visualize.views.tables import frame, table

# What the check of the strip is.
_CHECKED = "Compared with torch, element by element: passed means no error beyond rounding"
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def remarks(result: RunResult, kernel: Kernel, launch: Launch) -> list[str]:
    """What a reader must know of a run, besides its own note: one sentence or two each, without markup."""
    said = [kernel.family.note(launch.problem), kernel.note(launch)]
    if kernel.zeroed_output:
        said.append("The output starts at zero; no time includes zeroing it.")
    said.append(_still_a_race(result, kernel, launch))
    if result.backend == "interpreter" and result.experiment.problem.dtype in ("bfloat16", *_FLOAT8):
        said.append(
            f"Triton's interpreter treats {result.experiment.problem.dtype} as integers; Tilescope makes it multiply "
            "and round as a GPU does."
        )
    said += time_text.remarks(result, kernel, launch)
    return [sentence for sentence in said if sentence]


def _still_a_race(result: RunResult, kernel: Kernel, launch: Launch) -> str:
    """What there is to say of a race that passed; "" of any other result."""
    race = kernel.race(launch)
    if not race or not result.check.passed:
        return ""
    why = (
        "The interpreter runs each program to its end before the next, so it can't show a race."
        if result.backend == "interpreter"
        else "This time it did not show in the result."
    )
    return f"Passed, and is still a race: {race}. {why}"


def values(near: Closeup, check: Check, programs: Mapping[tuple[int, int], list[int]], diff: Diff) -> Markup:
    """The elements around the worst: what the kernel wrote over what the reference holds."""
    rows, columns = near.got.shape
    header = ("row", *(f"column {near.near[1] + column}" for column in range(columns)))
    body = [
        (near.near[0] + row, *(_value(near, row, column, diff.exact) for column in range(columns)))
        for row in range(rows)
    ]
    worst = f"[{check.worst_index[0]}, {check.worst_index[1]}]"
    where = _tile_of(check, programs, diff)
    caption = f"Around the worst element {worst}{where}: the kernel's value over the reference's"
    return Markup('<div class="around">{}</div>').format(table(frame(header, body), caption))


def _value(near: Closeup, row: int, column: int, exact: bool) -> Markup:
    """One element: what was written over what was expected."""
    got, expected = float(near.got[row, column]), float(near.expected[row, column])
    right = near.units[row, column] <= (0 if exact else 1)
    written = significant(got, 5) if np.isfinite(got) else str(got)
    style = "" if right else Markup(' class="wrong-value"')
    return Markup("<span{}>{}</span><br><small>{}</small>").format(style, written, significant(expected, 5))


def _tile_of(check: Check, programs: Mapping[tuple[int, int], list[int]], diff: Diff) -> str:
    """The tile of the worst element and the programs that compute it; "" where there are no tiles."""
    if not diff.tile:
        return ""
    place = check.worst_index[0] // diff.tile[0], check.worst_index[1] // diff.tile[1]
    who = f", in tile [{place[0]}, {place[1]}]"
    if pids := programs.get(place):
        who += f", computed by pid {pids[0]}" + (f" and {len(pids) - 1} more" if len(pids) > 1 else "")
    return who


def numbers(result: RunResult, race: str, in_l2: bool = False) -> Markup:
    """The strip: what was run, check, time, rate, beside the library and the device's best.

    Args:
        in_l2: it found its inputs in the L2.
    """
    source = {"cuda": "measured"}.get(result.backend, result.backend)
    check, problem = result.check, result.experiment.problem
    verdict = ("passed, still a race" if race else "passed") if check.passed else _failed(check)
    parts = [
        figure(result.experiment.kernel, f"{shape_text(problem)} {problem.dtype}", source),
        figure(verdict, "check", source, _CHECKED, is_failure=not check.passed),
    ]
    parts += time_text.strip(result, source, in_l2)
    if result.backend == "interpreter" and result.recorded is None:
        parts.append(figure("no time", "the interpreter runs on the CPU"))
    if recorded := result.recorded:
        if not recorded.check.passed:
            where = f"check on {recorded.device.name}"
            parts.append(figure(_failed(recorded.check), where, "recorded", _CHECKED, is_failure=True))
        parts += time_text.strip(recorded, "recorded", in_l2)
    return Markup("").join(parts)


def claim(result: RunResult, kernel: Kernel, launch: Launch) -> Markup:
    """How fast it is, or how much of it is wrong; and what else a reader must know."""
    address = result.experiment.to_address()
    settings = ", ".join(f"{name} {value}" for name, value in address.items() if name != "kernel")
    verdict = _verdict(result.check, kernel.family)
    picture = "The picture of the error was not recorded." if result.diff is None else ""
    more = (*remarks(result, kernel, launch), picture, f"{result.experiment.kernel}: {settings}.")
    check, baseline, cost = result.check, result.baseline, result.launch_overhead
    source = Mark({"cuda": "measured"}.get(result.backend, result.backend))
    wrong = say("of {:,} elements are wrong {}", check.elements, source)
    if not check.passed and not check.mismatched:
        return headline("Wrong", say("as a whole {}", source), verdict, *more, is_failure=True)
    if not check.passed:
        return headline(f"{check.mismatched:,}", wrong, verdict, *more, is_failure=True)
    if race := _still_a_race(result, kernel, launch):
        # That none is wrong is luck, and counts more than how fast it was.
        return headline("0", wrong, race, verdict, *(one for one in more if one != race))
    if baseline and result.timing:
        number, beside = time_text.lead(baseline, source)
        # Where Python is the limit, that comes first: no kernel would make it faster.
        if cost and cost.enqueue_ms > result.timing.median_ms:
            first = time_text.overhead(cost, result.timing)
            return headline(number, beside, first, verdict, *(one for one in more if one != first))
        return headline(number, beside, verdict, *more)
    return headline("0", wrong, verdict, *more)


def tables(result: RunResult, kernel: Kernel, in_l2: bool = False) -> Markup:
    """The check and the times.

    Args:
        in_l2: the launch found its inputs in the L2.
    """
    where = f"{result.device.name}, torch {result.device.torch}, triton {result.device.triton}"
    checked = table(frame(("check", "value", "limit, or detail"), _checked(result, kernel)), f"Check, on {where}")
    timed = result if result.timing else result.recorded
    return checked + (time_text.times(timed, in_l2) if timed is not None and timed.timing is not None else "")


def _checked(result: RunResult, kernel: Kernel) -> list[tuple[Any, ...]]:
    check = result.check
    beyond = ("largest error beyond rounding / allowed", significant(check.worst_over_allowed), "at most 1")
    worst = f"[{check.worst_index[0]}, {check.worst_index[1]}]"
    return [
        (term("relative RMS error"), significant(check.relative_rms), f"at most {significant(check.tolerance)}"),
        ("largest error", significant(check.max_abs_error), ""),
        (f"largest error / ({kernel.family.magnitude})", significant(check.max_scaled_error), ""),
        *([] if kernel.family.is_exact else [beyond]),
        (
            "wrong elements",
            f"{check.mismatched:,} of {check.elements:,}",
            f"{check.nonfinite:,} of them never written or not finite",
        ),
        (
            "worst element",
            worst,
            "got {}, expected {}".format(*_worst(check)),
        ),
    ]


def _failed(check: Check) -> str:
    return f"failed: {check.mismatched:,} wrong" if check.mismatched else "failed as a whole"


def _verdict(check: Check, family: Family) -> Sentence | str:
    error, limit = significant(check.relative_rms), significant(check.tolerance)
    if check.passed:
        if family.is_exact:
            return "Every element equals the reference, bit for bit."
        return (
            f"Correct: every element is within rounding. Relative RMS error {error}; "
            f"the limit for {family.limit_follows} is {limit}."
        )
    if not check.mismatched:
        return say(
            "Relative RMS error {}, beyond rounding (limit {}), though no single element shows it.",
            Strong(error),
            limit,
        )
    worst, where = Strong("Wrong"), list(check.worst_index)
    if family.is_exact or check.nonfinite:
        return say("{}: element {} is {}; the reference holds {}.", worst, where, *_worst(check))
    return say(
        "{} beyond rounding: element {} is off the most, by {} × the limit.",
        worst,
        where,
        significant(check.worst_over_allowed),
    )


def _worst(check: Check) -> tuple[str, str]:
    """What was written at the worst element, and what the reference holds."""
    return significant(check.worst_got, 6), significant(check.worst_expected, 6)
