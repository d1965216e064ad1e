"""Read nvdisasm's listing of a kernel."""

import functools
import re
from dataclasses import dataclass

from tilescope.captures.listings import Location, locate_lines
from tilescope.sass.opcodes import Opcode, find_opcode

_LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)([^;]*);")
# A label in the kernel, or a function that it calls.
_NAME = r"(\.L_\w+|\$[\w$]+)"
_LABEL = re.compile(f"{_NAME}:")
_TARGET = re.compile(rf"`\({_NAME}\)")
# Widths of accesses: bits, such as "U16" or "128"; a vector, such as "F32x4"; or matrices, such as "M88.4".
_BITS = re.compile(r"\.(?:[US](8|16)|(64|128|256))\b")
_VECTOR = re.compile(r"x(\d)\b")
_MATRICES = re.compile(r"\.MT?88\.(\d)")
# [R1+0x8]
_STACK = re.compile(r"\[R1(?:\+(-?0x[0-9a-f]+))?\]")
# For some GPUs, nvdisasm adds the barriers and the stalls of an instruction, such as "&req={0} ?trans5".
_CONTROL = re.compile(r"(^|\s)[&?]\w.*")


@dataclass(frozen=True)
class Instruction:
    """An instruction of a listing.

    Attributes:
        predicate: the register that must be true, such as "P0" or "!UP1"; "" if it is always executed.
        opcode: with its suffixes, such as "LDS.128".
        operands: as written, without `.reuse`.
        location: its source places, innermost first; () if unknown.
        target: index of the instruction that it names, as a branch does; None without a label.
    """

    predicate: str
    opcode: str
    operands: tuple[str, ...]
    location: Location
    target: int | None = None

    @functools.cached_property
    def name(self) -> str:
        """The opcode without its suffixes."""
        return self.opcode.partition(".")[0]

    @property
    def traits(self) -> Opcode:
        return find_opcode(self.name)

    @property
    def effect(self) -> str:
        """What the instruction waits for or changes besides registers; "" if nothing."""
        traits = self.traits
        when = traits.when
        if not when:
            return traits.effect
        is_met = (when.removeprefix("!") in self.opcode) != when.startswith("!")
        return traits.effect if is_met else ""

    @functools.cached_property
    def lane_bytes(self) -> int:
        """The bytes that an access moves per lane."""
        if vector := _VECTOR.search(self.opcode):
            return int(vector[1]) * (2 if "F16" in self.opcode else 4)
        if matrices := _MATRICES.search(self.opcode):
            return 4 * int(matrices[1])
        bits = _BITS.search(self.opcode)
        return int(bits[1] or bits[2]) // 8 if bits else 4

    @property
    def lane_registers(self) -> int:
        """The registers per lane that an access moves, each of up to four bytes."""
        return -(-self.lane_bytes // 4)

    @property
    def stack_offset(self) -> int | None:
        """The offset of an access to the stack; None for other accesses, as to an array that a register indexes."""
        match = _STACK.search(" ".join(self.operands)) if self.traits.lmem else None
        return int(match[1] or "0", 0) if match else None

    @property
    def source(self) -> tuple[str, int]:
        """The innermost file and line; ("", 0) if they are unknown."""
        return self.location[0][:2] if self.location else ("", 0)


def read_table(sass: str) -> list[int]:
    """Return the words of constant bank 2, which holds the targets of indirect branches."""
    tables = re.findall(r"^\.nv\.constant2\..*\n((?:0x.*\n)+)", sass, re.MULTILINE)
    return [int(word, 0) for word in " ".join(tables).split()]


@functools.lru_cache(maxsize=8)
def parse(sass: str) -> tuple[Instruction, ...]:
    """Return the instructions of a listing, in order."""
    labels = dict[str, int]()
    parts = list[tuple[str, str, str, Location]]()
    for line, location in locate_lines(sass, "sass"):
        if label := _LABEL.match(line):
            labels[label[1]] = len(parts)
        elif match := _LINE.match(line):
            parts.append((match[2] or "", match[3], match[4], location))
    instructions = []
    for predicate, opcode, text, location in parts:
        text = _CONTROL.sub("", text).replace(".reuse", "").strip()
        label = _TARGET.search(text)
        operands = tuple(part.strip() for part in text.split(","))
        target = labels.get(label[1]) if label else None
        instructions.append(
            Instruction(predicate, opcode, operands if text else (), location, target)
        )
    return tuple(instructions)
