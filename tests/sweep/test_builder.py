"""The local builder: real compiles, and a sweep whose workers cannot start."""

from __future__ import annotations

import subprocess
import sys

from fakes import GPU

from kernels.experiment import from_json
from kernels.sweep.devices import Builder
from kernels.sweep.search import Build
from tests.kernels.trees import ROOT
from visualize.predict.launch_time import predict_time


def test_a_build_has_the_compilers_figures_and_a_closed_builder_compiles_nothing(tilescope_cache):
    builder = Builder(GPU, predict_time, str(tilescope_cache))
    experiment = from_json({"kernel": "transpose.tiled", "gpu": "H200"})
    built = builder.submit(experiment).result(100)
    assert isinstance(built, Build)
    assert built.registers > 16
    assert built.shared_bytes > 0
    builder.close()
    assert builder.submit(experiment).result(5).kind == "cancelled"


UNGUARDED = """
import sys
from kernels.experiment import from_json
from kernels.results import Strategy
from kernels.measuring.session import Session
from kernels.space import space
from kernels.sweep.sweep_run import sweep_here
from visualize.predict.launch_time import predict_time

base = from_json({"kernel": "transpose.tiled", "gpu": "H200"})
session = Session(None)
run = sweep_here(session, space(base, {"BLOCK_M": [16, 32]}), Strategy("grid"), predict_time)
run.start()
found = run.result(100)
print(found.ended, found.note)
session.close()
"""


def test_a_script_whose_workers_cannot_start_ends_with_a_sentence(tmp_path):
    """Each worker imports the script, which would start another sweep."""
    script = tmp_path / "unguarded.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{UNGUARDED}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.startswith("failed Nothing can be compiled, because no compile worker starts")
    assert '`if __name__ == "__main__":`' in done.stdout
