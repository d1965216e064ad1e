"""Reports of a capture: as JSON, as a table of text, and the differences between two of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernels.compiling.capture_file import Capture, CapturedKernel, CapturedLaunch
from kernels.compiling.captured_counts import COUNTERS, LaunchCounts, OperationCounts, count_launch
from kernels.compiling.diagnoses import diagnose
from kernels.sectors import IDEAL, LINES
from visualize.views.numbers import count_noun

# Numbers of a kernel that are compared.
_COMPARED = ("registers", "spilled_bytes", "shared_bytes")


def report(capture: Capture) -> dict[str, Any]:
    """Return the JSON of a capture: its launches with their operations per source line, totals, and refusals."""
    content = capture.content
    return {
        "triton": content.triton,
        "gpu": content.gpu.get("name"),
        "launches": [
            launch_json(capture, launch, content.kernels[launch.kernel], count_launch(capture, launch))
            for launch in content.launches
        ],
        "stopped": content.stopped.message if content.stopped else None,
        "not_captured": list(content.not_captured),
    }


def launch_json(
    capture: Capture, launch: CapturedLaunch, kernel: CapturedKernel, counts: LaunchCounts
) -> dict[str, Any]:
    addresses = {
        argument.name: tensor.offset_bytes + capture.content.storages[tensor.storage].address_bytes
        for argument in launch.arguments
        if (tensor := argument.own_tensor)
    }
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
        "results": launch.results and {name: asdict(errors) for name, errors in launch.results.items()},
        "registers": kernel.registers,
        "spilled_bytes": kernel.spilled_bytes,
        "shared_bytes": kernel.shared_bytes,
        "ops": [operation_json(group, launch, addresses, counts.aligned) for group in by_line(counts.operations)],
        "totals": totals,
        "lower_bound": {name: counts.lower_bound(name) for name in COUNTERS if totals[name] is None},
        "refused": [{"line": line, "why": why} for line, why in sorted(refused)],
        "notes": list(counts.notes),
        "counted": launch.counters and dict(launch.counters),
        "agrees": launch.counters and all(totals[name] == value for name, value in launch.counters.items()),
    }


def wrong_counters(counted: Mapping[str, int], totals: Mapping[str, int | None]) -> list[str]:
    """Describe each counter that differs from its prediction."""
    predicted = {name: "unknown" if total is None else f"{total:,}" for name, total in totals.items()}
    wrong = [name for name, value in counted.items() if value != totals[name]]
    return [f"{name} {counted[name]:,} (predicted {predicted[name]})" for name in wrong]


def by_line(operations: Sequence[OperationCounts]) -> list[list[OperationCounts]]:
    """Group the copies of an operation that pipelining or unrolling made."""
    groups: dict[tuple[Any, ...], list[OperationCounts]] = {}
    for op in operations:
        if not (op.tally.executions or op.tally.refused):
            continue  # such as the second stage of a pipeline whose loop has one iteration
        groups.setdefault((op.source, op.op, op.tensors, op.width_bytes), []).append(op)
    return sorted(groups.values(), key=lambda group: group[0].source)


def operation_json(
    group: Sequence[OperationCounts],
    launch: CapturedLaunch,
    addresses: Mapping[str, int],
    aligned: Sequence[OperationCounts] = (),
) -> dict[str, Any]:
    first, counts = group[0], np.sum([op.tally.counts for op in group], axis=0)
    sectors, ideal = sum(op.sectors for op in group), int(counts[IDEAL])
    requests, cost = sum(op.requests for op in group), ""
    better = [op for op in aligned if (op.source, op.op, op.tensors) == (first.source, first.op, first.tensors)]
    if better and (least := sum(op.requests for op in better)) < requests:
        fewer = sum(op.sectors for op in better)
        cost = f" Aligned, it would take {least:,} requests and {fewer:,} sectors, not {requests:,} and {sectors:,}."
    findings = (finding for op in group for finding in diagnose(op, launch, dict(addresses)))
    found = {finding.text + cost * (finding.kind in ("misaligned", "divisibility")) for finding in findings}
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
        "efficiency": ideal / sectors if sectors and ideal else None,
        "why": " ".join(sorted(found)),
    }


@dataclass(frozen=True)
class Difference:
    """A number that differs between two reports.

    Attributes:
        where: kernel, or file:line in a kernel.
        what: "registers", "sectors" and so on.
    """

    where: str
    what: str
    before: int
    after: int

    @property
    def sentence(self) -> str:
        verb = "grew" if self.after > self.before else "fell"
        return f"{self.where}: {self.what.replace('_', ' ')} {verb} from {self.before:,} to {self.after:,}."


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the numbers that differ between two reports of a script. Launches are compared in order.

    A launch of another kernel, and a missing one, count as a difference of the number of launches of a kernel.
    """
    old_names, new_names = ([launch["kernel"] for launch in report["launches"]] for report in (before, after))
    for name in dict.fromkeys([*old_names, *new_names]):
        if (was := old_names.count(name)) != (now := new_names.count(name)):
            yield Difference(name, "launches", was, now)
    for old, new in zip(before["launches"], after["launches"], strict=False):
        if old["kernel"] != new["kernel"]:
            continue
        for name in _COMPARED:
            if new[name] != old[name]:
                yield Difference(f"{new['source']}:{new['line']} {new['kernel']}", name, old[name], new[name])
        for file, line in sorted({(op["file"], op["line"]) for op in (*old["ops"], *new["ops"])}):
            for unit in ("requests", "sectors"):
                was, now = (
                    sum(op[unit] for op in launch["ops"] if (op["file"], op["line"]) == (file, line))
                    for launch in (old, new)
                )
                if was != now:
                    yield Difference(f"{file}:{line} in {new['kernel']}", unit, was, now)


def table(content: Mapping[str, Any]) -> str:
    """Return a report as text."""
    lines = [f"Triton {content['triton']}, {content['gpu']}: {count_noun(len(content['launches']), 'launch')}"]
    for number, launch in enumerate(content["launches"]):
        grid = " × ".join(map(str, launch["grid"]))
        tuned = f", config {launch['tuned']['number']} of {launch['tuned']['of']}" if launch["tuned"] else ""
        lines.append(f"\n{number}  {launch['kernel']}  {launch['source']}:{launch['line']}  grid {grid}{tuned}")
        config = " ".join(f"{name}={value}" for name, value in {**launch["settings"], **launch["config"]}.items())
        memory = f"{launch['registers']} registers, {launch['spilled_bytes']} bytes spilled"
        lines.append(f"   {config}\n   {memory}, {launch['shared_bytes']:,} bytes of shared memory")
        lines.append(
            f"   {'line':24} {'op':11} {'tensor':20} {'bytes':>5} {'requests':>13} {'sectors':>13} {'ideal':>6}"
        )
        for op in launch["ops"]:
            efficiency = "" if op["efficiency"] is None else f"{op['efficiency']:.0%}"
            place = f"{op['file']}:{op['line']}"
            counts = f"{op['width_bytes'] or '':>5} {op['requests']:>13,} {op['sectors']:>13,} {efficiency:>6}"
            lines.append(f"   {place:24.24} {op['op']:11} {op['tensor']:20.20} {counts}")
            if op["why"]:
                lines.append(f"      → {op['why']}")
        if launch["counted"]:
            wrong = ", ".join(wrong_counters(launch["counted"], launch["totals"]))
            lines.append(f"   Nsight Compute: {wrong or 'all ten counters agree'}")
        lines += [f"   Not counted: line {refusal['line']}: {refusal['why']}" for refusal in launch["refused"]]
        lines += [f"   {note}" for note in launch["notes"]]
    lines += [content["stopped"]] if content["stopped"] else []
    return "\n".join([*lines, *content["not_captured"]])
