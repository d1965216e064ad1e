"""Textbook, compiled and counted side by side: the table of the Coalescing panel, its totals and its funnel. HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.results import Compiled, Counters
from kernels.spec import Kernel, Launch
from visualize.models import coalescing, textbook
from visualize.models.traffic import SECTOR_BYTES, Operation
from visualize.text import why, words
from visualize.text.funnel import Stage
from visualize.text.funnel import funnel as bars

# Which of the hardware's counters an operation counts for.
_COUNTERS = {"load": ("ld",), "store": ("st",), "atomic": ("red", "atom")}
_NAMES = {"load": "loads", "store": "stores", "atomic": "atomics"}

# ncu's count of one instruction's sectors misses some of these, another number in every run; its lines, and the
# launch's own counter, do not.
_UNDERCOUNTED = "LDGSTS.E.BYPASS"


@dataclass(frozen=True)
class Count:
    """What was counted of one operation. `requests` is None where the counter holds others', too."""

    executed: int
    requests: int | None
    sectors: int
    lines: int
    ideal_sectors: int
    opcodes: tuple[str, ...]


@dataclass(frozen=True)
class Verdicts:
    """All that is known of a launch's memory operations.

    Attributes:
        board: with textbook lanes.
        gpu_board: the same with a GPU's 32 lanes and lines of 128 bytes.
        compiled: as compiled here; None while that is not known.
        counters: what was counted; None where nothing was.
        predicted: the model on what was compiled for the counted launch.
    """

    kernel: Kernel
    launch: Launch
    board: tuple[Operation, ...]
    gpu_board: tuple[Operation, ...]
    made: Compiled | None
    compiled: tuple[Operation, ...] | None
    counters: Counters | None
    predicted: tuple[Operation, ...]

    @property
    def counted_is_compiled(self) -> bool:
        """Whether what was counted has the layouts and widths of what was compiled here."""
        if self.counters is None or self.made is None:
            return False
        return [(o.op, o.layout, o.width_bytes) for o in self.counters.compiled.operations] == [
            (o.op, o.layout, o.width_bytes) for o in self.made.operations
        ]


def verdicts(
    kernel: Kernel, launch: Launch, board: textbook.Textbook, made: Compiled | None, counters: Counters | None
) -> Verdicts:
    """Ask all models."""
    plain = textbook.Textbook()
    drawn = textbook.operations(kernel, launch, board)
    readable = made is not None and not made.unreadable
    return Verdicts(
        kernel=kernel,
        launch=launch,
        board=drawn,
        gpu_board=drawn if board == plain else textbook.operations(kernel, launch, plain),
        made=made,
        compiled=coalescing.operations(kernel, launch, made.operations) if made and readable else None,
        counters=counters,
        predicted=coalescing.operations(kernel, launch, counters.compiled.operations) if counters else (),
    )


def count_of(op: Operation, found: Verdicts) -> Count | None:
    """What was counted of an operation; None where nothing was, as of a descriptor's."""
    counters = found.counters
    if counters is None or op.made is None or op.made.layout is None:
        return None
    rows = [row for row in counters.ops if row.operation == op.number and (".CAS" in row.opcode) == op.is_lower_bound]
    kind = _COUNTERS[op.access.op]
    alone = sum(_COUNTERS[o.access.op] == kind for o in found.predicted if o.made and o.made.layout) == 1
    return Count(
        executed=sum(row.executed for row in rows),
        requests=int(sum(counters.launch[f"{name}_requests"] for name in kind)) if alone else None,
        sectors=sum(row.sectors for row in rows),
        lines=sum(row.lines for row in rows),
        ideal_sectors=sum(row.ideal_sectors for row in rows),
        opcodes=tuple(row.opcode for row in rows),
    )


def agreement(op: Operation, count: Count) -> str:
    """How the two agree: "equal", "at least" (of a loop that repeats), "undercounted" (by ncu) or "different"."""
    same_lines = op.launch.lines == count.lines and count.requests in (None, op.launch.requests)
    if same_lines and op.launch.sectors == count.sectors:
        return "equal"
    no_fewer = count.lines >= op.launch.lines and (count.requests or op.launch.requests) >= op.launch.requests
    if op.is_lower_bound and no_fewer and count.sectors >= op.launch.sectors:
        return "at least"
    if same_lines and count.sectors < op.launch.sectors and all(o.startswith(_UNDERCOUNTED) for o in count.opcodes):
        return "undercounted"
    return "different"


_AGREEMENTS = {
    "equal": ("equal", "✓", "Predicted and counted are equal: lines and sectors, and requests where they are known."),
    "at least": ("equal", "≥", "A loop that repeats: its first turn is predicted, all turns were counted."),
    "undercounted": (
        "unsure",
        "✓ but for sectors",
        "Lines are equal. ncu's count of this instruction's sectors misses some, another number in every run; the "
        "launch's own counter, below, misses none.",
    ),
    "overhang": (
        "unsure",
        "more at the edge",
        "Predicted are the sectors inside the tensor. For boxes that are read past its edge the accelerator's counter "
        "holds more than those.",
    ),
    "different": ("wrong-value", "≠", "Predicted and counted differ."),
}


def _sign(kind: str) -> str:
    style, sign, title = _AGREEMENTS[kind]
    return f'<span class="{style}" title="{html.escape(title)}">{sign}</span>'


_HEADER = ("operation", "source", "", "width", "requests", "sectors", "lines", "ideal", "efficiency", "")


def table(found: Verdicts) -> str:
    """Per operation a row for each verdict, and why it is so."""
    blocks = [_block(found, number) for number in range(len(found.board))]
    head = "".join(f'<th scope="col">{cell}</th>' for cell in _HEADER)
    return (
        f'<div class="scroll"><table class="verdicts"><caption>Whole launch</caption><thead><tr>{head}</tr></thead>'
        f"{''.join(blocks)}</table></div>"
    )


def _block(found: Verdicts, number: int) -> str:
    access = found.board[number].access
    file, line = access.source
    rows: list[tuple[str, ...]] = [("textbook", *_cells(found.board[number], found.board[number].width_bytes), "")]
    mine = [op for op in found.compiled or () if op.number == number]
    rows += [(_label(op, "compiled"), *_cells(op, op.width_bytes, op.is_lower_bound), "") for op in mine]
    for op in found.predicted:
        if op.number == number:
            if not found.counted_is_compiled and found.counters:
                title = f"compiled, Triton {found.counters.device.triton}"
                rows.append((_label(op, title), *_cells(op, op.width_bytes, op.is_lower_bound), ""))
            if count := count_of(op, found):
                rows.append(_counted_row(op, count))
    sentences = [why.on_the_blackboard(found.board[number])]
    if found.made and mine:
        sentences = [
            why.compiled(op, found.gpu_board[number], found.kernel, found.launch, found.made.shared_bytes)
            for op in mine
        ]
    name = f"{access.op} {access.tensor}"
    source = f'<code title="{file}, line {line}">{file.rsplit("/", 1)[-1]}:{line}</code>'
    span = f' rowspan="{len(rows)}"'
    body = ""
    for place, row in enumerate(rows):
        first = f'<th scope="rowgroup"{span}>{name}</th><td{span}>{source}</td>' if place == 0 else ""
        body += f"<tr>{first}{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
    reason = f'<tr class="why"><td colspan="{len(_HEADER)}">{" ".join(sentences)}</td></tr>'
    return f"<tbody>{body}{reason}</tbody>"


def _label(op: Operation, verdict: str) -> str:
    return f"{verdict}, its load" if op.made and op.made.swaps and not op.is_lower_bound else verdict


def _cells(op: Operation, width: int, is_lower_bound: bool = False) -> tuple[str, ...]:
    t = op.launch
    sign = "≥ " if is_lower_bound else ""
    numbers = (f"{sign}{value:,}" for value in (t.requests, t.sectors, t.lines, t.ideal_sectors))
    return (f"{width} B" if width else "", *numbers, words.percent(t.efficiency))


def _counted_row(op: Operation, count: Count) -> tuple[str, ...]:
    opcodes = html.escape(", ".join(count.opcodes))
    requests = (
        f"{count.requests:,}"
        if count.requests is not None
        else '<span class="hint" title="The counter holds all of its kind together.">below</span>'
    )
    executed = f"{count.executed:,} warp instructions, those without an active lane included"
    label = f'<span title="{opcodes}: {executed}">{_label(op, "counted")}</span>'
    efficiency = words.percent(count.ideal_sectors / count.sectors) if count.sectors else ""
    numbers = (f"{value:,}" for value in (count.sectors, count.lines, count.ideal_sectors))
    return (label, "", requests, *numbers, efficiency, _sign(agreement(op, count)))


def totals(found: Verdicts) -> str:
    """The hardware's counters of the whole launch beside what is predicted for them."""
    counters = found.counters
    if counters is None:
        return ""
    rows: list[tuple[str, ...]] = []
    for op, kind in _COUNTERS.items():
        mine = [o for o in found.predicted if o.access.op == op and o.made and o.made.layout]
        counted = [int(sum(counters.launch[f"{name}_{what}"] for name in kind)) for what in ("requests", "sectors")]
        if not mine and not any(counted):
            continue
        predicted = [sum(getattr(o.launch, what) for o in mine) for what in ("requests", "sectors")]
        open_ended = any(o.is_lower_bound for o in mine)
        no_fewer = all(c >= p for p, c in zip(predicted, counted, strict=True))
        sign = "equal" if predicted == counted else "at least" if open_ended and no_fewer else "different"
        is_lower_bound = "≥ " if open_ended else ""
        pairs = [cell for p, c in zip(predicted, counted, strict=True) for cell in (f"{is_lower_bound}{p:,}", f"{c:,}")]
        rows.append((_NAMES[op], *pairs, _sign(sign)))
    rows += _boxes(found, counters)
    header = ("counters of the launch", "requests predicted", "counted", "sectors predicted", "counted", "")
    caption = f"{counters.tool}, {counters.device.name}, Triton {counters.device.triton}. {counters.note}"
    return words.table(header, rows, caption.strip())


def _boxes(found: Verdicts, counters: Counters) -> list[tuple[str, ...]]:
    """The sectors of descriptors' boxes, read and written: the accelerator has counters of its own."""
    tensors = found.kernel.family.tensors(found.launch.problem)
    rows: list[tuple[str, ...]] = []
    for name, reads, counter in (("boxes read", True, "tma_ld_sectors"), ("boxes written", False, "tma_st_sectors")):
        mine = [op for op in found.predicted if op.made and op.made.layout is None]
        predicted = sum(op.launch.sectors for op in mine if tensors[op.access.tensor].is_input == reads)
        counted = int(counters.launch[counter])
        if predicted or counted:
            sign = "equal" if predicted == counted else "overhang" if reads and counted > predicted else "different"
            rows.append((name, "0", "", f"{predicted:,}", f"{counted:,}", _sign(sign)))
    return rows


def funnel(found: Verdicts) -> str:
    """From the bytes that lanes want to those that DRAM moved, as bars."""
    operations = found.compiled
    if operations is None:
        return ""
    wanted = sum(op.launch.bytes_wanted for op in operations)
    stages: list[Stage] = [
        ("lanes (and boxes) want", wanted, "predicted"),
        ("sectors that L1 is asked for", SECTOR_BYTES * sum(op.launch.sectors for op in operations), "predicted"),
    ]
    stages.append(("each tensor once", found.kernel.family.minimal_bytes(found.launch.problem), "predicted"))
    if found.counters:
        moved = found.counters.launch["dram_read_bytes"] + found.counters.launch["dram_write_bytes"]
        stages.append(("DRAM moved, caches emptied before", int(moved), "counted"))
    return bars(stages, "Bytes from lanes to DRAM")


def claim(found: Verdicts) -> str:
    """The compiled kernel's cost in a sentence, and whether it was counted so."""
    if found.compiled is None:
        return ""
    requests = sum(op.launch.requests for op in found.compiled)
    sectors = sum(op.launch.sectors for op in found.compiled)
    ideal = sum(op.launch.ideal_sectors for op in found.compiled)
    worst = min(found.compiled, key=lambda op: op.launch.efficiency)
    if all(op.made is None or op.made.layout is None for op in found.compiled):
        none = " Nsight Compute counted none, either: see below." if found.counters else ""
        return (
            f"As compiled for {found.launch.gpu.name}, no lane asks for anything: the tensor memory accelerator copies "
            f"boxes of <b>{sectors:,} sectors</b> {words.mark('predicted')}, and there are no requests.{none}"
        )
    needed = words.percent(ideal / sectors if sectors else 1)
    least = "at least " if any(op.is_lower_bound for op in found.compiled) else ""
    text = (
        f"As compiled for {found.launch.gpu.name}, the launch issues {least}<b>{requests:,} requests</b> that touch "
        f"<b>{sectors:,} sectors</b> {words.mark('predicted')}, <b>{needed}</b> of them needed"
    )
    if worst.launch.efficiency < 1:
        text += f"; the {worst.access.op} of {worst.access.tensor} wastes most"
    return f"{text}. {_counted_claim(found)}"


def _counted_claim(found: Verdicts) -> str:
    if found.counters is None:
        return ""
    kinds = [agreement(op, count) for op in found.predicted if (count := count_of(op, found))]
    mark = words.mark("recorded" if found.counters.backend == "recorded" else "counted")
    if "different" in kinds:
        return f"Nsight Compute counted something else {mark}: see the rows marked ≠."
    if not found.counted_is_compiled:
        requests = sum(op.launch.requests for op in found.predicted)
        return (
            f"Nsight Compute counted other code, which Triton {found.counters.device.triton} made {mark}: "
            f"{requests:,} requests, as predicted for it."
        )
    but = ", but for the atomics, which repeat" if any(op.is_lower_bound for op in found.predicted) else ""
    return f"Nsight Compute counted <b>the same</b> on {found.counters.device.name}{but} {mark}."


def to_json(op: Operation, reason: str, count: Count | None) -> dict[str, object]:
    """One operation in a reply of /coalescing."""
    made = op.made
    return {
        "op": op.access.op,
        "tensor": op.access.tensor,
        "file": op.access.source[0],
        "line": op.access.source[1],
        "width_bytes": op.width_bytes,
        **costs([op]),
        "tile": {**vars(op.tile), "efficiency": op.tile.efficiency},
        "why": reason,
        "at_least": op.is_lower_bound,
        "compiled": made and made.to_json(),
        "counted": count and {**vars(count), "agreement": agreement(op, count)},
    }


def costs(operations: Sequence[Operation]) -> dict[str, float]:
    """The costs of some operations together."""
    names = ("requests", "sectors", "lines", "ideal_sectors", "bytes_wanted")
    sums: dict[str, float] = {name: sum(getattr(op.launch, name) for op in operations) for name in names}
    return {**sums, "efficiency": sums["ideal_sectors"] / sums["sectors"] if sums["sectors"] else 1.0}
