"""Find inefficient or invalid accesses of an operation, and suggest fixes."""

from typing import NamedTuple

import numpy as np

from kernels.accesses import Layout, vectors
from kernels.compiling.capture_file import Argument, CapturedLaunch
from kernels.compiling.captured_counts import OperationCounts
from kernels.compiling.memory import Example
from kernels.compiling.requests import Instruction
from kernels.sectors import IDEAL, SECTOR_BYTES

# Triton specializes on arguments that are multiples of this, and a lane moves at most this many bytes.
_ALIGNMENT, _WIDEST_BYTES = 16, 16
# An operation is reported if its sectors exceed this multiple of its ideal sectors.
_WASTEFUL = 2


class Diagnosis(NamedTuple):
    """A finding about one operation.

    Attributes:
        kind: "outside", "divisibility", "misaligned", "mask", "strided" or "scattered".
        text: the finding and a suggested fix.
    """

    kind: str
    text: str


def diagnose(operation: OperationCounts, launch: CapturedLaunch, addresses: dict[str, int]) -> list[Diagnosis]:
    """Return the findings about an operation.

    Args:
        addresses: for each tensor argument, the address of its first byte; only the low bits are valid.
    """
    name, findings = " or ".join(operation.tensors) or "memory", list[Diagnosis]()
    made, example = operation.instruction, operation.tally.example
    if operation.tally.outside:
        findings.append(Diagnosis("outside", _explain_outside(*operation.tally.outside, made, name)))
    if made and made.layout and example and operation.op != "atomic":
        findings += filter(None, [_explain_cost(operation, made, made.layout, example, launch, addresses, name)])
    return findings


def _explain_outside(example: Example, index: tuple[int, ...], made: Instruction | None, name: str) -> str:
    lane = ""
    if made and made.layout:
        single = vectors(made.layout, 1)
        holders = np.argwhere((single.place == np.array(index)[:, None, None]).all(axis=0) & single.owner)
        request, number = holders[0]
        lane = f", warp {single.warp[request]}, lane {number}"
    element = ", ".join(map(str, index)) or "0"
    text = f"Program {example.program}{lane}: element ({element}) of the block lies outside {name}."
    return f"{text} Mask it, or allocate more memory."


def _explain_cost(
    operation: OperationCounts, made: Instruction, layout: Layout, example: Example, launch: CapturedLaunch,
    addresses: dict[str, int], name: str,
) -> Diagnosis | None:  # fmt: skip
    """Return the finding about an operation's width or, if there is none, its sectors."""
    lanes = vectors(layout, max(1, made.width_bytes // made.element_bytes))
    issued = example.active.ravel()[lanes.element].sum(axis=1)
    first = example.address.ravel()[lanes.element][int(issued.argmax())]
    step, run = int(first[1] - first[0]), _run_bytes(made, layout, example)
    is_regular = bool((np.diff(first[:8]) == step).all())
    ratio = operation.sectors / max(1, int(operation.tally.counts[IDEAL]))
    is_contiguous = is_regular and step in (made.width_bytes, run)
    if is_contiguous and made.width_bytes < _WIDEST_BYTES:
        narrow = f"each lane moves {made.width_bytes} bytes instead of up to {_WIDEST_BYTES}"
        narrow += f", at {ratio:.3g} × the ideal sectors" if ratio > _WASTEFUL else ""
        has_wider_mask = operation.has_mask and run > made.width_bytes
        if finding := _explain_width(operation, launch, addresses, name, narrow, run if has_wider_mask else 0):
            return finding
    if ratio <= _WASTEFUL:
        return None
    excess = f"It touches {ratio:.3g} × its ideal sectors"
    if is_regular and abs(step) >= SECTOR_BYTES:
        text = f"{excess}: neighbouring lanes are {step:,} bytes apart. Map the lanes to {name}'s contiguous"
        return Diagnosis("strided", f"{text} dimension, or load a tile and transpose it.")
    if is_regular and step:
        text = f"{excess}: neighbouring lanes are {step} bytes apart, so {step - made.width_bytes} of every"
        return Diagnosis("strided", f"{text} {step} bytes are unused. Make {name} contiguous.")
    text = f"{excess}: its lanes access scattered addresses. Sort the indices, or pad each row to whole sectors."
    return Diagnosis("scattered", text)


def _explain_width(
    operation: OperationCounts, launch: CapturedLaunch, addresses: dict[str, int], name: str, narrow: str, run: int
) -> Diagnosis | None:
    """Explain why the lanes of a contiguous access move less than 16 bytes each.

    Args:
        run: bytes of a lane inside which the mask may change; 0 if it can't.
    """
    for tensor in operation.tensors:
        if offset := addresses.get(tensor, 0) % _ALIGNMENT:
            text = f"{tensor} starts {offset} bytes after a multiple of {_ALIGNMENT}, so {narrow}."
            return Diagnosis("misaligned", f"{text} Copy the view, or start it at an aligned element.")
    odd = [a for a in launch.arguments if a.name in operation.depends_on and _is_indivisible(a)]
    if odd:
        values = ", ".join(f"{a.name} = {a.value}" for a in odd)
        verb = "are not multiples" if len(odd) > 1 else "is not a multiple"
        size = min((t.element_bytes for a in launch.arguments if (t := a.own_tensor)), default=1)
        fixes = []
        if enough := [a.name for a in odd if int(a.number) * size % _ALIGNMENT == 0]:
            fixes.append(f"Declare {', '.join(enough)} tl.constexpr.")
        if rest := [f"{a.name} = {a.number + -a.number % _ALIGNMENT}" for a in odd if a.name not in enough]:
            fixes.append(f"Pad {name}, and pass {', '.join(rest)}.")
        text = f"{values} {verb} of {_ALIGNMENT}, so the compiler can't assume alignment: {narrow}."
        return Diagnosis("divisibility", " ".join([text, *fixes]))
    if run:
        text = f"The mask may change within a lane's {run} bytes, so {narrow}."
        fix = f"Pad {name}, and round the mask's bound up in the kernel: tl.cdiv(n, 16) * 16."
        return Diagnosis("mask", f"{text} {fix}")
    return None


def _is_indivisible(argument: Argument) -> bool:
    """Return whether an argument is an integer from which the compiler derives no alignment. It knows the value 1."""
    value = argument.value
    return isinstance(value, int) and not isinstance(value, bool) and value != 1 and value % _ALIGNMENT != 0


def _run_bytes(made: Instruction, layout: Layout, example: Example) -> int:
    """Return the consecutive bytes of one lane's registers, at most 16."""
    single = vectors(layout, 1)
    address = example.address.ravel()[single.element[single.warp == 0, 0]]
    most, length = min(len(address), _WIDEST_BYTES // made.element_bytes), 1
    while length < most and (np.diff(address[: 2 * length]) == made.element_bytes).all():
        length *= 2
    return length * made.element_bytes
