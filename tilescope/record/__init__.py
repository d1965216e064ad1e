"""Record every Triton launch of an unmodified script, with or without a GPU, and write a capture.

    python tilescope/record --out FILE [--values] [--config KERNEL=N] [--set NAME=VALUE,...] SCRIPT[:CASE] [ARGUMENTS]
    python tilescope/record --out FILE [...] -m MODULE[:CASE] [ARGUMENTS]
    python tilescope/record --serve FD

SCRIPT is a Python file or a notebook (.ipynb).

This folder needs only torch, Triton and NumPy, so it can be copied to any machine. Its modules import each other
relatively, because `__main__.py` loads them under a private name. Without a GPU nothing is launched: tensors live in
host memory but report a CUDA device, kernels are compiled but do not run, and recording stops where the script reads a
result. `--values` runs the launches in Triton's interpreter instead. `captures/content.py` describes the file format.
"""

import os
from typing import Any
from unittest import mock

# Triton defines its library of device functions when it is imported
with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "0"}):
    import torch  # noqa: F401  # before Triton, as in scripts
    import triton

VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
if VERSION < (3, 6):
    raise ImportError(f"Triton is {triton.__version__}, and Tilescope needs 3.6 or later")

# JSON, arguments or options, by name.
Values = dict[str, Any]
