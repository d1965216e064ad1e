"""Count the memory traffic of experiments, of each GROUP_SIZE, and of captured scripts with Nsight Compute.

`ncu` runs in a separate process. Counts per launch come from hardware counters, and counts per instruction from ncu's
source counters. The line table of the same SASS maps each counted instruction to its source line. ncu profiles the
command `python -m tilescope.measure.counters FILE REPEATS`, which launches the experiments of a JSON file.
"""

import dataclasses
import functools
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from tilescope.captures.content import CountedLaunch
from tilescope.captures.reader import Capture
from tilescope.captures.server import RECORDER, CaptureFailed, CaptureServer
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import (
    Experiment,
    Json,
    from_json,
    launch_key,
    launch_of,
    resolve_gpu,
)
from tilescope.declare.gpus import Gpu, this_gpu
from tilescope.evaluate.counts import COUNTER_NAMES
from tilescope.evaluate.instructions import CompiledFacts, MemoryInstruction
from tilescope.evaluate.matching import match_instructions
from tilescope.evaluate.sectors import SECTOR_BYTES
from tilescope.inside.report import INSIDE_COUNTERS
from tilescope.measure import ncu
from tilescope.measure.gated_stream import GatedStream
from tilescope.measure.measurement import Job, Measurement
from tilescope.measure.ncu import Cancel, CountingFailed
from tilescope.measure.run import prepare
from tilescope.measure.timing import STUDY, Samples, sample
from tilescope.processes import replacing
from tilescope.results import (
    Compiled,
    Counters,
    Device,
    Failure,
    GroupSizeRow,
    GroupSizeStudy,
    OpCounts,
    SharedCounts,
    records,
)
from tilescope.results.counters import any_group_size, with_group_size
from tilescope.sass.instructions import parse_sass

# Seconds that ncu may take for the first experiment, including imports and replay passes, and for each further one.
DEADLINE_S = 120.0
EACH_MORE_S = 5.0

# Columns of ncu's source page. The page omits the global columns if no instruction accesses global memory.
_EXECUTED = "Instructions Executed"
_SECTORS = "L2 Theoretical Sectors Global"
_GLOBAL = (_EXECUTED, "L1 Tag Requests Global", _SECTORS, f"{_SECTORS} Ideal")
_SHARED = (_EXECUTED, "L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal")

# One launch's metrics by our names, and ncu's row for each of its instructions.
NcuCounts = tuple[dict[str, float], list[dict[str, str]]]

# DRAM metrics are counted in REPEATS launches, each with flushed caches.
REPEATS = 5

DRAM = ("dram_read_bytes", "dram_write_bytes")

# DRAM metrics of REPEATS launches and L2 metrics of one launch; () and None if nothing was counted.
Counts = tuple[Sequence[dict[str, float]], dict[str, float] | None]

_STDERR = 2  # its file descriptor
LaunchKey = tuple[str, str, int]
_CAPTURE_METRICS = (*COUNTER_NAMES, *INSIDE_COUNTERS)


def count(
    experiments: Sequence[Experiment],
    metrics: Collection[str],
    cache: str,
    on_start: Callable[[Cancel], None] = lambda _: None,
    repeats: int = 1,
    by_instruction: bool = True,
) -> list[NcuCounts]:
    """Launch each experiment `repeats` times under ncu, with flushed caches. Return the counts per repeat, in order.

    The copies that precede a launch are not counted.

    Args:
        metrics: keys of `ncu.METRICS`.
        cache, on_start: as for `ncu.run`.
        by_instruction: whether to count each instruction as well; otherwise the lists of rows are empty.

    Raises:
        CountingFailed: if ncu is missing, lacks permission, is too slow, or reports incomplete counts.
    """
    kernels = discover()
    names = (kernels[each.kernel].jitted.fn.__name__ for each in experiments)
    profile = ncu.profile_command(metrics, names, "--cache-control", "all")
    if by_instruction:
        profile += ["--section", "SourceCounters"]
    deadline_s = DEADLINE_S + EACH_MORE_S * (len(experiments) - 1)
    run = functools.partial(ncu.run, cache=cache, deadline_s=deadline_s, on_start=on_start)
    with tempfile.TemporaryDirectory() as directory:
        report = str(Path(directory, "report.ncu-rep"))
        file = Path(directory, "experiments.json")
        payloads = [experiment.to_json() for experiment in experiments]
        file.write_text(json.dumps(payloads), encoding="utf-8")
        launch_all = [sys.executable, "-m", "tilescope.measure.counters", str(file), str(repeats)]
        run([*profile, "--export", report, *launch_all])
        read = [profile[0], "--import", report]
        launches = ncu.parse_launches(run([*read, *ncu.RAW_PAGE]), metrics)
        rows: list[list[dict[str, str]]] = [[] for _ in launches]
        if by_instruction:
            rows = ncu.parse_instructions(run([*read, "--csv", "--page", "source"]))
    expected = len(experiments) * repeats
    for counted in (launches, rows):
        if len(counted) != expected:
            raise CountingFailed(f"ncu counted {len(counted)} of {expected} launches.")
    return list(zip(launches, rows, strict=True))


def join_counts(experiment: Experiment, compiled: Compiled, counts: NcuCounts) -> Counters:
    """Join ncu's counts of a launch to the compiled kernel.

    Raises:
        CountingFailed: if ncu counted different code.
    """
    launch, rows = counts
    ops, shared = sum_instructions(rows, compiled.sass, compiled.operations)
    device = Device("cuda", compiled.gpu, metadata.version("torch"), compiled.triton)
    facts = CompiledFacts(
        *(getattr(compiled, field.name) for field in dataclasses.fields(CompiledFacts))
    )
    return Counters(experiment, "cuda", device, ncu.tool(), facts, launch, ops, shared)


def sum_instructions(
    rows: list[dict[str, str]],
    sass: str,
    operations: tuple[MemoryInstruction, ...],
) -> tuple[tuple[OpCounts, ...], tuple[SharedCounts, ...]]:
    """Sum global-memory counts by operation and opcode, and shared-memory counts by source line and opcode.

    Args:
        rows: one per instruction, as `ncu.parse_instructions` returns them.
        sass: the same code with its line table.

    Raises:
        CountingFailed: if ncu's code differs from the SASS, or a column is missing.
    """
    code = parse_sass(sass)
    # "@!P1  LDG.E R0, …" → "LDG.E"
    words = ((word for word in row["Source"].split() if not word.startswith("@")) for row in rows)
    if [each.opcode for each in code] != [next(row_words, "").rstrip(";") for row_words in words]:
        raise CountingFailed("The code that ncu counted differs from the compiled code.")
    ops = defaultdict[Any, list[list[int]]](list)
    shared = defaultdict[Any, list[list[int]]](list)
    for each, number, row in zip(code, match_instructions(code, operations), rows, strict=True):
        if each.traits.operation not in ("", "descriptor") and number is not None:
            # An instruction that belongs to no declared operation has a negative number.
            ops[number, each.opcode].append(_counts(row, _GLOBAL))
        if each.traits.smem not in ("", "atomic") and row["Address Space"]:
            shared[each.source, each.opcode].append(_counts(row, _SHARED))
    return _add_counts(OpCounts, ops), _add_counts(SharedCounts, shared)


def _counts(row: dict[str, str], columns: Sequence[str]) -> list[int]:
    return [int(ncu.parse_count(row, column)) for column in columns]


def _add_counts(kind: Any, counts: dict[Any, list[list[int]]]) -> tuple[Any, ...]:
    return tuple(kind(*key, *map(sum, zip(*rows, strict=True))) for key, rows in counts.items())


def measure_counters(job: Job) -> Counters | Failure:
    experiment = job.experiment
    (compiled,) = job.compile_all(experiment)
    counters = job.count(
        lambda **how: join_counts(experiment, compiled, count([experiment], ncu.LAUNCH, **how)[0])
    )
    if isinstance(counters, Failure):
        return job.find_recording(COUNTERS, counters.message) or counters
    return counters


COUNTERS = Measurement(
    "counters",
    records.RecordForm("counters", Counters, key=launch_key, verb="Counted"),
    measure_counters,
    "Counters need the GPU itself: this machine has {this}, and no counters of this experiment on {gpu} are recorded.",
)


# The study of GROUP_SIZEs. With more metrics, ncu would replay a launch, and the L2's initial state would be undefined.


def variants(experiment: Experiment, gpu: Gpu) -> tuple[Experiment, ...]:
    """Return the experiment with each GROUP_SIZE to compare: its own, powers of two, and the number of rows of tiles.

    Powers of two stop below the number of rows. A kernel without GROUP_SIZE has a single variant.
    """
    own = getattr(experiment.config, "GROUP_SIZE", None)
    if own is None:
        return (experiment,)
    kernel, launch = launch_of(experiment, gpu)
    rows = kernel.extents(launch)["m"]
    sizes = sorted({*(1 << e for e in range(rows.bit_length()) if 1 << e < rows), rows, own})
    return tuple(with_group_size(experiment, size) for size in sizes)


def count_variants(experiments: Sequence[Experiment], **how: Any) -> list[Counts]:
    """Count the DRAM and L2 traffic of each experiment.

    Args:
        how: the cache and the callback of `count`.

    Raises:
        CountingFailed: as for `count`.
    """
    dram = count(experiments, DRAM, repeats=REPEATS, by_instruction=False, **how)
    l2 = count(experiments, ncu.L2, by_instruction=False, **how)
    return [
        ([launch for launch, _ in dram[place * REPEATS :][:REPEATS]], launch)
        for place, (launch, _) in enumerate(l2)
    ]


def time_variants(experiments: tuple[Experiment, ...], gpu: Gpu) -> Samples:
    """Time the variants in alternating launches on the same inputs. Runs in the run worker."""
    first = prepare(experiments[0], gpu)
    options = experiments[0].run
    calls = [dataclasses.replace(first, experiment=experiment).launch for experiment in experiments]
    return sample(GatedStream(calls, options.l2, options.timer), STUDY)


def make_row(
    experiment: Experiment, compiled: CompiledFacts, counts: Counts, times_ms: Any
) -> GroupSizeRow:
    """Combine the counts and times of one GROUP_SIZE."""
    dram, l2 = counts
    size = getattr(experiment.config, "GROUP_SIZE", None)
    read, written = (tuple(int(launch[name]) for launch in dram) for name in DRAM)
    received, looked_up = (int(l2[name]) * SECTOR_BYTES if l2 else None for name in ncu.L2)
    times = tuple(round(float(time), 6) for time in times_ms)
    return GroupSizeRow(
        size, compiled.registers, compiled.shared_bytes, read, written, received, looked_up, times
    )


def compare_group_sizes(job: Job) -> GroupSizeStudy:
    """Count and time each GROUP_SIZE. If counting fails, return a recording or, without one, times and the reason."""
    experiment = job.experiment
    experiments = variants(experiment, job.gpu)
    compiled = job.compile_all(*experiments)
    counts = job.count(count_variants, experiments)
    uncounted = ""
    if isinstance(counts, Failure):
        if recording := job.find_recording(GROUP_SIZES, counts.message):
            return recording
        uncounted = counts.message
        counts = [((), None)] * len(experiments)
    device = job.device()
    samples = job.work("time", time_variants, experiments, job.gpu)
    rows = tuple(map(make_row, experiments, compiled, counts, samples.times_ms))
    profiler = "" if uncounted else ncu.tool()
    note = f"{uncounted} {samples.note}".strip()
    return GroupSizeStudy(experiment, "cuda", device, profiler, rows, samples.clock_mhz, note=note)


GROUP_SIZES = Measurement(
    "reuse",
    records.RecordForm(
        "reuse", GroupSizeStudy, key=lambda experiment: any_group_size(launch_key(experiment))
    ),
    compare_group_sizes,
    "Comparing GROUP_SIZEs needs a GPU: this machine has {this}, and no comparison of this experiment on {gpu} is "
    "recorded.",
)


def count_capture(
    server: CaptureServer, path: Path, command: Sequence[str], more: Sequence[str]
) -> None:
    """Capture a script again under Nsight Compute, and replace the capture with the new one and its counters.

    Args:
        path, command, more: see `CaptureServer.arguments`.

    Raises:
        CaptureFailed: this machine has no GPU or no ncu.
    """
    if this_gpu() is None or not shutil.which("ncu"):
        raise CaptureFailed("--count needs a GPU and Nsight Compute's ncu on the PATH.")
    capture = Capture(path)
    elapsed = (launch.elapsed_ms for launch in capture.content.launches)  # without the profiler
    times = dict(zip(launch_keys(capture), elapsed, strict=True))
    names = [find_entry(capture, kernel) for kernel in range(len(capture.content.kernels))]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.csv")
        again = Path(folder, "counted.tilescope")
        profile = [
            *ncu.profile_command(_CAPTURE_METRICS, names),
            *ncu.RAW_PAGE,
            "--log-file",
            str(log),
        ]
        arguments = server.arguments(again, command, ["--untimed", *more])
        # The script may fail while it is counted
        subprocess.run(
            [*profile, server.python, str(RECORDER), *arguments],
            stdout=_STDERR,
            check=False,
            env=server.environment,
        )
        page = log.read_text(encoding="utf-8") if log.exists() else ""
        if again.exists():
            with replacing(path) as partial:
                shutil.move(again, partial)  # random data differs between runs
    capture = Capture(path)
    keys = launch_keys(capture)
    counters = read_counters(page)
    capture.write_counters([CountedLaunch(counters.get(key), times.get(key)) for key in keys])
    if missing := len(set(keys) - set(counters)):
        last = "".join(page.splitlines()[-1:])
        print(
            f"Nsight Compute did not count {missing} of {len(keys)} launches. {last}",
            file=sys.stderr,
        )


def find_entry(capture: Capture, kernel: int) -> str:
    """Return the name of a kernel's compiled function, which may differ from the Python function's."""
    match = re.search(r"\.entry ([\w$]+)", capture.read_code(kernel, "ptx"))
    return match[1] if match else capture.content.kernels[kernel].name


def launch_keys(capture: Capture) -> list[LaunchKey]:
    """Return the key of each launch, as in `read_counters`."""
    launches = capture.content.launches
    names = (find_entry(capture, launch.kernel) if launch.ran else "" for launch in launches)
    return _number((name, str(launch.grid)) for name, launch in zip(names, launches, strict=True))


def read_counters(page: str) -> dict[LaunchKey, dict[str, int]]:
    """Return launches' counters from ncu's raw page, by kernel, grid, and number of earlier launches with the same two.

    A script may launch more or less often while it is counted.
    """
    keys = []
    counters = []
    for row in ncu.read_rows(page):
        with suppress(CountingFailed):  # the row of units, or a launch that failed
            counters.append(
                {name: int(ncu.parse_count(row, ncu.METRICS[name])) for name in _CAPTURE_METRICS}
            )
            keys.append((row["Kernel Name"], row["Grid Size"]))
    return dict(zip(_number(keys), counters, strict=True))


def _number(keys: Iterable[tuple[str, str]]) -> list[LaunchKey]:
    seen = defaultdict[tuple[str, str], Iterator[int]](itertools.count)
    return [(*key, next(seen[key])) for key in keys]


def _launch_all(payloads: list[Json], repeats: int) -> None:
    """Launch each experiment `repeats` times on this machine's GPU, one launch at a time."""
    import torch

    for payload in payloads:
        experiment = from_json(payload)
        prepared = prepare(experiment, resolve_gpu(experiment, this_gpu()))
        for _ in range(repeats):
            prepared.launch()
            torch.cuda.synchronize()


if __name__ == "__main__":
    _launch_all(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), int(sys.argv[2]))
