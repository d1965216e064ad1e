"""Guided tours: one TOML file each, read and checked when the page starts; adding one needs no code."""

from __future__ import annotations

import functools
from pathlib import Path

from visualize.tours.tour import Tour, read

__all__ = ["DIRECTORY", "tours"]

DIRECTORY = Path(__file__).parent


@functools.cache
def tours() -> dict[str, Tour]:
    """All tours by name, in the order of their files' `order`.

    Raises:
        BadTour: where a file holds none, with the place and what is wrong.
    """
    found = [read(path.read_text(encoding="utf-8"), path.stem) for path in sorted(DIRECTORY.glob("*.toml"))]
    return {tour.name: tour for tour in sorted(found, key=lambda tour: (tour.order, tour.name))}
