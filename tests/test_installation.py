"""Where the project is installed: Spaces, the lock file, the container, `make run`, and without GPU libraries."""

import json
import os
import re
import shlex
import shutil
import stat
import sys
import urllib.error
import urllib.request
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.make_space import MARK, PRODUCT, PROFILES, ROOT, Profile, gradio_version, main, make, requirements
from tests.kernels.trees import ROOT as TREE
from tests.kernels.trees import python
from tests.waiting import free_port, serving
from visualize.cli import PYTHONS


def front_matter(folder):
    _, matter, _ = (folder / "README.md").read_text().split("---\n", 2)
    return dict(line.split(": ", 1) for line in matter.splitlines())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", ("cpu-basic", '"3.12"', "torch==2.13.0+cpu", "triton==3.7.1")),
        ("gpu", ("l4x1", '"3.12"', "torch==2.13.0", "triton==3.7.1")),
        ("zero", (None, '"3.12.12"', "torch==2.11.0", "triton==3.6.0")),
    ],
)
def test_a_space_holds_the_product_and_the_versions_that_its_hardware_has(name, expected, tmp_path):
    make(name, tmp_path / "space")
    made = {path.name for path in (tmp_path / "space").iterdir()}
    assert made == {*(part.split("/")[0] for part in PRODUCT), MARK, "README.md", "requirements.txt"}
    assert not list((tmp_path / "space").rglob("__pycache__"))
    matter = front_matter(tmp_path / "space")
    assert {"title", "app_file", "license"} <= set(matter)
    assert len(matter["short_description"]) <= 60, "the hub's limit"
    assert matter["sdk_version"] == version("gradio")
    required = (tmp_path / "space" / "requirements.txt").read_text()
    assert not {"gradio", "spaces"} & set(re.findall(r"\w+", required))
    torch, triton = (next(line for line in required.splitlines() if line.startswith(p)) for p in ("torch", "triton"))
    assert (matter.get("suggested_hardware"), matter["python_version"], torch, triton.split(";")[0]) == expected


def test_a_space_is_rewritten_without_files_that_have_gone_and_another_folder_is_left_alone(tmp_path, capsys):
    space, thesis = tmp_path / "space", tmp_path / "thesis.txt"
    make("cpu", space)
    (space / "kernels" / "gone.py").touch()
    make("gpu", space)
    assert not (space / "kernels" / "gone.py").exists()
    assert front_matter(space)["suggested_hardware"] == "l4x1"
    thesis.write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["cpu", str(tmp_path)])
    assert ended.value.code == 2
    assert "exists and is not a Space that this script wrote; name another folder." in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"space", "thesis.txt"}
    (tmp_path / "app.py").touch()
    for place in (tmp_path, thesis, ROOT):
        with pytest.raises(FileExistsError):
            make("cpu", place)


def test_the_hub_can_install_what_is_required_beside_what_it_adds():
    """It installs gradio[mcp,oauth], whose extras bound other packages."""
    needs = [Requirement(text) for text in requires("gradio")]
    added = [one for one in needs if one.marker and any(one.marker.evaluate({"extra": e}) for e in ("mcp", "oauth"))]
    assert "pydantic" in {one.name for one in added}
    for profile in PROFILES.values():
        lines = requirements(profile, (ROOT / "requirements.txt").read_text()).splitlines()
        ours = {one.name: one for line in lines if line[0].isalpha() for one in [Requirement(line.partition("#")[0])]}
        for bound in (one for one in added if one.name in ours):
            tried = [clause.version for one in (bound, ours[bound.name]) for clause in one.specifier]
            assert any(bound.specifier.contains(v) and ours[bound.name].specifier.contains(v) for v in tried), bound


def test_a_replaced_package_must_be_required_and_the_repository_itself_is_a_space_with_the_pinned_gradio():
    with pytest.raises(ValueError, match=r"requirements\.txt does not require jax"):
        requirements(Profile("", "", pinned={"jax": "jax==1"}), "torch==2.13.0\n")
    with pytest.raises(ValueError, match=r"no sdk_version"):
        gradio_version("title: Tilescope\n")
    assert ROOT == TREE
    matter = front_matter(ROOT)
    assert f"gradio~={matter['sdk_version']}" in (ROOT / "requirements.txt").read_text()
    assert (matter["sdk"], matter["python_version"], matter["app_file"]) == ("gradio", '"3.12"', "app.py")


# Their builds differ by platform, and so do the hashes. torch also installs NVIDIA's libraries.
UNLOCKED = re.compile(r"torch|triton|nvidia-.*|cuda-.*")

ENTRIES = [entry for entry in re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text()) if entry.strip()]
LOCKED = {entry.partition("==")[0]: Requirement(entry.partition(" \\")[0]) for entry in ENTRIES}
REQUIRED = [
    Requirement(line.partition("#")[0])
    for line in (ROOT / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("required", [one for one in REQUIRED if not UNLOCKED.fullmatch(one.name)], ids=str)
def test_the_lock_holds_a_requirement_and_all_that_it_needs(required):
    seen, left = set(), [required]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        (pinned,) = LOCKED[name].specifier
        assert requirement.specifier.contains(pinned.version), (requirement, pinned)
        left += map(Requirement, requires(name) or ())


INSTRUCTIONS = [
    line.split(" ", 1)
    for line in re.sub(r"\s*\\\n\s*", " ", (ROOT / "Dockerfile").read_text()).splitlines()
    if line and not line.startswith("#")
]


def of(name):
    return [text for kind, text in INSTRUCTIONS if kind == name]


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
    assert (of("USER"), "RUN" in kinds[kinds.index("USER") :]) == (["1000"], False), "it installs nothing"


def test_its_page_starts_from_a_read_only_tree_without_a_home(tmp_path):
    port, log = free_port(), tmp_path / "log"
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
    variables = dict(pair.split("=", 1) for text in of("ENV") for pair in shlex.split(text))
    variables |= {"TILESCOPE_CACHE": str(data), "GRADIO_SERVER_PORT": str(port), "HOME": "/nonexistent"}
    variables["PATH"] = os.environ["PATH"]
    (command,) = map(json.loads, of("CMD"))
    health, command = f"http://127.0.0.1:{port}/healthz", [sys.executable, *command[1:]]
    with serving(command, health, log, cwd=application, env=variables) as (page, reply):
        said = json.loads(reply)
        with pytest.raises(urllib.error.HTTPError, match="404"):  # MCP is off by default
            urllib.request.urlopen(f"http://127.0.0.1:{port}/gradio_api/mcp/schema")
    assert (said["status"] in ("ok", "starting"), said["store"]) == (True, "")
    assert (data / "tilescope.db").is_file()
    assert {path: path.stat().st_mtime_ns for path in application.rglob("*")} == before
    assert page.returncode == 0, log.read_text()


def test_make_run_serves_and_the_example_prints_what_it_says(tmp_path):
    port = free_port()
    command = ["make", "run", f"PORT={port}", f"VENV_PYTHON={sys.executable}"]
    environment = {**os.environ, "TILESCOPE_CACHE": str(tmp_path)}
    with serving(command, f"http://127.0.0.1:{port}/", tmp_path / "log", cwd=ROOT, env=environment):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        (example,) = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
        done = python(TREE, "-c", example.replace("7860", str(port)))
    printed = [line for line in done.stdout.splitlines() if not line.startswith("Loaded as API")]
    assert printed == re.findall(r"# (\w+)$", example, re.MULTILINE), done.stderr


CODE = """
import importlib, pkgutil, sys
for name in ("torch", "triton", "distributed"):
    sys.modules[name] = None  # importing it raises ImportError
import app, kernels, visualize
from visualize.startup import quick_import
with quick_import():
    for package in (kernels, visualize):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # Scripts that run in the user's environment, and nothing here imports.
            if not module.name.startswith(("kernels.examples.", "kernels.compiling.capture")):
                importlib.import_module(module.name)
import kernels.compiling.capture_file
print("imported")

from kernels import discover
from kernels.experiment import from_json
from kernels.results import Failure
from kernels.measuring.session import Session
from visualize.views.tabs import SETTINGS, TABS
from visualize.views.state import Snapshot

panels = {tab.name: tab.panels[0]() for tab in TABS}
for name, kernel in discover().items():
    known = Snapshot(SETTINGS.state({"kernel": name}, None))
    for tab, said in (("schedule", "program"), ("coalescing", "transactions"), ("reuse", "DRAM")):
        assert said in panels[tab].draw(known)[f"{tab}-claim"], (name, tab)
session = Session(None)
outcome = session.submit(from_json({"kernel": "matmul.grouped"})).result()
session.close()
assert isinstance(outcome, Failure) and outcome.kind == "no_triton", outcome
print("predicted")
"""


def test_without_gpu_libraries_every_module_imports_and_every_kernel_is_predicted():
    """The page's process starts without torch, and a run says that Triton is missing."""
    done = python(TREE, "-c", CODE)
    assert done.stdout.split() == ["imported", "predicted"], done.stderr
