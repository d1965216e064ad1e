"""Read a kernel's operations on global and shared memory from its TTGIR, PTX and SASS. Runs in a compile worker.

Global memory: layouts come from the TTGIR, widths from the PTX. Triton's bindings parse the TTGIR and convert each
layout to bases. An operation is matched to the PTX by its full location: line, column, and inlined calls. SASS gives
only lines, and ptxas assigns some instructions to a neighbouring line, so SASS is also matched by opcode.

Shared memory: addresses come from evaluating the PTX. An address is a few integer operations on the thread index.
Values unknown before the launch (arguments, the program id, a loop counter) are equal for all threads of a program.
The evaluator sets them to 0, because they shift all addresses together, by whole buffers.
"""

import functools
import math
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.accesses import Access, Conversion, FlatAccess, Layout, MemoryOperation, SharedOperation, expand_bases
from kernels.compiling.compile_cost import LANES
from kernels.jit import last_line

# A place is (file without its folders, line, column). A location adds the inlined calls, innermost first.
Place = tuple[str, int, int]
Location = tuple[Place, ...]

_PLACE = re.compile(r'"?([^"\s(]+?)"?:(\d+):(\d+)')
# PTX: `.loc file line column` applies until the next `.loc`; its comment names the file and the calls.
# SASS: `//## File "file", line n` applies until the next marker. Of consecutive markers, the first is innermost.
_MARKERS = {"ptx": re.compile(r"\s*\.loc\s"), "sass": re.compile(r"\s*//## File ")}
_SASS_PLACE = re.compile(r'File "([^"]+)", line (\d+)()')
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([\w.]+)")

_OPS = {
    "tt.load": "load",
    "ttg.async_copy_global_to_local": "async copy",
    "tt.store": "store",
    "tt.atomic_rmw": "atomic",
    "tt.descriptor_load": "descriptor",
    "tt.descriptor_store": "descriptor",
    "ttng.async_tma_copy_global_to_local": "descriptor",
    "ttng.async_tma_copy_local_to_global": "descriptor",
}
_TTGIR = re.compile(rf"(?:^|= |\s)({'|'.join(map(re.escape, _OPS))}) ")
_POINTERS = re.compile(r"tensor<((?:\d+x)+)!tt\.ptr<[a-z]+(\d+)\w*>")  # f16, bf16, f8E4M3FN, i32
_PTX = re.compile(
    r"\b(?P<name>(?:ld|st)\.global[\w.:]*|(?:red|atom)\.[\w.:]+|cp\.async\.c[ag]\.[\w.:]+|cp\.async\.bulk\.tensor[\w.:]+)"
)
_DESCRIPTOR = re.compile(r"!tt\.tensordesc<[^#]*(#\w+)>")
_SWIZZLE = re.compile(r"^(#\w+) = #ttg\.nvmma_shared<\{swizzlingByteWidth = (\d+)", re.MULTILINE)

# Operations that a SASS instruction may implement. An atomic on half a word first loads the word that it swaps.
SASS_KINDS = {
    "LDG": ("load", "atomic"),
    "LDGSTS": ("async copy",),
    "STG": ("store",),
    **dict.fromkeys(("RED", "REDG", "ATOM", "ATOMG"), ("atomic",)),
    **dict.fromkeys(("UTMALDG", "UTMASTG"), ("descriptor",)),
}
# Accesses to global memory at each stage, including copies to shared memory and tensor (TMA) copies.
_MEMORY = {"ttgir": _TTGIR, "ptx": _PTX, "sass": re.compile(rf"\b({'|'.join(SASS_KINDS)})\b")}
_DEFINITION = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(%[a-z]+\d+)\s*,\s*(.*);")
_ON_SHARED = re.compile(
    r"\b(?P<name>(?:ld|st)\.shared[\w.:]*|(?:ld|st)matrix\.sync[\w.:]*|cp\.async\.c[ag]\.shared[\w.:]*)\s"
)
_ADDRESS = re.compile(r"\[\s*(%\w+)\s*(?:\+\s*(-?\d+))?\s*\]")
_CONVERSION = re.compile(r"ttg\.convert_layout .*: tensor<((?:\d+x)+)[a-z]+(\d+)\w*,")
_MASK = 0xFFFFFFFF
_MATRIX_ROW_BYTES = 16


class Unreadable(Exception):
    """The compiled kernel has a form that these parsers do not know."""


def locate_lines(text: str, kind: str) -> list[tuple[str, Location]]:
    """Return each line with its source location, or () where it has none.

    Args:
        kind: "ttgir", "ptx" or "sass". SASS gives no columns, so they are 0.
    """
    lines = text.splitlines()
    if kind == "ttgir":
        return list(zip(lines, _ttgir_locations(lines), strict=True))
    located = []
    current: Location = ()
    follows_marker = False
    for line in lines:
        is_marker = bool(_MARKERS[kind].match(line))
        if is_marker:
            comment = line.partition("//")[2]
            places = tuple(map(_place, (_SASS_PLACE if kind == "sass" else _PLACE).finditer(comment)))
            current = current + places if kind == "sass" and follows_marker else places
        follows_marker = is_marker
        located.append((line, () if is_marker else current))
    return located


def memory_lines(text: str, kind: str, file: str, first: int, last: int) -> list[int]:
    """Return the numbers, from 0, of the lines that access global memory for source lines `first` to `last`.

    Inlined code counts for the innermost function. `file` is a name without folders.
    """
    return [
        number
        for number, (line, location) in enumerate(locate_lines(text, kind))
        if location and location[0][0] == file and first <= location[0][1] <= last and _MEMORY[kind].search(line)
    ]


def _place(match: re.Match[str]) -> Place:
    return match[1].rsplit("/", 1)[-1], int(match[2]), int(match[3] or 0)


def _ttgir_locations(lines: list[str]) -> list[Location]:
    """Resolve each line's location. An operation ends with `loc(#loc7)`.

    Definitions such as `#loc7 = loc("file":line:column)` name a place, a call site, or another location.
    """
    matches = (re.match(r"(#loc\d*) = loc\((.*)\)$", line) for line in lines)
    definitions = {match[1]: match[2] for match in matches if match}

    @functools.cache
    def resolve(name: str) -> Location:
        content = definitions.get(name, "")
        if match := _PLACE.match(content):
            return (_place(match),)
        return tuple(place for inner in re.findall(r"#loc\d*", content) for place in resolve(inner))

    used = (re.search(r"loc\((#loc\d*)\)$", line) for line in lines)
    return [resolve(match[1]) if match else () for match in used]


def instructions(sass: str) -> list[tuple[str, Location]]:
    """Return the opcode and location of every SASS instruction, in order."""
    located = ((_INSTRUCTION.match(line), location) for line, location in locate_lines(sass, "sass"))
    return [(match[1], location) for match, location in located if match]


def lane_bytes(instruction: str, line: str) -> int:
    """Return the bytes that one lane moves.

    Args:
        instruction: a PTX instruction without its operands.
        line: the same instruction with its operands.

    Raises:
        Unreadable: the instruction's name gives no width.
    """
    if instruction.startswith("cp.async.bulk"):
        return 0
    if instruction.startswith("cp.async"):
        return int(line.split(",")[2].strip().rstrip(";"), 0)
    vector, bits = re.search(r"\.v(\d)\b", instruction), re.search(r"(\d+)(x2)?$", instruction)
    if not bits:
        raise Unreadable(f"The width of {instruction} is unknown.")
    return int(bits[1]) * (2 if bits[2] else 1) * int(vector[1] if vector else 1) // 8


def read_operations(
    accesses: Sequence[Access | FlatAccess], shapes: Sequence[tuple[int, int]], ttgir: str, ptx: str, sass: str
) -> tuple[MemoryOperation, ...]:
    """Return the compiled operation of each declared access, in the same order.

    Args:
        shapes: for each access, the rows and columns of its tensor as stored.

    Raises:
        Unreadable: TTGIR, PTX, SASS and the declared accesses contradict one another.
    """
    in_ptx: dict[Location, list[tuple[str, int]]] = defaultdict(list)
    for line, location in locate_lines(ptx, "ptx"):
        if location and (match := _PTX.search(line)):
            in_ptx[location].append((match["name"], lane_bytes(match["name"], line)))
    by_location: dict[Location, MemoryOperation] = {}
    copies: Counter[Location] = Counter()  # pipelining a loop duplicates its operations
    for location, operation in _ttgir_operations(ttgir):
        matches = in_ptx[location]
        if operation.op == "atomic":  # skip the load before a compare-and-swap; both move whole words
            size = operation.element_bytes
            matches = [(n, size if ".cas" in n else width) for n, width in matches if not n.startswith("ld")]
        if len(set(matches)) != 1:
            raise Unreadable(f"The {operation.op} at {location[0]} is {sorted(set(matches)) or 'missing'} in the PTX.")
        operation = replace(operation, instruction=matches[0][0], width_bytes=matches[0][1], instructions=len(matches))
        if by_location.setdefault(location, operation) != operation:
            raise Unreadable(f"The {operation.op} at {location[0]} has several layouts.")
        copies[location] += 1
    declared = []
    for access, shape in zip(accesses, shapes, strict=True):
        (file, first), last = access.source, last_line(access.source)
        locations = [at for at in by_location if at[0][0] == file.rsplit("/", 1)[-1] and first <= at[0][1] <= last]
        # A kernel may call the function containing the operation from several places.
        made = {replace(by_location[at], instructions=0) for at in locations}
        if len(made) != 1:
            raise Unreadable(f"The {access.op} of {access.tensor} became {len(made)} operations, not one.")
        instructions_of_all = sum(by_location[at].instructions for at in locations)
        declared.append(replace(made.pop(), instructions=instructions_of_all))
        _check_count(declared[-1], sum(copies[at] for at in locations), access, shape)
    listed = instructions(sass)
    opcodes: dict[int | None, dict[str, None]] = defaultdict(dict)
    for (opcode, _), number in zip(listed, match_instructions(listed, declared), strict=True):
        opcodes[number][opcode] = None
    return tuple(replace(made, opcodes=tuple(opcodes[number])) for number, made in enumerate(declared))


def match_instructions(
    listed: Sequence[tuple[str, Location]], operations: Sequence[MemoryOperation]
) -> list[int | None]:
    """Return, for each SASS instruction, the index of the operation that it implements; None if it accesses no memory.

    An instruction implements the operation of the same kind on its line. If ptxas names another line, it implements the
    only operation of the same kind and width that still lacks instructions. The index is -1 if that is ambiguous.
    """
    numbers: list[int | None] = []
    for opcode, location in listed:
        kinds, source = SASS_KINDS.get(opcode.partition(".")[0], ()), location[0][:2] if location else None
        on_line = (n for n, made in enumerate(operations) if made.op in kinds and made.source == source)
        numbers.append(next(on_line, -1) if kinds else None)
    have = Counter(numbers)
    for place, (opcode, _) in enumerate(listed):
        if numbers[place] != -1:
            continue
        # LDG.E.128 moves 16 bytes per lane, LDG.E.U16 2, LDG.E 4. A descriptor copy has no lanes: 0.
        bits = re.search(r"\.[US]?(128|64|16|8)(?=\.|$)", opcode)
        widths, kinds = (0, int(bits[1]) // 8 if bits else 4), SASS_KINDS[opcode.partition(".")[0]]
        lacking = [
            n
            for n, made in enumerate(operations)
            if made.op in kinds and made.width_bytes in widths and have[n] < made.instructions
        ]
        if len(lacking) == 1:
            numbers[place] = lacking[0]
            have[lacking[0]] += 1
    return numbers


def _check_count(operation: MemoryOperation, copies: int, access: Access | FlatAccess, shape: tuple[int, int]) -> None:
    """Raise Unreadable unless each copy of the loop body has equally many PTX instructions per group of registers.

    If the access is a branch (a compare-and-swap loop) rather than inline assembly, LLVM removes instructions whose
    mask it proves false: with N = 1, all columns except the first. A removed instruction would have had no active lane.
    So fewer instructions are valid, but at least one per group of registers with an element inside the tensor.
    """
    layout = operation.layout
    if layout is None:
        return
    # Lane 0 of warp 0 has the lowest coordinates of each register.
    groups = expand_bases([base for base in layout.register if any(base)], len(layout.shape))
    groups = groups[:: operation.width_bytes // operation.element_bytes]
    if isinstance(access, FlatAccess):
        limits: tuple[int, ...] = (math.prod(shape),)
    else:
        limits = tuple(shape[index == access.columns.index] for index in access.dims)
    inside, expected, count = (groups < limits).all(axis=1).sum(), copies * len(groups), operation.instructions
    if not (count % expected == 0 or inside <= count < expected):
        where = f"{operation.instruction} at {operation.source}"
        raise Unreadable(f"{where} occurs {count} times in the PTX; expected {expected}.")


def _ttgir_operations(ttgir: str) -> Iterator[tuple[Location, MemoryOperation]]:
    """Yield the operations on global memory with their locations, in TTGIR order."""
    from triton._C.libtriton import gluon_ir, ir, nvidia

    context = ir.context()  # must outlive every object created from it
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    builder = gluon_ir.GluonOpBuilder(context)
    pointers: list[Any] = []
    module.walk(lambda made: pointers.append(made.get_operand(0)) if made.get_name() in _OPS else None)
    lines = [
        (match[1], line, location) for line, location in locate_lines(ttgir, "ttgir") if (match := _TTGIR.search(line))
    ]
    swizzles = dict(_SWIZZLE.findall(ttgir))
    for (name, line, location), pointer in zip(lines, pointers, strict=True):
        if not location:
            raise Unreadable(f"{name} has no location.")
        layout, element_bytes, swizzle_bytes = None, 0, 0
        if block := _POINTERS.search(line):
            shape, element_bytes = tuple(map(int, block[1][:-1].split("x"))), int(block[2]) // 8
            encoding = builder.get_gluon_layout_from_tensor(pointer)
            linear = builder.to_linear_layout(encoding._to_ir(builder), list(shape))
            sides = linear.reg_bases, linear.lane_bases, linear.warp_bases
            layout = Layout(shape, *(tuple(map(tuple, bases)) for bases in sides))
        elif _OPS[name] == "descriptor":
            descriptor = _DESCRIPTOR.search(line)
            if not descriptor or descriptor[1] not in swizzles:
                raise Unreadable(f"The layout in shared memory is unknown in {line.strip()!r}.")
            swizzle_bytes = int(swizzles[descriptor[1]])
        source = location[0][:2]
        yield location, MemoryOperation(_OPS[name], source, layout, element_bytes, 0, "", 0, (), swizzle_bytes)


def shared_operations(ptx: str, num_warps: int) -> tuple[SharedOperation, ...]:
    """Return the shared-memory instructions whose addresses are linear, and how often each occurs."""
    evaluate = _make_evaluator(ptx, num_warps)
    counts: Counter[SharedOperation] = Counter()
    for line, location in locate_lines(ptx, "ptx"):
        match, address = _ON_SHARED.search(line), _ADDRESS.search(line)
        if not (match and address and location):
            continue
        name, kind, matrices = match["name"], "load" if match["name"].startswith("ld") else "store", 0
        if many := re.search(r"matrix\..*\.x(\d)", line):
            kind, matrices, width_bytes = f"{kind} matrix", int(many[1]), _MATRIX_ROW_BYTES
        else:
            kind, width_bytes = "async copy" if name.startswith("cp.async") else kind, lane_bytes(name, line)
        bases = _linear_bases(evaluate(address[1]), 8 * matrices or LANES)
        if bases is not None:
            counts[SharedOperation(kind, location[0][:2], name, width_bytes, matrices, *bases, 0)] += 1
    return tuple(replace(operation, count=count) for operation, count in counts.items())


def conversions(ttgir: str) -> tuple[Conversion, ...]:
    """Return the layout conversions, in TTGIR order."""
    result = []
    for line, location in locate_lines(ttgir, "ttgir"):
        if location and (match := _CONVERSION.search(line)):
            shape = tuple(map(int, match[1][:-1].split("x")))
            result.append(Conversion(location[0][:2], shape, -(-int(match[2]) // 8)))
    return tuple(result)


def _linear_bases(address: np.ndarray, lanes: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the address bits that each bit of the lane and warp index flips; None if addresses are not linear.

    Args:
        lanes: number of lanes per warp that supply an address.
    """
    by_warp = address.reshape(-1, LANES)[:, :lanes]
    lane, warp = (
        tuple(int(along[1 << bit] ^ along[0]) for bit in range(len(along).bit_length() - 1))
        for along in (by_warp[0], by_warp[:, 0])
    )
    linear = by_warp[0, 0] ^ expand_bases(warp, 1) ^ expand_bases(lane, 1).T
    return (lane, warp) if np.array_equal(linear, by_warp) else None


def _make_evaluator(ptx: str, num_warps: int) -> Callable[[str], np.ndarray]:
    """Return a function that maps a register or literal to its value in each thread: unsigned 32-bit, held as int64."""
    thread = np.arange(LANES * num_warps, dtype=np.int64)
    values = {"%tid.x": thread}
    definitions: dict[str, tuple[str, list[str]]] = {}
    for match in filter(None, map(_DEFINITION.match, ptx.splitlines())):
        # A register that a loop updates is defined twice; the first definition is its value before the loop.
        definitions.setdefault(match[2], (match[1], [part.strip() for part in match[3].split(",")]))

    def evaluate(operand: str) -> np.ndarray:
        if operand not in values:
            values[operand] = np.zeros_like(thread)  # stops the recursion for a register that a loop updates
            name, operands = definitions.get(operand, ("", []))
            operation = _OPERATIONS.get(name.split(".")[0])
            if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", operand):
                values[operand] = np.full_like(thread, int(operand, 0) & _MASK)
            elif operation:
                values[operand] = operation(name, *map(evaluate, operands)) & _MASK
        return values[operand]

    return evaluate


def _signed(name: str, values: np.ndarray) -> np.ndarray:
    """Reinterpret an operand of a signed instruction."""
    return np.where(values > _MASK >> 1, values - (_MASK + 1), values) if ".s" in name else values


def _extract_bits(name: str, values: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    field = values >> start & (1 << length) - 1
    return np.where((field >> length - 1 & 1) == 1, field - (1 << length), field) if name.endswith("s32") else field


def _compare(name: str, a: np.ndarray, b: np.ndarray, *_: np.ndarray) -> np.ndarray:
    a, b = _signed(name, a), _signed(name, b)
    results = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return results.get(name.split(".")[1], a == b).astype(np.int64)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mov", "cvt"), lambda _, a: a),
    "add": lambda _, a, b: a + b,
    "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b,
    "mad": lambda _, a, b, c: a * b + c,
    "and": lambda _, a, b: a & b,
    "or": lambda _, a, b: a | b,
    "xor": lambda _, a, b: a ^ b,
    "not": lambda _, a: ~a,
    "neg": lambda _, a: -a,
    "shl": lambda _, a, b: a << b,
    "shr": lambda name, a, b: _signed(name, a) >> b,
    "bfe": _extract_bits,
    "selp": lambda _, a, b, chosen: np.where(chosen != 0, a, b),
    "setp": _compare,
    "shfl": lambda _, a, lane, *__: a[np.arange(len(a)) // LANES * LANES + lane % LANES],
}
