"""The Compiler panel: registers, shared memory and occupancy, and the kernel's text at every stage. /compile."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from kernels.compiled.listing import memory_lines
from kernels.results import Compiled
from kernels.source import file_of, last_line, lines_of
from kernels.spec import Kernel, Launch
from visualize.models.occupancy import Occupancy, occupancy
from visualize.panels.endpoint import Api, Endpoint, Reply
from visualize.panels.panel import Drawn, Panel
from visualize.panels.result_tab import finished
from visualize.state.known import Known
from visualize.text import words
from visualize.widgets import assets
from visualize.widgets.markup import markup

_TEXTS = {"ttgir": "TTGIR", "ptx": "PTX", "sass": "SASS"}


class CompilerPanel(Panel):
    """Registers, shared memory and occupancy, and the kernel's text at every stage."""

    def build(self) -> None:
        self.claim = markup("compiler-claim")
        self.listing = gr.HTML(
            value="",
            html_template='<div class="listing"></div>',
            js_on_load=assets.script("listing.js"),
            apply_default_css=False,
            elem_id="listing",
        )
        self.outputs = [self.claim, self.listing]

    def draw(self, known: Known) -> Drawn:
        compiled, kernel, launch = known.compiled, known.state.kernel, known.launch
        if known.failure:
            return {self.claim: finished(known.failure), self.listing: ""}
        if compiled is None:
            return {}
        held = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
        listing = json.dumps(_listing(kernel, launch, compiled), ensure_ascii=False)
        return {self.claim: _claim(launch, compiled, held), self.listing: listing}

    def waiting(self, known: Known, seconds: float) -> Drawn:
        return {self.claim: waiting(known.state.gpu.name, seconds)}

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def compile_of(experiment: dict[str, Any]) -> dict[str, Any]:
            """What the compiler makes of it for any GPU: registers, shared memory, occupancy, TTGIR, PTX and SASS."""
            return await api.compiled(experiment, reply)

        return (Endpoint("compile", compile_of),)


def waiting(gpu: str, seconds: float | None = None) -> str:
    """What stands there while the compiler works."""
    took = "" if seconds is None else f": {seconds:.1f} s"
    return f'<p class="hint" role="status">Compiling for {gpu}{took}</p>'


def _claim(launch: Launch, compiled: Compiled, held: Occupancy) -> str:
    warps = launch.config.num_warps
    spilled = (
        f"spills {compiled.spilled_bytes:,} bytes a thread to local memory"
        if compiled.spilled_bytes
        else "spills nothing"
    )
    sentence = (
        f"For {compiled.gpu}, Triton {compiled.triton} gives each thread <b>{compiled.registers} registers</b> and "
        f"{spilled}; a program takes {compiled.shared_bytes:,} bytes of shared memory {words.mark('compiled')}. "
        f"A SM holds <b>{held.programs_per_sm} program{'s' if held.programs_per_sm != 1 else ''}</b> of {warps} warps, "
        f"limited by {' and '.join(held.limited_by)}: an occupancy of <b>{words.percent(held.occupancy)}</b> "
        f"{words.mark('predicted')}."
    )
    gpu = launch.gpu
    needs = {
        "warps": (f"{warps} a program", f"{gpu.max_warps_per_sm} a SM"),
        "programs": ("1", f"{gpu.max_programs_per_sm} a SM"),
        "registers": (f"{compiled.registers} a thread", f"{gpu.registers_per_sm:,} a SM"),
        "shared memory": (f"{compiled.shared_bytes:,} bytes a program", f"{gpu.shared_bytes_per_sm:,} bytes a SM"),
    }
    rows = [(name, *needs[name], str(allowed)) for name, allowed in held.limits.items()]
    table = words.table(("resource", "this kernel needs", "there is", "programs a SM could hold"), rows)
    return f'<p class="claim">{sentence} {gpu.caveat}</p>{table}'


def _listing(kernel: Kernel, launch: Launch, compiled: Compiled) -> dict[str, Any]:
    """Panes of lines, and for each memory operation the lines in each pane (from 0) that carry it out."""
    accesses = kernel.accesses(launch)
    files = list(dict.fromkeys([file_of(kernel.jitted), *(access.source[0] for access in accesses)]))
    source: list[str] = []
    starts: dict[str, int] = {}
    for file in files:
        starts[file] = len(source) + 1
        source += [f"# {file}", *lines_of(file), ""]
    panes = [{"name": "Source", "lines": source}]
    panes += [{"name": title, "lines": getattr(compiled, kind).splitlines()} for kind, title in _TEXTS.items()]
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
