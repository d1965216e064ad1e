"""The wheel: its files, and its command beside packages of the user's that have the names of ours."""

import email
import os
import re
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

from scripts.make_space import ROOT
from tests.tables import read_table

# One worker builds and installs the wheel
pytestmark = pytest.mark.xdist_group("wheel")

# The wheel's required dependencies, besides torch and Triton.
REQUIRED = ["jinja2", "markupsafe", "numpy", "orjson", "pydantic", "tqdm"]

SCRIPT = """
import sys
import kernels, visualize
import torch, triton, triton.language as tl

@triton.jit
def copy(x, y):
    i = tl.arange(0, 128)
    tl.store(y + i, tl.load(x + i))

copy[(1,)](torch.empty(128, device="cuda"), torch.empty(128, device="cuda"))
print(kernels.OWNER, visualize.OWNER)
print([path for path in sys.path if path.endswith("tilescope")])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True)
    (path,) = folder.iterdir()
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """Return the folder of the installed wheel."""
    folder = tmp_path_factory.mktemp("site")
    wheel.extractall(folder)
    return folder


@pytest.fixture
def tilescope(site, tmp_path):
    """Return a function that runs the installed command in a user's folder."""
    home = tmp_path / "home"
    for name in ("kernels", "visualize"):
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").write_text('OWNER = "user"\n')
    (home / "script.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{site}",
        "TILESCOPE_CACHE": str(tmp_path / "cache"),
    }

    def run(*arguments):
        command = [sys.executable, "-m", "tilescope", *arguments]
        return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)

    return run


def test_all_of_the_product_and_nothing_else_lies_in_the_package_tilescope(wheel):
    names = ["tilescope/page/docs/glossary.md"]
    for folder, target in (
        ("tilescope", ""),
        ("kernels", "tilescope/page/"),
        ("visualize", "tilescope/page/"),
    ):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        names += [f"{target}{path.relative_to(ROOT).as_posix()}" for path in files]
    expected = {name for name in names if "__pycache__" not in name}
    metadata, packed = set(), set()
    for name in wheel.namelist():
        (metadata if ".dist-info/" in name else packed).add(name)
    assert packed == expected
    assert sum(file.compress_size for file in wheel.infolist()) < 12e6
    described = email.message_from_bytes(
        wheel.read(next(name for name in metadata if name.endswith("METADATA")))
    )
    assert described["Author"] == "The Tilescope developers"
    text = described.get_payload()
    assert text.startswith("# Tilescope\n")
    assert not re.search(
        r"<!--|\]\((?!https?:)", text
    )  # PyPI can't follow a link into the repository
    always = [need for need in described.get_all("Requires-Dist") if "extra ==" not in need]
    assert sorted(Requirement(need).name for need in always) == REQUIRED


def test_a_script_sees_its_own_packages_and_not_ours(tilescope):
    done = tilescope("show", "script.py", "--text")
    assert done.returncode == 0, done.stderr
    assert "script.py:9 " in done.stdout
    assert {"user user", "[]"} <= {*done.stderr.splitlines()}


MISSING = """
gradio | serve | This command needs gradio: pip install "tilescope[page]"
gradio | show script.py | With --text, `show` prints a table.
gradio | sweep experiment.json | experiment.json: No such file or directory.
torch | show script.py --text | pip install "tilescope[torch]"
"""


@pytest.mark.parametrize(("missing", "arguments", "sentence"), read_table(MISSING))
def test_a_command_says_what_to_install(tilescope, tmp_path, missing, arguments, sentence):
    hidden = "import importlib.util, sys\nfind = importlib.util.find_spec\n"
    hidden += f"sys.modules[{missing!r}] = None\n"
    hidden += (
        f"importlib.util.find_spec = lambda name: None if name == {missing!r} else find(name)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hidden)
    done = tilescope(*arguments.split())
    assert done.returncode == 2
    assert done.stderr.endswith(f"{sentence}\n")
    assert "Traceback" not in done.stderr
