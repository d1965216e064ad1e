"""The lock file: what `make run` installs, each package in one version, with its hashes."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version

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


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.partition("==")[0])
def test_each_package_has_one_version_and_its_hashes(entry):
    assert re.match(r"[a-z0-9-]+==[\w.+]+( ; [^\\]+)? \\\n", entry)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)) >= 1
    assert not UNLOCKED.fullmatch(entry.partition("==")[0])


@pytest.mark.parametrize("required", REQUIRED, ids=lambda required: required.name)
def test_the_lock_holds_what_is_required_and_all_that_it_needs(required):
    if UNLOCKED.fullmatch(required.name):
        return
    seen, left = set(), [required]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name in seen or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        locked = LOCKED[name]
        assert one.specifier.contains(next(iter(locked.specifier)).version), (one, locked)
        try:
            left += [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            pytest.fail(f"{name} is required and not installed")
    assert version(required.name)
