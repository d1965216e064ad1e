"""Parse the text of a TTGIR module into operations. To support another operation, add a row to the table `TRAITS`.

Triton's bindings expose neither constants nor enum attributes nor block arguments, so the text is the only complete
form. It differs slightly between Triton versions: 3.6 prints an attribute dictionary before a constant.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from tilescope.captures.listings import Location, UnsupportedOperation, locate_lines, read_rows

# A file without its folders and a line; () if unknown. A site is a kind of instruction on a line.
Source = tuple[str, int] | tuple[()]
Site = tuple[str, Source]
# %arg5, %cst_0, %2#1
_VALUES = re.compile(r"%[\w$.-]+(?:#\d+)?")
# tt.func public @scale(%x: !tt.ptr<f32> loc("x"(#loc)), %n: i64 loc("n"(#loc))) attributes {noinline = false} {
_FUNCTION = re.compile(r'\s*tt\.func\b[^@]*@("[^"]*"|[\w.$]+)\((.*)')
# tt.call @copy_row(%source, %rows) : (!tt.ptr<f32>, i32) -> ()
_CALLEE = re.compile(r'@("[^"]*"|[\w.$]+)\(')
# ^bb1(%3: i32):
_ARGUMENTS = re.compile(r"(%[\w$.-]+): ")
# asm_string = "mov.u32 $0, %tid.x;"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
# %sum:2 = "tt.reduce"(%x, %y) <{axis = 0 : i32}> ({
_OPERATION = re.compile(r'^(?:(?P<results>%[^=]*?) = )?"?(?P<name>[a-z_]+\.[\w.]+)"?(?P<rest>.*)$')
# %2 = arith.addi %0, %1 : i32 loc(#loc7)
_LOCATION = re.compile(r" loc\((?:#loc\d*|[^()]*|callsite\([^()]*\))\)")
# ^bb2(%4, %5 : i32, f32)
_TARGET = re.compile(r"\^(\w+)(?:\(([^:)]*)[^)]*\))?")
# tensordesc<tensor<128x64xf16, #shared>>
_SHAPE = re.compile(r"(?:tensor|tensordesc)<((?:\d+x)+)")
# #shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
_SWIZZLE = re.compile(r"^(#\w+) = #ttg\.nvmma_shared<\{swizzlingByteWidth = (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Traits:
    """The properties of an operation. A field is empty where it does not apply.

    Attributes:
        kind: its noun, such as "reduction", if it needs a certain layout. An access to global memory is a "load", an
            "async copy" (a load straight to shared memory), a "store", an "atomic", a "descriptor" (a copy by the
            tensor memory accelerator, TMA), or a "tensor map" (a program makes a descriptor). Its first operand is the
            pointer or the descriptor.
        event: its kind in the pipeline of a loop.
        counter: of an access to global memory, Nsight Compute's name: "ld", "st", "atom", "tma_ld" or "tma_st".
        mask: index of the mask among the operands; None without one.
        purpose: of the buffers in shared memory that it accesses.
        blocks: names of the blocks in its type, in order.
    """

    kind: str = ""
    event: str = ""
    counter: str = ""
    mask: int | None = None
    purpose: str = ""
    blocks: tuple[str, ...] = ()


# The purposes of buffers. If operations with several purposes access a buffer, the first purpose decides.
PURPOSES = (
    "barrier", "pipelined operand", "descriptor copy", "store through shared memory", "matrix operand",
)  # fmt: skip

TRAITS = read_rows(
    """
tt.load          kind=load event=load counter=ld mask=1 blocks=block,
tt.store         kind=store event=store counter=st mask=2 blocks=block,
tt.atomic_rmw    kind=atomic event=store counter=atom mask=2 blocks=block,
tt.atomic_cas    kind=atomic counter=atom blocks=block,
tt.dot           kind=multiplication event=multiplication purpose=matrix-operand blocks=a,b,c
tt.dot_scaled    kind=multiplication event=multiplication purpose=matrix-operand blocks=a,b,c
tt.reduce        kind=reduction
tt.scan          kind=scan
tt.gather        kind=gather
tt.histogram     kind=histogram
tt.join          kind=join
tt.split         kind=split

ttg.async_copy_global_to_local  kind=async-copy event=copy counter=ld mask=2 purpose=pipelined-operand blocks=block,
ttg.async_commit_group          event=commit
ttg.async_wait                  event=wait
ttg.convert_layout              kind=layout-conversion blocks=source,destination
ttg.local_load                  kind=read-of-shared-memory event=read blocks=result,
ttg.local_alloc                 kind=write-to-shared-memory blocks=value,
ttg.local_store                 kind=write-to-shared-memory blocks=value,

ttng.async_tma_copy_global_to_local  kind=descriptor event=TMA-copy counter=tma_ld mask=-1 purpose=descriptor-copy
ttng.async_tma_gather                kind=descriptor event=TMA-copy counter=tma_ld purpose=descriptor-copy
ttng.async_tma_copy_local_to_global  kind=descriptor event=store counter=tma_st purpose=store-through-shared-memory
ttng.async_tma_scatter               kind=descriptor counter=tma_st purpose=store-through-shared-memory
ttng.async_tma_reduce                kind=descriptor counter=tma_st purpose=store-through-shared-memory
ttng.tensormap_create                kind=tensor-map counter=atom
ttng.init_barrier                    purpose=barrier
ttng.wait_barrier                    event=wait
ttng.warp_group_dot                  kind=multiplication event=multiplication purpose=matrix-operand blocks=a,b,c
ttng.warp_group_dot_wait             event=multiplication-wait purpose=matrix-operand
ttng.tc_gen5_mma                     event=multiplication purpose=matrix-operand
ttng.tc_gen5_mma_scaled              purpose=matrix-operand
ttng.tmem_load                       kind=read-of-tensor-memory
ttng.tmem_store                      kind=write-to-tensor-memory
""",
    Traits,
)
MEMORY_OPS = {name: traits for name, traits in TRAITS.items() if traits.counter}
# Operations with a pointer per element.
POINTER_OPS = {name for name, traits in MEMORY_OPS.items() if traits.blocks}

LOOPS = ("scf.for", "scf.while")
# Operations whose result can have any layout.
FREE = ("tt.splat", "tt.make_range", "arith.constant")
# The starts of names of operations whose results have the elements of the first operands, or point to the same tensors
# or buffers.
COPIES = (
    "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.bitcast", "tt.fp_to_fp",
    "tt.load", "ttg.convert_layout", "ttg.memdesc", "ttng.reinterpret_tensor", "ttng.warp_group_dot_wait", "arith.ext",
    "arith.trunc",
)  # fmt: skip
# The starts of names of operations that refer to a buffer, but do not access it.
MENTIONS = ("ttg.memdesc", "ttg.local_dealloc", "ttg.warp_yield", "scf.", "cf.")


@dataclass(eq=False)
class Op:
    """One operation of the TTGIR.

    Attributes:
        line: its line in the text, from 0. Calls of a function have copies of its operations.
        location: its source location, innermost call first; () if unknown.
        results, operands: names of values, unique within the function.
        text: the rest of the line after the operation's name, without its location, and the line that ends its regions.
        inits: for a loop, the initial values of the arguments that it carries.
        targets: for a branch, the label and the passed values of each successor.
        swizzle_bytes: for a TMA copy, the width of the swizzle in shared memory; None if the layout has none.
    """

    name: str
    line: int
    location: Location
    text: str
    operands: list[str]
    results: list[str] = field(default_factory=list)
    regions: list["Region"] = field(default_factory=list)
    inits: list[str] = field(default_factory=list)
    targets: list[tuple[str, list[str]]] = field(default_factory=list)
    swizzle_bytes: int | None = None

    @property
    def traits(self) -> Traits:
        return TRAITS.get(self.name, Traits())

    @property
    def uses(self) -> list[str]:
        return self.operands + self.inits

    @property
    def inner(self) -> list["Op"]:
        """The operations directly in its regions."""
        return [op for region in self.regions for op in region.ops]

    def walk(self) -> Iterator["Op"]:
        """Yield itself and all operations in its regions, in text order."""
        yield self
        for op in self.inner:
            yield from op.walk()

    @property
    def source(self) -> Source:
        """The innermost file and line; () if unknown."""
        return self.location[0][:2] if self.location else ()

    @property
    def place(self) -> tuple[str, int]:
        return self.source or ("", 0)

    @property
    def site(self) -> Site:
        kind = self.traits.kind
        return "atomic" if kind == "tensor map" else kind, self.source

    @cached_property
    def has_memory(self) -> bool:
        """Whether it or an operation inside it accesses global memory."""
        return self.name in MEMORY_OPS or any(op.has_memory for op in self.inner)

    @cached_property
    def type(self) -> str:
        """The type of its result; "" without one."""
        marks = (mark for mark in (" -> ", " to ", " : ") if mark in self.text)
        mark = next(marks, "")
        return self.text.rpartition(mark)[2].strip() if mark else ""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The first block shape in the text: of a memory operation's pointers or a fold's operand; () for a scalar."""
        return shape_of(self.text.rpartition("} : ")[2])  # an attribute may be a tensor

    def attribute(self, name: str) -> int:
        match = re.search(rf"{name} = (-?\d+)", self.text)
        if not match:
            raise UnsupportedOperation(f"{self.name} has no attribute {name}.")
        return int(match[1])

    @property
    def mask(self) -> str | None:
        index = self.traits.mask
        return self.operands[index] if index is not None and len(self.operands) > index else None

    @cached_property
    def element_bytes(self) -> int:
        """The bytes per element that its first pointer operand or result points to; 0 for a descriptor.

        Raises:
            UnsupportedOperation: the size is unknown.
        """
        if "!tt.tensordesc" in self.text:
            return 0
        match = re.search(r"!tt\.ptr<(?:!tt\.ptr<|[a-z]+(\d+))", self.text)
        if not match:
            raise UnsupportedOperation(f"The element size of {self.name} is unknown.")
        return max(1, int(match[1]) // 8) if match[1] else 8  # a pointer to pointers

    @property
    def coordinates(self) -> list[str]:
        """The operands that say where in the tensor a descriptor's copy starts."""
        inside = re.search(r"\[(.*?)\]", self.text)
        return self.operands[1 : 1 + inside[1].count("%")] if inside else []

    @property
    def destination(self) -> str:
        """The buffer in shared memory that a copy or a `ttg.local_store` writes."""
        return self.operands[1 + len(self.coordinates)]


@dataclass(eq=False)
class Region:
    arguments: list[str]
    ops: list[Op] = field(default_factory=list)
    is_body: bool = False

    @property
    def yielded(self) -> list[str]:
        """The operands of its last operation, a terminator, which is not printed if it has none."""
        for op in self.ops[-1:]:
            if op.name.endswith((".yield", ".condition", ".return")):
                return op.operands
        return []

    def walk(self) -> Iterator[Op]:
        """Yield all operations, including those of inner regions, in text order."""
        for op in self.ops:
            yield from op.walk()

    def walk_loops(self, loop: Op | None = None) -> Iterator[tuple[Op, Op | None]]:
        """Yield all operations, each with its innermost loop."""
        for op in self.ops:
            yield op, loop
            for inner in op.regions:
                yield from inner.walk_loops(op if op.name in LOOPS else loop)


def shape_of(text: str) -> tuple[int, ...]:
    match = _SHAPE.search(text)
    return tuple(map(int, match[1][:-1].split("x"))) if match else ()


def memory_ops(scope: Region | Op) -> list[Op]:
    return [op for op in scope.walk() if op.name in MEMORY_OPS]


def parse_ttgir(text: str) -> Region:
    """Return the body of the module's first function; its arguments are those of the region.

    Raises:
        UnsupportedOperation: the text has a form that this parser does not know.
    """
    parser = _Parser(text)
    if not parser.functions:
        raise UnsupportedOperation("The TTGIR has no function.")
    start, arguments = next(iter(parser.functions.values()))
    body = parser.read_function(start, dict(zip(arguments, arguments, strict=True)))
    body.arguments = arguments
    body.is_body = True
    return body


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = locate_lines(text, "ttgir")
        # The number of the first line and the arguments of each function.
        self.functions: dict[str, tuple[int, list[str]]] = {}
        for number, (line, _) in enumerate(self.text):
            if match := _FUNCTION.match(line):
                self.functions[match[1]] = number, _ARGUMENTS.findall(match[2])
        self.lines: Iterator[tuple[int, tuple[str, Location]]] = iter(())
        self.call: Location = ()
        self.calls = 0
        self.swizzles = {name: int(width) for name, width in _SWIZZLE.findall(text)}
        # A name's latest definition is the visible one. Sibling regions may define the same name.
        self.names: dict[str, str] = {}

    def read_function(self, start: int, names: dict[str, str], call: Location = ()) -> Region:
        """Read a function's body.

        Args:
            names: of its arguments' values.
            call: the location of the call.
        """
        outer = self.lines, self.names, self.call
        lines = enumerate(self.text[start + 1 :], start + 1)
        self.lines = lines
        self.names = names
        self.call = call
        body, *_ = self.read_region([])
        self.lines, self.names, self.call = outer
        return body

    def read_call(self, op: Op, name: str) -> None:
        """Read a called function as a region of the call, which branches to its end instead of returning."""
        start, arguments = self.functions[name]
        if "noinline = true" in self.text[start][0]:
            raise UnsupportedOperation(
                "The kernel calls a noinline=True function. Omit noinline to count the launch."
            )
        self.calls += 1
        region = self.read_function(
            start, dict(zip(arguments, op.operands, strict=True)), op.location
        )
        returns = [inner for inner in region.ops if inner.name == "tt.return"]
        for inner in returns:
            inner.name = "cf.br"
            inner.targets = [("return", inner.operands)]
        op.operands = [value for inner in returns for value in inner.operands]
        region.ops.append(Op("cf.block", op.line, op.location, "return", op.operands, op.results))
        op.regions.append(region)

    def read_region(self, arguments: list[str]) -> tuple[Region, str, Location]:
        """Read lines up to the end of a region. Return the region, and the line that closes it with its location."""
        region = Region(arguments)
        for number, (line, location) in self.lines:
            line = _LOCATION.sub("", _LOCATION.sub("", line)).strip()
            if line.startswith("}"):
                return region, line, location
            if line.startswith("^bb"):
                names = self.define(_ARGUMENTS.findall(line), number)
                if region.ops:
                    label = re.split(r"[(:]", line[1:])[0]
                    targets = [
                        target for op in region.ops for target in op.targets if target[0] == label
                    ]
                    passed = [value for _, values in targets for value in values]
                    region.ops.append(Op("cf.block", number, location, label, passed, names))
                else:
                    region.arguments = names
            elif re.match(r"default \{|partition\d+\(", line):  # of ttg.warp_specialize
                self.read_regions(region.ops[-1], self.define(_ARGUMENTS.findall(line), number))
            elif line and not line.startswith("//"):
                self.read_op(region, line, number, location)
        raise UnsupportedOperation("The TTGIR ends inside its function.")

    def read_regions(self, op: Op, arguments: list[str]) -> None:
        region, line, location = self.read_region(arguments)
        op.regions.append(region)
        if re.match(r"\} (else|do) \{|\}, \{", line):
            self.read_regions(op, [])
        else:  # a loop's attributes, or the types of a reduction
            op.text += line
            op.location = location and location + self.call

    def read_op(self, region: Region, line: str, number: int, location: Location) -> None:
        match = _OPERATION.match(line)
        if not match:
            raise UnsupportedOperation(
                f"Line {number + 1} of the TTGIR is not an operation: {line[:80]}"
            )
        name = match["name"]
        text = _STRING.sub('""', match["rest"])  # inline assembly names registers
        arguments, operands, inits = _split_values(name, _VALUES.findall(text))
        location = location and location + self.call
        op = Op(name, number, location, text, self.use(operands), inits=self.use(inits))
        if name in ("cf.br", "cf.cond_br"):
            op.targets = self.read_targets(region, text)
        elif shared := re.search(r"!tt\.tensordesc<.*?(#\w+)>", text):
            op.swizzle_bytes = self.swizzles.get(shared[1])
        region.ops.append(op)
        if text.endswith("{"):
            self.read_regions(op, self.define(arguments, number))
        for part in filter(None, (match["results"] or "").split(",")):
            result, _, count = part.strip().partition(":")
            op.results += self.define(
                [f"{result}#{i}" for i in range(int(count))] if count else [result], number
            )
        if name == "tt.call":
            self.read_call(op, *_CALLEE.findall(line))

    def read_targets(self, region: Region, text: str) -> list[tuple[str, list[str]]]:
        targets = [(m[1], self.use(_VALUES.findall(m[2] or ""))) for m in _TARGET.finditer(text)]
        # Blocks are evaluated in the order of the text. One that only returns may come before branches to it.
        blocks = (
            a.text
            for a, b in pairwise(region.ops)
            if a.name == "cf.block" and (b.name != "tt.return" or b.operands)
        )
        if {label for label, _ in targets}.intersection(blocks):
            raise UnsupportedOperation("Backward branches are not supported.")
        return targets

    def define(self, names: list[str], number: int) -> list[str]:
        unique = {name: f"{name}@{number}.{self.calls}" for name in names}
        self.names |= unique
        return list(unique.values())

    def use(self, names: list[str]) -> list[str]:
        if unknown := [name for name in names if name not in self.names]:
            raise UnsupportedOperation(f"{unknown[0]} is used before its definition.")
        return [self.names[name] for name in names]


def _split_values(name: str, values: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Split the values in an operation's first line: arguments of its region, operands, initial values."""
    match name:
        # %i = %low to %high step %step iter_args(%argument = %initial, …)
        case "scf.for":
            return [values[0], *values[4::2]], values[1:4], values[5::2]
        # (%argument = %initial, …)
        case "scf.while":
            return values[::2], [], values[1::2]
    return [], values, []
