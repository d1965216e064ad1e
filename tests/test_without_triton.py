"""Where there is no Triton (macOS), the page still schedules and shows the textbook view, and a run says why not."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
sys.modules["triton"] = None  # importing it raises ImportError
import gradio as gr
from kernels import discover
from kernels.experiment import from_json
from kernels.results import Failure
from kernels.measuring.session import Session
from visualize.panels.tabs import SETTINGS, TABS
from visualize.state.known import Known

panels = {}
with gr.Blocks():
    for tab in TABS[1:]:
        panels[tab.name] = tab.panels[0]()
        panels[tab.name].build()
for name, kernel in discover().items():
    known = Known(SETTINGS.state({"kernel": name}, None))
    for tab, said in (("schedule", "wave"), ("coalescing", "transactions"), ("reuse", "DRAM")):
        panel = panels[tab]
        assert said in panel.draw(known)[panel.claim], (name, tab)
session = Session(None)
outcome = session.submit(from_json({"kernel": "matmul.grouped"})).result()
session.close()
assert isinstance(outcome, Failure) and outcome.kind == "no_triton", outcome
print("schedules without Triton")
"""


def test_every_kernel_is_scheduled_and_counted_without_triton() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout == "schedules without Triton\n", done.stderr
