"""Tilescope: what does my Triton kernel really do?

In a wheel, this package's folder holds the application: `app.py` with `kernels` and `visualize`. In a checkout, the
folder above holds them.
"""

from pathlib import Path

# The application's folder. It is on the path of Tilescope's own processes alone: a user may have other packages with
# the names `kernels` and `visualize`.
FOLDER = next(folder for folder in Path(__file__).resolve().parents if (folder / "app.py").exists())
