"""Parse the text of a TTGIR module into operations, and find the values that addresses, masks and control flow need.

Triton's bindings expose neither constants nor enum attributes nor block arguments, so the text is the only complete
form. It differs slightly between Triton versions: 3.6 prints an attribute dictionary before a constant.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# Operations with a pointer per element: the index of the pointer among the operands, and that of the mask.
POINTER_OPS = {
    "tt.load": (0, 1),
    "tt.store": (0, 2),
    "tt.atomic_rmw": (0, 2),
    "tt.atomic_cas": (0, None),
    "ttg.async_copy_global_to_local": (0, 2),
}
# Copies by the tensor memory accelerator (TMA).
TMA_OPS = {
    "ttng.async_tma_copy_global_to_local": "load",
    "ttng.async_tma_copy_local_to_global": "store",
    "ttng.async_tma_store": "store",
}
# Operations that access global memory in ways that are not evaluated.
_OTHER_MEMORY_OPS = re.compile(r"tt\.descriptor_|ttng\.async_tma_(?!store_|wait)|tt\.call$")

_VALUE = r"%[\w$.-]+(?:#\d+)?"
_VALUES = re.compile(_VALUE)
_ARGUMENTS = re.compile(r"(%[\w$.-]+): ")
_OPERATION = re.compile(r'^(?:(?P<results>%[^=]*?) = )?"?(?P<name>[a-z_]+\.[\w.]+)"?(?P<rest>.*)$')
_LOCATION = re.compile(r" loc\((?:#loc\d*|[^()]*|callsite\([^()]*\))\)")
_TARGET = re.compile(r"\^(\w+)(?:\(([^:)]*)[^)]*\))?")
_SHAPE = re.compile(r"tensor<((?:\d+x)+)")


class UnsupportedOperation(Exception):
    """The kernel contains something that the evaluator does not model."""


@dataclass(eq=False)
class Op:
    """One operation of the TTGIR.

    Attributes:
        line: its line in the text, from 0.
        results, operands: names of values, unique within the function.
        text: the rest of the line after the operation's name, without its location.
        type: the type of its result.
        inits: for a loop, the initial values of the arguments that it carries.
        reduced_shape: the shape of the block that a reduction or scan reads.
        targets: for a branch, the label and the passed values of each successor.
        has_memory: whether it or an operation inside it accesses global memory.
    """

    name: str
    line: int
    operands: list[str]
    text: str
    type: str
    results: list[str] = field(default_factory=list)
    regions: list["Region"] = field(default_factory=list)
    inits: list[str] = field(default_factory=list)
    reduced_shape: tuple[int, ...] = ()
    targets: list[tuple[str, list[str]]] = field(default_factory=list)
    has_memory: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The first block shape in the text: for a memory operation, that of its pointers; () for a scalar."""
        return shape_of(self.text)

    @property
    def pointer(self) -> str:
        return self.operands[POINTER_OPS[self.name][0]]

    @property
    def address(self) -> str:
        """The pointer, or the descriptor."""
        return self.pointer if self.name in POINTER_OPS else self.operands[0]

    @property
    def mask(self) -> str | None:
        if self.name in TMA_OPS:
            return self.operands[-1] if TMA_OPS[self.name] == "load" else None
        if self.name == "ttg.async_copy_global_to_local" and " mask %" not in self.text:
            return None
        index = POINTER_OPS[self.name][1]
        return self.operands[index] if index is not None and len(self.operands) > index else None

    @property
    def coordinates(self) -> list[str]:
        """The operands that say where in the tensor a descriptor's copy starts."""
        inside = re.search(r"\[(.*?)\]", self.text)
        return self.operands[1 : 1 + inside[1].count("%")] if inside else []


@dataclass(eq=False)
class Region:
    arguments: list[str]
    ops: list[Op] = field(default_factory=list)

    def walk(self) -> Iterator[Op]:
        """Yield all operations, including those of inner regions, in text order."""
        for op in self.ops:
            yield op
            for inner in op.regions:
                yield from inner.walk()


def shape_of(text: str) -> tuple[int, ...]:
    match = _SHAPE.search(text)
    return tuple(map(int, match[1][:-1].split("x"))) if match else ()


def memory_ops(region: Region) -> list[Op]:
    return [op for op in region.walk() if op.name in POINTER_OPS or op.name in TMA_OPS]


def parse(text: str) -> Region:
    """Return the body of the module's function; its arguments are those of the region.

    Raises:
        UnsupportedOperation: the text has a form that this parser does not know.
    """
    return _Parser().parse(text)


class _Parser:
    def __init__(self) -> None:
        self.body: Region | None = None
        self.regions: list[Region] = []
        self.owners: list[Op | None] = []
        # Sibling regions may define the same name, so each definition gets its line as a suffix.
        self.scopes: list[dict[str, str]] = [{}]

    def parse(self, text: str) -> Region:
        for number, line in enumerate(text.splitlines()):
            line = _LOCATION.sub("", _LOCATION.sub("", line)).strip()
            if line.startswith("tt.func"):
                if self.body:
                    raise UnsupportedOperation("A module with a second function is not supported.")
                self.body = Region(self._define(_ARGUMENTS.findall(line.split("(", 1)[1]), number))
                self.regions, self.owners = [self.body], [None]
            elif not self.regions or not line or line.startswith("//"):
                continue
            elif line.startswith("^bb"):
                self._start_block(line, number)
            elif line.startswith("}"):
                self._close(line)
                if not self.regions:
                    break
            elif re.match(r"default \{|partition\d+\(", line):
                op = next(op for op in reversed(self.regions[-1].ops) if op.name == "ttg.warp_specialize")
                self._open(op, Region([]))
                self.regions[-1].arguments = self._define(_ARGUMENTS.findall(line), number)
            else:
                self._add(line, number)
        if self.body is None or self.regions:
            raise UnsupportedOperation("The TTGIR has no complete function.")
        return self.body

    def _define(self, names: list[str], number: int, outer: bool = False) -> list[str]:
        unique = {name: f"{name}@{number}" for name in names}
        self.scopes[-2 if outer else -1].update(unique)
        return list(unique.values())

    def _use(self, names: list[str]) -> list[str]:
        try:
            return [next(scope[name] for scope in reversed(self.scopes) if name in scope) for name in names]
        except StopIteration:
            raise UnsupportedOperation(f"One of {', '.join(names)} is used before its definition.") from None

    def _open(self, op: Op, region: Region) -> None:
        op.regions.append(region)
        self.regions.append(region)
        self.owners.append(op)
        self.scopes.append({})

    def _close(self, line: str) -> None:
        self.regions.pop()
        self.scopes.pop()
        op = self.owners.pop()
        if op and (re.match(r"\} (else|do) \{", line) or re.match(r"\}, \{", line)):
            self._open(op, Region([]))
        elif op and (match := re.match(r"\}\) : \(tensor<((?:\d+x)+)", line)):
            op.reduced_shape = tuple(map(int, match[1][:-1].split("x")))

    def _start_block(self, line: str, number: int) -> None:
        region, arguments = self.regions[-1], _ARGUMENTS.findall(line)
        if not region.ops:
            region.arguments = self._define(arguments, number)
            return
        if len(self.regions) > 1:
            raise UnsupportedOperation("Branches between blocks of an inner region are not supported.")
        label = line[1:].split("(")[0].split(":")[0]
        if not any(to == label for op in region.ops for to, _ in op.targets) and re.search(r"// .*pred", line):
            raise UnsupportedOperation("A branch backward is not supported.")
        block = Op("cf.block", number, [], label, "", self._define(arguments, number))
        block.operands = [value for op in region.ops for to, values in op.targets if to == label for value in values]
        region.ops.append(block)

    def _add(self, line: str, number: int) -> None:
        match = _OPERATION.match(line)
        if not match:
            raise UnsupportedOperation(f"Line {number + 1} of the TTGIR is not an operation: {line[:80]}")
        name, rest = match["name"], match["rest"]
        is_loop, opens = name in ("scf.for", "scf.while"), rest.endswith("{")
        op = Op(name, number, [] if is_loop else self._use(_VALUES.findall(rest)), rest, _result_type(rest))
        if name in ("cf.br", "cf.cond_br"):
            op.targets = [(m[1], self._use(_VALUES.findall(m[2] or ""))) for m in _TARGET.finditer(rest)]
        self.regions[-1].ops.append(op)
        if opens:
            carried = re.findall(rf"({_VALUE}) = ({_VALUE})", rest)
            if name == "scf.for":
                induction, *bounds = _VALUES.findall(rest.partition("iter_args(")[0])
                op.operands = self._use(bounds)
                carried = carried[1:]  # the first pair is the induction variable and its lower bound
            op.inits = self._use([initial for _, initial in carried]) if is_loop else []
            self._open(op, Region([]))
            if is_loop:
                names = [name for name, _ in carried]
                self.regions[-1].arguments = self._define([induction, *names] if name == "scf.for" else names, number)
        # The results of an operation with regions belong to the surrounding scope.
        op.results = self._define(_result_names(match["results"]), number, outer=opens)


def _result_names(text: str | None) -> list[str]:
    names = []
    for part in filter(None, map(str.strip, (text or "").split(","))):
        name, _, count = part.partition(":")
        names += [f"{name}#{i}" for i in range(int(count))] if count else [name]
    return names


def _result_type(rest: str) -> str:
    return next((rest.rsplit(mark, 1)[1].strip() for mark in (" -> ", " to ", " : ") if mark in rest), "")


class Slice:
    """The backward slice of a function: the values that addresses, masks and control flow depend on.

    Building it also sets `has_memory` of each operation.
    """

    def __init__(self, body: Region) -> None:
        self._defined: dict[str, tuple[Op, int]] = {}
        self._passed: dict[str, tuple[Op, int, int]] = {}  # region argument: operation, region, position
        self._indices: dict[str, list[str]] = {}  # shared buffer: its views
        self._todo: list[str] = []
        self._collect(body)
        self.values = self.reach(self._todo)
        self.sunk = dict(self._sunk_loads(body))

    def reach(self, names: Iterable[str]) -> set[str]:
        """Return the values that the given values depend on, including themselves."""
        todo, reached = list(names), set[str]()
        while todo:
            if (name := todo.pop()) not in reached:
                reached.add(name)
                todo += self._sources(name)
        return reached

    def _collect(self, region: Region) -> bool:
        for op in region.ops:
            self._defined |= {name: (op, k) for k, name in enumerate(op.results)}
            if op.name in ("ttg.memdesc_index", "ttg.memdesc_subview"):
                self._indices.setdefault(op.operands[0], []).append(op.results[0])
            for r, inner in enumerate(op.regions):
                self._passed |= {name: (op, r, k) for k, name in enumerate(inner.arguments)}
                op.has_memory |= self._collect(inner)
            if op.name in POINTER_OPS:
                op.has_memory = True
                self._todo += filter(None, (op.pointer, op.mask))
            elif op.name == "ttng.tensormap_create":
                op.has_memory = True
                self._todo += op.operands
            elif op.name in TMA_OPS:
                op.has_memory = True
                self._todo += filter(None, (op.operands[0], *op.coordinates, op.mask))
            elif op.name == "cf.cond_br":
                self._todo.append(op.operands[0])
            op.has_memory |= is_other_memory(op)
            if op.has_memory and op.name in ("scf.for", "scf.if"):
                self._todo += op.operands
            elif op.has_memory and op.name == "scf.while":
                self._todo.append(op.regions[0].ops[-1].operands[0])
        return any(op.has_memory for op in region.ops)

    def _sunk_loads(self, region: Region) -> Iterator[tuple[int, Op]]:
        """Yield the line of each unmasked scalar load that is used in one loop only, and the loop.

        ptxas moves such a load behind the branch that skips the loop if it has no iterations.
        """
        users: dict[str, list[Op]] = {}
        for op in region.ops:
            inner = (op.operands for nested in op.regions for op in nested.walk())
            for name in {*op.operands, *op.inits, *(value for values in inner for value in values)}:
                users.setdefault(name, []).append(op)
        for load in region.ops:
            if load.name != "tt.load" or load.shape or load.mask:
                continue
            todo, ends = list(load.results), set[Op]()
            while todo:
                name = todo.pop()
                for op in users.get(name, []):
                    is_plain = op.name.startswith(("arith.", "math.")) or op.name in ("tt.splat", "tt.broadcast")
                    if is_plain:
                        todo += op.results
                    ends |= set() if is_plain else {op}
            (loop,) = ends if len(ends) == 1 else (None,)
            if loop and loop.name == "scf.for" and not {*load.results} & {*loop.operands, *loop.inits}:
                yield load.line, loop

    def _sources(self, name: str) -> list[str]:
        if name in self._passed:
            return self._carried(*self._passed[name])
        if name not in self._defined:
            return []
        op, k = self._defined[name]
        if op.name in ("scf.for", "scf.while", "scf.if"):
            return self._carried(op, None, k)
        if op.name in ("tt.reduce", "tt.scan"):
            return op.operands + [value for inner in op.regions[0].ops for value in inner.operands]
        if op.name == "ttg.local_load":
            return op.operands[:1]  # without the token of an earlier copy
        return op.operands + (self._indices.get(name, []) if op.name == "ttg.local_alloc" else [])

    def _carried(self, op: Op, region: int | None, k: int) -> list[str]:
        """Return the values that reach a region's argument or, if `region` is None, an operation's result."""
        last = [inner.ops[-1].operands for inner in op.regions]
        if op.name == "scf.for":
            k -= region is not None  # the first argument is the induction variable
            low, _, step = op.operands
            # The number of iterations matters for results; inside, whether the loop runs is needed anyway.
            return ([low, step] if region is not None else op.operands) + (
                [op.inits[k], last[0][k], op.regions[0].arguments[k + 1]] if k >= 0 else []
            )
        if op.name == "scf.if":
            return [*op.operands, *(operands[k] for operands in last)]
        if op.name == "scf.while":
            return [last[0][0], op.inits[k], last[1][k]] if region == 0 else [last[0][0], last[0][1 + k]]
        if op.name == "ttg.warp_specialize":
            return [op.operands[k]]
        return []


def is_other_memory(op: Op) -> bool:
    """Whether an operation accesses global memory in a way that is not evaluated."""
    return op.name not in TMA_OPS and bool(_OTHER_MEMORY_OPS.match(op.name))
