"""Numbers and marks as the page writes them. HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

MARKS = {
    "measured": "Measured on this device just now.",
    "predicted": "Computed from the kernel's index arithmetic.",
    "interpreter": "Run by Triton's interpreter on the CPU.",
    "recorded": "Measured earlier on the device that is named.",
    "compiled": "What the compiler chose for the GPU that is named.",
    "counted": "Counted by Nsight Compute on the device that is named.",
    "textbook": "Counted on the blackboard's machine, not on a compiled kernel.",
    "assumed": "Not known here: assumed.",
}


def mark(source: str) -> str:
    """The small mark that says where a number comes from."""
    return f'<span class="mark {source}" title="{MARKS[source]}">{source}</span>'


def figure(value: str, label: str, source: str = "", detail: str = "") -> str:
    """One number of the strip: value, what it is, its mark."""
    title = f' title="{html.escape(detail)}"' if detail else ""
    return (
        f'<div class="figure"{title}><span class="value">{html.escape(value)}</span>'
        f'<span class="label">{html.escape(label)} {mark(source) if source else ""}</span></div>'
    )


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str = "") -> str:
    """A table; cells are HTML already."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, without exponents where they can be avoided."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -4 <= magnitude < 7:
        return f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return f"{value:.{digits - 1}e}"


def milliseconds(value: float) -> str:
    """A time: in µs below a tenth of a millisecond."""
    return f"{significant(value * 1000)} µs" if value < 0.1 else f"{significant(value)} ms"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"
