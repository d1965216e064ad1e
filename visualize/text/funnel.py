"""Bytes at each stage on their way, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from visualize.views.prose import Sourced

# The widest bar, in percent of the row: a name and a number stand beside it.
_WIDEST = 22

Stage = tuple[Any, int, str]


def funnel(stages: Sequence[Stage], label: str) -> Markup:
    """Bars of bytes.

    Args:
        stages: what, how many bytes, and where the number is from (a mark).
        label: what a screen reader says it is.
    """
    most = max((value for _, value, _ in stages), default=0) or 1
    rows = Markup("").join(
        Markup(
            '<li><span class="stage">{}</span><span class="bar" style="width:{:.2f}%"></span>'
            "<span>{:,} bytes</span></li>"
        ).format(Sourced(name, source), _WIDEST * value / most, value)
        for name, value, source in stages
    )
    return Markup('<ul class="funnel" aria-label="{}">{}</ul>').format(label, rows)
