"""Where this machine's store is: TILESCOPE_DB, or beside what is compiled."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kernels.store.store import Store

OFF = "off"


def machine_store(cache: Path) -> Store:
    """This machine's store: the file that TILESCOPE_DB names, or tilescope.db in `cache`; none where it says "off"."""
    named = os.environ.get("TILESCOPE_DB", "").strip()
    if named.lower() == OFF:
        return Store(None)
    if not named:
        return Store(cache / "tilescope.db")
    path = Path(named)
    with suppress(RuntimeError):  # a user without a home, to whom "~" is a name like others
        path = path.expanduser()
    return Store(path)
