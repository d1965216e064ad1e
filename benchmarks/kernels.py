"""Speed of the kernels against the library: paired ratios with their 95 % interval, and errors, in one run.

python -m benchmarks.kernels [--only WORDS] [--seconds S] [--out FOLDER] (on a GPU; about five minutes)

Prints a table, and writes it as Markdown and as JSON, named after the GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kernel_cases import CASES, COMPILED, Against, Case
from benchmarks.kernel_table import Entry, Table

if TYPE_CHECKING:
    from tilescope.declare.gpus import Gpu
    from tilescope.measure.run import Prepared
    from tilescope.measure.timing import Samples
    from tilescope.results import Check, Device

FOLDER = Path(__file__).parent / "measured"
SECONDS = 4.0

# Timing stops once the 95 % interval is this narrow to either side.
_HALF_WIDTH = 0.001

Call = Callable[[], Any]


def main() -> int:
    """Time all cases; return the number of rows without a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"longest time per case ({SECONDS:g})"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the table's files")
    flags = parser.parse_args()

    with open_gpu() as (gpu, device):
        from tilescope.measure.gated_stream import GatedStream
        from tilescope.measure.timing import Effort, sample

        effort = Effort(
            _HALF_WIDTH, fewest=40, most=4000, least_ms=200.0, most_s=flags.seconds, warm_s=1.0
        )
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        table = Table(date, device.name, device.torch, device.triton, [])
        for case in (case for case in CASES if flags.only in case.work):
            for entry in measure(
                case, gpu, lambda calls, timer: sample(GatedStream(calls, "warm", timer), effort)
            ):
                table.entries.append(entry)
                print(
                    f"{entry.work}, against {entry.against}: {entry.failure or f'{entry.ratio:.3f}'}",
                    flush=True,
                )
            # After each case, as the next one may crash the process
            table.write(flags.out / gpu.name)
    print("", table.markdown(), sep="\n")
    return sum(bool(entry.failure) for entry in table.entries)


@contextmanager
def open_gpu() -> Iterator[tuple[Gpu, Device]]:
    """Prepare this process for timing. Yield the row of its GPU in the table, and the device's own description.

    Raises:
        SystemExit: there is no usable GPU.
    """
    from tilescope.declare.gpus import this_gpu
    from tilescope.measure import worker

    gpu = this_gpu()
    if gpu is None:
        raise SystemExit("There is no GPU here, so there is nothing to time.")
    with tempfile.TemporaryDirectory() as cache:
        worker.start("cuda", cache)
        try:
            device = worker.describe()
        except Exception as error:
            raise SystemExit(worker.to_failure("worker", error).message) from error
        yield gpu, device


def measure(case: Case, gpu: Gpu, sample: Callable[[list[Call], str], Samples]) -> Iterator[Entry]:
    """Yield the rows of a case. A row that cannot be timed has the reason.

    Args:
        sample: (calls, timer) → the times of the calls, in turns.
    """
    from tilescope.declare.discovery import discover
    from tilescope.declare.experiment import Experiment, Run

    kernel = discover()[case.kernel]
    problem = kernel.family.problem(**case.problem)
    config, source = config_of(case, gpu)
    blank = Entry(case.work, "", kernel.id, dataclasses.asdict(config), source)
    try:
        timed = _Timed(
            case, Experiment(kernel.id, problem, config, run=Run(timer=case.timer)), gpu, sample
        )
        for row in case.rows:
            yield timed.entry(row, blank)
    except Exception as error:  # a failing case must not end the others
        reason = str(error).strip().splitlines() or [type(error).__name__]
        for row in case.rows:
            yield dataclasses.replace(blank, against=row.title, failure=reason[0].replace("|", "/"))


def config_of(case: Case, gpu: Gpu) -> tuple[Any, str]:
    """Return the config that is offered for a case and its origin, or the kernel's default."""
    from tilescope.declare.discovery import discover
    from tilescope.declare.spec import shape_text
    from visualize.predict.offer import offer

    kernel = discover()[case.kernel]
    # With B transposed first, the product itself reads K-major B.
    layout = {"layout": "NT"} if case.is_b_transposed_first else {}
    best = offer(kernel, kernel.family.problem(**{**case.problem, **layout}), gpu)
    if not best:
        return kernel.config(), "default"
    if not best.search:
        return best.experiment.config, best.origin
    return (
        best.experiment.config,
        f"found on {best.search.gpu} for {shape_text(best.search.experiment.problem)}",
    )


class _Timed:
    """A case, checked and timed.

    Raises:
        RuntimeError: the kernel's result is wrong.
    """

    def __init__(
        self, case: Case, experiment: Any, gpu: Gpu, sample: Callable[[list[Call], str], Samples]
    ) -> None:
        from tilescope.measure.run import prepare

        given = prepare(experiment, gpu)
        launch, run = _kernel_call(case, given)
        launch()
        self.check = run.check()[0]
        if not self.check.passed:
            raise RuntimeError(f"wrong: {self.check.mismatched:,} elements, so it was not timed")
        self.run, wanted = run, [name for row in case.rows for name in row.calls]
        self.their_output = given.output.clone()
        calls, missing = _library(given, self.their_output, wanted)
        self.calls = {name: call for name, call in calls.items() if name in wanted}
        self.samples = sample([launch, *self.calls.values()], case.timer)
        self.note = " ".join(filter(None, [*missing, self.samples.note]))

    def entry(self, row: Against, blank: Entry) -> Entry:
        """Return a row: the kernel against the fastest of its calls."""
        import numpy as np

        from tilescope.measure.timing import pair

        kernel_ms, *calls_ms = self.samples.times_ms
        times = {
            name: ms for name, ms in zip(self.calls, calls_ms, strict=True) if name in row.calls
        }
        if not times:
            raise RuntimeError(f"none of {', '.join(row.calls)} could be called. {self.note}")
        fastest = min(times, key=lambda name: float(np.median(times[name])))
        ratio = pair(times[fastest], kernel_ms)
        theirs = None if row.is_bound else self._check_of(self.calls[fastest]).relative_rms
        return dataclasses.replace(
            blank, against=row.title, fastest=fastest, ratio=ratio.ratio, ratio_low=ratio.low, ratio_high=ratio.high,
            pairs=len(kernel_ms), ms=float(np.median(kernel_ms)), their_ms=float(np.median(times[fastest])),
            error=self.check.relative_rms, their_error=theirs, note=self.note,
        )  # fmt: skip

    def _check_of(self, call: Call) -> Check:
        """The check of the library's result, whether the call returns it or writes it to the output."""
        result = call()
        return dataclasses.replace(
            self.run, output=self.their_output if result is None else result
        ).check()[0]


def _kernel_call(case: Case, given: Prepared) -> tuple[Call, Prepared]:
    """The call that is timed as the kernel, and the launch whose output is checked."""
    from tilescope.declare.discovery import discover
    from tilescope.measure.run import prepare

    if not case.is_b_transposed_first:
        return given.bind(), given
    experiment, tiled = given.experiment, discover()["transpose.tiled"]
    stored = tiled.family.problem(
        M=experiment.problem.K, N=experiment.problem.N, dtype=experiment.problem.dtype
    )
    transposition = prepare(
        dataclasses.replace(experiment, kernel=tiled.id, problem=stored, config=tiled.config()),
        given.gpu,
    )
    transposition.inputs["A"] = given.inputs["B"]
    product = dataclasses.replace(
        given,
        experiment=dataclasses.replace(
            experiment, problem=dataclasses.replace(experiment.problem, layout="NT")
        ),
        inputs={**given.inputs, "B": transposition.output.t()},
        output=given.output.clone(),
    )
    first, second = transposition.bind(), product.bind()

    def transpose_and_multiply() -> None:
        first()
        second()

    return transpose_and_multiply, product


def _library(given: Prepared, output: Any, wanted: list[str]) -> tuple[dict[str, Call], list[str]]:
    """The library's calls by name, and a sentence for each call that fails.

    Args:
        output: the tensor that calls write if they do not return their result.
    """
    from tilescope.measure.run import library_calls

    found, missing = library_calls(
        given.kernel.family, given.inputs, output, given.experiment.problem
    )
    calls: dict[str, Call] = dict(found)
    if COMPILED in wanted:
        import torch

        # Compile only for these shapes
        product = torch.compile(lambda a, b, c: torch.relu(a @ b + c), dynamic=False)
        compiled = partial(product, *(given.inputs[name] for name in "ABC"))
        try:
            compiled()
        except Exception as reason:  # its compiler raises many types
            missing.append(f"{COMPILED} could not be called: {type(reason).__name__}.")
        else:
            calls[COMPILED] = compiled
    return calls, missing


if __name__ == "__main__":
    sys.exit(main())
