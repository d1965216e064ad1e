"""The picture of a sweep, as the value of a live plot: the figure, each point's words, and where a click leads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels.results import Sweep, SweepRow
from visualize.views.plot import NONE, drawn
from visualize.views.tune import text as sweep_text
from visualize.views.tune.figures import bound_figure, convergence_figure, heatmap_figure, parallel_figure


def picture(found: Sweep, which: str, axes: tuple[str, str], address: Callable[[SweepRow], str]) -> str:
    """The value of the plot; NONE where there is nothing to show yet, or no times that the picture is of.

    Args:
        which: one of `sweep_options.PICTURES`; that of several sizes is `sweep_sizes`'.
        axes: the heatmap's knobs, across and up.
        address: the query that sets a row's config.
    """
    if not found.ranked or which == "library" or (which in ("bound", "convergence") and not found.is_timed):
        return NONE
    if which == "heatmap":
        figure = heatmap_figure(found, *axes)
    else:
        make = {"bound": bound_figure, "convergence": convergence_figure, "parallel": parallel_figure}[which]
        figure = make(found)
    meta = {
        "words": np.array([sweep_text.point_label(row, found) for row in found.rows]),
        "addresses": np.array([address(row) for row in found.rows]),
    }
    anew = f"{which} {axes if which == 'heatmap' else ''} {found.space.identity}"
    return drawn(figure, anew, meta, about=sweep_text.sweep_caption(found))
