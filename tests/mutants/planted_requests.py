"""Defects of what is taken from outside: requests, forms, flags."""

from __future__ import annotations

from tests.mutants.defect import planted

REQUESTS = (
    *planted(
        "visualize/command",
        "listening.py",
        "tests/panels/test_listening.py",
        ("0 < int(text) <= MOST", "0 <= int(text) <= MOST"),
        ("text.isascii() and text.isdigit()", "text.isdigit()"),
    ),
    *planted(
        "visualize/widgets",
        "settings.py",
        "tests/panels/test_hostile_values.py",
        ("except (ValueError, RecursionError):", "except ValueError:"),
        ("if not isinstance(flat, dict)", "if flat is None"),
        ("len(value) <= _LONGEST", "len(value) <= _LONGEST or value"),
    ),
    *planted(
        "visualize/state",
        "presets.py",
        "tests/panels/test_hostile_values.py",
        ("not 0 <= number < len(offered)", "number >= len(offered)"),
    ),
    *planted(
        "visualize/page",
        "first_reply.py",
        "tests/panels/test_first_reply.py",
        ('all(name.startswith("__") for name in names)', "True"),
        ("lambda tag: tag[0] + self._picture", "self._picture"),
        ('if pair[0].lower() != b"content-length"', "if pair"),
    ),
    *planted(
        "visualize/figures",
        "still.py",
        "tests/figures/test_still.py",
        ('down = _SIDE - _along(trace["y"]', 'down = _along(trace["y"]'),
        ("~np.ma.getmaskarray(grid)", "grid.data > -1"),
        ('begin, end = axis.get("domain", (0, 1))', "begin, end = 0, 1"),
    ),
)
