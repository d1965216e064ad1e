"""The glossary, docs/glossary.md: the source of the page's tooltips and of the marks at numbers."""

import functools
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from tilescope.numbers import SOURCES

FILE = Path(__file__).resolve().parents[1] / "docs" / "glossary.md"


@functools.cache
def glossary() -> Mapping[str, Mapping[str, str]]:
    """Return the terms of each section, with their meanings in one line."""
    sections = {}
    for section in FILE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, *entries = section.split("\n### ")
        pairs = (entry.split("\n", 1) for entry in entries)
        sections[heading.strip()] = {term: " ".join(text.split()) for term, text in pairs}
    return sections


def meaning(term: str) -> str:
    """Return the meaning of a term.

    >>> meaning("line")
    '128 contiguous, aligned bytes: four sectors. A cache tag covers one line.'

    Raises:
        LookupError: the glossary does not define the term.
    """
    for terms in glossary().values():
        if term in terms:
            return terms[term]
    raise LookupError(f"{FILE.name} does not define {term!r}.")


def mark(source: str) -> Markup:
    """Return the small mark that names a number's source.

    Raises:
        ValueError: the source is not in SOURCES.
    """
    if source not in SOURCES:
        raise ValueError(f"A number comes from {source!r}; allowed are {', '.join(SOURCES)}.")
    return Markup('<span class="mark {0}" title="{1}">{0}</span>').format(source, meaning(source))
