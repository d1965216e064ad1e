"""Text as values: each renders to HTML for the page (`__html__`) and to plain text for the API (`str`).

A sentence is a template and what stands in it. MarkupSafe escapes what is no markup of ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from visualize.text.words import mark


@dataclass(frozen=True)
class Strong:
    """What a reader should see first."""

    value: Any

    def __html__(self) -> str:
        return Markup("<b>{}</b>").format(self.value)

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Sourced:
    """A value, and where it is from: the page shows a small mark after it, plain text none."""

    value: Any
    source: str

    def __html__(self) -> str:
        return Markup("{} {}").format(self.value, Markup(mark(self.source)))

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Sentence:
    """A template, as of `str.format`, and the values that stand in it."""

    template: str
    values: tuple[Any, ...] = ()

    def __html__(self) -> str:
        return Markup(escape(self.template)).format(*self.values)

    def __str__(self) -> str:
        return self.template.format(*self.values)


def say(template: str, *values: Any) -> Sentence:
    """A sentence.

    >>> from visualize.text.prose import Strong, say
    >>> said = say("The launch reads {} of {}.", Strong("4.2 GB"), "A & B")
    >>> str(said)
    'The launch reads 4.2 GB of A & B.'
    >>> said.__html__()
    Markup('The launch reads <b>4.2 GB</b> of A &amp; B.')
    """
    return Sentence(template, values)


def html(sentences: Iterable[Any]) -> Markup:
    """Sentences, one after the other, as HTML; empty ones are left out. A plain string is text, and is escaped."""
    return Markup(" ").join(sentence for sentence in sentences if str(sentence))


def plain(sentences: Iterable[Any]) -> str:
    """The same as plain text."""
    return " ".join(str(sentence) for sentence in sentences if str(sentence))
