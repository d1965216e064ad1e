"""What the head of the page says: what this is, where it runs, and where to begin."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from kernels.gpus import Gpu

# On a narrow screen the controls are a drawer at its lower edge, so that the picture stays in view while they move.
DRAWER = Markup('<button type="button" aria-expanded="false" aria-controls="controls">Controls</button>')

# Shown while an answer is awaited.
AWAITED = Markup('<div role="progressbar" aria-label="Waiting for an answer" hidden></div>')


def title(gpu: Gpu | None) -> Markup:
    """The name, what the page is for, and what it runs on.

    Args:
        gpu: this machine's; None without one.
    """
    where = f"Live on {gpu.name}." if gpu else "No GPU here."
    tagline = "What your Triton kernel really does."
    skip = Markup('<a class="skip" href="#results">Skip to the picture</a>')
    return skip + Markup(
        '<div class="what"><h1>Tilescope</h1><p class="tagline">{} <span class="where">{}</span></p></div>'
    ).format(tagline, where)


def ways(states: Mapping[str, str]) -> Markup:
    """Ways to begin: links to states of the page, by their question.

    Args:
        states: address queries.
    """
    link = Markup('<a href="?{}">{}</a>')
    links = Markup(" ").join(link.format(query, question) for question, query in states.items())
    return Markup('<nav aria-label="Where to begin">{}</nav>').format(links)
