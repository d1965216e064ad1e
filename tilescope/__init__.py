"""Tilescope: what does my Triton kernel really do?

import tilescope

with tilescope.capture("run.tilescope") as launches:
    kernel[grid](x, out)
print(launches)

@triton.autotune(configs, key=["M", "N"], prune_configs_by={"early_config_prune": tilescope.prune})
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilescope.autotuning import prune
from tilescope.processes import environment

__all__ = ["Launch", "Launches", "capture", "prune"]
__version__ = "0.1.0"


class Launch(dict[str, Any]):
    """The report of a launch, as in the JSON of `tilescope show --json`. It prints as a table."""

    def __repr__(self) -> str:
        return str(self["text"])

    def _repr_html_(self) -> str:
        return str(self["html"])


class Launches(list[Launch]):
    """The launches of a capture: empty until it ends. They print as tables.

    Attributes:
        report: the other fields of the JSON, such as `stopped`.
    """

    report: Launch

    def __repr__(self) -> str:
        return repr(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


@contextmanager
def capture(path: str | Path, gpu: str | None = None, values: bool = False) -> Iterator[Launches]:
    """Record the Triton launches of a `with` block in a file, and report them.

    On a machine with a GPU, the launches run as they do without Tilescope. Otherwise they are only compiled, and the
    block ends where it reads a result.

    Args:
        path: of the capture, which `tilescope show` opens.
        gpu: compile for this GPU; nothing runs on this machine's. Defaults to this machine's or, without one, an H200.
        values: without a GPU, run launches in Triton's interpreter.

    Raises:
        OSError: the file cannot be written. The block has not run.
        RuntimeError: the report could not be created, or another capture is active; then the block has not run.
    """
    from tilescope.declare import gpus
    from tilescope.record.capture_file import check_output  # imports torch
    from tilescope.record.patches import RECORDED_PROCESS, recording
    from tilescope.record.recorder import HostRead

    if os.environ.get(RECORDED_PROCESS) == str(os.getpid()):
        raise RuntimeError(
            "Captures cannot be nested: another block, or `tilescope show`, is recording this process."
        )
    path = Path(path).resolve()  # the block may change the working directory
    check_output(path)
    here = None if gpu else gpus.this_gpu()
    row = here or gpus.ALL_GPUS[gpus.find_gpu(gpu or gpus.DEFAULT_GPU)]
    runs = "cuda" if here else "interpreter" if values else ""
    launches = Launches()
    launches.report = Launch(text="The capture has not ended.", html="The capture has not ended.")
    with tempfile.TemporaryDirectory(prefix="tilescope-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            with recording(folder, asdict(row), runs, tunes=bool(here)) as recorder:
                try:
                    yield launches
                except HostRead:
                    recorder.write("stopped", recorder.read)
        except BaseException as error:
            try:
                _report(folder, launches, path)
            except Exception as problem:
                error.add_note(f"tilescope.capture: {problem}")
            raise
        _report(folder, launches, path)


def _report(folder: Path, launches: Launches, path: Path) -> None:
    """Write a capture, and fill a list with the reports that another process creates."""
    from tilescope.record.capture_file import write_capture

    write_capture(folder, path, path.stem)
    show = [sys.executable, "-P", "-m", "tilescope", "show", str(path)]
    flags = ["--json", "--text", "--python", sys.executable]
    done = subprocess.run(
        [*show, *flags],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError(done.stderr.strip())
    launches.report = Launch(json.loads(done.stdout))
    launches.extend(map(Launch, launches.report.pop("launches")))
