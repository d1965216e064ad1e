"""Where a sweep is, and how long it takes: before it starts, and while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.results import SweepRow

# Seconds of one compile on one core, of a config's share of a trial, and of the race and the final: what a sweep is
# taken to need before it starts. The first was measured (matmul.grouped for an H200, triton 3.7.1, one x86 server
# core); the others are assumed.
COMPILE_S, TRIAL_S, FINAL_S = 1.9, 0.1, 6.0


@dataclass(frozen=True)
class Progress:
    """Where a sweep is.

    Attributes:
        phase: "explore", "race", "final" or "over".
        done: configs of which it is known what becomes of them.
        total: of the space.
        compiled: configs that were compiled in this sweep.
        seconds: since it began.
        remaining_s: that it takes still, at most; None before anything is known.
        best: the fastest row so far; None before any is timed.
    """

    phase: str
    done: int
    total: int
    compiled: int
    seconds: float
    remaining_s: float | None
    best: SweepRow | None


@dataclass(frozen=True)
class Update:
    """Rows that changed since the last update, and where the sweep is."""

    rows: tuple[SweepRow, ...]
    progress: Progress


def estimated_s(configs: int, compiles_at_once: int) -> float:
    """How long a sweep takes, roughly, before anything is known: compiling, or the trials where these take longer."""
    return max(configs * COMPILE_S / compiles_at_once, configs * TRIAL_S) + FINAL_S
