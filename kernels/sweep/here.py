"""A sweep on this machine, put together from a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernels.experiment import Experiment, resolve_gpu
from kernels.measuring.session import Session
from kernels.results import Strategy
from kernels.space import Space
from kernels.sweep.builder import LocalBuilder
from kernels.sweep.device import Predict, Refuse, no_prediction, nothing_refused
from kernels.sweep.kept_sweep import Before, kept_and_keeper
from kernels.sweep.local_device import LocalDevice
from kernels.sweep.sweeping import Sweeping


def sweeping_here(
    session: Session,
    space: Space,
    strategy: Strategy,
    predict: Predict = no_prediction,
    refuse: Refuse = nothing_refused,
    before: Before | None = None,
    experiments: Sequence[Experiment] | None = None,
) -> Sweeping:
    """A sweep on the session's GPU; without one, checks in the interpreter, and predictions. Stored as it goes on.

    Args: as of Sweeping, and:
        before: what it goes on from; None for what is stored.
        experiments: in place of those of the space, where this is no product: such a sweep is not stored.

    Raises:
        ConfigError: where the space's GPU does not know its dtype, or is this machine's, which has none.
    """
    gpu = resolve_gpu(space.base, session.gpu)
    device = LocalDevice(session, space.base, gpu)
    builder = LocalBuilder(gpu, predict, Path(session.cache))
    if experiments is not None:
        return Sweeping(space, strategy, [device], builder, predict, refuse, experiments=experiments)
    done, keeper = kept_and_keeper(session.store, space, gpu, before)
    return Sweeping(space, strategy, [device], builder, predict, refuse, done, keeper=keeper)
