"""What a tab opens with: one large number, one sentence, and the rest folded."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from visualize.text.prose import html


def headline(number: Any, what: Any, sentence: Any, *more: Any, is_failure: bool = False) -> Markup:
    """The claim of a tab.

    Args:
        number: the number that the picture shows, as it is written large; "" where nothing was counted.
        what: the words beside it, such as "blocks instead of 90".
        sentence: why it matters, at most 25 words.
        more: further sentences; empty ones are left out, and without any there is nothing to unfold.
        is_failure: the number is of what went wrong, and has its colour.
    """
    rest = html(more)
    folded = Markup("<details><summary>More</summary><p>{}</p></details>").format(rest) if rest else Markup()
    style = " wrong" if is_failure else ""
    large = Markup('<p class="number{}"><b>{}</b> {}</p>').format(style, number, what)
    if not str(number) and not str(what):
        large = Markup()
    return Markup('<div class="headline">{}<p class="claim">{}</p>{}</div>').format(large, html([sentence]), folded)
