"""Say what is wrong with an operation's requests, and what would help."""

from dataclasses import dataclass

import numpy as np

from kernels.accesses import vectors
from kernels.compiling.capture_file import Argument, CapturedLaunch
from kernels.compiling.captured_counts import OperationCounts
from kernels.sectors import IDEAL, SECTOR_BYTES

# Triton specializes on arguments that are multiples of this, and a lane moves at most this many bytes.
_ALIGNMENT, _WIDEST_BYTES = 16, 16
# Sectors over ideal sectors from which an operation is reported.
_WASTEFUL = 2


@dataclass(frozen=True)
class Diagnosis:
    """A finding about one operation.

    Attributes:
        kind: "outside", "divisibility", "misaligned", "mask", "strided" or "scattered".
        source: (file without its folders, line) of the operation.
        text: what was found, and what would help.
    """

    kind: str
    source: tuple[str, int]
    text: str


def diagnose(operation: OperationCounts, launch: CapturedLaunch, addresses: dict[str, int]) -> list[Diagnosis]:
    """Return the findings about an operation.

    Args:
        addresses: for each tensor argument, its first byte modulo 512.
    """
    made, example = operation.instruction, operation.tally.example
    name, found = " or ".join(operation.tensors) or "memory", []
    if outside := _outside(operation, name):
        found.append(Diagnosis("outside", operation.source, outside))
    if made is None or made.layout is None or example is None:
        return found
    lanes = vectors(made.layout, max(1, made.width_bytes // made.element_bytes))
    issued = example.active.ravel()[lanes.element].sum(axis=1)
    first = example.address.ravel()[lanes.element][int(issued.argmax())]
    step = int(first[1] - first[0])
    is_regular = bool((np.diff(first[:8]) == step).all())
    is_contiguous = is_regular and step in (made.width_bytes, _run_bytes(operation))
    narrow = []
    if is_contiguous and made.width_bytes < _WIDEST_BYTES and operation.op != "atomic":
        narrow = _narrow(operation, launch, addresses, name)
    ratio = operation.sectors / max(1, int(operation.tally.counts[IDEAL]))
    if ratio > _WASTEFUL and operation.op != "atomic" and not narrow:
        excess = f"It costs {ratio:.3g} × its ideal sectors"
        if is_regular and abs(step) >= SECTOR_BYTES:
            text = f"{excess}: neighbouring lanes are {step:,} bytes apart. Let the lanes follow {name}'s contiguous"
            found.append(Diagnosis("strided", operation.source, f"{text} dimension, or load a tile and transpose it."))
        elif is_regular and step:
            text = f"{excess}: neighbouring lanes are {step} bytes apart, so {step - made.width_bytes} bytes of each"
            found.append(
                Diagnosis("strided", operation.source, f"{text} step are not used. Store {name} contiguously.")
            )
        else:
            text = f"{excess}: its lanes access scattered addresses. Sort the indices, or give each row whole sectors."
            found.append(Diagnosis("scattered", operation.source, text))
    return found + narrow


def _outside(operation: OperationCounts, name: str) -> str:
    if operation.tally.outside is None:
        return ""
    example, index = operation.tally.outside
    made, lane = operation.instruction, ""
    if made and made.layout:
        single = vectors(made.layout, 1)
        holders = np.argwhere((single.place == np.array(index)[:, None, None]).all(axis=0) & single.owner)
        request, number = holders[0]
        lane = f", warp {single.warp[request]}, lane {number}"
    element = ", ".join(map(str, index)) or "0"
    text = f"Program {example.program}{lane}: element ({element}) of the block lies outside {name}."
    return f"{text} Mask it, or allocate more memory."


def _narrow(
    operation: OperationCounts, launch: CapturedLaunch, addresses: dict[str, int], name: str
) -> list[Diagnosis]:
    """Explain why the lanes of a contiguous access move less than 16 bytes each."""
    made = operation.instruction
    if made is None:
        return []
    narrow = f"each lane moves {made.width_bytes} bytes instead of up to {_WIDEST_BYTES}"
    ratio = operation.sectors / max(1, int(operation.tally.counts[IDEAL]))
    if ratio > _WASTEFUL:
        narrow += f", at {ratio:.3g} × the ideal sectors"
    for tensor in operation.tensors:
        if addresses.get(tensor, 0) % _ALIGNMENT:
            text = (
                f"{tensor} starts {addresses[tensor] % _ALIGNMENT} bytes after a multiple of {_ALIGNMENT}, so {narrow}."
            )
            hint = "Copy the view, or start it at an aligned element."
            return [Diagnosis("misaligned", operation.source, f"{text} {hint}")]
    odd = [a for a in launch.arguments if a.name in operation.depends_on and _is_indivisible(a)]
    if odd:
        values = " and ".join(f"{a.name} = {a.value}" for a in odd)
        verb = "are not multiples" if len(odd) > 1 else "is not a multiple"
        size = max(-(-int(a.number) // _ALIGNMENT) * _ALIGNMENT for a in odd)
        text = f"{values} {verb} of {_ALIGNMENT}, so the compiler can't rely on aligned rows: {narrow}."
        return [Diagnosis("divisibility", operation.source, f"{text} Pad {name}'s rows to {size} elements.")]
    run = _run_bytes(operation)
    if operation.has_mask and run > made.width_bytes:
        text = f"The mask may change inside a lane's {run} bytes, so {narrow}."
        hint = "Make the mask's limit a multiple of 16, or assert it with tl.multiple_of."
        return [Diagnosis("mask", operation.source, f"{text} {hint}")]
    return []


def _is_indivisible(argument: Argument) -> bool:
    """Return whether an argument is an integer from which the compiler derives no alignment. It knows the value 1."""
    value = argument.value
    return isinstance(value, int) and not isinstance(value, bool) and value != 1 and value % _ALIGNMENT != 0


def _run_bytes(operation: OperationCounts) -> int:
    """Return the consecutive bytes of one lane's registers, at most 16."""
    made, example = operation.instruction, operation.tally.example
    if made is None or made.layout is None or example is None:
        return 0
    single = vectors(made.layout, 1)
    address = example.address.ravel()[single.element[single.warp == 0, 0]]
    length = 1
    while length < len(address) and length * made.element_bytes < _WIDEST_BYTES:
        if not (np.diff(address[: 2 * length]) == made.element_bytes).all():
            break
        length *= 2
    return length * made.element_bytes
