"""The folder of the page and the kernels, and the environment in which another process finds this package."""

import os
from pathlib import Path

_HERE = Path(__file__).resolve().parent

# The folder that holds the packages `kernels` and `visualize`: a subfolder of this package in a wheel, and its parent
# folder in a checkout. Only Tilescope's own processes have it on their path: users may have packages with these names.
FOLDER = next(
    folder for folder in (_HERE / "page", _HERE.parent) if (folder / "visualize").is_dir()
)


def environment(*folders: Path) -> dict[str, str]:
    """Return this process's environment, with `folders` and this package's parent at the front of PYTHONPATH."""
    paths = [*map(str, folders), str(_HERE.parent), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
