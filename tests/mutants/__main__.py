"""Plant each defect in a copy of the source and run the tests that must find it.

`python -m tests.mutants [WORD ...]` takes those whose file or text holds one of the words. Ends with status 1 where a
defect survives or can't be planted. Tests run as `make test` runs them: pairs of values, the default's examples.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kernels.trees import copied
from tests.mutants.defect import Planted
from tests.mutants.planted import PLANTED

# Seconds after which tests that do not end are taken to have found a defect.
DEADLINE_S = 600


def verdict(status: int | None) -> str:
    """What pytest's exit status says: 1 is of failed tests; None of those that did not end; others of no tests run."""
    return {0: "SURVIVED", 1: "found", None: "found"}.get(status, "ERROR")


def outcome(tree: Path, one: Planted) -> str:
    """Plant one defect, run its tests, and take it out again."""
    file = tree / one.file
    text = file.read_text(encoding="utf-8")
    if text.count(one.right) != 1:
        return "ERROR"
    file.write_text(text.replace(one.right, one.wrong), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu", *one.tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        return verdict(None)
    finally:
        file.write_text(text, encoding="utf-8")
    found = verdict(ended.returncode)
    if found != "found":
        print(ended.stdout[-2000:], ended.stderr[-2000:])
    return found


def main(words: list[str]) -> int:
    chosen = [one for one in PLANTED if not words or any(word in one.file + one.right for word in words)]
    outcomes = []
    with tempfile.TemporaryDirectory() as directory:
        tree = copied(Path(directory) / "tree")
        for one in chosen:
            began = time.monotonic()
            outcomes.append(outcome(tree, one))
            print(f"{outcomes[-1]:8} {time.monotonic() - began:4.0f} s  {one.file}: {one.right}", flush=True)
    found = outcomes.count("found")
    print(f"{found} of {len(chosen)} planted defects were found.")
    return 0 if found == len(chosen) > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
