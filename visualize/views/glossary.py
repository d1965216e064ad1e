"""What each term means: docs/glossary.md, from which the page's hover texts are taken."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


@functools.cache
def glossary(file: Path = FILE) -> Mapping[str, str]:
    """Return every term and its meaning, as one line each.

    Raises:
        ValueError: where a term stands twice.
    """
    found: dict[str, str] = {}
    for entry in file.read_text(encoding="utf-8").split("\n### ")[1:]:
        term, _, rest = entry.partition("\n")
        if term in found:
            raise ValueError(f"{file.name} explains {term!r} twice.")
        found[term] = " ".join(rest.partition("\n## ")[0].split())
    return found


def meaning(term: str) -> str:
    """What a term means.

    >>> meaning("line")
    '128 contiguous, aligned bytes: four sectors. A cache tag covers one line.'

    Raises:
        LookupError: where the glossary does not explain it.
    """
    try:
        return glossary()[term]
    except KeyError:
        raise LookupError(f"{term!r} is not in {FILE.name}.") from None
