"""`make run` serves the page, and README's example prints what its comments promise."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.kernels.trees import ROOT
from tests.waiting import until


def test_make_run_serves_and_the_example_prints_what_it_says(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["make", "run", f"PORT={port}", f"VENV_PYTHON={sys.executable}"]
    environment = {**os.environ, "TILESCOPE_CACHE": str(tmp_path)}
    served = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)

    def answers() -> bool:
        assert served.poll() is None, "make run ended"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
        except OSError:
            return False
        return True

    try:
        until(answers)
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        (example,) = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
        done = subprocess.run(
            [sys.executable, "-c", example.replace("7860", str(port))], capture_output=True, text=True, check=False
        )
        printed = [line for line in done.stdout.splitlines() if not line.startswith("Loaded as API")]
        assert printed == re.findall(r"# (\w+)$", example, re.MULTILINE), done.stderr
    finally:
        os.killpg(served.pid, 15)
        served.wait(20)
