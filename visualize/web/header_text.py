"""HTML of the page's header: its title, the GPU, and links to start from."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from kernels.gpus import Gpu

# On a narrow screen the controls are a drawer at the bottom, so that the picture stays visible.
DRAWER = Markup('<button type="button" aria-expanded="false" aria-controls="controls">Controls</button>')

# Visible while the page waits for a reply.
AWAITED = Markup('<div role="progressbar" aria-label="Waiting for a reply" hidden></div>')


def title(gpu: Gpu | None) -> Markup:
    """Return the page's name, its purpose and the GPU.

    Args:
        gpu: this machine's GPU, or None.
    """
    where = f"Live on {gpu.name}." if gpu else "No GPU here."
    tagline = "What your Triton kernel really does."
    skip = Markup('<a class="skip" href="#results">Skip to the picture</a>')
    return skip + Markup(
        '<div class="what"><h1>Tilescope</h1><p class="tagline">{} <span class="where">{}</span></p></div>'
    ).format(tagline, where)


def ways(states: Mapping[str, str]) -> Markup:
    """Return links to start from.

    Args:
        states: address by question.
    """
    link = Markup('<a href="?{}">{}</a>')
    links = Markup(" ").join(link.format(query, question) for question, query in states.items())
    return Markup('<nav aria-label="Where to begin">{}</nav>').format(links)
