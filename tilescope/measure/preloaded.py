"""Slow imports of the workers on a GPU's machine, for the fork server. Triton will not interpret kernels."""

import os

os.environ["TRITON_INTERPRET"] = "0"  # Triton's import reads it

from triton.runtime.cache import triton_key

from tilescope.record import capture_file, patches  # noqa: F401

triton_key()  # a cached hash of Triton's files
