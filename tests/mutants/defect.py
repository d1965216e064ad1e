"""One planted defect, and several of one file."""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """One defect.

    Attributes:
        file: of the source tree, whose text holds `right` exactly once.
        tests: what pytest is given: files, and options that leave out slow tests in them.
    """

    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


def planted(folder: str, module: str, tests: str, *edits: tuple[str, str]) -> tuple[Planted, ...]:
    """Defects of one file that the same tests find."""
    return tuple(Planted(f"{folder}/{module}", right, wrong, tuple(tests.split())) for right, wrong in edits)
