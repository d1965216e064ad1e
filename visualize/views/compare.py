"""The bar for a pinned experiment: links to pin, swap and unpin, and a table of differences and ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from visualize.views import tables
from visualize.views.numbers import Number, significant
from visualize.views.prose import Link, Listed, Mark, Strong, hint, say

# A ratio closer to 1 than this is shown as "same".
_SAME = 0.0005


def pin_link(address: str) -> Markup:
    """Return the link that pins the current experiment."""
    tip = "Keep this experiment for comparison. Change a setting, and both are shown side by side."
    return Markup('<p class="pin"><a href="?{}" title="{}">Pin</a></p>').format(address, tip)


def pin_actions(swap: str, unpin: str, problem: str = "") -> Markup:
    """Return the links that swap and unpin.

    Args:
        swap, unpin: addresses.
        problem: why the pinned experiment cannot be drawn, or "".
    """
    alert = Markup('<p class="problem" role="alert">{}</p>').format(problem) if problem else ""
    return Markup('<p class="ways">{} {}</p>{}').format(Link("Swap", swap), Link("Unpin", unpin), alert)


def comparison(
    now: Mapping[str, Any],
    pinned: Mapping[str, Any],
    numbers: Sequence[Number],
    pinned_numbers: Sequence[Number],
    actions: Markup,
) -> Markup:
    """Return the table of differing knobs and of numbers with their ratio.

    Args:
        now, pinned: addresses of both experiments, as fields.
        numbers, pinned_numbers: the numbers known of each.
        actions: the result of `pin_actions`.
    """
    differing = [name for name in {**now, **pinned} if now.get(name) != pinned.get(name)]
    # The first number of a name counts.
    left, right = ({number.name: number for number in reversed(side)} for side in (numbers, pinned_numbers))
    names = list(dict.fromkeys(number.name for number in (*numbers, *pinned_numbers)))
    pairs = [(left.get(name), right.get(name)) for name in names]
    header: list[Any] = ["", *differing]
    for name, pair in zip(names, pairs, strict=True):
        sources = dict.fromkeys(number.source for number in pair if number)
        header.append(say("{} {}", name, Listed(tuple(map(Mark, sources)), " ")))
    rows = [
        [Strong("Now"), *(now.get(name, "–") for name in differing), *(number or "–" for number, _ in pairs)],
        [Strong("Pinned"), *(pinned.get(name, "–") for name in differing), *(number or "–" for _, number in pairs)],
        ["Now / pinned", *("" for _ in differing), *(ratio(*pair) for pair in pairs)],
    ]
    same = Markup() if differing else hint("Nothing differs yet: change a setting.")
    return Markup('<div class="compared">{}{}{}</div>').format(tables.table(tables.frame(header, rows)), same, actions)


def ratio(now: Number | None, pinned: Number | None) -> str:
    """Return `now` over `pinned`; the difference if `pinned` is 0; "" if either is unknown or the units differ.

    >>> ratio(Number("loads", 54, "", "predicted"), Number("loads", 90, "", "predicted"))
    '0.600 ×'
    """
    if now is None or pinned is None or now.unit != pinned.unit:
        return ""
    if pinned.value == 0:
        return "same" if now.value == 0 else f"+{now}"
    quotient = now.value / pinned.value
    return "same" if abs(quotient - 1) < _SAME else f"{significant(quotient)} ×"
