"""Explain an operation's cost in plain sentences, from its layout, the problem's sizes and the tensor."""

from kernels.accesses import Layout, MemoryOperation
from kernels.spec import DTYPE_BYTES, Access, FlatAccess
from visualize.predict.agreement import Verdicts
from visualize.predict.coalescing import row_bytes
from visualize.predict.traffic import SECTOR_BYTES, Operation
from visualize.views.memory.contrast import DIVISOR
from visualize.views.numbers import count_noun

# The widest access of one lane.
_WIDEST_BYTES = 16


def explain(op: Operation, verdicts: Verdicts) -> str:
    """Explain the cost of one operation, compiled or not, and what the compiler does differently from the textbook."""
    code = op.compiled
    if code is None or verdicts.code is None:
        return explain_textbook(op)
    textbook_requests = verdicts.gpu_board[op.number].launch.requests
    if (layout := code.layout) is None:
        return _explain_boxes(op, code, verdicts, textbook_requests)
    if code.swaps and not op.launch.is_lower_bound:
        return "The compare-and-swap below begins with this load: each lane reads the word that it will change."
    if code.swaps:
        return (
            f"The GPU has no atomic for a single {verdicts.launch.problem.dtype}: a lane changes a copy of its word, "
            "swaps it in, and retries if another lane has changed the word. This is the first iteration. The number "
            "of retries depends on values and timing."
        )
    sentences = [_explain_width(op, code, layout, verdicts)]
    if verdicts.code.shared_bytes and _stores_adjacent_bytes(op):
        sentences.append(
            f"The compiler transposes the tile through shared memory ({verdicts.code.shared_bytes:,} bytes per "
            "program), so that adjacent lanes store adjacent bytes. Each lane stores elements that another lane loaded."
        )
    if (holders := 1 << sum(not any(base) for base in (*layout.lane, *layout.warp))) > 1:
        issuers = "all of them load it" if code.op == "load" else "one of them issues it"
        sentences.append(f"The tile is smaller than the program: {holders} lanes hold each element, and {issuers}.")
    if op.launch.wasted_sectors:
        sentences.append(_explain_waste(op))
    if op.launch.extra_sectors:
        sentences.append(
            "The counter of copies that bypass L1 counts lines by pairs of lanes: "
            f"{op.launch.sectors:,}, although {op.launch.touched_sectors:,} sectors are touched."
        )
    if any(sentences):
        return " ".join(filter(None, sentences))
    fewer = textbook_requests / max(op.launch.requests, 1)
    comparison = f": {fewer:.3g} × fewer requests than on the blackboard" if fewer > 1 else ""
    return f"Each lane accesses {op.width_bytes} contiguous bytes, and adjacent lanes adjacent chunks{comparison}."


def explain_textbook(op: Operation) -> str:
    """Explain the efficiency of one operation with textbook lanes."""
    if op.access.op == "descriptor":
        return (
            "A tensor descriptor copies the whole block, so no warp issues these requests. Textbook lanes would issue "
            "them for the same bytes."
        )
    if op.launch.wasted_sectors:
        return _explain_waste(op)
    return "Adjacent lanes access adjacent elements, so no request touches more sectors than its bytes need."


def cause(op: Operation) -> str:
    """Return a clause that says why an operation touches more sectors than it needs, or why it does not."""
    if op.is_box and op.launch.extra_sectors > op.launch.wasted_sectors / 2:
        return f"its boxes reach past the edge of {op.access.tensor}"
    if op.launch.wasted_sectors:
        return _waste_cause(op)
    if op.is_box:
        return "the TMA copies whole sectors"
    if _stores_adjacent_bytes(op):
        return "the compiler transposes the tile through shared memory"
    return "adjacent lanes access adjacent bytes"


def _waste_cause(op: Operation) -> str:
    access, tensor = op.access, op.access.tensor
    if isinstance(access, FlatAccess):
        return f"adjacent lanes access different rows of {tensor}" if access.transposed else "runs begin inside sectors"
    if (run := _run_bytes(op, access)) < SECTOR_BYTES:
        return f"contiguous runs of a request are only {count_noun(run, 'byte')} long"
    if access.transposed and op.compiled is None:
        return f"a row of the tile is only {count_noun(access.columns.block * op.width_bytes, 'byte')} of {tensor}"
    return f"the tile's rows begin or end inside sectors of {tensor}"


def _explain_waste(op: Operation) -> str:
    clause = _waste_cause(op)
    return f"{clause[0].upper()}{clause[1:]}, so some sectors are only partly used."


def _explain_boxes(op: Operation, code: MemoryOperation, verdicts: Verdicts, textbook_requests: int) -> str:
    row, outside = row_bytes(op.access, code, DTYPE_BYTES[verdicts.launch.problem.dtype]), op.launch.extra_sectors
    sentences = [
        "The Tensor Memory Accelerator (TMA) copies the whole block, so no lane issues a request. The blackboard's "
        f"lanes would issue {textbook_requests:,}. Each box row of {count_noun(row, 'byte')} costs the sectors that it "
        "touches."
    ]
    if outside:
        sentences.append(
            f"{outside:,} of the sectors lie past the edge of {op.access.tensor}: they arrive as zeros, and are "
            "counted."
        )
    if op.launch.wasted_sectors > outside:
        sentences.append(_explain_waste(op))
    return " ".join(sentences)


def _stores_adjacent_bytes(op: Operation) -> bool:
    """Whether adjacent lanes store adjacent elements of a tile that is stored transposed."""
    access, layout = op.access, op.compiled and op.compiled.layout
    if isinstance(access, FlatAccess) or not access.transposed or not layout or not layout.lane:
        return False
    return bool(layout.lane[0][access.dims.index(access.columns.index)])


def _run_bytes(op: Operation, access: Access) -> int:
    """Return the bytes that one request accesses without a gap in a row of the tensor; a sector if unknown."""
    code = op.compiled
    if code is None or code.layout is None:
        return SECTOR_BYTES
    along = access.dims.index(access.columns.index)
    run = code.width_bytes // code.element_bytes
    for step in sorted(base[along] for base in code.layout.lane if base[along] and not base[1 - along]):
        run *= 2 if step == run else 1
    return run * code.element_bytes


def _explain_width(op: Operation, code: MemoryOperation, layout: Layout, verdicts: Verdicts) -> str:
    """Explain why a lane moves less than 16 bytes at a time; "" if it moves 16."""
    access, tensor, size, lanes = op.access, op.access.tensor, code.element_bytes, 32 << len(layout.warp)
    dtype = verdicts.launch.problem.dtype
    if op.width_bytes >= _WIDEST_BYTES:
        return ""
    width, share = count_noun(op.width_bytes, "byte"), max(access.elements * size // lanes, size)
    if share <= op.width_bytes:
        elements = count_noun(access.elements, "element")
        return f"A tile of {elements} has at most {count_noun(share, 'byte')} for each of {lanes} lanes."
    if isinstance(access, FlatAccess) and access.transposed:
        return f"Each element goes to a different row of {tensor}, so a lane has no adjacent elements."
    row = (access.elements if isinstance(access, FlatAccess) else access.columns.block) * size
    if row <= op.width_bytes:
        return f"A row of the tile is only {count_noun(row, 'byte')} of {tensor}."
    most = min(_WIDEST_BYTES, share, row)
    pitch = verdicts.kernel.family.tensors(verdicts.launch.problem)[tensor].stored[1]
    if pitch * size % most:
        return (
            f"A row of {tensor} takes {pitch * size:,} bytes ({pitch:,} × {size}), not a multiple of {most}. Rows are "
            f"not aligned to {most} bytes, so a lane moves {width} at a time."
        )
    if pitch % DIVISOR:
        return (
            f"Rows of {tensor} take {pitch * size:,} bytes, a multiple of {most}. The launcher only records whether "
            f"{pitch:,} is divisible by {DIVISOR}. It is not, so the compiler can't know, and a lane moves {width} "
            f"instead of {most}."
        )
    if _needs_k_major(access, code, verdicts):
        return (
            f"The matrix unit takes {dtype} operands K-major only, and {tensor} is not K-major. "
            f"It is copied {op.width_bytes} bytes at a time and transposed on its way into shared memory."
        )
    return f"In this layout, a lane has only {width} of {tensor} at a time."


def _needs_k_major(access: Access | FlatAccess, code: MemoryOperation, verdicts: Verdicts) -> bool:
    """Whether Hopper's matrix unit (4 warps together, 64 rows) needs K as the fast axis: all types except 2-byte."""
    launch = verdicts.launch
    return (
        access.tensor in (verdicts.kernel.family.panels or ())
        and code.op == "async copy"
        and launch.gpu.compute_capability == (9, 0)
        and launch.config.num_warps % 4 == 0
        and launch.config.BLOCK_M >= 64
        and DTYPE_BYTES[launch.problem.dtype] != 2
        and not isinstance(access, FlatAccess)
        and access.columns.index != "k"
    )
