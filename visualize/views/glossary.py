"""The glossary, docs/glossary.md: the source of the page's tooltips."""

import functools
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

FILE = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


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


def glossary_dialog() -> Markup:
    """Return the glossary as a popover: `<button popovertarget="glossary">` opens it, without a script."""
    sections = Markup()
    for heading, terms in glossary().items():
        rows = Markup("").join(_ROW.format(*entry) for entry in terms.items())
        sections += Markup("<h3>{}</h3><dl>{}</dl>").format(heading, rows)
    return Markup(
        '<dialog popover id="glossary" class="keys" aria-labelledby="glossary-title">'
        '<h2 id="glossary-title">Glossary</h2>'
        '<button type="button" popovertarget="glossary" autofocus>Close</button>{}</dialog>'
    ).format(sections)


_ROW = Markup("<div><dt>{}</dt><dd>{}</dd></div>")
