"""The glossary, docs/glossary.md: the source of the page's tooltips."""

import functools
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

FILE = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


@functools.cache
def glossary(file: Path = FILE) -> Mapping[str, str]:
    """Return the meaning of every term, each in one line.

    Raises:
        ValueError: the file defines a term twice.
    """
    meanings: dict[str, str] = {}
    for entry in file.read_text(encoding="utf-8").split("\n### ")[1:]:
        term, _, rest = entry.partition("\n")
        if term in meanings:
            raise ValueError(f"{file.name} defines {term!r} twice.")
        meanings[term] = " ".join(rest.partition("\n## ")[0].split())
    return meanings


def meaning(term: str) -> str:
    """Return the meaning of a term.

    >>> meaning("line")
    '128 contiguous, aligned bytes: four sectors. A cache tag covers one line.'

    Raises:
        LookupError: the glossary does not define the term.
    """
    try:
        return glossary()[term]
    except KeyError:
        raise LookupError(f"{FILE.name} does not define {term!r}.") from None


def glossary_dialog() -> Markup:
    """Return the glossary as a popover: `<button popovertarget="glossary">` opens it, without a script."""
    sections = Markup()
    for section in FILE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, *entries = section.split("\n### ")
        terms = (entry.partition("\n")[0] for entry in entries)
        rows = Markup("").join(_ROW.format(term, meaning(term)) for term in terms)
        sections += Markup("<h3>{}</h3><dl>{}</dl>").format(heading.strip(), rows)
    return Markup(
        '<dialog popover id="glossary" class="keys" aria-labelledby="glossary-title">'
        '<h2 id="glossary-title">Glossary</h2>'
        '<button type="button" popovertarget="glossary" autofocus>Close</button>{}</dialog>'
    ).format(sections)


_ROW = Markup("<div><dt>{}</dt><dd>{}</dd></div>")
