"""Copies of the project's source, for tests that change it, and processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernels as package

ROOT = Path(package.__file__).parent.parent
PARTS = ("kernels", "visualize", "tests", "scripts", "docs", "app.py", "pyproject.toml")


def copied(directory, parts=PARTS):
    """A copy of the source in `directory`, with the bytecode of what stays the same."""
    directory.mkdir(parents=True)
    for part in parts:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, directory / part)
        else:
            shutil.copy(source, directory / part)
    return directory


def python(tree, *arguments, stdin=""):
    """Run this Python in a tree, with what it imports from there."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=tree,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def children(parent, word):
    """Process ids of a process' children whose command has a word in it."""
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            of = int((directory / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (directory / "cmdline").read_text()
        except (OSError, IndexError, ValueError):
            continue
        if of == parent and word in command:
            found.append(int(directory.name))
    return found


def is_alive(process):
    """Whether it runs; one that has ended may wait to be read by whoever inherited it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
