"""Where the project is installed: Spaces, the lock file, the container, `make run`, and without GPU libraries."""

import json
import os
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.make_space import MARK, PRODUCT, PROFILES, ROOT, main, make, requirements
from scripts.requirements import requirements as requirements_in
from tests.tables import read_table
from tests.trees import python
from tests.waiting import free_port, serving


def front_matter(folder):
    _, matter, _ = (folder / "README.md").read_text().split("---\n", 2)
    return dict(line.split(": ", 1) for line in matter.splitlines())


SPACES = """
cpu | ("cpu-basic", '"3.12"', "torch==2.13.0+cpu", "triton==3.7.1")
gpu | ("l4x1", '"3.12"', "torch==2.13.0", "triton==3.7.1")
zero | (None, '"3.12.12"', "torch==2.11.0", "triton==3.6.0")
"""


@pytest.mark.parametrize(("name", "expected"), read_table(SPACES))
def test_a_space_holds_the_product_and_the_versions_that_its_hardware_has(name, expected, tmp_path):
    space = tmp_path / "space"
    make(name, space)
    made = {path.name for path in space.iterdir()}
    assert made == {
        *(part.split("/")[0] for part in PRODUCT),
        MARK,
        "README.md",
        "requirements.txt",
    }
    assert not list(space.rglob("__pycache__"))
    matter = front_matter(space)
    assert {"title", "app_file", "license"} <= set(matter)
    assert len(matter["short_description"]) <= 60, "the hub's limit"
    assert matter["sdk_version"] == version("gradio")
    required = (space / "requirements.txt").read_text()
    assert not {"gradio", "spaces"} & set(re.findall(r"\w+", required))
    assert (matter.get("suggested_hardware"), matter["python_version"]) == expected[:2]
    assert set(expected[2:]) <= set(re.split(r"[\n;]", required))


def test_a_space_is_rewritten_without_files_that_have_gone_and_another_folder_is_left_alone(
    tmp_path, capsys
):
    space = tmp_path / "space"
    thesis = tmp_path / "thesis.txt"
    make("cpu", space)
    (space / "kernels" / "gone.py").touch()
    make("gpu", space)
    assert not (space / "kernels" / "gone.py").exists()
    assert front_matter(space)["suggested_hardware"] == "l4x1"
    thesis.write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["cpu", str(tmp_path)])
    assert ended.value.code == 2
    assert "exists and is not a Space that this script wrote" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"space", "thesis.txt"}
    (tmp_path / "app.py").touch()
    for place in (tmp_path, thesis, ROOT):
        with pytest.raises(FileExistsError):
            make("cpu", place)


def test_the_hub_can_install_what_is_required_beside_what_it_adds():
    """It installs gradio[mcp,oauth], whose extras bound other packages."""
    needs = [Requirement(text) for text in requires("gradio")]
    extras = [{"extra": extra} for extra in ("mcp", "oauth")]
    added = [need for need in needs if need.marker and any(map(need.marker.evaluate, extras))]
    assert "pydantic" in {need.name for need in added}
    for profile in PROFILES.values():
        text = requirements(profile, (ROOT / "requirements.txt").read_text())
        required = requirements_of(text)
        for need in [need for need in added if need.name in required]:
            both = need.specifier & required[need.name]
            assert any(both.contains(clause.version) for clause in both), need


def test_the_repository_itself_is_a_space_with_the_pinned_gradio():
    matter = front_matter(ROOT)
    required = (ROOT / "requirements.txt").read_text()
    assert f"gradio~={matter['sdk_version']}" in required
    assert required.splitlines() == list(requirements_in(["pinned", "base", "page"]))
    assert matter["sdk"] == "gradio"
    assert matter["app_file"] == "app.py"


def requirements_of(text):
    lines = [line.partition("#")[0] for line in text.splitlines() if line[:1].isalpha()]
    return {canonicalize_name(need.name): need.specifier for need in map(Requirement, lines)}


def test_the_lock_pins_what_is_required():
    """Except torch and Triton, whose hashes differ between platforms. pip refuses a lock that lacks a dependency."""
    pins = requirements_of((ROOT / "requirements.lock").read_text().replace(" \\\n", "\n"))
    required = requirements_of((ROOT / "requirements.txt").read_text())
    for name in required.keys() - {"torch", "triton"}:
        (pin,) = pins[name]
        assert required[name].contains(pin.version), name


def test_the_container_copies_the_product_and_docker_sees_what_it_copies():
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "\nUSER 1000\n" in dockerfile
    copied = re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE)
    sources = " ".join(copied).split()
    assert set(sources) == {*PRODUCT, "requirements.lock", "requirements.txt"}
    visible = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(visible) == sorted(sources)


def test_the_page_starts_from_a_read_only_tree_without_a_home(tmp_path):
    port = free_port()
    log = tmp_path / "log"
    application = tmp_path / "app"
    data = tmp_path / "data"
    data.mkdir()
    make("cpu", application)
    for path in [*application.rglob("*"), application]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    before = {path: path.stat().st_mtime_ns for path in application.rglob("*")}
    variables = {
        "TILESCOPE_CACHE": str(data),
        "GRADIO_SERVER_PORT": str(port),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
        "PATH": os.environ["PATH"],
    }
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "app.py"]
    with serving(command, f"{url}/healthz", log, cwd=application, env=variables) as (page, reply):
        assert json.loads(reply)["store"] == ""
        with pytest.raises(urllib.error.HTTPError, match="404"):  # MCP is off by default
            urllib.request.urlopen(f"{url}/gradio_api/mcp/schema")
    assert (data / "tilescope.db").is_file()
    assert {path: path.stat().st_mtime_ns for path in application.rglob("*")} == before
    assert page.returncode == 0, log.read_text()


def test_the_app_starts_where_python_leaves_out_its_folder(tmp_path):
    command = [sys.executable, "-P", ROOT / "app.py", "--help"]
    assert subprocess.check_output(command, cwd=tmp_path, text=True).startswith("usage: tilescope")


def test_make_run_starts_the_app():
    command = "make --no-print-directory -n run HOST=127.0.0.1 PORT=1234 VENV_PYTHON=python"
    recipe = subprocess.check_output(command.split(), cwd=ROOT, text=True)
    assert recipe == "python app.py --host 127.0.0.1 --port 1234\n"


CODE = """
import importlib, pkgutil, sys
for name in ("torch", "triton", "distributed"):
    sys.modules[name] = None  # importing it raises ImportError
import app, kernels, tilescope, visualize
from visualize.commands import quick_import
with quick_import():
    for package in (kernels, tilescope, visualize):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # Scripts that run in the user's environment, and nothing here imports.
            scripts = "kernels.examples.", "tilescope.record", "tilescope.__main__"
            if not module.name.startswith(scripts):
                importlib.import_module(module.name)
import tilescope.captures.reader
print("imported")

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import from_json
from tilescope.results import Failure
from tilescope.measure.session import Session
from visualize.views.tabs import TABS, read_state
from visualize.views.state import Snapshot

panels = {tab.name: tab.panels[0]() for tab in TABS}
for name, kernel in discover().items():
    known = Snapshot(read_state({"kernel": name}, None))
    for tab, word in (("program-order", "program"), ("requests", "transactions"), ("dram-reads", "DRAM")):
        assert word in panels[tab].draw(known)[f"{tab}-headline"], (name, tab)
session = Session(None)
outcome = session.submit(from_json({"kernel": "matmul.grouped"})).result()
session.close()
assert isinstance(outcome, Failure) and outcome.kind == "no_triton", outcome
print("predicted")
"""


def test_without_gpu_libraries_every_module_imports_and_every_kernel_is_predicted():
    """The page's process starts without torch, and a run says that Triton is missing."""
    done = python(ROOT, "-c", CODE)
    assert done.stdout.split() == ["imported", "predicted"], done.stderr


REPORT = """
import sys
for name in ("gradio", "pandas", "plotly", "segno", "starlette", "torch"):
    sys.modules[name] = None  # importing it raises ImportError
from tilescope.cli.show import show
show(["kernels/examples/attention.tilescope", "--html", sys.argv[1]])
"""


def test_a_report_in_a_file_is_small_and_needs_none_of_the_pages_libraries(tmp_path):
    path = tmp_path / "report.html"
    done = python(ROOT, "-c", REPORT, str(path))
    assert done.returncode == 0, done.stderr
    assert "attention.py" in done.stdout
    assert path.stat().st_size < 1_200_000
