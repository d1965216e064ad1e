"""The folds of the Compiler panel: the map of a program's shared memory, and its layout conversions."""

from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from tilescope.inside.report import Inside, SharedBuffer, SharedMap
from visualize.views import theme
from visualize.views.panel import Slots
from visualize.views.prose import Code, hint, term
from visualize.views.slots import NONE, fold, plot, plot_value, slot
from visualize.views.tables import table
from visualize.views.theme import Figure

# Maximum ticks below the map.
_MOST_TICKS = 20


def inspection_folds() -> Markup:
    """Return the folds that `inspection_slots` fills."""
    map_plot = plot(
        "memory-map-plot", "Buffers in shared memory: bytes over the program’s operations"
    )
    return fold(
        "memory-map", "Shared memory of one program", map_plot, slot("memory-map-table")
    ) + fold("conversions", "Layout conversions", slot("conversions-table"))


def inspection_slots(inside: Inside, about: str) -> Slots:
    """Draw the memory map, and list the layout conversions.

    Args:
        about: the caption of a saved picture.
    """
    shared = inside.shared_map or SharedMap()
    has_map = bool(shared.buffers)
    none = hint(shared.why or "This kernel uses no shared memory.")
    return {
        "memory-map-plot": plot_value(memory_map_figure(shared), about=about) if has_map else NONE,
        "memory-map-table": _stages_table(shared) if has_map else none,
        "conversions-table": _conversions_table(inside),
    }


def memory_map_figure(shared: SharedMap) -> Figure:
    """Draw the offset and the live range of each buffer's stages, and the limit if the program exceeds it."""
    loops = shared.loops
    edges = {edge for loop in loops for edge in (loop.first - 0.5, loop.last + 0.5)}
    shapes = [theme.vertical(edge, theme.EDGE, yref="paper") for edge in edges]
    limit = shared.limit_bytes
    if 0 < limit < shared.shared_bytes:
        label = {"text": f"limit: {limit:,} bytes", "textposition": "end"}
        line = {"color": theme.WRONG, "width": 3}
        shapes.append(theme.horizontal(limit, line, label=label))
    above = {"yref": "paper", "yanchor": "bottom"}
    ticks = range(0, len(shared.steps), 1 + len(shared.steps) // _MOST_TICKS)
    return theme.figure(
        f"Shared memory of one program: {shared.shared_bytes:,} bytes",
        [_buffer_bars(shared.buffers)],
        xaxis=theme.axis(
            "source lines of operations on shared memory, in program order",
            range=[-0.5, len(shared.steps) - 0.5],
            tickvals=list(ticks),
            ticktext=[shared.steps[tick].line for tick in ticks],
        ),
        yaxis=theme.axis("byte", range=[0, shared.shared_bytes], automargin=True, tickformat=","),
        annotations=[
            theme.note(f"loop on line {loop.line}", (loop.first + loop.last) / 2, 1, **above)
            for loop in loops
        ],
        shapes=shapes,
        margin={"t": 56},
        **theme.OVERLAID_BARS,
    )


def _buffer_bars(buffers: Sequence[SharedBuffer]) -> Figure:
    """Return a bar per buffer, in the colour of its source line."""
    places = [(buffer.file, buffer.line) for buffer in buffers]
    lines = list(dict.fromkeys(places))
    colors = [lines.index(place) % len(theme.CATEGORIES) for place in places]
    return theme.BARS | {
        "x": [(buffer.first + buffer.last) / 2 for buffer in buffers],
        "width": [buffer.last + 1 - buffer.first for buffer in buffers],
        "base": [buffer.offset_bytes for buffer in buffers],
        "y": [buffer.size_bytes for buffer in buffers],
        "text": [_buffer_name(buffer) for buffer in buffers],
        "hovertemplate": "%{text}<br>%{y:,} bytes from %{base:,}<extra></extra>",
        "marker": {
            "color": [theme.CATEGORIES[color] for color in colors],
            "line": {"color": theme.BORDER, "width": 1},
        },
    }


def _buffer_name(buffer: SharedBuffer) -> str:
    stage = f", stage {buffer.stage}" if buffer.stages > 1 else ""
    return f"line {buffer.line}: {buffer.operation} {buffer.tensor}".strip() + stage


def _stages_table(shared: SharedMap) -> Markup:
    """Render the shared memory that one stage more or fewer would need."""
    rows = []
    for need in shared.by_stages:
        fits = not shared.limit_bytes or need.shared_bytes <= shared.limit_bytes
        programs = need.programs_per_sm if fits else "does not fit"
        rows.append((need.num_stages, f"{need.shared_bytes:,}", programs))
    header = "num_stages", "bytes per program", term("programs per SM")
    return table(header, rows, "Shared memory by num_stages") if len(rows) > 1 else Markup()


def _conversions_table(inside: Inside) -> Markup:
    """Render the layout conversions: their cost, and the operations that require them."""
    if not inside.conversions:
        return hint(inside.unread or "This kernel has no layout conversions.")
    wavefronts = Counter[tuple[str, int]]()
    for access in inside.shared:
        wavefronts[access.file, access.line] += access.wavefronts or 0
    rows = [
        (
            Code(f"{each.file}:{each.line}"),
            f"{' × '.join(map(str, each.source.shape))} of {each.element_bytes} B",
            f"{each.shared_bytes:,}",
            f"{wavefronts[each.file, each.line]:,}" if each.shared_bytes else "",
            each.maker,
            each.user,
        )
        for each in inside.conversions
    ]
    header = "line", "block", "bytes through shared memory", "wavefronts on the line", "from", "to"
    return table(header, rows, "Conversions between layouts")
