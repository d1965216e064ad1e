"""Capture the example scripts for the page: `python -m scripts.record_examples`. Needs Triton, but no GPU.

Run it after an example, the recorder or Triton's version changes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from kernels.examples import EXAMPLES
from tilescope.captures.reader import Capture
from tilescope.captures.server import CaptureServer
from tilescope.declare.gpus import DEFAULT_GPU, GPUS
from tilescope.processes import guard
from tilescope.reports.launch import make_report

# Debug information in the PTX contains the folder.
_FOLDER = Path(tempfile.gettempdir(), "tilescope-examples")


def start_server(stack: ExitStack) -> CaptureServer:
    """Return a process that captures for the default GPU."""
    gpu = json.dumps(asdict(GPUS[DEFAULT_GPU]))
    folder = stack.enter_context(guard())
    return CaptureServer(sys.executable, ("--gpu-json", gpu), stack, folder)


def write_without_folders(capture: Path, path: Path) -> None:
    """Copy a capture without the names of this machine's folders."""
    folders = (f"{_FOLDER}/", f"{sysconfig.get_path('purelib')}/")
    with zipfile.ZipFile(capture) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            for folder in folders if not name.endswith(".npy") else ():
                content = content.replace(folder.encode(), b"")
            new.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir()
    # A cached kernel has the paths of the script that was compiled first.
    os.environ["TRITON_CACHE_DIR"] = str(_FOLDER / "cache")
    with ExitStack() as stack:
        server = start_server(stack)
        for example in map(Path, EXAMPLES):
            source = Path(shutil.copy(example, _FOLDER))
            capture = source.with_suffix(".tilescope")
            server.capture(capture, [str(source)])
            make_report(Capture(capture), server.compile)  # adds the findings
            path = example.with_suffix(".tilescope")
            write_without_folders(capture, path)
            print(f"{path.name}: {path.stat().st_size:,} bytes")
    shutil.rmtree(_FOLDER)


if __name__ == "__main__":
    main()
