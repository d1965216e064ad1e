"""Compile the changes that may shorten the slowest launches of a script, and predict the times with them."""

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kernels.advice.experiments import Compiler, Lab, run_trials, try_option
from kernels.capture.reader import TIME, Finding
from kernels.inside.report import ChangedTime, Inside
from kernels.timing.changes import choose_trials, sort_changes

# The number of launches whose changes are compiled.
_MOST_LAUNCHES = 5
# The advice to pass an option.
_OPTION = re.compile(r"Pass (\w+ = \d+)\.")
# The kind of finding that keeps a predicted time in the capture's file.
_KIND = "time"


def try_changes(compiler: Compiler, launches: Mapping[Lab, int]) -> dict[Lab, list[Finding]]:
    """Return a finding for each change that was compiled. Without a predicted time, it has no `after`.

    Args:
        launches: how often the script makes each launch.
    """
    slowest = heapq.nlargest(
        _MOST_LAUNCHES, launches, lambda lab: launches[lab] * (lab.inside.predicted_us or 0.0)
    )
    changes = [
        (lab, (try_option(_KIND, *option),))
        for lab in slowest
        if lab.ttir
        for each in choose_trials(lab.inside)
        for option in each.options.items()
    ]
    run_trials(compiler, [(lab, trial) for lab, trial in changes])
    findings: dict[Lab, list[Finding]] = {}
    for lab, trial in changes:
        file = Path(lab.kernel.file).name
        before, after = lab.compare_times(trial)
        finding = Finding(_KIND, file, lab.kernel.line, "", "", "", trial[0].advice, before, after)
        findings.setdefault(lab, []).append(finding)
    return findings


def split_findings(inside: Inside, findings: Iterable[Finding]) -> tuple[Inside, Sequence[Finding]]:
    """Return an inspection with the times of changes that were compiled, and the findings about other facts."""
    times = {each.change: each for each in inside.changes}
    others = []
    names: dict[str, str] = {}  # several lines may have the same advice
    for finding in findings:
        option = _OPTION.fullmatch(finding.change)
        advice = f"the change that is advised for line {finding.line}"
        name = names.setdefault(finding.change, option[1] if option else advice)
        if finding.kind != _KIND:
            others.append(finding)
        elif not finding.after:
            times.pop(name, None)
        if inside.predicted_us and TIME in finding.after:
            ratio = finding.after[TIME] / finding.before[TIME]
            change = times.get(name) or ChangedTime(name, 0.0)
            changed_us = inside.predicted_us * ratio
            times[name] = replace(change, predicted_us=changed_us, is_compiled=True)
    return replace(inside, changes=sort_changes(times.values())), others
