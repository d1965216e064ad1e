"""How B is stored, and what that costs: one product with B as given, transposed, and transposed in each launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kernels.equivalence import on_any_gpu
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.matmul.transposed_operands import transposition, with_transposed
from kernels.measuring.measurements.measurement import Measurement
from kernels.measuring.prepared import Prepared, empty_output, prepare
from kernels.measuring.sampling import timing
from kernels.measuring.stages import Stages
from kernels.measuring.timing import in_turns
from kernels.measuring.worker import as_failure
from kernels.records import RecordForm
from kernels.results import LayoutRow, LayoutStudy, Timing

# Files keep the words that recordings began with, so that old and new lines are of one form.
_WAYS_IN_FILES = {"given": "given", "transposed": "turned", "transposed first": "turned first"}
_TRANSPOSITION, _TRANSPOSITION_IN_FILES = "transposition_ms", "turning_ms"


def _written(study: LayoutStudy) -> dict[str, Any]:
    fields = study.to_json()
    rows = [_row(row, _WAYS_IN_FILES, _TRANSPOSITION, _TRANSPOSITION_IN_FILES) for row in fields["rows"]]
    return {**fields, "rows": rows}


def _read(fields: dict[str, Any]) -> dict[str, Any]:
    ways = {in_files: way for way, in_files in _WAYS_IN_FILES.items()}
    return {**fields, "rows": [_row(row, ways, _TRANSPOSITION_IN_FILES, _TRANSPOSITION) for row in fields["rows"]]}


def _row(row: dict[str, Any], ways: dict[str, str], old: str, new: str) -> dict[str, Any]:
    """A row with its way and the name of one field replaced, in the same order."""
    renamed = {new if name == old else name: value for name, value in row.items()}
    return {**renamed, "way": ways.get(row["way"], row["way"])}


class LayoutsMeasurement(Measurement[LayoutStudy]):
    name = "layouts"
    form = RecordForm("layouts", LayoutStudy, key=on_any_gpu, written=_written, read=_read, is_compact=False)
    takes = "Layouts are compared on a GPU"
    missing = "no comparison of this experiment on {gpu} was recorded"

    def refuse(self, experiment: Experiment, gpu: Gpu) -> None:
        """Refuse what is no product."""
        with_transposed(experiment, "B")

    def measure(self, experiment: Experiment, stages: Stages) -> LayoutStudy:
        for needed in (experiment, with_transposed(experiment, "B"), transposition(experiment)):
            stages.compile(needed)
        device = stages.device()
        rows, clock_mhz, note = stages.work("time", compared, experiment, stages.gpu)
        return LayoutStudy(experiment, device.backend, device, rows, clock_mhz, note)


LAYOUTS = LayoutsMeasurement()


@as_failure("time")
def compared(experiment: Experiment, gpu: Gpu) -> tuple[tuple[LayoutRow, ...], int | None, str]:
    """Check and time every way of storing B, beside the library's call on the same operands. In the run worker.

    Args:
        experiment: of a matmul kernel.

    Returns:
        One row per way, the SM clock in MHz, and why it is not known.
    """
    given = prepare(experiment, gpu)
    transposed, transposition_of_b, transposed_first = ways_of_b(given)

    def transpose_and_multiply() -> None:
        transposition_of_b.launch()
        transposed_first.launch()

    ways = {"given": given, "transposed": transposed, "transposed first": transposed_first}
    launches = {"given": given.launch, "transposed": transposed.launch, "transposed first": transpose_and_multiply}
    checks = {}
    for way, launch in launches.items():
        launch()
        checks[way] = ways[way].check()[0]
    calls = {**launches, "transposition": transposition_of_b.launch}
    calls |= {f"library, {way}": call for way in ("given", "transposed") if (call := _library_call(ways[way]))}
    samples = in_turns(list(calls.values()), l2=experiment.run.l2, timer=experiment.run.timer)
    times = {call: _timing(given, taken) for call, taken in zip(calls, samples.times_ms, strict=True)}
    rows = (
        LayoutRow(
            way=way,
            layout=(transposed if way == "transposed" else given).experiment.problem.layout,
            timing=times[way],
            transposition_ms=times["transposition"].median_ms if way == "transposed first" else None,
            baseline=times.get("library, transposed" if way == "transposed" else "library, given"),
            passed=checks[way].passed,
            relative_rms=checks[way].relative_rms,
        )
        for way in launches
    )
    return tuple(rows), samples.clock_mhz, samples.note


def ways_of_b(given: Prepared) -> tuple[Prepared, Prepared, Prepared]:
    """The product with B transposed from the start, the launch that transposes B, and the product that follows it."""
    experiment, given_b = given.experiment, given.inputs["B"]
    # By the letter: a matrix with a side of 1 is contiguous either way.
    is_transposed = experiment.problem.layout[1] == "T"
    stored = given_b.t() if is_transposed else given_b
    other_way = stored.t().contiguous()
    transposed = _with_b(given, with_transposed(experiment, "B"), other_way if is_transposed else other_way.t())
    transposition_of_b = prepare(transposition(experiment), given.gpu)
    transposition_of_b.inputs["A"] = stored
    made = transposition_of_b.output if is_transposed else transposition_of_b.output.t()
    return transposed, transposition_of_b, _with_b(given, transposed.experiment, made)


def _with_b(given: Prepared, experiment: Experiment, b: Any) -> Prepared:
    """The same launch with another B and an output of its own."""
    output = empty_output(given.kernel, given.output.shape, given.output.dtype, given.output.device)
    return dataclasses.replace(given, experiment=experiment, inputs={**given.inputs, "B": b}, output=output)


def _library_call(way: Prepared) -> Callable[[], None] | None:
    """The library's call on the same operands, into an output of its own; None where it has none."""
    call = way.kernel.family.baseline(way.inputs, way.output.clone(), way.experiment.problem)
    return None if isinstance(call, str) else call


def _timing(given: Prepared, taken_ms: Any) -> Timing:
    family, problem = given.kernel.family, given.experiment.problem
    return timing(taken_ms, family.work(problem), family.minimal_bytes(problem))
