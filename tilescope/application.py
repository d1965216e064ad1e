"""Where the application is, and how a user's process imports a file of it.

In a wheel, this package's folder holds the application: `app.py` with `kernels` and `visualize`. In a checkout, the
folder above holds them.
"""

import functools
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

# The application's folder. Only Tilescope's own processes have it on their path, because users may have other packages
# named `kernels` and `visualize`.
FOLDER = next(folder for folder in Path(__file__).resolve().parents if (folder / "app.py").exists())


@functools.cache
def load(name: str, file: str) -> Any:
    """Import a file of the application under a private name."""
    spec = spec_from_file_location(f"_tilescope_{name}", FOLDER / file)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
