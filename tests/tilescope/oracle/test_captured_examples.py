"""The example scripts, captured and counted with the installed version of Triton."""

from dataclasses import replace
from pathlib import Path

import pytest
import triton

from kernels.examples import EXAMPLES
from tilescope.captures.reader import Capture
from tilescope.reports.launch import make_report


def facts(capture):
    """Return a capture's kernels and launches, without folders and what depends on the data."""
    content = capture.content
    kernels = [replace(kernel, file=Path(kernel.file).name) for kernel in content.kernels]
    launches = [
        (
            launch.grid,
            launch.config,
            launch.settings,
            [argument.name for argument in launch.arguments],
        )
        for launch in content.launches
    ]
    return content.script, content.about, content.cases, content.gpu, kernels, launches


@pytest.mark.parametrize("source", EXAMPLES, ids=lambda source: Path(source).stem)
def test_an_example_is_captured_as_shipped_and_counted_with_this_triton(
    capture_server, source, tmp_path
):
    shipped = Capture(Path(source).with_suffix(".tilescope"))
    path = tmp_path / "fresh.tilescope"
    capture_server.capture(path, [source])
    fresh = Capture(path)
    if shipped.content.triton == triton.__version__:
        assert facts(shipped) == facts(fresh)
    (launch, *_) = make_report(fresh).launches
    assert launch.ops
    assert not any(op.refused for op in launch.ops)
