"""The same script as a Jupyter notebook: nbformat 4.5, its cells those of the script."""

from __future__ import annotations

from typing import Any

from kernels.export.script import Script


def notebook(script: Script) -> dict[str, Any]:
    """A notebook as JSON: what the script is about, then each of its cells under its title."""
    first, *others = script.about
    about = "\n".join([f"# {first}", *others])
    cells: list[dict[str, Any]] = [_markdown("about", about)]
    for cell in script.cells:
        name = cell.title.lower().replace(" ", "-")
        cells.append(_markdown(f"{name}-title", f"## {cell.title}"))
        cells.append({**_cell("code", name, cell.code), "execution_count": None, "outputs": []})
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _markdown(name: str, text: str) -> dict[str, Any]:
    return _cell("markdown", name, text)


def _cell(kind: str, name: str, text: str) -> dict[str, Any]:
    """A cell; a multi-line text is a list of lines, which differs well."""
    return {"cell_type": kind, "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}
