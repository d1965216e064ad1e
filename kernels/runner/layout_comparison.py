"""One product with B as given, stored the other way, and turned first: timed in turns. Torch; runs in the worker."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kernels.experiment import Experiment
from kernels.matmul.transposed_operands import transposition, with_transposed
from kernels.results import LayoutRow
from kernels.runner.prepared import Prepared, empty_output, prepare
from kernels.runner.timing import Samples, in_turns, timing

if TYPE_CHECKING:
    from kernels.gpus import Gpu


def compared(experiment: Experiment, gpu: Gpu) -> tuple[tuple[LayoutRow, ...], Samples]:
    """Check and time every way of storing B, beside the library's call on the same operands.

    Args:
        experiment: of a matmul kernel.

    Returns:
        One row a way, and the samples that their times are from.
    """
    given = prepare(experiment, gpu)
    given_b = given.inputs["B"]
    # By the letter: a matrix with a side of 1 is contiguous either way.
    is_turned = experiment.problem.layout[1] == "T"
    stored = given_b.t() if is_turned else given_b
    other_way = stored.t().contiguous()
    turned = _with_b(given, with_transposed(experiment, "B"), other_way if is_turned else other_way.t())
    turn = prepare(transposition(experiment), gpu)
    turn.inputs["A"] = stored
    after_turning = _with_b(given, turned.experiment, turn.output if is_turned else turn.output.t())

    def turn_and_multiply() -> None:
        turn.launch()
        after_turning.launch()

    launches = {"given": given.launch, "turned": turned.launch, "turned first": turn_and_multiply}
    ways = {"given": given, "turned": turned, "turned first": after_turning}
    checks = {}
    for name, launch in launches.items():
        launch()
        checks[name] = ways[name].check()[0]
    family, run = given.kernel.family, experiment.run
    library = {
        name: family.baseline(way.inputs, way.output.clone(), way.experiment.problem)
        for name, way in (("given", given), ("turned", turned))
    }
    calls = {**launches, "turning": turn.launch}
    calls |= {f"library, {name}": call for name, call in library.items() if not isinstance(call, str)}
    samples = in_turns(list(calls.values()), l2=run.l2, timer=run.timer)
    problem = experiment.problem
    work, minimal_bytes = family.work(problem), family.minimal_bytes(problem)
    times = {name: timing(taken, work, minimal_bytes) for name, taken in zip(calls, samples.times_ms, strict=True)}
    rows = (
        LayoutRow(
            way=name,
            layout=(turned if name == "turned" else given).experiment.problem.layout,
            timing=times[name],
            turning_ms=times["turning"].median_ms if name == "turned first" else None,
            baseline=times.get("library, turned" if name == "turned" else "library, given"),
            passed=checks[name].passed,
            relative_rms=checks[name].relative_rms,
        )
        for name in launches
    )
    return tuple(rows), samples


def _with_b(given: Prepared, experiment: Experiment, b: Any) -> Prepared:
    """The same launch with another B and an output of its own."""
    output = empty_output(given.kernel, given.output.shape, given.output.dtype, given.output.device)
    return dataclasses.replace(given, experiment=experiment, inputs={**given.inputs, "B": b}, output=output)
