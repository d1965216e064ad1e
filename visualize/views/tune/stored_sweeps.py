"""The sweeps that this machine's store has, as the History tab and /history list them."""

from __future__ import annotations

from typing import Any

from kernels.experiment import Experiment
from kernels.knobs import ConfigError
from kernels.results.store import Store, StoredSweep
from kernels.space import Space, space_from_json
from visualize.views.address import query
from visualize.views.library.view import payload
from visualize.views.state import short_experiment
from visualize.views.tune.text import varied_text


def lines(store: Store, limit: int) -> list[tuple[StoredSweep, Space | None, str]]:
    """Return the latest sweeps, their spaces and links. Only the last one of a space has a link: the page shows it."""
    found, shown = [], set()
    for one in store.sweeps(limit):
        space, of = _space(one), (one.space, one.gpu)
        link = "" if space is None or of in shown else query(address(space))
        shown.add(of)
        found.append((one, space, link))
    return found


def replies(store: Store, kernel: str, chosen: Experiment | None, limit: int) -> list[dict[str, Any]]:
    """The latest sweeps as JSON.

    Args:
        kernel: "" for all.
        chosen: only sweeps of its problem; None for all.
    """
    found = [(one, space) for one in store.sweeps(limit, chosen.kernel if chosen else kernel) if (space := _space(one))]
    return [_reply(one, space) for one, space in found if chosen is None or space.base.problem == chosen.problem]


def _reply(one: StoredSweep, space: Space) -> dict[str, Any]:
    return {
        "experiment": payload(space.base),
        "vary": {name: list(values) for name, values in space.varied},
        **{name: getattr(one, name) for name in ("gpu", "triton", "done", "total", "best_ms")},
        "ended": one.ended,
        "began": one.began.isoformat(),
        "address": query(address(space)),
    }


def address(space: Space) -> dict[str, Any]:
    """The state of the page that shows the last sweep of a space."""
    return {**short_experiment(space.base), "tab": "sweep", "sweep_vary": varied_text(space)}


def _space(one: StoredSweep) -> Space | None:
    """What it searches; None where this version has no such kernel, or allows no such value."""
    try:
        return space_from_json(one.details.get("space"))
    except ConfigError:
        return None
