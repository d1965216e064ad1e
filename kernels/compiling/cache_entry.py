"""Entries of Triton's cache that can't be used: cut off, by a full disk or a machine that went down, or not written.

Triton takes what its cache holds as it is, so one bad file would fail its kernel for as long as it lies there.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernels.results import Failure

# What reading a bad entry raises: JSON that ends too early, text that is none, a file or a field that is missing.
UNREADABLE = (ValueError, KeyError, OSError)

# ELF64's header: the offset of its table of sections, the size of an entry, and how many there are.
_SECTIONS_AT, _ENTRY_AT = 0x28, 0x3A


class CutOff(ValueError):
    """A compiled kernel that is not all there."""


def assert_whole(asm: Mapping[str, Any]) -> None:
    """Raise CutOff where a part of a compiled kernel, as Triton holds it, plainly has no end."""
    if not _is_whole_elf(asm["cubin"]):
        raise CutOff(f"The compiled kernel of {len(asm['cubin']):,} bytes is not whole.")
    for kind in ("ttgir", "ptx"):
        text = asm[kind]
        if "{" not in text or text.count("{") != text.count("}"):
            raise CutOff(f"The {kind} of {len(text):,} characters is not whole.")


def _is_whole_elf(cubin: bytes) -> bool:
    """Whether an ELF file is as long as its header says: the table of sections is its last part."""
    try:
        (table,) = struct.unpack_from("<Q", cubin, _SECTIONS_AT)
        size, count = struct.unpack_from("<HH", cubin, _ENTRY_AT)
    except struct.error:
        return False
    return cubin.startswith(b"\x7fELF") and 0 < table <= len(cubin) - size * count


@contextmanager
def compiled_anew(jitted: Any) -> Iterator[None]:
    """What is compiled of a kernel meanwhile takes nothing from the cache, and replaces what is there."""
    from triton import knobs

    jitted.device_caches.clear()  # what was read of the bad entry
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        yield


def disk_full(error: Exception, cache: str) -> Failure | None:
    """That the cache's disk is full, where that is why a compile failed; None for another reason."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return Failure(
        "compile",
        "disk_full",
        f"The disk of {Path(cache).name} is full ({error.strerror}), so the compiled kernel can't be kept. "
        "Free some space, or name another place by TILESCOPE_CACHE.",
    )
