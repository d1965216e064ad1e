"""Registers that are live along the SASS, and the instructions that spill them, by source line."""

from collections.abc import Sequence

from kernels.inside.report import LineSpills
from kernels.inside.sass import Instruction

_LANES = 32
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def count_spills(
    instructions: Sequence[Instruction], executed: Sequence[int] | None = None
) -> tuple[LineSpills, ...]:
    """Return the spills of each source line, in the order of the SASS.

    Args:
        executed: number of times that warps execute each instruction in the launch; None if unknown.
    """
    groups = dict[tuple[str, int], list[int]]()
    for number, instruction in enumerate(instructions):
        if instruction.name in ("STL", "LDL") and instruction.location:
            groups.setdefault(instruction.location[0][:2], []).append(number)
    return tuple(
        _add_up(file, line, instructions, numbers, executed)
        for (file, line), numbers in groups.items()
    )


def _add_up(
    file: str,
    line: int,
    instructions: Sequence[Instruction],
    numbers: Sequence[int],
    executed: Sequence[int] | None,
) -> LineSpills:
    widths = {number: _bytes(instructions[number].opcode) for number in numbers}
    stores = [number for number in numbers if instructions[number].name == "STL"]
    moved = None
    if executed is not None:
        moved = sum(_LANES * widths[number] * executed[number] for number in numbers)
    return LineSpills(
        file=file,
        line=line,
        stores=len(stores),
        reloads=len(numbers) - len(stores),
        stored_bytes=sum(widths[number] for number in stores),
        executed=None if executed is None else sum(executed[number] for number in numbers),
        moved_bytes=moved,
    )


def _bytes(opcode: str) -> int:
    return next((_BYTES[part] for part in opcode.split(".") if part in _BYTES), 4)
