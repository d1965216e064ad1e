"""The SASS of a compiled kernel, kept beside it in Triton's cache: nvdisasm takes half a second for the smallest."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

_KEPT = "listing.sass"


def sass_of(kernel: Any) -> str:
    """What nvdisasm prints of the code of Triton's compiled kernel, with lines of the source.

    Raises:
        subprocess.CalledProcessError: nvdisasm took the code for none.
    """
    import triton
    from triton.runtime.cache import get_cache_manager

    cache, cubin = get_cache_manager(kernel.hash), kernel.asm["cubin"]
    kept = cache.get_file(_KEPT)
    if kept and (sass := _read(kept, cubin)) is not None:
        return sass
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        sass = tool(triton.knobs.nvidia.nvdisasm.path, "--print-line-info", "--print-code", "--no-dataflow", file.name)
    with suppress(OSError):  # the next one who asks waits as long as this one
        cache.put(f"{_digest(cubin, sass)}\n{sass}", _KEPT, binary=False)
    return sass


def tool(path: str, *arguments: str) -> str:
    """What one of the CUDA tools in Triton's wheel prints."""
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def _read(path: str, cubin: bytes) -> str | None:
    """The kept SASS; None where it is cut off, or that of other code."""
    digest, _, sass = Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")
    return sass if digest == _digest(cubin, sass) else None


def _digest(cubin: bytes, sass: str) -> str:
    """What is equal where both are."""
    return hashlib.sha256(cubin + sass.encode()).hexdigest()
