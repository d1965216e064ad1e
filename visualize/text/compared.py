"""What is said where an Experiment is pinned: what differs, and both sides' numbers with their ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from visualize.views import tables
from visualize.views.numbers import Number, mark, significant
from visualize.views.prose import Link, Strong

# A ratio that is nearer to 1 than this is called "same".
_SAME = 0.0005


def pin_link(address: str) -> Markup:
    """The way to pin what is set.

    Args:
        address: the query of the page with it pinned.
    """
    return Markup('<p class="pin"><a href="?{}" title="{}">Pin</a></p>').format(
        address, "Keep this to compare with: change anything, and both stand side by side."
    )


def ways(swap: str, unpin: str, problem: str = "") -> Markup:
    """What can be done with what is pinned.

    Args:
        swap, unpin: address queries.
        problem: why what is pinned can't be drawn; "" where it can.
    """
    said = Markup('<p class="problem" role="alert">{}</p>').format(problem) if problem else Markup()
    return Markup('<p class="ways">{} {}</p>{}').format(Link("Swap", swap), Link("Unpin", unpin), said)


def table(
    now: Mapping[str, Any],
    then: Mapping[str, Any],
    numbers: Sequence[Number],
    pinned: Sequence[Number],
    ways: Markup,
) -> Markup:
    """What differs between what is set and what is pinned.

    Args:
        now, then: the fields of both Experiments.
        numbers, pinned: those of both, as far as they are known.
    """
    knobs = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    pairs = _pairs(numbers, pinned)
    header = ["", *knobs, *(_heading(*pair) for pair in pairs)]
    rows = [
        [Strong("Now"), *(now.get(name, "–") for name in knobs), *(one or "–" for _, one, _ in pairs)],
        [Strong("Pinned"), *(then.get(name, "–") for name in knobs), *(other or "–" for _, _, other in pairs)],
        ["Now / pinned", *("" for _ in knobs), *(ratio(one, other) for _, one, other in pairs)],
    ]
    same = Markup() if knobs else Markup('<p class="hint">Nothing differs yet: change a control.</p>')
    return Markup('<div class="compared">{}{}{}</div>').format(tables.table(tables.frame(header, rows)), same, ways)


def _heading(name: str, one: Number | None, other: Number | None) -> Any:
    """What is compared, and where both numbers are from."""
    sources = dict.fromkeys(number.source for number in (one, other) if number)
    return Markup("{} {}").format(name, Markup(" ").join(mark(source) for source in sources))


def _pairs(numbers: Sequence[Number], pinned: Sequence[Number]) -> list[tuple[str, Number | None, Number | None]]:
    """Numbers of one name side by side, in the order in which they come."""
    ours, theirs = ({one.name: one for one in reversed(of)} for of in (numbers, pinned))
    names = dict.fromkeys(one.name for one in (*numbers, *pinned))
    return [(name, ours.get(name), theirs.get(name)) for name in names]


def ratio(one: Number | None, other: Number | None) -> str:
    """How many times the pinned number it is; the difference where that is 0; "" where one is not known.

    >>> ratio(Number("loads", 54, "", "predicted"), Number("loads", 90, "", "predicted"))
    '0.600 ×'
    """
    if one is None or other is None or one.unit != other.unit:
        return ""
    if other.value == 0:
        return "same" if one.value == 0 else f"+{one}"
    share = one.value / other.value
    return "same" if abs(share - 1) < _SAME else f"{significant(share)} ×"
