"""Scripts and benchmarks, of which CI runs only some."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "path", [*ROOT.glob("scripts/*.py"), *ROOT.glob("benchmarks/*.py")], ids=lambda path: path.stem
)
def test_every_script_imports_names_that_exist(path):
    importlib.import_module(f"{path.parent.name}.{path.stem}")
