"""Imports run one way: app → page → panels → widgets, text, figures → models → kernels. Read from the source."""

from __future__ import annotations

import ast
import collections
import graphlib
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
DECLARATIONS = (
    "accesses",
    "compile_cost",
    "knobs",
    "spec",
    "lanes",
    "experiment",
    "space",
    "gpus",
    "orders",
    "jit",
    "pairs",
)
STANDARD_ONLY = tuple(
    f"kernels.{name}" for name in ("accesses", "knobs", "spec", "lanes", "experiment", "space", "gpus")
)


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


# What each package may import of the project, besides itself. The first prefix that fits counts.
_DECLARED = tuple(f"kernels.{name}" for name in DECLARATIONS)
_MODELS = ("visualize.predict", "kernels.results", *_DECLARED)
ALLOWED = {
    "app": ("kernels", "visualize"),
    "kernels.results": ("kernels",),
    "kernels.compiling": ("kernels",),
    "kernels.store": ("kernels",),
    "kernels.export": ("kernels",),
    "kernels": ("kernels",),
    "visualize.predict": _MODELS,
    "visualize.figures": _MODELS,
    "visualize.text": ("kernels", *_MODELS),
    "visualize.widgets": ("visualize.figures", "visualize.text", *_MODELS),
    "visualize.state": ("kernels", "visualize.figures", *_MODELS),
    "visualize.scoreboard": ("kernels", "visualize.state", *_MODELS),
    "visualize.panels": ("kernels", "visualize"),
    "visualize.tours": ("kernels", "visualize"),
    "visualize.command": ("kernels", "visualize.predict"),
    "visualize.page": ("kernels", "visualize"),
}

# Of these, packages that it may not import, wherever the import stands.
NEVER = {
    "kernels.results": (
        *("kernels.sweep", "kernels.measuring", "kernels.compiling", "kernels.export", "kernels.store"),
        *("gradio", "plotly", "torch", "triton"),
    ),
    "kernels.compiling": ("kernels.sweep", "kernels.measuring", "kernels.results.records", "gradio", "plotly"),
    "kernels.store": (
        *("kernels.sweep", "kernels.measuring", "kernels.compiling", "kernels.export"),
        *("gradio", "plotly", "torch", "triton"),
    ),
    "kernels.export": (
        "kernels.sweep",
        "kernels.measuring",
        "kernels.results.records",
        "kernels.compiling",
        "gradio",
        "plotly",
    ),
    "kernels.measuring": ("kernels.sweep", "gradio", "plotly"),
    "kernels": ("gradio", "plotly"),
    "visualize.predict": (
        *("kernels.results.codec", "kernels.results.records"),
        *("gradio", "plotly", "torch", "triton"),
    ),
    "visualize.figures": ("gradio", "torch", "triton"),
    "visualize.text": ("kernels.measuring", "kernels.results.records", "gradio", "plotly", "torch", "triton"),
    "visualize.widgets": ("torch", "triton"),
    "visualize.state": ("gradio", "torch", "triton"),
    "visualize.scoreboard": ("gradio", "plotly", "torch", "triton"),
    "visualize.panels": ("visualize.page", "visualize.tours", "torch", "triton"),
    "visualize.tours": ("visualize.page", "gradio", "plotly", "torch", "triton"),
    "visualize.command": ("gradio", "plotly", "torch", "triton"),
    "visualize.page": ("torch", "triton"),
}


def of_package(rules, module):
    """The rule of the package that a module is in."""
    package = next((package for package in rules if within(module, (package,))), None)
    return rules.get(package, ()), package


def allowed_project_imports(module):
    """Prefixes of the project's modules that a module may import."""
    if module in STANDARD_ONLY:
        return STANDARD_ONLY
    allowed, package = of_package(ALLOWED, module)
    return (*allowed, *filter(None, [package]))


def never(module):
    """Other packages that a module may not import, wherever the import stands."""
    return of_package(NEVER, module)[0]


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
        if top == "distributed" and (at_top or module != "kernels.sweep.cluster"):
            found.append(f"{module}:{line} imports distributed, an optional extra; ask kernels.sweep.cluster for it")
        if top == "triton" and at_top and runs and module != "kernels.jit":
            found.append(f"{module}:{line} imports triton when it is imported; take it from kernels.jit")
    return found


def test_imports_run_one_way():
    assert [
        broken
        for path in SOURCES
        for broken in broken_rules(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py")
    ] == []


def test_no_file_is_too_long():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (*SOURCES, *TESTS)}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > LONGEST_LINES} == {}


BROKEN = (
    ("kernels.measuring.worker", "from visualize.predict import schedule"),
    ("kernels.results.records", "import visualize"),
    ("kernels.measuring.session", "import app"),
    ("kernels.measuring.session", "def f():\n    from app import main"),
    ("kernels.measuring.check", "import torch"),
    ("kernels.measuring.check", "class C:\n    import torch"),
    ("kernels.measuring.check", "try:\n    from torch import nn\nexcept ImportError:\n    pass"),
    ("kernels.measuring.session", "from kernels.sweep.search import Search"),
    ("kernels.results.records", "def f():\n    from kernels.sweep import sweeping"),
    ("kernels.sweep.search", "from visualize.predict.launch_time import predict_time"),
    ("kernels.sweep.cluster", "import distributed"),
    ("kernels.sweep.sweeping", "def f():\n    import distributed"),
    ("kernels.space", "import numpy"),
    ("kernels.matmul.grouped", "import triton.language as tl"),
    ("kernels.matmul.grouped", "import plotly"),
    ("kernels.spec", "import numpy as np"),
    ("kernels.spec", "def f():\n    import numpy as np"),
    ("kernels.spec", "from kernels.measuring import results"),
    ("kernels.gpus", "from kernels import orders"),
    ("kernels.experiment", "from kernels import discover"),
    ("visualize.predict.reuse", "import plotly.graph_objects as go"),
    ("visualize.predict.reuse", "def f():\n    import torch"),
    ("visualize.predict.reuse", "if TYPE_CHECKING:\n    import gradio"),
    ("visualize.predict.reuse", "import triton"),
    ("visualize.predict.reuse", "from kernels import discover"),
    ("visualize.predict.reuse", "from kernels.matmul import grouped"),
    ("visualize.predict.reuse", "from kernels.measuring.check import check"),
    ("visualize.predict.scores", "from kernels.results import records"),
    ("kernels.results.records", "from kernels.measuring import session"),
    ("kernels.store.store", "from kernels.measuring.session import Session"),
    ("kernels.results.records", "from kernels.store import Store"),
    ("kernels.compiling.listing", "from kernels.results.records import find"),
    ("kernels.export.script", "from kernels.measuring.check import check"),
    ("visualize.text.why", "import gradio as gr"),
    ("visualize.text.why", "from visualize.panels import schedule_tab"),
    ("visualize.scoreboard.board", "import plotly"),
    ("visualize.scoreboard.board", "from visualize.text import words"),
    ("visualize.panels.reuse_tab", "from visualize.page import page"),
    ("visualize.panels.tabs", "from visualize.tours import tours"),
    ("visualize.tours.fact", "from visualize.page.guide import Guide"),
    ("visualize.predict.reuse", "from visualize.figures import theme"),
    ("visualize.predict.reuse", "from ..panels import page"),
    ("visualize.figures.theme", "import gradio as gr"),
    ("visualize.figures.theme", "def f():\n    import triton"),
    ("visualize.figures.theme", "from torch import Tensor"),
    ("visualize.figures.theme", "from visualize.page.page import page"),
    ("visualize.figures.theme", "from kernels.measuring.session import Session"),
    ("visualize.command.sweep_command", "import gradio"),
    ("visualize.command.sweep_command", "from visualize.panels import tabs"),
    ("visualize.page.page", "from app import main"),
    ("visualize.page.page", "import torch"),
)

FINE = (
    ("app", "import torch"),
    ("kernels.jit", "try:\n    import triton\nexcept ImportError:\n    pass"),
    ("kernels.measuring.check", "def f():\n    import torch"),
    ("kernels.sweep.cluster", "def f():\n    import distributed"),
    ("kernels.sweep.search", "from kernels.measuring.sampling import Effort\nimport numpy"),
    ("kernels.measuring.check", "if TYPE_CHECKING:\n    import torch"),
    ("kernels.spec", "if TYPE_CHECKING:\n    import numpy as np"),
    ("kernels.experiment", "from kernels.gpus import GPUS\nimport dataclasses"),
    ("visualize.predict.reuse", "from kernels import orders\nfrom kernels.jit import on_arrays\nimport numpy"),
    ("visualize.figures.theme", "import plotly\nfrom visualize.predict import schedule"),
    (
        "visualize.page.page",
        "import gradio\nfrom kernels import discover\nfrom kernels.measuring.session import Session",
    ),
)


@pytest.mark.parametrize(("module", "source"), BROKEN)
def test_a_planted_import_is_found(module, source):
    assert broken_rules(source, module)


@pytest.mark.parametrize(("module", "source"), FINE)
def test_an_import_that_is_allowed_is_let_be(module, source):
    assert broken_rules(source, module) == []


def test_every_layer_has_sources_here():
    for layer in ("kernels/measuring", "visualize/predict", "visualize/figures", "visualize/panels"):
        assert any(path.is_relative_to(ROOT / layer) for path in SOURCES), layer


def test_no_two_files_bear_one_name():
    """But each family has its problem."""
    counted = collections.Counter(path.stem for path in SOURCES if path.stem not in ("__init__", "problem"))
    assert [name for name, times in counted.items() if times > 1] == []


def test_no_circle_of_imports():
    """Not even one that only a type checker sees."""
    needs = {
        module_name(path): {one.name for one in imports(path.read_text(encoding="utf-8"), module_name(path))}
        for path in SOURCES
        if path.name != "__init__.py"
    }
    graph = {module: needed & set(needs) for module, needed in needs.items()}
    graphlib.TopologicalSorter(graph).prepare()
