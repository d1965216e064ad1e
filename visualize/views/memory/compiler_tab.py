"""The Compiler panel: registers, shared memory and occupancy, and the kernel's text at every stage. /compile."""

from __future__ import annotations

import json
import re
from typing import Any

from markupsafe import Markup

from kernels.compiling.memory_operations import memory_lines
from kernels.jit import last_line, source_file, source_lines
from kernels.results import Compiled
from kernels.spec import Kernel, Launch
from visualize.predict.schedule import occupancy
from visualize.views import slots, status
from visualize.views.endpoint import Api, Endpoint, Reply
from visualize.views.memory.memory_picture import LaneView
from visualize.views.memory.tables import resources_table
from visualize.views.memory.text import compiler_headline
from visualize.views.numbers import Number
from visualize.views.plot import NONE
from visualize.views.slots import fold, slot
from visualize.views.snapshot import Known
from visualize.views.summaries import compiled_numbers
from visualize.views.view import Panel, Slots

_TEXTS = {"ttgir": "TTGIR", "ptx": "PTX", "sass": "SASS"}


class CompilerPanel(Panel):
    """Registers, shared memory and occupancy, and the kernel's text at every stage."""

    def layout(self) -> Markup:
        return Markup("").join(
            [
                slot("compiler-claim"),
                slots.picture(slot("listing", "listing", Markup('<div class="listing"></div>'))),
                fold("compiler-resources", "What limits the programs per SM", slot("resources")),
            ]
        )

    def draw(self, known: Known) -> Slots:
        compiled, kernel, launch = known.compiled, known.state.kernel, known.launch
        if known.failure:
            return {"compiler-claim": status.render_failure(known.failure), "listing": NONE, "resources": ""}
        if compiled is None:
            return {}
        held = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
        operation = known.state.view.of(LaneView).operation
        wanted = 0 if operation == "worst" else int(operation)
        listing = json.dumps({**_listing(kernel, launch, compiled), "wanted": wanted}, ensure_ascii=False)
        return {
            "compiler-claim": compiler_headline(launch, compiled, held),
            "listing": listing,
            "resources": resources_table(launch, compiled, held),
        }

    def waiting(self, known: Known, seconds: float) -> Slots:
        return {"compiler-claim": status.render_compiling(known.state.gpu.name, seconds)}

    def summary(self, known: Known) -> tuple[Number, ...]:
        return compiled_numbers(known)

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def compile_of(experiment: dict[str, Any]) -> dict[str, Any]:
            """Compiles the kernel for any GPU of the table, without one.

            Returns registers per thread, spilled bytes, shared-memory bytes per program, programs per SM, occupancy
            (resident warps / most warps, 0 to 1) and what limits it; and the TTGIR, PTX and SASS. The compiler's facts,
            nothing is measured. Takes about a second; minutes for large tiles on few warps.
            """
            return await api.compiled(experiment, reply)

        return (Endpoint("compile", compile_of, at_once=None),)


def _listing(kernel: Kernel, launch: Launch, compiled: Compiled) -> dict[str, Any]:
    """Panes of lines, and for each memory operation the lines in each pane (from 0) that carry it out."""
    accesses = kernel.accesses(launch)
    files = list(dict.fromkeys([source_file(kernel.jitted), *(access.source[0] for access in accesses)]))
    source: list[str] = []
    starts: dict[str, int] = {}
    for file in files:
        starts[file] = len(source) + 1
        source += [f"# {file}", *source_lines(file), ""]
    panes = [{"name": "Source", "lines": source}]
    for kind, title in _TEXTS.items():
        # nvdisasm leaves room for labels before an instruction, which would push it out of a narrow pane.
        panes.append({"name": title, "lines": re.sub(r"(?<=\*/) {3,}", "  ", getattr(compiled, kind)).splitlines()})
    operations = []
    for access in accesses:
        file, first = access.source
        last = last_line(access.source)
        marks = {"Source": [starts[file] + line - 1 for line in range(first, last + 1)]}
        for kind, title in _TEXTS.items():
            marks[title] = memory_lines(getattr(compiled, kind), kind, file.rsplit("/", 1)[-1], first, last)
        operations.append({"label": f"{access.op} {access.tensor}, {file.rsplit('/', 1)[-1]}:{first}", "marks": marks})
    return {"panes": panes, "operations": operations}


def reply(known: Known) -> Reply:
    """The body of /compile."""
    launch, compiled = known.launch, known.compiled
    if compiled is None:
        raise ValueError("Only a compiled kernel has a reply.")
    held = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
    return {
        "registers": compiled.registers,
        "spilled_bytes": compiled.spilled_bytes,
        "shared_bytes": compiled.shared_bytes,
        "occupancy": held.occupancy,
        "programs_per_sm": held.programs_per_sm,
        "limited_by": list(held.limited_by),
        "limits": held.limits,
        "ttgir": compiled.ttgir,
        "ptx": compiled.ptx,
        "sass": compiled.sass,
        "triton": compiled.triton,
        "seconds": compiled.seconds,
    }
