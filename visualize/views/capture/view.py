"""Draw a capture: the list of launches, one request (lanes to bytes), the code, and the map of programs."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels import once
from kernels.capture.reader import Capture, CapturedKernel, CapturedLaunch
from kernels.evaluate.captured import count_launch
from kernels.evaluate.counts import LaunchCounts, OperationCounts
from kernels.evaluate.declared import Matrix, Requests
from kernels.evaluate.findings import Compiler
from kernels.evaluate.memory import STORAGE_STEP
from kernels.evaluate.memory_operations import memory_lines
from kernels.evaluate.requests import textbook
from kernels.examples import EXAMPLES
from kernels.gpus import GPUS, occupancy
from kernels.knobs import Knob, knob
from kernels.sectors import IDEAL, LINES
from visualize.numbers import count_noun, milliseconds, percent, significant
from visualize.reports.comparison import differences
from visualize.reports.launch import LaunchReport, make_report
from visualize.reports.text import settings_text, wrong_counters
from visualize.views import slots, theme
from visualize.views.memory.flow import Flow, flow_plot
from visualize.views.memory.view import SCRUBBER
from visualize.views.panel import Slots
from visualize.views.prose import Code, Link, Mark, Strong, headline, say, term
from visualize.views.slots import NONE, control, plot, plot_value, slot
from visualize.views.tables import table

# Field names in the page's settings: the prefix of a case's parameters, the sweep over them, the prefix of an autotuned
# kernel's config number, the example, and the GPU.
_CASE = "case_"
_SWEEP = "sweep"
_CONFIG = "config_"
EXAMPLE = "example"
GPU = "gpu"

_UNCHANGED = "No counts, registers or memory sizes changed."

TABS = {"requests": "Requests", "code": "Code", "order": "Order", "result": "Result"}


@dataclass(frozen=True)
class CaptureView:
    """The view of a capture: the open tab, and the launch, operation, program and request in it."""

    tab: str = knob("requests", "", "The open view.", choices=tuple(TABS))
    launch: int = knob(0, "Launch", "Number of the launch, from 0.", low=0, high=100_000)
    operation: int = knob(
        0, "Picture", "Number of the memory operation in the kernel.", low=0, high=10_000
    )
    program: int = knob(
        0, "Picture", "Linear ID of the program whose request is drawn.", low=0, high=2**40
    )
    model: str = knob(
        "compiled",
        "",
        "Lane layout: as compiled, or as in the textbook model.",
        choices=("compiled", "textbook"),
    )
    request: int = knob(0, "", "The warp request that is drawn.", low=0, high=2**20)


def layout() -> Markup:
    """Return the HTML of all views, with slots."""
    picture = slots.picture(
        plot("request-plot", "One request: lines from lanes to the bytes that they access"),
        name="memory-picture",
    )
    sections = {
        "requests": slots.row(slot("scrubber", "scrubber", SCRUBBER))
        + picture
        + slot("operations"),
        "code": slots.picture(slot("listing", "listing", Markup('<div class="listing"></div>'))),
        "order": slots.picture(plot("order-plot", "The programs that store each block"))
        + slot("order-note"),
        "result": slot("outputs"),
    }
    section = Markup('<section id="{0}-tab" class="tabitem" aria-label="{0}" hidden>{1}</section>')
    return (
        slot("launches")
        + slot("claim")
        + Markup("").join(section.format(name, content) for name, content in sections.items())
    )


class CapturePictures:
    """Draws one capture. Launches are counted when they are first shown."""

    def __init__(self, capture: Capture, compiler: Compiler | None = None) -> None:
        self.capture = capture
        self.content = capture.content
        self.gpu = str(self.content.gpu.get("name", ""))
        self.counts = lru_cache(maxsize=256)(self._count)
        # The first call tries changes.
        self.report = once(lambda: make_report(capture, compiler, self.counts))

    def _count(
        self, number: int, program: int | None = None, is_textbook: bool = False
    ) -> LaunchCounts:
        programs = None if program is None else np.array([program])
        return count_launch(self.capture, self.content.launches[number], programs, is_textbook)

    def clip(self, view: CaptureView) -> CaptureView:
        """Limit the view's launch, operation and program to existing ones."""
        if not self.content.launches:
            return view
        number = min(view.launch, len(self.content.launches) - 1)
        operation = min(view.operation, max(0, len(self.counts(number).operations) - 1))
        program = min(view.program, math.prod(self.content.launches[number].grid) - 1)
        return replace(view, launch=number, operation=operation, program=program)

    def most_wasteful(self, view: CaptureView) -> CaptureView:
        """Return the view of the operation and the program, of the first four, that waste the most sectors."""
        if not self.content.launches or not self.counts(view.launch).operations:
            return view
        programs = range(min(4, math.prod(self.content.launches[view.launch].grid)))
        counts = [self.counts(view.launch, number).operations for number in programs]
        wasted = [
            [op.sectors - int(op.tally.counts[IDEAL]) for op in operations] for operations in counts
        ]
        program, operation = np.unravel_index(np.argmax(wasted), np.shape(wasted))
        return replace(view, operation=int(operation), program=int(program))

    def draw(self, view: CaptureView, before: LaunchReport | None = None) -> Slots:
        """Fill the slots of the open view.

        Args:
            before: the same launch in the previous capture.
        """
        if not self.content.launches:
            stopped = self.content.stopped
            message = (
                stopped.message if stopped else f"{self.content.script} launched no Triton kernels."
            )
            return {"launches": "", "claim": headline("0", "launches", message, is_failure=True)}
        launch = self.content.launches[view.launch]
        kernel = self.content.kernels[launch.kernel]
        counts = self.counts(view.launch)
        claim = self._claim(self.report().launches[view.launch], before)
        drawn: Slots = {"launches": self._launches(view), "claim": claim}
        if view.tab == "requests":
            drawn |= {
                "request-plot": self._flow(view, launch),
                "operations": self._operations(view, launch, counts),
            }
        elif view.tab == "code":
            drawn["listing"] = self._listing(view, launch, kernel, counts)
        elif view.tab == "result":
            drawn["outputs"] = outputs(launch)
        else:
            drawn |= order_slots(launch, kernel, counts, self.gpu)
        return drawn

    def form(self, view: CaptureView, chosen: Mapping[str, Any] | None, script: str) -> str:
        """Return the value of the form: launch, operation and program, and the controls of the script.

        Args:
            chosen: values of the script's controls that differ from the defaults; None if the script can't run again.
        """
        launch, operation, program = slots.controls(CaptureView)
        launches = self.content.launches
        titles = [
            f"{number}: {self.content.kernels[each.kernel].name}"
            for number, each in enumerate(launches)
        ]
        ops = self.counts(view.launch).operations if launches else ()
        launch |= {"kind": "menu", "choices": list(range(len(launches))), "labels": titles}
        labels = [f"{op.op} {', '.join(op.tensors)}, line {op.source[1]}" for op in ops]
        operation |= {"kind": "menu", "choices": list(range(len(ops))), "labels": labels}
        grid = launches[view.launch].grid if launches else (1, 1, 1)
        program |= {"high": math.prod(grid) - 1}
        values: dict[str, Any] = {
            "launch": view.launch,
            "operation": view.operation,
            "program": view.program,
        }
        fields = [launch, operation, program]
        if chosen is not None:
            fields = [*([_EXAMPLES] if script in EXAMPLES else []), _GPUS, *fields]
            values |= {EXAMPLE: script, GPU: chosen.get(GPU, self.gpu)}
            for field, default in self._script_controls():
                fields.append(field)
                values[field["name"]] = chosen.get(field["name"], default)
        return slots.form_value(fields, values)

    def chosen(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the script's controls that differ from their defaults."""
        defaults = {field["name"]: default for field, default in self._script_controls()}
        return {
            name: given[name]
            for name, value in defaults.items()
            if given.get(name, "") not in ("", value)
        }

    def _script_controls(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield each control of the script with its default."""
        case, *others = {launch.case for launch in self.content.launches} or {None}
        if parameters := {} if others or not case else self.content.cases[case]:
            yield from (
                (_parameter(name, default), default) for name, default in parameters.items()
            )
            numbers = [
                f"{name}={value},{2 * value}"
                for name, value in parameters.items()
                if type(value) is int
            ]
            values = (
                "Comma-separated values of one or more parameters. Every combination is launched."
            )
            sweep = control(_SWEEP, Knob("", "Case", values, longest=300))
            yield {**sweep, "placeholder": f"such as {numbers[-1]}" if numbers else ""}, ""
        launches = (
            (self.content.kernels[launch.kernel].name, launch.tuned)
            for launch in self.content.launches
        )
        for name, number in {name: tuned.of for name, tuned in launches if tuned}.items():
            which = "Number of the config to launch. 0 launches the first that compiles and fits."
            yield (
                control(
                    _CONFIG + name, Knob(0, "Autotuner config", which, high=number, label=name)
                ),
                0,
            )

    def _launches(self, view: CaptureView) -> Markup:
        rows: list[dict[str, Any]] = []
        for number, launch in enumerate(self.report().launches):
            results = (launch.results or {}).values()
            is_passed = all(errors.passed for errors in results)
            grid = " × ".join(map(str, launch.grid))
            rows.append(
                {
                    "": Strong(number) if number == view.launch else number,
                    "kernel": Link(launch.kernel, f"launch={number}&tab={view.tab}"),
                    "grid": grid.removesuffix(" × 1").removesuffix(" × 1"),
                    "case": settings_text(launch.settings),
                    "config": settings_text(launch.config),
                    "tuned": f"{launch.tuned.number} of {launch.tuned.of}" if launch.tuned else "",
                    "time": "" if launch.elapsed_ms is None else milliseconds(launch.elapsed_ms),
                    "check": ("passed" if is_passed else "FAILED") if results else "",
                    "sectors": f"{launch.sectors:,}",
                    "vs. ideal": f"{significant(launch.ratio)} ×" if launch.ratio else "",
                    "counters": (", ".join(wrong_counters(launch)) or "agree")
                    if launch.counted
                    else "",
                    "not counted": next((refusal.why for refusal in launch.refused), ""),
                }
            )
        used = [name for name in rows[0] if any(str(row[name]) for row in rows)]
        notes = [
            self.content.about.partition("\n\n")[0],
            self.content.stopped.message if self.content.stopped else "",
        ]
        sentences = Markup(" ").join(
            filter(None, [*notes, self._fastest(), *self.content.not_captured])
        )
        shown = table(used, ([row[name] for name in used] for row in rows))
        return Markup('<p class="note">{}</p>').format(sentences) + shown

    def _fastest(self) -> str:
        """Name the fastest launch of a sweep."""
        launches = self.report().launches
        timed = [(each.elapsed_ms, n) for n, each in enumerate(launches) if each.elapsed_ms]
        if len(timed) < 2 or not launches[timed[0][1]].settings:
            return ""
        time, number = min(timed)
        settings = settings_text(launches[number].settings)
        return f"Fastest of {len(timed)}: launch {number} ({settings}) takes {milliseconds(time)}."

    def _claim(self, launch: LaunchReport, before: LaunchReport | None) -> Markup:
        memory = f"{launch.registers} registers per thread, {launch.shared_bytes:,} bytes of shared memory"
        ratio = f"{significant(launch.ratio)} ×" if launch.ratio else "–"
        sentences = [f"Line {finding.line}: {finding.text}" for finding in launch.findings]
        if before:
            changed = [difference.sentence for difference in differences((before,), (launch,))]
            old_ratio = significant(before.ratio)
            start = [f"Before: {old_ratio} ×."] if old_ratio != significant(launch.ratio) else []
            sentences.insert(0, " ".join([*start, *changed]) or _UNCHANGED)
        first, *more = sentences or ["No findings for this launch."]
        return headline(
            ratio,
            say("the {}: {} {}", term("ideal sectors"), Code(launch.kernel), Mark("predicted")),
            first,
            *more,
            self.report().untried,
            say("{}, {} bytes spilled.", memory, launch.spilled_bytes),
            *(refusal.why for refusal in launch.refused if refusal.line == launch.line),
            *wrong_counters(launch),
        )

    def _flow(self, view: CaptureView, launch: CapturedLaunch) -> str:
        if not (ops := self.counts(view.launch, view.program).operations):
            return NONE
        main, other = (
            captured_flow(ops[view.operation], launch, model) for model in ("compiled", "textbook")
        )
        if view.model == "textbook":
            main, other = other, main
        if main is None or other is None:
            return NONE
        about = f"{self.content.script}, {self.gpu}, Triton {self.content.triton}"
        return flow_plot(main, view.request, about, other)

    def _operations(
        self, view: CaptureView, launch: CapturedLaunch, counts: LaunchCounts
    ) -> Markup:
        board = self.counts(view.launch, None, True).operations
        why: dict[Any, list[str]] = {}
        for finding in self.report().launches[view.launch].findings:
            why.setdefault(finding.place, []).append(finding.text)
        rows = []
        for number, (op, simple) in enumerate(zip(counts.operations, board, strict=True)):
            ideal = int(op.tally.counts[IDEAL])
            bound = ("≤ " if op.tally.is_upper_bound else "≥ ") if op.tally.refused else ""
            address = f"launch={view.launch}&operation={number}&program={view.program}"
            rows.append(
                (
                    Link(f"{op.source[0]}:{op.source[1]}", address),
                    op.op,
                    ", ".join(op.tensors),
                    op.width_bytes or "",
                    *(
                        f"{bound}{count:,}"
                        for count in (op.requests, op.sectors, int(op.tally.counts[LINES]))
                    ),
                    percent(ideal / op.sectors)
                    if op.sectors and ideal and not op.tally.refused
                    else "",
                    f"{simple.sectors:,}" if op.instruction else "",
                    op.tally.refused
                    or " ".join(why.get((*op.source, op.op, ", ".join(op.tensors)), ())),
                )
            )
        header = (
            "line", "operation", "tensor", "bytes per lane", "requests", "sectors", "cache lines", "efficiency",
            "blackboard sectors", "finding",
        )  # fmt: skip
        return table(header, rows)

    def _listing(
        self,
        view: CaptureView,
        launch: CapturedLaunch,
        kernel: CapturedKernel,
        counts: LaunchCounts,
    ) -> str:
        source = [f"# {Path(kernel.file).name}"]
        source += [
            f"{number:>4}  {text}"
            for number, text in enumerate(kernel.source.splitlines(), kernel.line)
        ]
        codes = {
            stage: self.capture.read_code(launch.kernel, stage)
            for stage in ("ttgir", "ptx", "sass")
        }
        panes = [{"name": "Source", "lines": source}]
        panes += [
            {"name": stage.upper(), "lines": code.splitlines()} for stage, code in codes.items()
        ]
        operations = []
        for op in counts.operations:
            (file, line) = op.source
            inside = []
            if file == Path(kernel.file).name and 0 <= line - kernel.line < len(source) - 1:
                inside = [line - kernel.line + 1]
            marks = {
                stage.upper(): memory_lines(code, stage, file, line, line)
                for stage, code in codes.items()
            }
            label = f"{op.op} {', '.join(op.tensors)}, {file}:{line}"
            operations.append({"label": label, "marks": {**marks, "Source": inside}})
        content = {"panes": panes, "operations": operations, "operation": view.operation}
        return json.dumps(content, ensure_ascii=False) if operations else NONE


_EXAMPLES = {
    **control(
        EXAMPLE,
        Knob(
            "", "Script", "One of the example scripts that ship with Tilescope.", choices=EXAMPLES
        ),
    ),
    "labels": [Path(path).stem.replace("_", " ") for path in EXAMPLES],
}


_GPUS = control(
    GPU,
    Knob(
        "", "Script", "The GPU that the script is compiled for.", choices=tuple(GPUS), label="GPU"
    ),
)


def capture_options(chosen: Mapping[str, Any]) -> list[str]:
    """Return the options of record.py for the given control values."""
    settings = [
        f"{name.removeprefix(_CASE)}={value}"
        for name, value in chosen.items()
        if name.startswith(_CASE)
    ]
    configs = [
        f"{name.removeprefix(_CONFIG)}={value}"
        for name, value in chosen.items()
        if name.startswith(_CONFIG)
    ]
    swept = str(chosen.get(_SWEEP, "")).split()
    gpu = [("--gpu-json", json.dumps(asdict(GPUS[chosen[GPU]])))] if chosen.get(GPU) in GPUS else []
    options = gpu + [("--set", setting) for setting in (*settings, *swept)]
    options += [("--config", config) for config in configs]
    return [part for option in options for part in option]


def _parameter(name: str, default: Any) -> dict[str, Any]:
    """Return the control of a case's parameter: a menu, a text field, or a slider with a number field."""
    allowed: dict[str, Any] = {"longest": 100}
    if isinstance(default, bool):
        allowed = {"choices": (False, True)}
    elif isinstance(default, int):
        allowed = {"high": max(1 << 16, 4 * default), "stops": "powers"}
    return control(
        _CASE + name, Knob(default, "Case", f"Parameter {name} of the case.", label=name, **allowed)
    )


def outputs(launch: CapturedLaunch) -> Markup:
    """Return the errors of a launch's outputs as a table, or the reason why there are none."""
    if launch.results:
        header = "output", "relative RMS error", "largest absolute error", "check"
        rows = (
            (
                name,
                f"{errors.relative_rms:.3g}",
                f"{errors.max_abs_error:.3g}",
                "passed" if errors.passed else "FAILED",
            )
            for name, errors in launch.results.items()
        )
        return table(header, rows)
    reason = "This launch did not run, because there is no GPU. Use --values to run it in Triton's interpreter."
    if launch.ran:
        reason = (
            "There is no expected output to compare with. A case can return one: see docs/show.md."
        )
    return Markup("<p>{}</p>").format(reason)


def captured_flow(operation: OperationCounts, launch: CapturedLaunch, model: str) -> Flow | None:
    """Return an example execution of an operation as a flow from lanes to bytes; None if it has no lanes."""
    made = operation.instruction
    example = operation.tally.example
    if made and model == "textbook":
        made = textbook(made)
    if made is None or made.layout is None or example is None:
        return None
    lanes = made.vectors
    address = example.address.ravel()[lanes.element]
    active = example.active.ravel()[lanes.element]
    if operation.op != "load":
        active = active & lanes.owner
    first = int(example.address.min()) % STORAGE_STEP
    address = np.where(active, address % STORAGE_STEP, first)
    tensor = next(
        (t for a in launch.arguments if (t := a.own_tensor) and a.name in operation.tensors), None
    )
    columns = max(1, tensor.shape[-1] if tensor and tensor.shape else 1)
    rows = int(address.max()) // made.element_bytes // columns + 1
    matrix = Matrix(rows, columns, made.element_bytes)
    requests = Requests(address, active, made.width_bytes, matrix)
    tensors = " or ".join(operation.tensors)
    elements = example.address.size
    return Flow(operation.op, tensors, (first,), elements, requests, model != "textbook")


def order_slots(
    launch: CapturedLaunch, kernel: CapturedKernel, counts: LaunchCounts, gpu: str
) -> Slots:
    """Draw which program stores each block of the first tensor that is stored in rectangular blocks."""
    for op in counts.operations:
        tensor = next(
            (t for a in launch.arguments if (t := a.own_tensor) and a.name in op.tensors), None
        )
        if op.op != "store" or tensor is None or op.tally.example is None or not op.tally.starts:
            continue
        pitch = (
            tensor.strides[-2]
            if len(tensor.shape) > 1 and tensor.strides[-1] == 1
            else max(1, tensor.shape[-1])
        )
        size = tensor.element_bytes
        offset = (
            op.tally.example.address[op.tally.example.active] % STORAGE_STEP - tensor.offset_bytes
        ) // size
        rows, columns = np.divmod(offset, max(1, pitch))
        tile = len(np.unique(rows)), len(np.unique(columns))
        if tile[0] * tile[1] != len(offset):
            continue
        program, start = (np.concatenate(part) for part in zip(*op.tally.starts, strict=True))
        row, column = np.divmod((start % STORAGE_STEP - tensor.offset_bytes) // size, max(1, pitch))
        row, column = row // tile[0], column // tile[1]
        shape = int(row.max()) + 1, int(column.max()) + 1
        if shape[0] * shape[1] > 1 << 20 or min(int(row.min()), int(column.min())) < 0:
            continue
        picture = np.full(shape, np.nan, np.float32)
        picture[row[::-1], column[::-1]] = program[::-1]
        figure = {
            "data": [
                {
                    "type": "heatmap", "z": picture, "colorscale": "Viridis", "xgap": 1 if max(shape) < 64 else 0,
                    "ygap": 1 if max(shape) < 64 else 0, "colorbar": theme.colorbar("program"),
                    "hovertemplate": "block row %{y}, column %{x}<br>program %{z}<extra></extra>",
                }
            ],
            "layout": theme.layout(
                f"The program that stores each {tile[0]} × {tile[1]} block of {' or '.join(op.tensors)}",
                **theme.matrix_axes("block row", "block column", (0, 0), shape),
            ),
        }  # fmt: skip
        programs = math.prod(launch.grid)
        waves = ""
        if row_of_gpu := GPUS.get(gpu):
            each = occupancy(
                row_of_gpu, kernel.num_warps, kernel.registers, kernel.shared_bytes
            ).programs_per_sm
            resident = max(1, each) * row_of_gpu.sms
            full = count_noun(-(-programs // resident), "wave")
            waves = f" {gpu} runs up to {resident:,} at once, so the launch takes {full}."
        note = f"{count_noun(programs, 'program')}.{waves}"
        return {"order-plot": plot_value(figure, str(shape), about=kernel.name), "order-note": note}
    return {
        "order-plot": NONE,
        "order-note": "No store in this launch writes rectangular blocks of a tensor.",
    }
