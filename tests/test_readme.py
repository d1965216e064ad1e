"""README's commands do what it says, and its front matter is what a Gradio Space reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.measuring.measurements.group_sizes_measurement import GROUP_SIZES
from kernels.results import records

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_front_matter_pins_what_requirements_pin() -> None:
    front = dict(line.split(": ", 1) for line in README.split("---")[1].strip().splitlines())
    requirements = (ROOT / "requirements.txt").read_text()
    assert front["sdk"] == "gradio"
    assert f"gradio~={front['sdk_version']}" in requirements
    assert (front["python_version"], front["app_file"]) == ('"3.12"', "app.py")


def test_the_screenshot_comes_first_and_is_there() -> None:
    body = README.split("---", 2)[2].strip()
    shown = re.match(r"!\[[^\]]+\]\(([^)]+)\)", body)
    assert shown
    assert (ROOT / shown[1]).stat().st_size > 20_000


def test_the_atlas_has_the_launches_that_are_named() -> None:
    read = lambda name: (records.DIRECTORY / name).read_text(encoding="utf-8").splitlines()  # noqa: E731
    h200, h100 = read("h200_counters.jsonl"), read("h100_counters.jsonl")
    words = " ".join(README.split())
    assert (
        f"an atlas of {len(h200)} launches on an H200, and `h100_counters.jsonl` one of {len(h100)} on an H100" in words
    )
    assert f"all {len(h200) + len(h100)} recorded launches, {len(h200)} on an H200 and {len(h100)} on an H100" in words
    loops = sum(".CAS" in launch for launch in h200 + h100)
    assert f"the loops of {loops} atomics left out" in README
    copies = sum('"op":"descriptor"' in launch for launch in h200 + h100)
    assert f"{copies} of them copy by tensor descriptor" in words


def test_what_grouping_saves_is_what_was_recorded() -> None:
    """Of the config that the tour on grouping shows."""
    sentence = r"GROUP_SIZE 16 reads (\S+) × fewer bytes than row-major order, and saves (\S+) % of the time"
    said = re.search(sentence, " ".join(README.split()))
    assert said
    config = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8}
    asked = {"kernel": "matmul.grouped", "problem": {"M": 16384, "N": 16384, "K": 4096}, "config": config}
    study = records.find(GROUP_SIZES.form, from_json(asked, discover()), "H200")
    rows = {row.group_size: row for row in study.rows}
    read = {size: median(rows[size].dram_read_bytes) for size in (1, 16)}
    took = {size: median(rows[size].times_ms) for size in (1, 16)}
    assert said.groups() == (f"{read[1] / read[16]:.1f}", f"{100 * (1 - took[16] / took[1]):.1f}")


def test_the_scoreboards_picture_is_there_and_the_number_below_it_is_what_is_computed() -> None:
    """`python -m scripts.draw_scoreboard` brings both up to date."""
    from visualize.scoreboard.board import scoreboard
    from visualize.text.scoreboard_text import in_short

    assert f"](docs/scoreboard.png)\n\n**{in_short(scoreboard())}**" in README
    assert 20_000 < (ROOT / "docs" / "scoreboard.png").stat().st_size < 150_000


def test_every_make_command_named_is_one_that_make_knows() -> None:
    named = {command.split()[0] for command in re.findall(r"\bmake ((?:run|test|lint)[\w-]*[^`\n]*)", README)}
    assert {"run", "test", "test-gpu", "lint"} <= named
    for target in named:
        planned = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert planned.returncode == 0, planned.stderr


def test_every_file_that_is_linked_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_test_that_the_threat_model_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("kernel", re.findall(r"`((?:matmul|transpose)\.\w+)`", README))
def test_every_kernel_named_exists(kernels, kernel: str) -> None:
    assert kernel in kernels


def test_make_run_serves_and_the_example_prints_what_it_says(tmp_path: Path) -> None:
    """`make run` with this Python in place of a fresh environment, on a port of its own; then README's example."""
    import socket
    import time
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    make = shutil.which("make")
    assert make, "README's commands need make"
    environment = {**os.environ, "TILESCOPE_CACHE": str(tmp_path)}
    command = [make, "run", f"PORT={port}", f"VENV_PYTHON={sys.executable}"]
    served = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                break
            except OSError:
                assert served.poll() is None, "make run ended"
                time.sleep(0.25)
        (example,) = code_blocks("python")
        expected = re.findall(r"# (\w+)$", example, re.MULTILINE)
        done = subprocess.run(
            [sys.executable, "-c", example.replace("7860", str(port))], capture_output=True, text=True, check=False
        )
        printed = [line for line in done.stdout.splitlines() if not line.startswith("Loaded as API")]
        assert printed == expected, done.stderr
    finally:
        os.killpg(served.pid, 15)
        served.wait(20)
