"""Guided tours of the kernels. A new one needs a TOML file and no code."""

import functools

from tilescope.declare.discovery import package_folder
from visualize.tours.tour import Tour, read

__all__ = ["DIRECTORY", "tours"]

DIRECTORY = package_folder() / "tours"


@functools.cache
def tours() -> dict[str, Tour]:
    """Return all tours by name, sorted by `order`.

    Raises:
        BadTour: a file is not a valid tour.
    """
    parsed = [
        read(path.read_text(encoding="utf-8"), path.stem)
        for path in sorted(DIRECTORY.glob("*.toml"))
    ]
    return {tour.name: tour for tour in sorted(parsed, key=lambda tour: (tour.order, tour.name))}
