"""The container: built and run where an engine is at hand; else its last stage is played through without one."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

from scripts.make_space import PRODUCT
from tests.kernels.trees import ROOT
from tests.waiting import until
from visualize.cli import PYTHONS

INSTRUCTIONS = [
    line.split(" ", 1)
    for line in re.sub(r"\s*\\\n\s*", " ", (ROOT / "Dockerfile").read_text()).splitlines()
    if line and not line.startswith("#")
]


def of(name):
    return [text for kind, text in INSTRUCTIONS if kind == name]


def engine():
    """A container engine that answers; "" for none."""
    for name in ("docker", "podman"):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, timeout=20).returncode == 0:
            return name
    return ""


def healthy(port, ended, patience_s):
    """Wait until /healthz answers, and return its reply."""

    def answer():
        assert not ended(), "it ended"
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as reply:
            return json.load(reply)

    return until(answer, patience_s)


def test_it_copies_exactly_the_product():
    copied = [source for text in of("COPY") for source in text.split()[:-1]]
    assert sorted(copied) == sorted([*PRODUCT, "requirements.lock", "requirements.txt"])
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(allowed) == sorted(copied)
    assert all((ROOT / source).exists() for source in copied)


def test_it_has_a_supported_python_and_an_ordinary_user():
    (base,) = of("FROM")
    version = tuple(map(int, base.removeprefix("python:").removesuffix("-slim").split(".")))
    assert PYTHONS[0] <= version <= PYTHONS[1]
    kinds = [kind for kind, _ in INSTRUCTIONS]
    assert of("USER") == ["1000"]
    assert "RUN" not in kinds[kinds.index("USER") :], "nothing is installed by that user, or for it alone"


def test_its_page_starts_from_a_read_only_tree_without_a_home(tmp_path):
    if found := engine():
        name = f"tilescope-test-{os.getpid()}"
        subprocess.run([found, "build", "-q", "-t", name, "--build-arg", "TORCH=cpu", "."], cwd=ROOT, check=True)
        run = subprocess.run(
            [found, "run", "-d", "--rm", "--read-only", "--tmpfs", "/tmp", "-P", name], capture_output=True, text=True
        )
        try:
            shown = subprocess.run([found, "port", run.stdout.strip(), "7860"], capture_output=True, text=True)
            assert healthy(int(shown.stdout.split(":")[-1]), lambda: False, 120)["status"] in ("ok", "starting")
        finally:
            subprocess.run([found, "kill", run.stdout.strip()], capture_output=True)
        return
    application, data = tmp_path / "app", tmp_path / "data"
    data.mkdir()
    for text in of("COPY"):
        *sources, target = text.split()
        for source in sources:
            place = application / target / (Path(source).name if target == "./" else "")
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile
            copy(ROOT / source, place)
    for path in [*application.rglob("*"), application]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    before = {path: path.stat().st_mtime_ns for path in application.rglob("*")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = dict(pair.split("=", 1) for text in of("ENV") for pair in shlex.split(text))
    variables |= {"TILESCOPE_CACHE": str(data), "GRADIO_SERVER_PORT": str(port), "HOME": "/nonexistent"}
    (command,) = map(json.loads, of("CMD"))
    with (tmp_path / "log").open("wb") as log:
        page = subprocess.Popen(
            [sys.executable, *command[1:]], cwd=application, env={"PATH": os.environ["PATH"], **variables}, stderr=log
        )
        try:
            said = healthy(port, lambda: page.poll() is not None, 60)
        finally:
            page.terminate()
            page.wait(20)
    assert (said["status"] in ("ok", "starting"), said["store"]) == (True, "")
    assert (data / "tilescope.db").is_file()
    assert {path: path.stat().st_mtime_ns for path in application.rglob("*")} == before
    assert page.returncode == 0, (tmp_path / "log").read_text()
