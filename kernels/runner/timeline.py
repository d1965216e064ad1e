"""Which launches a timeline can be recorded of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels import discover
from kernels.experiment import Experiment
from kernels.knobs import ConfigError
from kernels.spec import Launch

if TYPE_CHECKING:
    from kernels.gpus import Gpu

MOST_PROGRAMS = 65_536


def refuse_too_many(experiment: Experiment, gpu: Gpu) -> None:
    """Refuse a launch of more than MOST_PROGRAMS programs.

    Raises:
        ConfigError: with how many it has.
    """
    launch = Launch(experiment.problem, experiment.config, gpu)
    programs = discover()[experiment.kernel].programs(launch)
    if programs > MOST_PROGRAMS:
        raise ConfigError(
            "too_many_programs",
            f"This launch has {programs:,} programs; a timeline holds at most {MOST_PROGRAMS:,}. "
            "Choose larger tiles or a smaller shape.",
        )
