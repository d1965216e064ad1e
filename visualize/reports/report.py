"""Reports of a capture as JSON or a text table, and the differences between two reports."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from kernels.capture.reader import Capture, CapturedKernel, CapturedLaunch, Finding
from kernels.evaluate.captured import count_launch
from kernels.evaluate.counts import COUNTERS, LaunchCounts, OperationCounts
from kernels.evaluate.findings import Compiler, find
from kernels.sectors import IDEAL, LINES
from visualize.numbers import count_noun

# Properties of a compiled kernel that reports hold, and that `differences` compares.
_NEEDS = ("registers", "spilled_bytes", "shared_bytes")


def report(capture: Capture, compiler: Compiler | None = None) -> dict[str, Any]:
    """Return the JSON of a capture: per launch its operations by source line, its totals, and what was not counted.

    Args:
        compiler: see `findings.find`.
    """
    content = capture.content
    counts = [count_launch(capture, launch) for launch in content.launches]
    findings = find(capture, counts.__getitem__, compiler)
    return {
        "triton": content.triton,
        "gpu": content.gpu.get("name"),
        "launches": [
            launch_json(launch, content.kernels[launch.kernel], each, own)
            for launch, each, own in zip(content.launches, counts, findings, strict=True)
        ],
        "untried": untried(capture),
        "stopped": content.stopped.message if content.stopped else None,
        "not_captured": list(content.not_captured),
    }


def untried(capture: Capture) -> str:
    """Return why the findings of a capture contain no experiments; "" if they do."""
    return (
        ""
        if capture.findings is not None
        else "The capture has no experiments: no change was compiled."
    )


def launch_json(
    launch: CapturedLaunch,
    kernel: CapturedKernel,
    counts: LaunchCounts,
    findings: Sequence[Finding],
) -> dict[str, Any]:
    totals = counts.totals()
    refused = {(op.source[1], op.tally.refused) for op in counts.operations if op.tally.refused}
    if counts.refused:
        refused.add((kernel.line, counts.refused))
    return {
        "kernel": kernel.name,
        "source": Path(kernel.file).name,
        "line": kernel.line,
        "grid": list(launch.grid),
        "config": dict(launch.config),
        "tuned": asdict(launch.tuned) if launch.tuned else None,
        "elapsed_ms": launch.elapsed_ms,
        "settings": dict(launch.settings),
        "results": launch.results
        and {name: asdict(errors) for name, errors in launch.results.items()},
        **{name: getattr(kernel, name) for name in _NEEDS},
        "ops": [operation_json(group, findings) for group in counts.by_line()],
        "findings": [{**asdict(finding), "text": finding.sentences} for finding in findings],
        "totals": totals,
        "lower_bound": {
            name: counts.lower_bound(name) for name in COUNTERS if totals[name] is None
        },
        "refused": [{"line": line, "why": why} for line, why in sorted(refused)],
        "counted": launch.counters and dict(launch.counters),
        "agrees": launch.counters
        and all(totals[name] == value for name, value in launch.counters.items()),
    }


def wrong_counters(counted: Mapping[str, int], totals: Mapping[str, int | None]) -> list[str]:
    """Describe each counter that differs from its prediction."""
    predicted = {
        name: "unknown" if total is None else f"{total:,}" for name, total in totals.items()
    }
    wrong = [name for name, value in counted.items() if value != totals[name]]
    return [f"{name} {counted[name]:,} (predicted {predicted[name]})" for name in wrong]


def operation_json(group: Sequence[OperationCounts], findings: Sequence[Finding]) -> dict[str, Any]:
    first = group[0]
    counts = np.sum([op.tally.counts for op in group], axis=0)
    sectors = sum(op.sectors for op in group)
    ideal = int(counts[IDEAL])
    requests = sum(op.requests for op in group)
    refused = next((op.tally.refused for op in group if op.tally.refused), "")
    place = *first.source, first.op, ", ".join(first.tensors)
    own = [finding.sentences for finding in findings if finding.place == place]
    return {
        "op": first.op,
        "counter": first.counter,
        "tensor": ", ".join(first.tensors),
        "file": first.source[0],
        "line": first.source[1],
        "width_bytes": first.width_bytes,
        "requests": requests,
        "sectors": sectors,
        "lines": int(counts[LINES]),
        "ideal_sectors": ideal,
        "efficiency": None if refused or not (sectors and ideal) else ideal / sectors,
        "refused": refused,
        "is_upper_bound": any(op.tally.is_upper_bound for op in group),
        "why": " ".join(own),
    }


@dataclass(frozen=True)
class Difference:
    """A number that differs between two reports.

    Attributes:
        where: a kernel, or an operation as file:line, kernel and tensor.
        what: "registers", "sectors" and so on.
    """

    where: str
    what: str
    before: int
    after: int

    @property
    def sentence(self) -> str:
        verb = "rose" if self.after > self.before else "fell"
        return f"{self.where}: {self.what.replace('_', ' ')} {verb} from {self.before:,} to {self.after:,}."


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Return the numbers that differ between two reports of a script. Launches are compared in order.

    An added, missing or replaced launch appears as a different number of launches of its kernel.
    """
    return (pair for pair in _compare(before, after) if pair.before != pair.after)


def _compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    old_names, new_names = (
        [launch["kernel"] for launch in report["launches"]] for report in (before, after)
    )
    for name in dict.fromkeys([*old_names, *new_names]):
        yield Difference(name, "launches", old_names.count(name), new_names.count(name))
    for old, new in zip(before["launches"], after["launches"], strict=False):
        if old["kernel"] != new["kernel"]:
            continue
        for was, now in _pair_lines(old["ops"], new["ops"]):
            op = (now or was)[0]
            where = f"{op['file']}:{op['line']} in {new['kernel']}, {op['op']} {op['tensor']}"
            for unit in ("sectors", "requests"):
                counts = (sum(op[unit] for op in ops) for ops in (was, now))
                yield Difference(where, unit, *counts)
        for name in _NEEDS:
            yield Difference(
                f"{new['source']}:{new['line']} {new['kernel']}", name, old[name], new[name]
            )


def _pair_lines(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Any, Any]]:
    """Pair the operations of two launches, by source line. Lines correspond in order, because edits move them.

    Another compiler may turn a load into an asynchronous copy, of which each pipeline stage accesses other tensors.
    """
    groups: dict[Any, tuple[list[Any], list[Any]]] = {}
    for side, ops in enumerate((old, new)):
        lines: dict[Any, list[Mapping[str, Any]]] = {}
        for op in ops:
            kind = op["counter"].removeprefix("tma_").replace("red", "atom")
            lines.setdefault((kind, op["file"], op["line"]), []).append(op)
        for (kind, *_), on_line in lines.items():
            tensors = {name for op in on_line for name in op["tensor"].split(", ")}
            groups.setdefault((kind, *sorted(tensors)), ([], []))[side].append(on_line)
    for pair in groups.values():
        yield from zip_longest(*pair, fillvalue=[])


def table(content: Mapping[str, Any]) -> str:
    """Return a report as text."""
    lines = [
        f"Triton {content['triton']}, {content['gpu']}: {count_noun(len(content['launches']), 'launch')}"
    ]
    is_counted = any(launch["counted"] for launch in content["launches"])
    for number, launch in enumerate(content["launches"]):
        grid = " × ".join(map(str, launch["grid"]))
        tuned = (
            f", config {launch['tuned']['number']} of {launch['tuned']['of']}"
            if launch["tuned"]
            else ""
        )
        lines.append(
            f"\n{number}  {launch['kernel']}  {launch['source']}:{launch['line']}  grid {grid}{tuned}"
        )
        config = " ".join(
            f"{name}={value}" for name, value in {**launch["settings"], **launch["config"]}.items()
        )
        memory = f"{launch['registers']} registers, {launch['spilled_bytes']} bytes spilled"
        lines.append(f"   {config}\n   {memory}, {launch['shared_bytes']:,} bytes of shared memory")
        width = max([20, *(len(op["tensor"]) for op in launch["ops"])])
        counts = f"{'bytes':>5} {'requests':>13} {'sectors':>13} {'ideal%':>6}"
        lines.append(f"   {'line':24} {'op':11} {'tensor':{width}} {counts}")
        for op in launch["ops"]:
            efficiency = "" if op["efficiency"] is None else f"{op['efficiency']:.0%}"
            line = f":{op['line']}"
            space = 24 - len(line)
            file = op["file"] if len(op["file"]) <= space else f"{op['file'][: space - 1]}…"
            bound = "≤ " if op["is_upper_bound"] else "≥ "
            requests, sectors = (
                (bound if op["refused"] else "") + f"{op[unit]:,}"
                for unit in ("requests", "sectors")
            )
            counts = f"{op['width_bytes'] or '':>5} {requests:>13} {sectors:>13} {efficiency:>6}"
            lines.append(f"   {file + line:24} {op['op']:11} {op['tensor']:{width}} {counts}")
            if op["why"]:
                lines.append(f"      → {op['why']}")
        if launch["counted"] is None and is_counted:
            lines.append("   Nsight Compute: not counted")
        lines += [f"   → {finding['text']}" for finding in launch["findings"] if not finding["op"]]
        if launch["counted"]:
            wrong = ", ".join(wrong_counters(launch["counted"], launch["totals"]))
            lines.append(f"   Nsight Compute: {wrong or 'all ten counters agree'}")
        lines += [f"   Line {refusal['line']}: {refusal['why']}" for refusal in launch["refused"]]
    lines += filter(None, [content["stopped"], content["untried"]])
    return "\n".join([*lines, *content["not_captured"]])
