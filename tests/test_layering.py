"""Imports run one way: app → panels → figures → models → kernels. Read from the source, not from what is loaded."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import kernels as package

ROOT = Path(package.__file__).parent.parent
SOURCES = sorted([ROOT / "app.py", *(ROOT / "kernels").rglob("*.py"), *(ROOT / "visualize").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PROJECT = ("app", "kernels", "visualize")
LONGEST_LINES = 350

# What a model may read of the kernels: what runs nothing and knows no variant.
DECLARATIONS = ("knobs", "spec", "lanes", "experiment", "gpus", "orders", "jit")
STANDARD_ONLY = ("kernels.knobs", "kernels.spec", "kernels.lanes", "kernels.experiment", "kernels.gpus")


class Import(NamedTuple):
    """One import: what, on which line, whether it happens when the module is imported, or only for a type checker."""

    name: str
    line: int
    at_top: bool
    runs: bool


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source, module, is_package=False):
    """Every import of a module, `from x import y` as x.y where y is a module of the project, else as x."""
    found = []

    def names(node):
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        base = node.module or ""
        if node.level:
            parts = module.split(".")
            base = ".".join(parts[: len(parts) - node.level + is_package] + ([base] if base else []))
        if base.split(".")[0] not in PROJECT:
            return [base]
        return [f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base for alias in node.names]

    def visit(node, at_top, runs):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                found.extend(Import(name, child.lineno, at_top, runs) for name in names(child))
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for part in child.body:
                    visit(ast.Module([part], []), at_top, False)
                visit(ast.Module(child.orelse, []), at_top, runs)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                visit(child, at_top and not inside, runs)

    visit(ast.parse(source), at_top=True, runs=True)
    return found


def is_module(name):
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def allowed_project_imports(module):
    """Prefixes of the project's modules that a module may import."""
    declarations = tuple(f"kernels.{name}" for name in DECLARATIONS)
    if module == "app":
        return ("kernels", "visualize")
    if module in STANDARD_ONLY:
        return STANDARD_ONLY
    if module.startswith("kernels"):
        return ("kernels",)
    if module.startswith("visualize.models"):
        return ("visualize.models", *declarations)
    if module.startswith("visualize.figures"):
        # A result is a value of NumPy and the standard library.
        return ("visualize.figures", "visualize.models", "kernels.runner.results", *declarations)
    return ("visualize", "kernels")


def never(module):
    """Other packages that a module may not import, wherever the import stands."""
    if module.startswith("kernels"):
        return ("gradio", "plotly")
    if module.startswith("visualize.models"):
        return ("gradio", "plotly", "torch", "triton")
    if module.startswith("visualize.figures"):
        return ("gradio", "torch", "triton")
    return ()


def within(name, prefixes):
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def broken_rules(source, module, is_package=False):
    """What is wrong with a module's imports, a sentence each."""
    found = []
    for name, line, at_top, runs in imports(source, module, is_package):
        top = name.split(".")[0]
        if top in PROJECT and not within(name, allowed_project_imports(module)):
            found.append(f"{module}:{line} imports {name}")
        if within(name, never(module)):
            found.append(f"{module}:{line} imports {name}")
        if module in STANDARD_ONLY and runs and top != "kernels" and top not in sys.stdlib_module_names:
            found.append(f"{module}:{line} imports {name}, which is not in the standard library")
        if top == "torch" and at_top and runs and module != "app":
            found.append(f"{module}:{line} imports torch when it is imported")
        if top == "triton" and at_top and runs and module != "kernels.jit":
            found.append(f"{module}:{line} imports triton when it is imported; take it from kernels.jit")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path):
    source = path.read_text(encoding="utf-8")
    assert broken_rules(source, module_name(path), path.name == "__init__.py") == []


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_too_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_LINES


BROKEN = (
    ("kernels.runner.worker", "from visualize.models import schedule"),
    ("kernels.records", "import visualize"),
    ("kernels.runner.session", "import app"),
    ("kernels.runner.session", "def f():\n    from app import main"),
    ("kernels.runner.check", "import torch"),
    ("kernels.runner.check", "class C:\n    import torch"),
    ("kernels.runner.check", "try:\n    from torch import nn\nexcept ImportError:\n    pass"),
    ("kernels.matmul.grouped", "import triton.language as tl"),
    ("kernels.matmul.grouped", "import plotly"),
    ("kernels.spec", "import numpy as np"),
    ("kernels.spec", "def f():\n    import numpy as np"),
    ("kernels.spec", "from kernels.runner import results"),
    ("kernels.gpus", "from kernels import orders"),
    ("kernels.experiment", "from kernels import discover"),
    ("visualize.models.reuse", "import plotly.graph_objects as go"),
    ("visualize.models.reuse", "def f():\n    import torch"),
    ("visualize.models.reuse", "if TYPE_CHECKING:\n    import gradio"),
    ("visualize.models.reuse", "import triton"),
    ("visualize.models.reuse", "from kernels import discover"),
    ("visualize.models.reuse", "from kernels.matmul import grouped"),
    ("visualize.models.reuse", "from kernels.runner.results import Check"),
    ("visualize.models.reuse", "from visualize.figures import theme"),
    ("visualize.models.reuse", "from ..panels import page"),
    ("visualize.figures.theme", "import gradio as gr"),
    ("visualize.figures.theme", "def f():\n    import triton"),
    ("visualize.figures.theme", "from torch import Tensor"),
    ("visualize.figures.theme", "from visualize.panels.page import page"),
    ("visualize.figures.theme", "from kernels.runner.session import Session"),
    ("visualize.panels.page", "from app import main"),
    ("visualize.panels.page", "import torch"),
)

FINE = (
    ("app", "import torch"),
    ("kernels.jit", "try:\n    import triton\nexcept ImportError:\n    pass"),
    ("kernels.runner.check", "def f():\n    import torch"),
    ("kernels.runner.check", "if TYPE_CHECKING:\n    import torch"),
    ("kernels.spec", "if TYPE_CHECKING:\n    import numpy as np"),
    ("kernels.experiment", "from kernels.gpus import GPUS\nimport dataclasses"),
    ("visualize.models.reuse", "from kernels import orders\nfrom kernels.jit import on_arrays\nimport numpy"),
    ("visualize.figures.theme", "import plotly\nfrom visualize.models import schedule"),
    (
        "visualize.panels.page",
        "import gradio\nfrom kernels import discover\nfrom kernels.runner.session import Session",
    ),
)


@pytest.mark.parametrize(("module", "source"), BROKEN)
def test_a_planted_import_is_found(module, source):
    assert broken_rules(source, module)


@pytest.mark.parametrize(("module", "source"), FINE)
def test_an_import_that_is_allowed_is_let_be(module, source):
    assert broken_rules(source, module) == []


def test_every_layer_has_sources_here():
    for layer in ("kernels/runner", "visualize/models", "visualize/figures", "visualize/panels"):
        assert any(path.is_relative_to(ROOT / layer) for path in SOURCES), layer
