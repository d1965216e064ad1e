"""`app.py show`: the memory requests of every Triton launch of a script, as a table or as JSON."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import kernels.compiling
from kernels.compiling.capture_file import Capture, CapturedKernel, CapturedLaunch, UnreadableCapture
from kernels.compiling.captured_counts import COUNTERS, LaunchCounts, OperationCounts, count_launch
from kernels.compiling.diagnoses import diagnose
from kernels.compiling.requests import IDEAL, LINES
from kernels.gpus import DEFAULT_GPU, GPUS, this_gpu

# Exit statuses.
FINE, GREW, USAGE = 0, 1, 2

_CAPTURE = Path(kernels.compiling.__file__).with_name("capture.py")

# What must not grow from one version of a script to the next.
_COMPARED = ("registers", "spilled_bytes", "shared_bytes")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags of `app.py show`."""
    parser = argparse.ArgumentParser(
        prog="app.py show",
        description="Run a script and count the memory requests of every Triton launch in it. Exit status: 0; 1 if "
        "something grew against --against; 2 for invalid flags or a script without a launch.",
        epilog="Showing a script runs it. Example: app.py show softmax.py --gpu H200 --json",
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT.py[:CASE]", help="a script, one case of it, or a capture (.tilescope)")
    add("arguments", nargs=argparse.REMAINDER, help="arguments of the script, after the flags of show")
    add("--gpu", choices=(*GPUS,), help=f"compile for this GPU (default: this machine's, or else {DEFAULT_GPU})")
    add("--json", action="store_true", help="print one JSON object")
    add("--against", type=Path, metavar="OTHER.json", help="fail if requests, sectors, registers or memory grew")
    add("--python", default=sys.executable, metavar="PATH", help="the Python that runs the script (this one)")
    add("--values", action="store_true", help="run launches in Triton's interpreter, for addresses that need results")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the case; repeatable")
    add("--config", action="append", default=[], metavar="KERNEL=N", help="pin config N of a kernel's autotuner")
    add("--out", type=Path, metavar="FILE.tilescope", help="keep the capture")
    return parser


def show(arguments: Sequence[str]) -> int:
    """Capture a script as the arguments say, print its launches, and return the exit status."""
    flags = make_parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder:
        try:
            path = Path(flags.script)
            if path.suffix != ".tilescope":
                path = flags.out or Path(folder) / "script.tilescope"
                if status := run_capture(flags, path):
                    return status
            content = report(Capture(path))
            before = json.loads(flags.against.read_text(encoding="utf-8")) if flags.against else None
        except UnreadableCapture as error:
            print(error, file=sys.stderr)
            return USAGE
        except (OSError, ValueError) as error:
            print(f"--against {flags.against}: {error}", file=sys.stderr)
            return USAGE
    print(json.dumps(content, allow_nan=False) if flags.json else table(content))
    grown = list(regressions(before, content)) if before is not None else []
    for line in grown:
        print(line, file=sys.stderr)
    if not content["launches"]:
        print(f"{flags.script} launched no Triton kernel.", file=sys.stderr)
        return USAGE
    return GREW if grown else FINE


def run_capture(flags: argparse.Namespace, path: Path) -> int:
    """Run the script in its own process. Return the exit status if it failed, else 0."""
    gpu = GPUS.get(flags.gpu or "") or this_gpu() or GPUS[DEFAULT_GPU]
    command = [flags.python, str(_CAPTURE), "--out", str(path), "--gpu-json", json.dumps(asdict(gpu))]
    command += ["--values"] if flags.values else []
    for name in ("set", "config"):
        command += [part for value in getattr(flags, name) for part in (f"--{name}", value)]
    try:
        # The script's output goes to stderr: stdout is the report's.
        done = subprocess.run(
            [*command, flags.script, *flags.arguments], stdout=sys.stderr.fileno(), env=_environment()
        )
    except OSError as error:
        print(f"--python {flags.python}: {error.strerror}.", file=sys.stderr)
        return USAGE
    return 0 if path.exists() else done.returncode or USAGE


def _environment() -> dict[str, str]:
    """Return the environment without what this app sets for its own workers."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def report(capture: Capture) -> dict[str, Any]:
    """Return the JSON of a capture: its launches with their operations per source line, totals, and refusals."""
    content = capture.content
    return {
        "triton": content.triton,
        "gpu": content.gpu.get("name"),
        "launches": [
            _launch_json(capture, launch, content.kernels[launch.kernel], count_launch(capture, launch))
            for launch in content.launches
        ],
        "stopped": content.stopped.message if content.stopped else None,
        "not_captured": list(content.not_captured),
    }


def _launch_json(
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
        "registers": kernel.registers,
        "spilled_bytes": kernel.spilled_bytes,
        "shared_bytes": kernel.shared_bytes,
        "ops": [_ops_json(group, launch, addresses) for group in _by_line(counts.operations)],
        "totals": totals,
        "lower_bound": {name: counts.lower_bound(name) for name in COUNTERS if totals[name] is None},
        "refused": [{"line": line, "why": why} for line, why in sorted(refused)],
        "notes": list(counts.notes),
    }


def _by_line(operations: Sequence[OperationCounts]) -> list[list[OperationCounts]]:
    """Group the copies of an operation that pipelining or unrolling made."""
    groups: dict[tuple[Any, ...], list[OperationCounts]] = {}
    for op in operations:
        groups.setdefault((op.source, op.op, op.tensors, op.width_bytes), []).append(op)
    return sorted(groups.values(), key=lambda group: group[0].source)


def _ops_json(group: Sequence[OperationCounts], launch: CapturedLaunch, addresses: Mapping[str, int]) -> dict[str, Any]:
    first, counts = group[0], np.sum([op.tally.counts for op in group], axis=0)
    sectors, ideal = sum(op.sectors for op in group), int(counts[IDEAL])
    found = {finding.text for op in group for finding in diagnose(op, launch, dict(addresses))}
    return {
        "op": first.op,
        "counter": first.counter,
        "tensor": ", ".join(first.tensors),
        "file": first.source[0],
        "line": first.source[1],
        "width_bytes": first.width_bytes,
        "requests": sum(op.requests for op in group),
        "sectors": sectors,
        "lines": int(counts[LINES]),
        "ideal_sectors": ideal,
        "efficiency": ideal / sectors if sectors and ideal else None,
        "why": " ".join(sorted(found)),
    }


def regressions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each number that grew from one report to the next. Launches are compared in order."""
    for old, new in zip(before["launches"], after["launches"], strict=False):
        if old["kernel"] != new["kernel"]:
            yield f"{new['source']}:{new['line']}: {new['kernel']} was launched instead of {old['kernel']}."
            continue
        where = f"{new['source']}:{new['line']} {new['kernel']}"
        for name in _COMPARED:
            if new[name] > old[name]:
                yield f"{where}: {name} grew from {old[name]:,} to {new[name]:,}."
        for unit in ("requests", "sectors"):
            lines = {(op["file"], op["line"]) for op in (*old["ops"], *new["ops"])}
            for file, line in sorted(lines):
                was, now = (
                    sum(op[unit] for op in launch["ops"] if (op["file"], op["line"]) == (file, line))
                    for launch in (old, new)
                )
                if now > was:
                    yield f"{file}:{line} in {new['kernel']}: {unit} grew from {was:,} to {now:,}."
    if len(before["launches"]) != len(after["launches"]):
        yield f"The script launches {len(after['launches'])} kernels instead of {len(before['launches'])}."


def table(content: Mapping[str, Any]) -> str:
    """Return a report as text."""
    lines = [f"Triton {content['triton']}, {content['gpu']}: {len(content['launches'])} launches"]
    for number, launch in enumerate(content["launches"]):
        grid = " × ".join(map(str, launch["grid"]))
        tuned = f", config {launch['tuned']['number']} of {launch['tuned']['of']}" if launch["tuned"] else ""
        lines.append(f"\n{number}  {launch['kernel']}  {launch['source']}:{launch['line']}  grid {grid}{tuned}")
        config = " ".join(f"{name}={value}" for name, value in launch["config"].items())
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
        lines += [f"   Not counted: line {refusal['line']}: {refusal['why']}" for refusal in launch["refused"]]
        lines += [f"   {note}" for note in launch["notes"]]
    lines += [content["stopped"]] if content["stopped"] else []
    return "\n".join([*lines, *content["not_captured"]])
