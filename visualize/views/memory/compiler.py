"""The Compiler panel: registers and occupancy, the kernel at every stage, instructions by line, and memory map."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tilescope.captures.content import CapturedKernel
from tilescope.declare.gpus import TENSOR_COLUMNS, Gpu
from tilescope.declare.jit import call_lines, source_file, source_lines
from tilescope.declare.spec import Kernel, Launch
from tilescope.evaluate.instructions import CompiledFacts
from tilescope.evaluate.matching import access_lines
from tilescope.inside.report import Inside, SharedBuffer, SharedMap, TensorBuffer
from tilescope.numbers import Number, bytes_of, count_noun, join_names, percent
from tilescope.results import Compiled, Failure
from visualize.predict.schedule import occupancy_of
from visualize.views import prose, theme
from visualize.views.memory.flow import find_operation
from visualize.views.memory.text import label, place
from visualize.views.panel import Api, Panel, Reply, Slots, reply_endpoint, select_fields
from visualize.views.prose import (
    Code,
    Sourced,
    Strong,
    headline,
    hint,
    picture_caption,
    say,
    table,
    term,
)
from visualize.views.slots import NONE, plot_value, template
from visualize.views.state import Snapshot
from visualize.views.theme import Figure

_LISTING = template(
    """
<div class="listing-bar"><span>Highlight at each compilation stage:</span>
<select class="control" aria-label="memory operation">
{% for name in names %}<option>{{ name }}</option>{% endfor %}
</select>
<input type="search" class="control" placeholder="Search all, Enter for next" aria-label="search"></div>
<div class="listing-panes">
{% for name, lines in texts.items() %}
<section class="pane" data-name="{{ name }}"><div class="pane-head"><b>{{ name }}</b>{{ descriptions[name] }}
<span class="count quiet"></span><button type="button" class="control">Copy</button></div>
<pre tabindex="0" aria-label="{{ name }}">{% for line in lines %}<div>{{ line }}</div>{% endfor %}</pre></section>
{% endfor %}
</div>
"""
)

# File → the number of its first line, and its lines.
Sources = Mapping[str, tuple[int, Sequence[str]]]

# The compiler's texts. Their titles are in capitals.
_TEXTS = ("ttgir", "ptx", "sass")
_DESCRIPTIONS = {
    "Source": "Python",
    "TTGIR": "Triton’s GPU IR",
    "PTX": "virtual assembly",
    "SASS": "machine code",
    "AMDGCN": "assembly",
}

_NOT_INSPECTED: Slots = {
    "instructions-table": "",
    "memory-map-plot": NONE,
    "memory-map-table": "",
    "tensor-map-plot": NONE,
    "conversions-table": "",
}


def resource_numbers(snapshot: Snapshot) -> tuple[Number, ...]:
    """Return the resources of a compiled kernel's programs."""
    compiled = snapshot.compiled
    if compiled is None:
        return ()
    launch = snapshot.launch
    resident = occupancy_of(launch.gpu, launch.config.num_warps, compiled)
    return (
        Number("registers per thread", compiled.registers, "", "compiled"),
        Number("spilled per thread", compiled.spilled_bytes, "bytes", "compiled"),
        Number("shared memory", compiled.shared_bytes, "bytes", "compiled"),
        Number("programs per SM", resident.programs_per_sm, "", "compiled"),
    )


def resource_slots(
    gpu: Gpu, num_warps: int, compiled: CompiledFacts | CapturedKernel, triton: str
) -> Slots:
    """Render the predicted occupancy and, for each resource, the need, the supply and the programs that fit."""
    resident = occupancy_of(gpu, num_warps, compiled)
    held = count_noun(resident.programs_per_sm, "program")
    warps = resident.programs_per_sm * num_warps
    spills = (
        f"{compiled.spilled_bytes:,} bytes spilled" if compiled.spilled_bytes else "none spilled"
    )
    needs = (
        bytes_of(compiled.shared_bytes),
        count_noun(compiled.registers, "register"),
        Sourced(spills, "compiled"),
    )
    occupancy = headline(
        f"{100 * resident.occupancy:.3g} %",
        Sourced(f"theoretical occupancy on {gpu.name}", "predicted"),
        say(
            "An SM can hold {} ({} of its {} warps). The limit is {}.",
            Strong(held),
            warps,
            gpu.max_warps_per_sm,
            join_names(resident.limited_by),
        ),
        say("{} of shared memory per program, {} per thread, {}.", *needs),
        f"Triton {triton} compiled it.",
        gpu.caveat,
    )

    supply = {
        "warps": (f"{num_warps} per program", f"{gpu.max_warps_per_sm} per SM"),
        "programs": ("1", f"{gpu.max_programs_per_sm} per SM"),
        "registers": (f"{compiled.registers} per thread", f"{gpu.registers_per_sm:,} per SM"),
        "shared memory": (
            f"{compiled.shared_bytes:,} bytes per program",
            f"{gpu.shared_bytes_per_sm:,} bytes per SM",
        ),
        "tensor memory": (
            f"{getattr(compiled, 'tensor_columns', 0)} columns per program",
            f"{TENSOR_COLUMNS} columns per SM",
        ),
    }
    header = ("resource", "this kernel needs", "the GPU has", term("programs per SM"))
    rows = [(name, *supply[name], str(programs)) for name, programs in resident.limits.items()]
    return {"compiler-headline": occupancy, "resources": table(header, rows)}


def _sources(kernel: Kernel, launch: Launch) -> Sources:
    files = [source_file(kernel.jitted), *(a.source[0] for a in kernel.accesses(launch))]
    return {file: (1, source_lines(file)) for file in files}


def _listing(kernel: Kernel, launch: Launch, compiled: Compiled, chosen: int) -> str:
    accesses = kernel.accesses(launch)
    operations = [
        (f"{label(access)}, {place(access)}", access.source[0], call_lines(access.source))
        for access in accesses
    ]
    codes = {kind: getattr(compiled, kind) for kind in _TEXTS}
    return list_texts(_sources(kernel, launch), codes, operations, chosen)


def list_texts(
    sources: Sources,
    codes: Mapping[str, str],
    operations: Sequence[tuple[str, str, range]],
    chosen: int,
) -> str:
    """Return the JSON of a listing: its HTML, and the marked lines of each operation, by text.

    Args:
        sources: of the kernel.
        codes: the kernel's code by stage.
        operations: (label, file, lines) of each memory operation.
        chosen: the number of the operation whose lines are shown.
    """
    source = [
        (file, number, line)
        for file, (first, lines) in sources.items()
        for number, line in enumerate([f"# {file}", *lines], first - 1)
    ]
    texts = {"Source": [line for *_, line in source]}
    for kind, code in codes.items():
        # nvdisasm leaves room for labels before an instruction, which would push it out of a narrow pane.
        texts[kind.upper()] = re.sub(r"(?<=\*/) {3,}", "  ", code).splitlines()
    marks = [
        {
            "Source": [n for n, each in enumerate(source) if each[0] == file and each[1] in lines],
            **{kind.upper(): access_lines(code, kind, file, lines) for kind, code in codes.items()},
        }
        for _, file, lines in operations
    ]
    names = [name for name, *_ in operations]
    html = _LISTING(names=names, texts=texts, descriptions=_DESCRIPTIONS)
    listing = {"html": html, "marks": marks, "operation": chosen}
    return json.dumps(listing, ensure_ascii=False)


def compile_reply(snapshot: Snapshot) -> Reply:
    """Compiles the kernel for any GPU in the table, without a GPU.

    Returns registers per thread, spilled bytes, shared-memory bytes per program, programs per SM, occupancy
    (resident warps / most warps, 0 to 1) and what limits it; and the TTGIR, PTX and SASS. Nothing is
    measured. Takes about a second; minutes for large tiles on few warps.
    """
    compiled = snapshot.compiled
    assert compiled is not None, "only a compiled kernel has a reply"
    launch = snapshot.launch
    resident = occupancy_of(launch.gpu, launch.config.num_warps, compiled)
    return {
        **select_fields(compiled, "registers", "spilled_bytes", "shared_bytes"),
        **select_fields(resident, "occupancy", "programs_per_sm", "limited_by", "limits"),
        **select_fields(compiled, *_TEXTS, "triton", "seconds"),
    }


# Maximum ticks below the map.
_MOST_TICKS = 20


# Maximum rows of the table of instructions.
_MOST_LINES = 16


def inspection_slots(inside: Inside, about: str, sources: Sources) -> Slots:
    """List the instructions by source line, draw the memory map, and list the layout conversions.

    Args:
        about: the caption of a saved picture.
        sources: of the kernel.
    """
    shared = inside.shared_map or SharedMap()
    has_map = bool(shared.buffers)
    none = hint(shared.why or "This kernel uses no shared memory.")
    tensor = _map_tensor_memory(inside.tensor_memory, shared)
    return {
        "instructions-table": _instructions_table(inside, sources),
        "memory-map-plot": plot_value(memory_map_figure(shared), about=about) if has_map else NONE,
        "memory-map-table": _stages_table(shared) if has_map else none,
        "tensor-map-plot": plot_value(
            memory_map_figure(tensor, "tensor memory", "column"), about=about
        )
        if tensor.buffers
        else NONE,
        "conversions-table": _conversions_table(inside),
    }


def memory_map_figure(
    shared: SharedMap, memory: str = "shared memory", unit: str = "byte"
) -> Figure:
    """Draw the offset and the live range of each buffer's stages, and the limit if the program exceeds it."""
    loops = shared.loops
    edges = {edge for loop in loops for edge in (loop.first - 0.5, loop.last + 0.5)}
    shapes = [theme.vertical(edge, theme.EDGE, yref="paper") for edge in edges]
    limit = shared.limit_bytes
    if 0 < limit < shared.shared_bytes:
        label = {"text": f"limit: {limit:,} {unit}s", "textposition": "end"}
        line = {"color": theme.WRONG, "width": 3}
        shapes.append(theme.horizontal(limit, line, label=label))
    above = {"yref": "paper", "yanchor": "bottom"}
    ticks = range(0, len(shared.steps), 1 + len(shared.steps) // _MOST_TICKS)
    return theme.figure(
        f"{memory.capitalize()} of one program: {shared.shared_bytes:,} {unit}s",
        [_buffer_bars(shared.buffers, unit)],
        xaxis=theme.axis(
            "source lines of on-chip memory operations, in program order",
            range=[-0.5, len(shared.steps) - 0.5],
            tickvals=list(ticks),
            ticktext=[shared.steps[tick].line for tick in ticks],
        ),
        yaxis=theme.axis(unit, range=[0, shared.shared_bytes], automargin=True, tickformat=","),
        annotations=[
            theme.note(f"loop on line {loop.line}", (loop.first + loop.last) / 2, 1, **above)
            for loop in loops
        ],
        shapes=shapes,
        margin={"t": 56},
        **theme.OVERLAID_BARS,
    )


def _map_tensor_memory(buffers: Sequence[TensorBuffer], shared: SharedMap) -> SharedMap:
    """Return the map of tensor memory, in columns instead of bytes."""
    own = tuple(
        SharedBuffer(
            file=each.file,
            line=each.line,
            offset_bytes=each.first_column,
            size_bytes=each.columns,
            first=each.first,
            last=each.last,
            operation=f"{each.columns} columns",
        )
        for each in buffers
        if each.first_column is not None
    )
    columns = max((each.offset_bytes + each.size_bytes for each in own), default=0)
    return replace(shared, shared_bytes=columns, limit_bytes=TENSOR_COLUMNS, buffers=own)


def _buffer_bars(buffers: Sequence[SharedBuffer], unit: str) -> Figure:
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
        "hovertemplate": f"%{{text}}<br>%{{y:,}} {unit}s from %{{base:,}}<extra></extra>",
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


def _instructions_table(inside: Inside, sources: Sources) -> Markup:
    """Render the instructions of the source lines, the most executed first."""
    counts = Counter[tuple[tuple[str, int], ...]]()
    kinds = defaultdict[tuple[tuple[str, int], ...], Counter[str]](Counter)
    for row in inside.instructions_by_line:
        counts[row.user_lines] += row.executed or row.compiled
        kinds[row.user_lines][row.kind] += row.compiled
    texts = {
        (Path(path).name, number): text.strip()
        for path, (first, lines) in sources.items()
        for number, text in enumerate(lines, first)
    }
    total = inside.instructions_executed
    ranked = sorted(((number, places) for places, number in counts.items()), reverse=True)
    cells = list[tuple[Any, ...]]()
    for executed, places in ranked[:_MOST_LINES]:
        name = ", ".join(f"{file}:{line}" if line else "no source line" for file, line in places)
        code = "\n".join(texts.get(place, "") for place in places)
        compiled = (f"{kind} {number:,}" for kind, number in kinds[places].most_common())
        cells.append((name, Code(code), *_times(executed, total), ", ".join(compiled)))
    if rest := ranked[_MOST_LINES:]:
        executed = sum(executed for executed, _ in rest)
        cells.append((count_noun(len(rest), "other line"), "", *_times(executed, total)))
    executions = ("executed by warps", "share") if total else ()
    header = "line", "source", *executions, "compiled"
    return table(header, cells, "Instructions by source line") if cells else Markup()


def _times(executed: int, total: int | None) -> tuple[str, ...]:
    """Format a line's executions and their share of the launch's; () without executions."""
    return (f"{executed:,}", percent(executed / total)) if total else ()


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


class CompilerPanel(Panel):
    """Registers, shared memory and occupancy, and the kernel's text at every stage."""

    layout = """
{{ slot("compiler-headline") }}
<div class="row picture">
{% call slot("listing", "listing") %}<div class="listing"></div>{% endcall %}
</div>
{% call fold("compiler-resources", "Limits on the number of programs per SM") %}
{{ slot("resources") }}
{% endcall %}
{% call fold("instructions", "Instructions by source line") %}{{ slot("instructions-table") }}{% endcall %}
{% call fold("memory-map", "Memory map of one program") %}
{{ plot("memory-map-plot", "Buffers in shared memory: bytes over the program’s operations") }}
{{ slot("memory-map-table") }}
{{ plot("tensor-map-plot", "Buffers in tensor memory: columns over the program’s operations") }}
{% endcall %}
{% call fold("conversions", "Layout conversions") %}{{ slot("conversions-table") }}{% endcall %}
"""
    uses_inspection = True
    endpoints = (reply_endpoint("compile", Api.reply_compiled, compile_reply),)

    def draw(self, snapshot: Snapshot) -> Slots:
        compiled = snapshot.compiled
        launch = snapshot.launch
        if snapshot.failure:
            return {
                "compiler-headline": prose.render_failure(snapshot.failure),
                "listing": NONE,
                "resources": "",
                **_NOT_INSPECTED,
            }
        if compiled is None:
            return {}
        *_, number = find_operation(snapshot)
        kernel = snapshot.state.kernel
        inspected = _NOT_INSPECTED
        if isinstance(snapshot.inspected, Failure):
            inspected = {**inspected, "memory-map-table": prose.render_failure(snapshot.inspected)}
        elif snapshot.inspected:
            about = picture_caption(snapshot.state.experiment, launch.gpu.name, "compiled")
            sources = _sources(kernel, launch)
            inspected = inspection_slots(snapshot.inspected[0], about, sources)
        return {
            **resource_slots(launch.gpu, launch.config.num_warps, compiled, compiled.triton),
            "listing": _listing(kernel, launch, compiled, number),
            **inspected,
        }

    def draw_waiting(self, snapshot: Snapshot, seconds: float) -> Slots:
        return {"compiler-headline": prose.render_compiling(snapshot.state.gpu.name, seconds)}

    def summary(self, snapshot: Snapshot) -> tuple[Number, ...]:
        return resource_numbers(snapshot)
