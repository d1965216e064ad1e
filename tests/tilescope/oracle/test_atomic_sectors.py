"""The sectors of single requests of atomics, as Nsight Compute counted them on an H100.

Each row of the file is one launch of one warp: the sectors, the bytes of an element, the tensor's first byte modulo
2**29, and the element of each lane; -1 for a lane without one.
"""

import csv
from pathlib import Path

import numpy as np

from tilescope.evaluate.sectors import atomic_sectors

COUNTED = Path(__file__).with_name("h100_atomic_sectors.csv")


def test_each_request_has_the_counted_sectors():
    with COUNTED.open() as file:
        rows = list(csv.DictReader(file))
    counted = [int(row["sectors"]) for row in rows]
    element = np.array([row["elements"].split() for row in rows], dtype=np.int64)
    size, start = (
        np.array([[int(row[name])] for row in rows]) for name in ("element_bytes", "start")
    )
    assert atomic_sectors(start + element * size, element >= 0).tolist() == counted
    turns = np.sort(element // (32 // size), axis=1)
    distinct = np.count_nonzero(np.diff(turns, axis=1), axis=1) + (turns[:, 0] >= 0)
    # A sector whose lanes take turns counts several times
    assert np.count_nonzero(distinct != counted) > 100


def test_requests_are_counted_apart_from_those_beside_them():
    lanes = np.arange(32)
    address = np.stack([4 * lanes, 0 * lanes, 128 * lanes])
    active = np.ones(address.shape, bool)
    assert atomic_sectors(address, active).tolist() == [4, 32, 32]
    assert (
        atomic_sectors(np.repeat(address, 3000, axis=0), np.repeat(active, 3000, axis=0)).sum()
        == 3000 * 68
    )
