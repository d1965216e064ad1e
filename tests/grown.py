"""A copy of the project with an additional family and tab, its app, and its contract tests.

Starting an app or pytest takes seconds, so all additions share one app and one pytest process. Each file in ADDED
defines `add`, which extends the copy, and `PAGE`, code that runs in the app's process and sets `said`.
"""

from __future__ import annotations

import importlib
import json
import re

import pytest

from tests.kernels.trees import copied, python

ADDED = ("test_new_family", "test_new_panel")

CONTRACT = ("tests/kernels/test_contract.py", "tests/kernels/test_declarations.py", "tests/predict/test_textbook.py")

SERVER = """
import json, runpy, traceback
from pathlib import Path

if __name__ == "__main__":
    said = {}
    for name, code in json.loads(Path("pages.json").read_text(encoding="utf-8")).items():
        scope = {}
        try:
            exec(code, scope)
            said[name] = scope["said"]
        except Exception:
            said[name] = {"error": traceback.format_exc()}
    Path("results.json").write_text(json.dumps(said), encoding="utf-8")
    runpy.run_path("app.py", run_name="__main__")
"""


@pytest.fixture(scope="session")
def grown(tmp_path_factory):
    """Return the folder of the project's copy with all additions."""
    tree = copied(tmp_path_factory.mktemp("grown") / "tree")
    for name in ADDED:
        importlib.import_module(f"tests.{name}").add(tree)
    return tree


@pytest.fixture(scope="session")
def grown_app(grown, tmp_path_factory, tilescope_cache):
    """Yield the address of the copy's app, which runs without a GPU. Its process first runs each PAGE."""
    from tests.page.conftest import served

    pages = {name: importlib.import_module(f"tests.{name}").PAGE for name in ADDED}
    (grown / "pages.json").write_text(json.dumps(pages), encoding="utf-8")
    (grown / "server.py").write_text(SERVER, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        with served(tmp_path_factory.mktemp("served"), grown, tilescope_cache, script="server.py") as app:
            yield app.url


@pytest.fixture(scope="session")
def grown_client(grown_app):
    from gradio_client import Client

    client = Client(grown_app, verbose=False)
    yield client
    client.close()


@pytest.fixture
def grown_page(request, grown, grown_app):
    """Return the results that the PAGE of this test's file left in `said`."""
    said = json.loads((grown / "results.json").read_text(encoding="utf-8"))[request.path.stem]
    assert "error" not in said, said["error"]
    return said


@pytest.fixture(scope="session")
def contract(grown):
    """Run the copy's contract tests of the added kernel. Return each test's outcome by id, and the output."""
    ended = python(grown, "-m", "pytest", "-v", "-p", "no:cacheprovider", *CONTRACT, "-k", "row_blocks")
    outcomes = dict(re.findall(r"^(tests/.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", ended.stdout, re.MULTILINE))
    assert outcomes, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ended.returncode in (0, 1), ended.stdout[-3000:]
    return outcomes, ended.stdout
