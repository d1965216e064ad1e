"""How fast the kernels are beside the library: paired ratios with their 95 % interval, errors beside, in one run.

python -m benchmarks.kernels [--only WORDS] [--seconds S] [--out FOLDER] (on a GPU; about five minutes)

Prints a table, and writes it as Markdown and as JSON, named for the GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kernel_cases import CASES, COMPILED, Against, Case
from benchmarks.kernel_table import Entry, Table

if TYPE_CHECKING:
    from kernels.gpus import Gpu
    from kernels.measuring.run import Prepared
    from kernels.measuring.timing import Samples
    from kernels.results import Check

FOLDER = Path(__file__).parent / "measured"
SECONDS = 4.0

# The ratio is known this well, to either side, unless the time is over before.
_HALF_WIDTH = 0.001

Call = Callable[[], Any]


def main() -> int:
    """Time all cases; returns the number of rows that have no time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has these words")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"that a case is timed for at most ({SECONDS:g})"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the table's files")
    flags = parser.parse_args()

    from kernels.measuring import worker

    with tempfile.TemporaryDirectory() as cache:
        worker.start("cuda", cache)
        return _benchmark([case for case in CASES if flags.only in case.work], flags.seconds, flags.out)


def _benchmark(cases: list[Case], seconds: float, folder: Path) -> int:
    from kernels.gpus import this_gpu
    from kernels.measuring import worker
    from kernels.measuring.gated_stream import GatedStream
    from kernels.measuring.timing import Effort, sample
    from kernels.results import Failure

    gpu = this_gpu()
    if gpu is None:
        print("There is no GPU here, so there is nothing to time.", file=sys.stderr)
        return 1
    device = worker.describe()
    if isinstance(device, Failure):
        print(device.message, file=sys.stderr)
        return 1
    effort = Effort(_HALF_WIDTH, fewest=40, most=4000, least_ms=200.0, most_s=seconds, warm_s=1.0)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    table = Table(date, device.name, device.torch, device.triton, [])
    for case in cases:
        for entry in measured(case, gpu, lambda calls, timer: sample(GatedStream(calls, "warm", timer), effort)):
            table.entries.append(entry)
            print(f"{entry.work}, against {entry.against}: {_said(entry)}", flush=True)
        table.write(folder / gpu.name)  # after each case: what was timed is kept if the next one ends the process
    print("", table.markdown(), sep="\n")
    return sum(bool(entry.failure) for entry in table.entries)


def _said(entry: Entry) -> str:
    if entry.failure:
        return entry.failure
    return f"{entry.ratio:.3f} ({entry.ratio_low:.3f}–{entry.ratio_high:.3f}), {entry.ms:.4f} ms, {entry.pairs} pairs"


def measured(case: Case, gpu: Gpu, take: Callable[[list[Call], str], Samples]) -> Iterator[Entry]:
    """The rows of a case; where it can't be timed, each with the reason.

    Args:
        take: (calls, timer) → their times, in turns.
    """
    from kernels import discover
    from kernels.experiment import Experiment, Run

    kernel = discover()[case.kernel]
    problem = kernel.family.problem(**case.problem)
    config, source = config_of(case, gpu)
    blank = Entry(case.work, "", kernel.id, dataclasses.asdict(config), source)
    try:
        timed = _Timed(case, Experiment(kernel.id, problem, config, run=Run(timer=case.timer)), gpu, take)
        for row in case.rows:
            yield timed.entry(row, blank)
    except Exception as error:  # one case that fails must not end the others; what failed is the row's text
        reason = str(error).strip().splitlines() or [type(error).__name__]
        for row in case.rows:
            yield dataclasses.replace(blank, against=row.title, failure=reason[0].replace("|", "/"))


def config_of(case: Case, gpu: Gpu) -> tuple[Any, str]:
    """The config that a search found for the case, and where; the default where it found none."""
    from kernels import discover
    from kernels.recommended import recommend
    from kernels.spec import shape_text

    kernel = discover()[case.kernel]
    # What is timed with B transposed first is the product of K-major B.
    layout = {"layout": "NT"} if case.is_b_transposed_first else {}
    found = recommend(kernel, kernel.family.problem(**{**case.problem, **layout}), gpu)
    if not found:
        return kernel.config(), "default"
    return found.experiment.config, f"found on {found.gpu} for {shape_text(found.experiment.problem)}"


class _Timed:
    """One case, checked and timed.

    Raises:
        RuntimeError: where the kernel's result is wrong.
    """

    def __init__(self, case: Case, experiment: Any, gpu: Gpu, take: Callable[[list[Call], str], Samples]) -> None:
        from kernels.measuring.run import prepare

        given = prepare(experiment, gpu)
        launch, run = _ours(case, given)
        launch()
        self.check = run.check()[0]
        if not self.check.passed:
            raise RuntimeError(f"wrong: {self.check.mismatched:,} elements, so it was not timed")
        self.run, wanted = run, [name for row in case.rows for name in row.calls]
        self.their_output = given.output.clone()
        calls, missing = _library(given, self.their_output, wanted)
        self.calls = {name: call for name, call in calls.items() if name in wanted}
        self.samples = take([launch, *self.calls.values()], case.timer)
        self.note = " ".join(filter(None, [*missing, self.samples.note]))

    def entry(self, row: Against, blank: Entry) -> Entry:
        """One row: beside the fastest of its calls."""
        import numpy as np

        from kernels.pairs import pair

        ours, *others = self.samples.times_ms
        times = {name: other for name, other in zip(self.calls, others, strict=True) if name in row.calls}
        if not times:
            raise RuntimeError(f"none of {', '.join(row.calls)} could be called. {self.note}")
        fastest = min(times, key=lambda name: float(np.median(times[name])))
        ratio = pair(times[fastest], ours)
        theirs = None if row.is_bound else self._check_of(self.calls[fastest]).relative_rms
        return dataclasses.replace(
            blank, against=row.title, fastest=fastest, ratio=ratio.ratio, ratio_low=ratio.low, ratio_high=ratio.high,
            pairs=len(ours), ms=float(np.median(ours)), their_ms=float(np.median(times[fastest])),
            error=self.check.relative_rms, their_error=theirs, note=self.note,
        )  # fmt: skip

    def _check_of(self, call: Call) -> Check:
        """How far the library's own result is from the same reference: what the call returns, or has written."""
        result = call()
        return dataclasses.replace(self.run, output=self.their_output if result is None else result).check()[0]


def _ours(case: Case, given: Prepared) -> tuple[Call, Prepared]:
    """What is timed as the kernel, and the launch whose output is checked."""
    from kernels import discover
    from kernels.matmul.problem import transpose_operand
    from kernels.measuring.run import prepare

    if not case.is_b_transposed_first:
        return given.ready(), given
    experiment, tiled = given.experiment, discover()["transpose.tiled"]
    stored = tiled.family.problem(M=experiment.problem.K, N=experiment.problem.N, dtype=experiment.problem.dtype)
    transposition = prepare(
        dataclasses.replace(experiment, kernel=tiled.id, problem=stored, config=tiled.config()), given.gpu
    )
    transposition.inputs["A"] = given.inputs["B"]
    product = dataclasses.replace(
        given,
        experiment=dataclasses.replace(experiment, problem=transpose_operand(experiment.problem, "B")),
        inputs={**given.inputs, "B": transposition.output.t()},
        output=given.output.clone(),
    )
    first, second = transposition.ready(), product.ready()

    def transpose_and_multiply() -> None:
        first()
        second()

    return transpose_and_multiply, product


def _library(given: Prepared, output: Any, wanted: list[str]) -> tuple[dict[str, Call], list[str]]:
    """The library's calls by name, and a sentence for each that can't be called.

    Args:
        output: what they write into, those that don't return a result of their own.
    """
    from kernels.measuring.run import library_calls

    found, missing = library_calls(given.kernel.family, given.inputs, output, given.experiment.problem)
    calls: dict[str, Call] = dict(found)
    if COMPILED in wanted:
        compiled = _compiled(given.inputs)
        try:
            compiled()
        except Exception as reason:  # whatever its compiler raises
            missing.append(f"{COMPILED} could not be called: {type(reason).__name__}.")
        else:
            calls[COMPILED] = compiled
    return calls, missing


def _compiled(inputs: Mapping[str, Any]) -> Call:
    """relu(A @ B + C) as torch.compile makes it, for these shapes."""
    import torch

    made = torch.compile(lambda a, b, c: torch.relu(a @ b + c), dynamic=False)
    return lambda: made(inputs["A"], inputs["B"], inputs["C"])


if __name__ == "__main__":
    sys.exit(main())
