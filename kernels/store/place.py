"""Where this machine's store is: TILESCOPE_DB, or beside what is compiled."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.store.store import Store

OFF = "off"


def machine_store(cache: Path) -> Store:
    """This machine's store: the file that TILESCOPE_DB names, or tilescope.db in `cache`; none where it says "off"."""
    named = os.environ.get("TILESCOPE_DB", "").strip()
    if named.lower() == OFF:
        return Store(None)
    return Store(Path(named).expanduser() if named else cache / "tilescope.db")
