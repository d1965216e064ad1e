"""Compare the experiment with a pinned one: values side by side in each slot, and a strip of differences and ratios.

A panel draws the pinned experiment as it draws any other. Two values of one slot become one value that shows both: two
figures in one plot, or two columns of text. A form or a list shows only the current experiment.
"""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from tilescope.declare.experiment import Json
from tilescope.declare.knobs import ConfigError
from tilescope.numbers import Number, key_numbers, significant, wrong_elements
from tilescope.results import RunResult
from visualize.views.panel import Panel, Slots, merge
from visualize.views.prose import Link, Mark, Sentence, Strong, join, say, table
from visualize.views.result.view import draw_run
from visualize.views.slots import NONE
from visualize.views.state import PINNED, Snapshot, State, pin_text

# A ratio closer to 1 than this is shown as "same".
_SAME = 0.0005

# Differing knobs that the strip names, and numbers besides the time.
_MAX_KNOBS = 4
_MAX_NUMBERS = 2


def pair_slots(slots: Slots, pinned: Slots) -> Slots:
    """Return a view's slots, each with the pinned experiment's value beside it if it has one."""
    columns = Markup(
        '<div class="beside"><div class="own">{}</div><div class="pinned">{}</div></div>'
    )
    paired = dict(slots)
    for name, value in slots.items():
        other = pinned.get(name)
        if name.endswith("-plot") and other not in (None, "", NONE):
            paired[name] = f"{value} {other}"
        elif isinstance(value, Markup) and isinstance(other, Markup):
            paired[name] = columns.format(value, other)
    return paired


def pair_run(slots: Slots, pinned: Snapshot | None) -> Slots:
    """Return a run's slots, each with the pinned experiment's run beside it if there is one."""
    if "result" not in slots or pinned is None or pinned.result(RunResult) is None:
        return slots
    return pair_slots(slots, draw_run(pinned))


def add_comparison(
    slots: Slots, snapshot: Snapshot, pinned: Snapshot | None, panels: Sequence[Panel]
) -> Slots:
    """Return a view's slots with the pinned experiment's beside them, and the slot "compare".

    That slot offers to pin the experiment, or compares it with the pinned one.

    Args:
        pinned: the pinned experiment's snapshot; None if nothing is pinned.
        panels: the panels of the open view.
    """
    state = snapshot.state
    if pinned is None:
        address = state.link(**{PINNED: pin_text(state.experiment)})
        tip = "Pin this experiment, then change a setting to see both side by side."
        return {
            **slots,
            "compare": Markup(
                '<p class="pin"><a href="?{}" class="control" title="{}">Pin</a></p>'
            ).format(address, tip),
        }
    try:
        slots = pair_slots(
            slots,
            merge(panel.draw_pinned(pinned, snapshot) for panel in panels if panel.is_compared),
        )
        slots = pair_run(slots, pinned)
        fields, pinned_fields = (
            {**s.experiment.to_address(), "gpu": s.gpu.name} for s in (state, pinned.state)
        )
        strip = render_comparison(
            fields, pinned_fields, view_numbers(snapshot, panels), view_numbers(pinned, panels)
        )
    except ConfigError as error:
        strip = Markup('<p class="problem" role="alert">{}</p>').format(error)
    swapped = State(pinned.state.experiment, state.view, pinned.state.gpu, state.experiment)
    links = Link("Swap", swapped.link()), Link("Unpin", state.link(**{PINNED: ""}))
    strip += Markup('<p class="ways">{} {}</p>').format(*links)
    return {**slots, "compare": Markup('<div class="compared">{}</div>').format(strip)}


def view_numbers(snapshot: Snapshot, panels: Sequence[Panel]) -> list[Number]:
    """Return the numbers of a view's panels, and the check and the time of a run if it is known.

    Raises:
        ConfigError: a panel cannot be drawn.
    """
    numbers = [number for panel in panels for number in panel.summary(snapshot)]
    run = snapshot.result(RunResult)
    if run is None:
        return numbers
    # The interpreter measures no time, but its result may hold a recorded run.
    timed = run.recorded or run
    return list(dict.fromkeys((*numbers, wrong_elements(timed), *key_numbers(timed))))


def render_comparison(
    now: Json,
    pinned: Json,
    numbers: Sequence[Number],
    pinned_numbers: Sequence[Number],
) -> Markup:
    """Return a line with the differing knobs and two or three numbers, and a folded table of all numbers.

    Args:
        now, pinned: the fields of both experiments.
        numbers, pinned_numbers: the known numbers of each. The first number of a name counts.
    """
    names = {name: None for name in (*pinned, *now) if now.get(name) != pinned.get(name)}
    if not names:
        return Markup("<p>Pinned. Nothing differs yet: change a setting.</p>")
    rows: list[tuple[Any, ...]] = [
        (name, now.get(name, "–"), pinned.get(name, "–"), "") for name in names
    ]
    knobs = [_change(*row[:3]) for row in rows[:_MAX_KNOBS]]
    if len(rows) > _MAX_KNOBS:
        knobs.append(say("{} more", len(rows) - _MAX_KNOBS))
    changes, number_rows = _compare_numbers(numbers, pinned_numbers)
    unknown = "No number of this view is known for both experiments yet."
    equal = "In this view, all numbers known for both are equal."
    unchanged = equal if any(quotient for *_, quotient in number_rows) else unknown
    line = Markup('<p>Pinned → now: {}. <span class="numbers quiet">{}</span></p>').format(
        join(knobs), join(changes, " · ") if changes else unchanged
    )
    if not number_rows:
        return line
    folded = Markup("<details><summary>All numbers</summary>{}</details>")
    return line + folded.format(table(("", "Now", "Pinned", "Now / pinned"), rows + number_rows))


def _compare_numbers(
    numbers: Sequence[Number], pinned: Sequence[Number]
) -> tuple[list[Sentence], list[tuple[Any, ...]]]:
    """Return the two or three changes of the strip, and a row of the table for each number."""
    left, right = ({number.name: number for number in reversed(side)} for side in (numbers, pinned))
    changes: list[Sentence] = []
    rows: list[tuple[Any, ...]] = []
    for name in dict.fromkeys(number.name for number in (*numbers, *pinned)):
        pair = left.get(name), right.get(name)
        quotient = ratio(*pair)
        sources = dict.fromkeys(number.source for number in pair if number)
        label = say("{} {}", name, join(map(Mark, sources), " "))
        rows.append((label, *(number or "–" for number in pair), quotient))
        if quotient not in ("", "same") and (len(changes) < _MAX_NUMBERS or name == "time"):
            changes.append(say("{} ({})", _change(name, *pair), quotient))
    return changes, rows


def _change(name: str, now: object, pinned: object) -> Sentence:
    return say("{} {} → {}", name, pinned, Strong(now))


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
