"""Copies of the project's source for tests that change it, and child processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tilescope.processes import FOLDER as ROOT

PARTS = (
    "kernels",
    "tilescope",
    "visualize",
    "tests",
    "scripts",
    "docs",
    "app.py",
    "pyproject.toml",
)


def copied(directory, parts=PARTS):
    """Copy the source and its cached bytecode to `directory`."""
    directory.mkdir(parents=True)
    for part in parts:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, directory / part)
        else:
            shutil.copy(source, directory / part)
    return directory


def python(tree, *arguments, stdin="", cwd=None, **variables):
    """Run this Python in a tree or another folder, and import modules from the tree."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]),
        **variables,
    }
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd or tree,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
    )


def children(parent, word):
    """Return the ids of a process's children whose command contains a word."""
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
    """Return whether a process runs. A zombie has ended, even if nobody has read its exit status."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
