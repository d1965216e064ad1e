"""Bytes at each stage on their way, as bars. HTML."""

from __future__ import annotations

from collections.abc import Sequence

from visualize.text import words

Stage = tuple[str, int, str]


def funnel(stages: Sequence[Stage], label: str) -> str:
    """Bars of bytes.

    Args:
        stages: what, how many bytes, and where the number is from (a mark).
        label: what a screen reader says it is.
    """
    most = max((value for _, value, _ in stages), default=0) or 1
    rows = "".join(
        f'<li><span class="stage">{name} {words.mark(source)}</span>'
        f'<span class="bar" style="width:{22 * value / most:.2f}%"></span><span>{value:,} bytes</span></li>'
        for name, value, source in stages
    )
    return f'<ul class="funnel" aria-label="{label}">{rows}</ul>'
