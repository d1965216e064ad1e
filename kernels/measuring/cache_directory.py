"""Where compiled kernels are kept. Standard library only: asked before anything of Triton is imported."""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
from pathlib import Path


def default_cache_directory() -> Path:
    """Where compiled kernels are kept between starts: TILESCOPE_CACHE, else the user's cache directory.

    A user without a home, as in some containers, gets a directory for as long as this process lives.
    """
    if chosen := os.environ.get("TILESCOPE_CACHE"):
        return Path(chosen)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "tilescope"
    try:
        return Path.home() / ".cache" / "tilescope"
    except RuntimeError:
        return _temporary_directory()


@functools.cache
def _temporary_directory() -> Path:
    kept = tempfile.TemporaryDirectory(prefix="tilescope-", ignore_cleanup_errors=True)
    atexit.register(kept.cleanup)
    return Path(kept.name)
