"""The strip that compares the experiment with a pinned one."""

from tilescope.numbers import Number
from visualize.views.compare import render_comparison


def strip(now, pinned):
    """Return the strip of two experiments that differ in M and have these numbers. Floats are milliseconds."""
    numbers = (
        [
            Number(name, value, "ms" if isinstance(value, float) else "", "predicted")
            for name, value in each.items()
        ]
        for each in (now, pinned)
    )
    return render_comparison({"M": 1}, {"M": 2}, *numbers)


def test_the_strips_are_the_approved_ones(approve):
    many = {f"knob{place}": place for place in range(7)}
    strips = {
        "none in common": strip({"time": 2.0, "unit": 5.0}, {"loads": 5, "unit": 5}),
        "all equal": strip({"time": 2.0, "zero": 0}, {"time": 2.0, "zero": 0}),
        "from zero": strip({"a": 5}, {"a": 0}),
        "at most three": strip(
            {"a": 5, "b": 5, "c": 5, "time": 1.0}, {"a": 10, "b": 10, "c": 10, "time": 2.0}
        ),
        "many knobs": render_comparison({}, many, [], []),
    }
    approve("compare", strips)
