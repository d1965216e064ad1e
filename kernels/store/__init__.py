"""What this machine measured, kept between starts: one SQLite file, and its look-up beside the shipped recordings."""

from kernels.store.archive import Archive, Found
from kernels.store.place import machine_store
from kernels.store.queries import Wanted
from kernels.store.store import Store
from kernels.store.stored import Stored
from kernels.store.sweeps import StoredRow, StoredSweep

__all__ = ["Archive", "Found", "Store", "Stored", "StoredRow", "StoredSweep", "Wanted", "machine_store"]
