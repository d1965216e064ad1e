"""Decode SASS instructions on integers and predicates into steps that NumPy can compute."""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from tilescope.sass import semantics
from tilescope.sass.instructions import Instruction
from tilescope.sass.registers import list_registers
from tilescope.sass.semantics import MASK, Number

_REGISTER = re.compile(r"([-~!]?)(U?[RP](?:\d+|Z|T)|U?PR)(?:\.B([0-3]))?$")
_NUMBER = re.compile(r"-?0x[0-9a-f]+$|-?\d+$")
_CONSTANT = re.compile(r"(-?)c\[0x0\]\[(0x[0-9a-f]+)\]$")
_ADDRESS = re.compile(r"(?:desc\[\w+\])?\[(.*)\]")
_ADDRESS_PART = re.compile(r"(U?R(?:\d+|Z))((?:\.\w+)*)$")
_PREDICATES = 0x7F
CONSTANT_REGISTERS = {"RZ": 0, "URZ": 0, "PT": True, "UPT": True, "SRZ": 0}


@dataclass(frozen=True)
class Source:
    """A source operand: a function of registers' values, or of words of the constant bank from an offset."""

    registers: tuple[str, ...]
    combine: Callable[..., Number]
    constant: int | None = None
    words: int = 1


class Computation(NamedTuple):
    """An instruction whose results can be computed.

    Attributes:
        compute: takes the sources' values, and returns a value for each of `writes`.
    """

    writes: tuple[str, ...]
    sources: tuple[Source, ...]
    compute: Callable[..., tuple[Number, ...]]


def next_register(name: str, by: int) -> str:
    prefix = name.rstrip("0123456789")
    return name if name == prefix else f"{prefix}{int(name[len(prefix) :]) + by}"


def register(name: str, combine: Callable[[Number], Number] = lambda value: value) -> Source:
    if name in CONSTANT_REGISTERS:
        return Source((), lambda: combine(CONSTANT_REGISTERS[name]))
    return Source((name,), combine)


_SIGNS: dict[str, Callable[[Number], Number]] = {
    "": lambda value: value,
    "-": lambda value: -value & MASK,
    "~": lambda value: value ^ MASK,
    "!": lambda value: value ^ True,
    "carry": lambda value: (value ^ MASK) + 1,  # of a negation
}


@functools.lru_cache(maxsize=4096)
def source(text: str, has_carry: bool = False) -> Source | None:
    """Return a 32-bit operand or a predicate; None if it is of another kind.

    Args:
        has_carry: whether to keep the carry of a negation.
    """
    if match := _REGISTER.match(text):
        change = _SIGNS["carry" if has_carry and match[1] == "-" else match[1]]
        if match[3]:
            by = 8 * int(match[3])
            return register(match[2], lambda value: value >> by & 255)
        return register(match[2], change)
    if _NUMBER.match(text):
        number = int(text, 0) & MASK
        return Source((), lambda: number)
    if match := _CONSTANT.match(text):
        return Source((), _SIGNS[match[1]], int(match[2], 0))
    return None


@functools.lru_cache(maxsize=4096)
def wide_source(text: str) -> Source | None:
    """Return a 64-bit operand in two registers or two words of the constant bank."""
    low = source(text.removeprefix("-"))
    if low is None:
        return None
    combine = low.combine
    sign = -1 if text.startswith("-") else 1
    if not low.registers and low.constant is None:
        return Source((), lambda: sign * combine())
    registers = tuple(next_register(name, k) for name in low.registers for k in (0, 1))
    return Source(registers, lambda *words: sign * semantics.pair(*words), low.constant, words=2)


@functools.lru_cache(maxsize=4096)
def address(text: str) -> Source:
    """Return the sum of an address's registers and offset."""
    match = _ADDRESS.search(text)
    terms = list[tuple[Source, int]]()
    offset = 0
    for part in match[1].replace("+-", "+!").split("+") if match else ():
        if found := _ADDRESS_PART.match(part):
            scale = re.search(r"\.X(\d+)", found[2])
            operand = wide_source(found[1]) if ".64" in found[2] else source(found[1])
            assert operand
            terms.append((operand, int(scale[1]) if scale else 1))
        else:
            offset += int(part.replace("!", "-"), 0)

    def combine(*values: Number) -> Number:
        rest = iter(values)
        total: Number = offset
        for operand, scale in terms:
            total = total + operand.combine(*islice(rest, len(operand.registers))) * scale
        return total

    return Source(tuple(name for operand, _ in terms for name in operand.registers), combine)


def decode(
    instruction: Instruction, writes: Sequence[str], reads: Sequence[str]
) -> Computation | None:
    """Return how to compute an instruction's results; None if it is not modeled.

    Args:
        writes: the operands that are written, as `split_operands` splits them.
    """
    if instruction.traits.lmem:
        return _move_local(instruction)
    decoder = _DECODERS.get(instruction.traits.semantics)
    if not decoder or not writes:
        return None
    try:
        decoded = decoder(instruction.opcode.split(".")[1:], list(writes), list(reads))
    except (KeyError, ValueError, IndexError):
        return None
    if decoded is None:
        return None
    names, sources, compute = decoded
    known = tuple(filter(None, sources))
    return Computation(tuple(names), known, compute) if len(known) == len(sources) else None


# Suffixes, or operands as written.
Words = list[str]
Decoded = tuple[Words, list[Source | None], Callable[..., tuple[Number, ...]]] | None
# Takes the suffixes, and the operands that are written and read.
Decoder = Callable[[Words, Words, Words], Decoded]


def _single(writes: Words, operands: Words, compute: Callable[..., Number]) -> Decoded:
    """Compute one result from 32-bit operands."""
    return writes[:1], [source(each) for each in operands], lambda *values: (compute(*values),)


def _plain(
    compute: Callable[..., Number], fits: Callable[[Words], bool] = lambda _: True
) -> Decoder:
    """Return a decoder for instructions with 32-bit operands and one result, if `fits` accepts their suffixes."""
    return lambda parts, writes, reads: _single(writes, reads, compute) if fits(parts) else None


def _sign(parts: Words) -> Callable[[Number], Number]:
    """Return how to interpret an operand of the type that the suffixes name."""
    return _SIGNS[""] if "U32" in parts else semantics.signed


def _move_local(instruction: Instruction) -> Computation | None:
    """Treat each word of a thread's local memory as a register."""
    offset = instruction.stack_offset
    if offset is None:
        return None
    (name,) = (each for each in instruction.operands if "[" not in each)
    count = instruction.lane_registers
    writes = tuple(next_register(name, k) for k in range(count))
    reads = tuple(f"[{offset + 4 * k}]" for k in range(count))
    if instruction.traits.lmem == "store":
        writes, reads = reads, writes
    return Computation(writes, tuple(map(register, reads)), lambda *values: values)


def _clear(parts: Words, writes: Words, reads: Words) -> Decoded:
    if reads[0] != "SRZ":
        return None
    names = writes if "32" in parts else [writes[0], next_register(writes[0], 1)]
    return names, [], lambda: (0,) * len(names)


def _add3(parts: Words, writes: Words, reads: Words) -> Decoded:
    if "64" in parts:
        names = [writes[0], next_register(writes[0], 1)]
        sources = [wide_source(each) for each in reads[:3]]
        return names, sources, lambda *values: semantics.halves(sum(values))
    sources = [source(each, has_carry=True) for each in reads]
    # Predicates after the numbers are carries.
    return writes, sources, lambda *values: semantics.add(*values)[: len(writes)]


def _multiply(parts: Words, writes: Words, reads: Words) -> Decoded:
    sign = _sign(parts)
    if "WIDE" in parts or "HI" in parts:
        sources = [source(reads[0]), source(reads[1]), wide_source(reads[2])]
        if "HI" in parts:
            return writes, sources, lambda a, b, c: (sign(a) * sign(b) + c >> 32 & MASK,)
        if len(writes) > 1 or len(reads) > 3:
            return None
        names = [writes[0], next_register(writes[0], 1)]
        return names, sources, lambda a, b, c: semantics.halves(sign(a) * sign(b) + c)
    is_extended = "X" in parts
    sources = [source(reads[0]), source(reads[1]), source(reads[2], has_carry=True)]
    sources += [source(each) for each in reads[3:]] if is_extended else []

    def compute(a: Number, b: Number, c: Number, *carries: Number) -> tuple[Number, ...]:
        return semantics.add(semantics.signed(a) * b & MASK, c, *carries)[: len(writes)]

    return writes, sources, compute


def _load_effective_address(parts: Words, writes: Words, reads: Words) -> Decoded:
    is_high = "HI" in parts
    is_sign = "SX32" in parts
    carries = reads[-1:] if "X" in parts else []
    numbers = reads[: len(reads) - len(carries)]
    if not carries and numbers[-1].lstrip("!U").startswith("P"):
        numbers = numbers[:-1]
    by = int(numbers[-1], 0) & 31
    sources = [source(numbers[0]), source(numbers[1], has_carry=True)]
    if is_high and not is_sign:
        sources.append(source(numbers[2]))
    sources += [source(each) for each in carries]

    def compute(a: Number, b: Number, *rest: Number) -> tuple[Number, ...]:
        upper: Number = 0
        if is_sign:
            upper = semantics.signed(a) >> 31 & MASK
        elif is_high:
            upper = rest[0]
        moved = semantics.shift("L.U64", is_high, a, by, upper)
        return semantics.add(moved, b, *rest[is_high and not is_sign :])[: len(writes)]

    return writes, sources, compute


def _shift(parts: Words, writes: Words, reads: Words) -> Decoded:
    kind = ".".join(part for part in parts if part != "HI")
    return _single(writes, reads[:3], functools.partial(semantics.shift, kind, "HI" in parts))


def _extend(parts: Words, writes: Words, reads: Words) -> Decoded:
    is_signed = "U32" not in parts
    bits = min(int(reads[1], 0), 32)
    return _single(writes, reads[:1], lambda value: semantics.extend(value, bits, is_signed))


def _logic(parts: Words, writes: Words, reads: Words) -> Decoded:
    """LOP3.LUT. A predicate among the results says whether any bit is set."""
    table = int(reads[3], 0)
    sources = [source(each) for each in reads[:3]]
    if reads[4:] and reads[4] != "!PT" and reads[4] != "!UPT":
        return None

    def compute(*values: Number) -> tuple[Number, ...]:
        result = semantics.look_up(table, values, MASK)
        return (result != 0, result)[-len(writes) :]

    return writes, sources, compute


def _predicate_logic(parts: Words, writes: Words, reads: Words) -> Decoded:
    tables = [int(each, 0) for each in reads[3:5]]

    def compute(*values: Number) -> tuple[Number, ...]:
        return tuple(semantics.look_up(table, values, True) for table in tables)

    return writes, [source(each) for each in reads[:3]], compute


_COMBINE: dict[str, Callable[[Number, Number], Number]] = {
    "AND": lambda a, b: a & b,
    "OR": lambda a, b: a | b,
    "XOR": lambda a, b: a ^ b,
}


def _compare(parts: Words, writes: Words, reads: Words) -> Decoded:
    test = parts[0]
    sign = _sign(parts)
    is_extended = "EX" in parts
    combine = _COMBINE[next(part for part in parts if part in _COMBINE)]

    def compute(a: Number, b: Number, other: Number, *previous: Number) -> tuple[Number, ...]:
        result = semantics.compare(test, sign(a), sign(b), previous[0] if is_extended else None)
        return combine(result, other), combine(result ^ True, other)

    return writes, [source(each) for each in reads], compute


def _extreme_of_sum(parts: Words, writes: Words, reads: Words) -> Decoded:
    """Return the minimum if the last operand is true, otherwise the maximum. The first operand may be a sum."""
    sign = _sign(parts)

    def compute(*values: Number) -> Number:
        *numbers, is_minimum = values
        a = sum(numbers[:-1]) & MASK
        b = numbers[-1]
        return semantics.select((sign(a) < sign(b)) ^ is_minimum ^ True, a, b)

    return _single(writes, reads, compute)


def _pack_predicates(parts: Words, writes: Words, reads: Words) -> Decoded:
    """P2R writes predicates to a byte of a number."""
    first = 8 * int(parts[0][1:]) if parts else 0
    mask = int(reads[2], 0)
    bits = list_registers(mask & _PREDICATES)

    def compute(base: Number, *values: Number) -> Number:
        result = base & ~(mask << first)
        for k, value in zip(bits, values, strict=True):
            result = result | value * (1 << first + k)
        return result

    return _single(writes, [reads[1], *(f"P{k}" for k in bits)], compute)


def _unpack_predicates(parts: Words, writes: Words, reads: Words) -> Decoded:
    mask = int(reads[1], 0)
    bits = list_registers(mask & _PREDICATES)
    names = [f"P{k}" for k in bits]
    return names, [source(reads[0])], lambda value: tuple((value >> k & 1) != 0 for k in bits)


def _halves_constant(parts: Words, writes: Words, reads: Words) -> Decoded:
    """Return the constant that `HFMA2 R, -RZ, RZ, high, low` adds to zero."""
    if reads[0].lstrip("-") != "RZ" or reads[1] != "RZ" or len(reads) < 4:
        return None
    high, low = np.array([float(each) for each in reads[2:4]], np.float16).view(np.uint16).tolist()
    return writes, [], lambda: (high << 16 | low,)


# Types that the conversions do not model.
_OTHER_TYPES = {"F16", "F64", "U64", "S64", "BF16"}


def _to_float(parts: Words, writes: Words, reads: Words) -> Decoded:
    if _OTHER_TYPES.intersection(parts):
        return None
    rounds_up = "RP" in parts
    sign = _SIGNS[""] if parts[:1] == ["RP"] else _sign(parts)
    return _single(writes, reads[:1], lambda value: semantics.to_float(sign(value), rounds_up))


# The decoder of each `semantics` in the table of opcodes.
_DECODERS: dict[str, Decoder] = {
    "move": lambda parts, writes, reads: _single(writes, reads[:1], _SIGNS[""]),
    "special": lambda parts, writes, reads: (writes, [register(reads[0])], lambda value: (value,)),
    "clear": _clear,
    "add": _add3,
    "multiply": _multiply,
    "effective address": _load_effective_address,
    "shift": _shift,
    "extend": _extend,
    "logic": _logic,
    "predicate logic": _predicate_logic,
    "compare": _compare,
    "select": _plain(lambda a, b, c: semantics.select(c, a, b)),
    "permute": _plain(semantics.permute, lambda parts: not parts),
    "extreme of sum": _extreme_of_sum,
    "absolute": _plain(lambda value: abs(semantics.signed(value))),
    "count bits": _plain(semantics.count_bits),
    "leading one": _plain(semantics.find_leading_one),
    "pack predicates": _pack_predicates,
    "unpack predicates": _unpack_predicates,
    "halves": _halves_constant,
    "to float": _to_float,
    "to integer": _plain(
        semantics.to_integer,
        lambda parts: "TRUNC" in parts and _OTHER_TYPES.isdisjoint(parts),
    ),
    "reciprocal": _plain(semantics.reciprocal, lambda parts: parts == ["RCP"]),
}
