"""What the page draws any step of a launch from, over `schedule_figure`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from visualize.figures.composite import Composite, composite
from visualize.figures.schedule_figure import Order
from visualize.predict.schedule import Panels, slice_blocks
from visualize.views import theme


def player_data(
    orders: Sequence[Order], read: Panels | None, color: str, step: int, first: int, bound: int
) -> dict[str, Any]:
    """Every tile of each order (slice, pid_m, pid_n as one number), step after step, and how they lie in the picture.

    All tiles are there, so that a cell that stands for several is right in every step.

    Args:
        read: the panels of the inputs; None if each input is read once.
        step: the step to show first, from 1; 0 for the whole launch.
        first: programs that are marked in the picture; 0 for none.
        bound: the step at which playing stops, and then can go on; 0 for the last one.
    """
    launch = orders[0].schedule
    if launch.panels is None:
        orders = orders[:1]
    return {
        "step": step,
        "first": first,
        "bound": bound,
        "color": color,
        "orders": [_order(order) for order in orders],
        "extents": list(launch.extents),
        "panels": list(launch.panels) if launch.panels else None,
        "tensors": list(launch.transposed),
        "output": list(launch.transposed)[-1],
        "transposed": list(launch.transposed.values()),
        "slices": launch.slices,
        "depths": slice_blocks(launch).tolist() if launch.panels else [],
        "piece_bytes": [read.row_bytes, read.column_bytes] if read else [],
        "sms": launch.sms,
        "slots": orders[0].steps.slots,
        "name": orders[0].steps.name,
        "unit": "program" if launch.turns == 1 else "tile",
        "resident": launch.resident_programs,
        "place": _place(composite(launch)),
    }


def _order(order: Order) -> dict[str, Any]:
    """One order; what goes without saying is left out: tiles in their own order, and one tile for each step."""
    launch, parts = order.schedule, order.steps
    timed = parts.timed
    count = len(timed.place)
    told: dict[str, Any] = {"title": order.name, "count": len(parts.tiles), "groups": _runs(timed.tiles.group)}
    if not np.array_equal(timed.place, np.arange(count)):
        told["places"] = theme.smallest(timed.place)
    if len(parts.tiles) != count:
        told["tiles"] = theme.smallest(parts.tiles)
    if launch.turns > 1:
        told["programs"] = theme.smallest(launch.tiles.program[parts.entries])
    return told


def _runs(values: np.ndarray) -> dict[str, np.ndarray]:
    """Where each run of equal values begins, and its value."""
    begin = np.concatenate([[0], 1 + np.flatnonzero(values[1:] != values[:-1])])
    return {"from": theme.smallest(begin), "value": theme.smallest(values[begin])}


def _place(place: Composite) -> dict[str, Any]:
    sides = {"down": place.down, "across": place.across}
    shared = {"slice_of": place.slice_of.tolist(), "blocks": place.blocks, "stride": place.down.stride}
    return {
        **shared,
        **{name: {"repeat": side.repeat, "gap": side.gap, "cells": side.cells} for name, side in sides.items()},
    }
