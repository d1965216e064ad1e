"""HTML of the page's header: its title, the GPU, and links to start from."""

from collections.abc import Mapping

from markupsafe import Markup

from kernels.gpus import Gpu

# On a narrow screen the controls are a drawer at the bottom, so that the picture stays visible.
DRAWER = Markup('<button type="button" aria-expanded="false" aria-controls="controls">Controls</button>')

# Visible while the page waits for a reply.
AWAITED = Markup('<div role="progressbar" aria-label="Waiting for a reply" hidden></div>')


def title(gpu: Gpu | None) -> Markup:
    """Return the page's name, and where it runs as its tooltip.

    Args:
        gpu: this machine's; None without one.
    """
    where = f"Live on this machine's {gpu.name}." if gpu else "No GPU here: predictions, recordings and an interpreter."
    return Markup(
        '<a class="skip" href="#results">Skip to the picture</a>'
        '<h1 title="What your Triton kernel really does. {}">Tilescope</h1>'
    ).format(where)


def more(states: Mapping[str, str], link: Markup) -> Markup:
    """Return the menu of what is rarely used: states to begin with, the link, the theme and the keys.

    Args:
        states: address queries by the question that they answer.
        link: the slot that copies the address.
    """
    item = Markup('<a href="?{}">{}</a>')
    items = Markup("").join(item.format(query, question) for question, query in states.items())
    return Markup(
        '<details class="more"><summary aria-label="More" title="More">⋯</summary>'
        '<div><nav aria-label="Where to begin">{}</nav>{}'
        '<button type="button" popovertarget="glossary">Glossary</button>'
        '<button type="button" class="show-keys">Keys and talk mode</button></div></details>'
    ).format(items, link)
