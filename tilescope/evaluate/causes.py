"""Explain the cost of requests to global memory, in the same words for our own kernels and for captured ones."""

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from tilescope.declare.gpus import Gpu
from tilescope.evaluate.counts import Cost, OperationCounts
from tilescope.evaluate.declared import Requests
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.sectors import SECTOR_BYTES

# Triton specializes on arguments that are multiples of this, and a lane accesses at most as many bytes.
ALIGNMENT = 16
# The matrix unit of compute capability 9.0 transposes operands of this size only.
_TRANSPOSABLE_BYTES = 2


def count_bytes(number: int) -> str:
    return f"{number:,} byte{'s' * (number != 1)}"


def explain_width(width_bytes: int, *causes: str) -> str:
    """Return the causes, and how many bytes a lane accesses because of them."""
    return " ".join([*causes, f"Each lane accesses only {count_bytes(width_bytes)} per request."])


def round_up(size: int) -> int:
    """Round up to a multiple of 16."""
    return size + -size % ALIGNMENT


def find_odd_size(name: str, size: int) -> str:
    """Return a sentence with the next multiple of 16 if a size is not a multiple; otherwise ""."""
    if size % ALIGNMENT == 0:
        return ""
    return f"{name} = {size} is not a multiple of {ALIGNMENT}; the next is {round_up(size)}."


def find_fullest(active: np.ndarray) -> int:
    """Return the request with the most active lanes."""
    return int(active.sum(axis=1).argmax())


def measure_step(address: np.ndarray, active: np.ndarray) -> int:
    """Return the bytes from lane to lane in the request with the most active lanes; 0 if they vary."""
    steps = np.diff(address[find_fullest(active), :8])
    return int(steps[0]) if (steps == steps[0]).all() else 0


def explain_sectors(address: np.ndarray, active: np.ndarray, width_bytes: int) -> str:
    """Return a clause that says why requests touch more sectors than their bytes fill.

    Args:
        address: (requests, lanes) int64, first byte of each lane.
        active: (requests, lanes) bool.
    """
    step = abs(measure_step(address, active))
    if step > width_bytes:
        return f"adjacent lanes are {count_bytes(step)} apart, and each uses {count_bytes(width_bytes)}"
    request = find_fullest(active)
    used = np.unique(address[request, active[request]])
    ends = np.flatnonzero(np.diff(used) > width_bytes)
    runs = np.diff([-1, *ends, len(used) - 1]) * width_bytes
    if runs.max() < SECTOR_BYTES:
        return f"each run of contiguous bytes is at most {count_bytes(int(runs.max()))} long"
    return "runs of contiguous bytes start or end in the middle of a sector"


def explain(
    op: OperationCounts,
    cost: Cost,
    textbook: Cost | None,
    requests: Requests | None,
    sizes: Mapping[str, int],
    converted: Collection[tuple[str, int]],
    gpu: Gpu | None,
) -> str:
    """Explain what an operation costs, and what the compiler does differently from the textbook.

    Args:
        cost: of the launch, with all copies of the operation.
        textbook: the same on the textbook's machine; None if that is unknown, or if the operation is the textbook's.
        requests: those of one execution; None if they are unknown.
        sizes: the sizes that determine how many contiguous bytes a lane may access, by name.
        converted: the source lines of layout conversions.
        gpu: None if it is unknown.
    """
    if op.tally.refused:
        return op.tally.refused
    code = op.instruction
    reasons = []
    if op.is_box:
        reasons = [
            "The Tensor Memory Accelerator (TMA) copies the block, so no lane issues a request.",
            f"Textbook lanes would issue {textbook.requests:,}." if textbook else "",
            "Each row of a box costs the sectors that it touches.",
        ]
        if cost.extra_sectors:
            reasons.append(
                f"{cost.extra_sectors:,} of the sectors lie past the tensor's edge. "
                "They read as zeros, but are counted."
            )
    elif code and code.swaps:
        return "The compare-and-swap loop starts with this load of the words that it changes."
    elif code and code.layout and requests and textbook:
        reasons = [*_explain_instruction(code, requests, sizes, gpu)]
    if requests and cost.touched_sectors > cost.ideal_sectors:
        waste = explain_sectors(requests.address, requests.active, requests.width_bytes)
        reasons.append(f"Sectors are only partly used: {waste}.")
    if cost.extra_sectors and not op.is_box:
        counted = f"{cost.sectors:,} sectors, although {cost.touched_sectors:,} are touched"
        reasons.append(f"Copies that bypass L1 are counted per pair of lanes: {counted}.")
    if not reasons:
        fewer = textbook.requests / max(cost.requests, 1) if textbook else 0
        comparison = f": {fewer:.3g} × fewer requests than in the textbook" if fewer > 1 else ""
        width = count_bytes(op.width_bytes)
        adjacent = f"adjacent lanes access adjacent bytes{comparison}"
        reasons = [f"Each lane accesses {width}, and {adjacent}."]
    is_converted = code is not None and code.op == "store" and code.source in converted
    if is_converted and requests:
        step = abs(measure_step(requests.address, requests.active))
        if step <= requests.width_bytes:
            exchange = "The compiler first exchanges elements between lanes"
            reasons.append(f"{exchange}, so that adjacent lanes store adjacent bytes.")
    return " ".join(filter(None, reasons))


def _explain_instruction(
    code: MemoryInstruction, requests: Requests, sizes: Mapping[str, int], gpu: Gpu | None
) -> Iterator[str]:
    layout = code.layout
    assert layout is not None, "only an operation with lanes has a width"
    width = code.width_bytes
    if width < ALIGNMENT:
        is_hopper = gpu is not None and gpu.compute_capability == (9, 0)
        is_transposed = code.op == "async copy" and width == code.element_bytes
        odd = " ".join(filter(None, (find_odd_size(*size) for size in sizes.items())))
        if code.bytes_per_lane <= width:
            yield f"The block has at most {count_bytes(width)} per lane."
        elif odd and abs(measure_step(requests.address, requests.active)) <= width:
            yield explain_width(width, odd)
        elif is_transposed and is_hopper and width != _TRANSPOSABLE_BYTES:
            operands = f"The matrix unit accepts {8 * width}-bit operands only in K-major order."
            yield f"{operands} This copy transposes its block, {count_bytes(width)} at a time."
        else:
            yield explain_width(width, "A lane's elements are not contiguous in memory.")
    holders = 1 << sum(not any(base) for base in (*layout.lane, *layout.warp))
    if holders > 1:
        issuers = "all of them load it" if code.op == "load" else "one of them accesses it"
        each = f"{holders} lanes hold each element, and {issuers}"
        yield f"The block has fewer elements than there are lanes: {each}."
