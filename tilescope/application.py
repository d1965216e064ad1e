"""Where the page and the kernels are, and how another process finds this package."""

import os
from pathlib import Path

_HERE = Path(__file__).resolve().parent

# The folder of the packages `kernels` and `visualize`: in a wheel, one of this package; in a checkout, that of this
# package. Only Tilescope's own processes have it on their path, because users may have packages with these names.
FOLDER = next(
    folder for folder in (_HERE / "page", _HERE.parent) if (folder / "visualize").is_dir()
)


def environment(*folders: Path) -> dict[str, str]:
    """Return this process's environment, with other folders and that of this package at the front of PYTHONPATH."""
    paths = [*map(str, folders), str(_HERE.parent), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
