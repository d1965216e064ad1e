"""What the timeline says: how a launch really ran, beside its ideal waves."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import numpy as np
from pandas import DataFrame

from kernels.experiment import Experiment
from kernels.results import Timeline
from kernels.spec import shape_text
from visualize.predict.execution import Execution
from visualize.predict.schedule import Schedule, steps
from visualize.views.numbers import milliseconds, percent
from visualize.views.prose import Link, Listed, Mark, Sentence, Sourced, Strong, say
from visualize.views.tables import frame

CAPTION = "The run beside its ideal waves"

# Waves whose spread is listed one by one.
_LISTED = 4


def hint(gpu: str, known: Sequence[Experiment]) -> Sentence:
    """That there is no timeline, and what has one.

    Args:
        known: experiments with a recorded timeline on this GPU.
    """
    if not known:
        return say("No timeline was recorded on {}. To record one takes a GPU.", gpu)
    links = Listed(tuple(_link(experiment, gpu) for experiment in known), "; ")
    return say("No timeline of this experiment was recorded on {}. Recorded: {}.", gpu, links)


def _link(experiment: Experiment, gpu: str) -> Link:
    problem, config = experiment.problem, experiment.config
    more = f", GROUP_SIZE {config.GROUP_SIZE}" if hasattr(config, "GROUP_SIZE") else ""
    address = {**experiment.to_address(), "gpu": gpu, "tab": "schedule"}
    return Link(f"{experiment.kernel} {shape_text(problem)}{more}", urlencode(address))


def source(ran: Timeline) -> str:
    return "recorded" if ran.backend == "recorded" else "measured"


def claim(ran: Timeline, execution: Execution, schedule: Schedule) -> tuple[Sentence | str, ...]:
    """How long the launch took, what the instrumentation costs, and what is assumed."""
    return (
        say(
            "On {}, {} ran on {} SMs within {}, first start to last end.",
            ran.device.name,
            Strong(f"{len(execution.sm):,} programs"),
            len(np.unique(execution.sm)),
            Sourced(Strong(_time(execution.span_ns)), source(ran)),
        ),
        say("CUDA events around that launch: {} (L2 {}).", milliseconds(ran.kernel_ms), ran.experiment.run.l2),
        *_overhead(ran),
        _loop(schedule),
        "" if ran.passed else say("{}", Strong("The instrumented build's result failed the kernel's check.")),
        ran.note,
    )


def _overhead(ran: Timeline) -> tuple[Sentence, ...]:
    """The price of writing the times down."""
    cost = f"{100 * (ran.instrumented.median_ms / ran.plain.median_ms - 1):+.1f} %".replace("-", "−")
    registers, more = ran.registers
    return (
        say(
            "Instrumentation overhead: {} ({} against {}, timed in turns; {} against {} registers per thread).",
            Strong(cost),
            milliseconds(ran.instrumented.median_ms),
            milliseconds(ran.plain.median_ms),
            more,
            registers,
        ),
        say("The timer ticks every {}.", Strong(f"{ran.tick_ns} ns")),
    )


def _loop(schedule: Schedule) -> Sentence | str:
    if schedule.turns == 1:
        return ""
    return say(
        "Each program loops over up to {} tiles, but only its own start and end are recorded. That the map spreads its "
        "tiles evenly over its time is {}.",
        schedule.turns,
        Mark("assumed"),
    )


def rows(ran: Timeline, execution: Execution, schedule: Schedule) -> DataFrame:
    """What ran beside the ideal waves."""
    ideal = steps(schedule)
    header = ("", Sourced("as it ran", source(ran)), Sourced("ideal waves", "predicted"))
    ideal_idle = percent(ideal.tail_idle if schedule.turns == 1 else ideal.idle)
    return frame(
        header,
        (
            ("most programs on one SM at once", str(execution.max_concurrency.max()), _held(schedule)),
            ("median time of a program", _time(execution.median_ns), ""),
            ("spread of starts within a wave", _spread(execution, schedule), "0"),
            (f"programs on SM pid mod {execution.sms}", percent(execution.round_robin_share(schedule)), "100 %"),
            ("share of SM time without a program", percent(1 - execution.busy), ""),
            ("idle program slots after the last start", percent(execution.tail_idle(ideal.slots)), ideal_idle),
        ),
    )


def _spread(execution: Execution, schedule: Schedule) -> str:
    """How far apart the programs of each ideal wave really started."""
    spread = execution.start_spread_ns(np.arange(schedule.programs) // schedule.resident_programs)
    listed = ", ".join(_time(int(ns)) for ns in spread[:_LISTED]) + (", …" if len(spread) > _LISTED else "")
    if len(spread) == 1:
        return listed
    return f"{listed}; at most {percent(int(spread.max()) / max(execution.median_ns, 1))} of a program's time"


def _held(schedule: Schedule) -> Sourced:
    """Most programs of this launch on one ideal SM, and how many it has room for where that is more."""
    most = min(schedule.programs_per_sm, -(-schedule.programs // schedule.sms))
    room = f", with room for {schedule.programs_per_sm}" if most < schedule.programs_per_sm else ""
    return Sourced(f"{most}{room}", schedule.resident_source)


def _time(ns: float) -> str:
    return milliseconds(ns / 1e6)
