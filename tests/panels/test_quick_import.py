"""`quick_import` suppresses Gradio's stub files and keeps imported objects away from the garbage collector."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import sys

import pytest

from visualize.startup import quick_import

COMPONENT = """
import gradio as gr


class Component(gr.HTML):
    pass
"""


@pytest.fixture
def import_component(tmp_path, monkeypatch):
    """Return a function that imports a file that defines a component, and tells whether Gradio wrote a stub for it."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(name):
        (tmp_path / f"{name}.py").write_text(COMPONENT, encoding="utf-8")
        importlib.invalidate_caches()
        assert importlib.import_module(name).Component.__mro__[1].__name__ == "HTML"
        del sys.modules[name]
        return (tmp_path / f"{name}.pyi").exists()

    return imported


def test_a_component_gets_no_stub(import_component):
    assert import_component("as_it_is"), "Gradio writes none any more: then this is needed no longer"
    with quick_import():
        assert not import_component("without_one")
        assert inspect.getfile(ast.NodeVisitor) == ast.__file__, "other classes keep their files"
    assert import_component("as_before")


def test_the_collector_never_examines_imported_objects_and_runs_again_afterwards():
    with quick_import():
        assert not gc.isenabled()
        imported = [[0]]
    assert gc.isenabled()
    later = [[0]]
    examined = {id(item) for item in gc.get_objects()}
    assert id(later) in examined
    assert id(imported) not in examined
