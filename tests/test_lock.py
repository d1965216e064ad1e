"""`make run` installs every package by hash: the lock file holds all that the requirements need."""

from __future__ import annotations

import re
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kernels.trees import ROOT

# They come in builds for each kind of machine, with hashes of their own, and torch brings NVIDIA's libraries.
UNLOCKED = re.compile(r"torch|triton|nvidia-.*|cuda-.*")

ENTRIES = [entry for entry in re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text()) if entry.strip()]
LOCKED = {entry.partition("==")[0]: Requirement(entry.partition(" \\")[0]) for entry in ENTRIES}
REQUIRED = [
    Requirement(line.partition("#")[0])
    for line in (ROOT / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("required", [one for one in REQUIRED if not UNLOCKED.fullmatch(one.name)], ids=str)
def test_the_lock_holds_a_requirement_and_all_that_it_needs(required):
    seen, left = set(), [required]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        (pinned,) = LOCKED[name].specifier
        assert requirement.specifier.contains(pinned.version), (requirement, pinned)
        left += map(Requirement, requires(name) or ())
