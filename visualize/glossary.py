"""The glossary, docs/glossary.md: the source of the page's tooltips."""

import functools
from collections.abc import Mapping
from pathlib import Path

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
