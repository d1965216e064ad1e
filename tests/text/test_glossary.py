"""The glossary: each term once, each hover text of the page from it."""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path

import visualize
from visualize.views.glossary import FILE, glossary, meaning
from visualize.views.numbers import SOURCES
from visualize.web.page import glossary_dialog

HEADINGS = re.findall(r"^### (.+)$", FILE.read_text(encoding="utf-8"), re.MULTILINE)
TEXTS = sorted(Path(visualize.__file__).parent.rglob("*.py"))


def named_terms():
    """Every literal that `term` or `meaning` is called with."""
    calls = [node for path in TEXTS for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("term", "meaning")]
    return {one.value for call in named for one in call.args[:1] if isinstance(one, ast.Constant)}


def test_each_term_is_defined_once_and_read():
    assert len(set(HEADINGS)) == len(HEADINGS)
    assert [term for terms in glossary().values() for term in terms] == HEADINGS


def test_every_mark_and_every_hover_term_is_explained():
    assert set(SOURCES) <= set(HEADINGS)
    assert {"request", "sector", "efficiency"} <= named_terms() <= set(HEADINGS)


def test_the_dialog_lists_every_section_and_term_with_its_meaning():
    dialog = glossary_dialog()
    sections = re.findall(r"^## (.+)$", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [html.unescape(heading) for heading in re.findall("<h3>(.*?)</h3>", dialog)] == sections
    rows = [tuple(map(html.unescape, row)) for row in re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", dialog)]
    assert rows == [(term, meaning(term)) for term in HEADINGS]
    assert dialog.startswith('<dialog popover id="glossary"')
