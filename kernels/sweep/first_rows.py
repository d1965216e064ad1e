"""A sweep's rows before anything is compiled: set aside, done before, or not tried, with an estimate."""

from __future__ import annotations

from collections.abc import Sequence

from kernels import discover
from kernels.experiment import Experiment
from kernels.results import SweepRow
from kernels.space import Space
from kernels.spec import Launch
from kernels.sweep.device import Predict, Refuse, TrialDevice


def first_rows(
    experiments: Sequence[Experiment],
    space: Space,
    device: TrialDevice,
    predict: Predict,
    refuse: Refuse,
    done: Sequence[SweepRow],
) -> list[SweepRow]:
    """A row for each config; those of `done` that count here are the same objects."""
    kernel, gpu = discover()[space.base.kernel], device.gpu
    known = {row.experiment: row for row in done if row.device == gpu.name and row.is_done}
    if device.times:  # what was only predicted so far is tried now
        known = {one: row for one, row in known.items() if row.status not in ("checked", "predicted")}
    refused = space.refused(kernel)
    rows = []
    for experiment in experiments:
        launch = Launch(experiment.problem, experiment.config, gpu)
        reason = refused.get(experiment) or refuse(kernel, launch)
        if experiment in known:
            rows.append(known[experiment])
        elif reason:
            rows.append(SweepRow(experiment, "set aside", reason, gpu.name))
        else:
            rows.append(SweepRow(experiment, "not tried", device=gpu.name, predicted=predict(kernel, launch, None)))
    return rows
