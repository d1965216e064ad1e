"""Edit the text of a TTIR module: change one fact that the compiler knows, or one operation.

An edit changes lines in place and never moves a line, so that edits of one module can be combined. Operations are
named by their line.
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from tilescope.captures.listings import UnsupportedOperation
from tilescope.evaluate.arithmetic import constant
from tilescope.ttgir.graph import Slice
from tilescope.ttgir.parser import Op, Region, parse_ttgir

# The operations of each kind in a report.
_NAMES = {
    "load": "tt.load",
    "async copy": "tt.load",
    "store": "tt.store",
    "atomic": "tt.atomic_rmw",
}


# Operations whose results do not depend on the values of their operands, but on what these select.
_OPAQUE = ("tt.load", "arith.cmpi", "arith.cmpf")


class Module:
    """A parsed TTIR module, and the lines that edits change. It has no operations if its form is unknown."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.header = text[: text.find("tt.func")].count("\n")
        try:
            self.body = parse_ttgir(text)
        except UnsupportedOperation:
            self.body = Region([])
        self.loops = dict(self.body.walk_loops())

    @cached_property
    def slice(self) -> Slice:
        return Slice(self.body, {})

    @cached_property
    def multiplied(self) -> set[str]:
        """The values on which multiplications depend."""
        dots = (op.operands for op in self.loops if op.name.startswith("tt.dot"))
        return self.slice.reach(name for operands in dots for name in operands)

    def find(self, source: tuple[str, int], kind: str) -> list[Op]:
        """Return the operations of a kind on a source line."""
        name = _NAMES.get(kind)
        return [op for op in self.loops if op.name == name and op.source == source]

    def _argument(self, number: int) -> str:
        return _text(self.body.arguments[number])

    def computes_with(self, number: int) -> bool:
        """Return whether stored values depend on an argument, other than through addresses, masks and loop bounds."""
        values = self.slice
        opaque = {name for op in self.loops if op.name in _OPAQUE for name in op.results}
        stores = (op for op in self.loops if op.name in ("tt.store", "tt.atomic_rmw"))
        stored = values.reach((op.operands[1] for op in stores), without=values.trips | opaque)
        return self.body.arguments[number] in stored

    def declare_divisible(self, number: int) -> None:
        """Declare that an argument is a multiple of 16, as Triton does if a launch's is one."""
        pattern = rf"({re.escape(self._argument(number))}: [^{{]*?)( loc\(|,|\))"
        declared = r"\1 {tt.divisibility = 16 : i32}\2"
        self.lines[self.header] = re.sub(pattern, declared, self.lines[self.header], count=1)

    def declare_any(self, number: int) -> None:
        """Declare that an argument can have any value, as `do_not_specialize` does."""
        pattern = rf"({re.escape(self._argument(number))}: \w+) {{tt\.divisibility = 16 : i32}}"
        self.lines[self.header] = re.sub(pattern, r"\1", self.lines[self.header])

    def fix_argument(self, number: int, value: int) -> None:
        """Make an argument a constant, as tl.constexpr does."""
        name = re.escape(self._argument(number))
        header = self.lines[self.header]
        (bits,) = re.findall(rf"{name}: (i\d+)", header)
        constant = f"%constant_{number}"
        self.lines = [re.sub(rf"{name}(?![\w$.-])", constant, line) for line in self.lines]
        self.lines[self.header] = f"{header}\n{constant} = arith.constant {value} : {bits}"

    def mask_bounds(self, ops: Sequence[Op]) -> dict[int, int]:
        """Return the constant upper bounds of operations' masks by the line of the comparison."""
        bounds = {}
        for name in self.slice.reach(op.mask for op in ops if op.mask):
            comparison = self.slice.definitions.get(name)
            is_bound = comparison and re.match(r" *[su]l[te],", comparison.text)
            if comparison and is_bound and comparison.name == "arith.cmpi":
                bound = self.slice.definitions.get(comparison.operands[1])
                if bound and bound.name == "arith.constant":
                    bounds[comparison.line] = int(constant(bound).base[0])
        return bounds

    def find_fill(self, op: Op) -> str:
        """Return the value that a masked load gives to the other elements; "" if it is unknown, or they affect others.

        The condition of a selection may depend on the mask, too.
        """
        fill = self.slice.definitions.get(op.operands[-1])
        if fill and fill.name == "tt.splat":
            fill = self.slice.definitions.get(fill.operands[0])
        is_known = len(op.operands) == 3 and fill and fill.name == "arith.constant"
        if fill and is_known and all(each.name != "arith.select" for each in self.loops):
            with suppress(UnsupportedOperation, ValueError):
                return f"{float(constant(fill).base[0]):g}".replace("-inf", "−inf")
        return ""

    def set_bound(self, number: int, value: int) -> None:
        """Replace the constant on the right of a comparison."""
        kind = re.findall(r" : (tensor<\w+>|\w+)", self.lines[number])[0]
        literal = f"dense<{value}>" if kind.startswith("tensor") else value
        line = re.sub(r"%[\w-]+( : )", rf"%bound_{number}\1", self.lines[number], count=1)
        self.lines[number] = f"%bound_{number} = arith.constant {literal} : {kind}\n{line}"

    def declare_addresses_divisible(self) -> None:
        """Declare that all loaded addresses are multiples of 16, as tl.multiple_of does."""
        for op in self.loops:
            is_pointer = op.name == "tt.load" and "!tt.ptr<!tt.ptr" in op.text
            if op.name == "tt.int_to_ptr" or is_pointer:
                start, colon, kind = self.lines[op.line].partition(" : ")
                self.lines[op.line] = f"{start} {{tt.divisibility = 16 : i32}}{colon}{kind}"

    def relax(self, number: int) -> None:
        """Remove the ordering from an atomic operation."""
        self.lines[number] = self.lines[number].replace(" acq_rel,", " relaxed,", 1)

    def access_contiguously(self, number: int, argument: int, count: int) -> None:
        """Let an operation access the first `count` elements of a tensor, repeated to the block's size."""
        op, line, fields = self._replace_pointers(number, argument)
        fields |= {
            "number": number,
            "stride": max(1024, count),
            "count": count,
            "repeats": math.prod(op.shape) // count,
            "element": fields["pointer"].removeprefix("!tt.ptr<")[:-1],
        }
        if op.shape != (count,):
            line = re.sub(r"tensor<[\dx]+!tt", f"tensor<{count}x!tt", line)
            fields["result"] = _text(op.results[0])
            line = line.replace(fields["result"], f"{fields['name']}_once", 1)
            line += _REPETITION.format_map(fields)
        self.lines[number] = _BLOCK.format_map(fields) + line

    def access_transposed(self, number: int, argument: int, axis: int, grid: Sequence[int]) -> None:
        """Make an operation access a matrix that is contiguous along an axis (0 or 1) of the operation's block.

        Each program and each iteration of a loop accesses different columns.
        """
        op, line, fields = self._replace_pointers(number, argument)
        pitch = [_PITCH, _PITCH]
        pitch[axis] = 1
        step = _PITCH * op.shape[1 - axis]
        fields |= {"sizes": op.shape, "pitch": pitch, "grid": grid, "step": step}
        self.lines[number] = _MATRIX.format_map(fields) + line

    def _replace_pointers(self, number: int, argument: int) -> tuple[Op, str, dict[str, Any]]:
        """Return an operation, its line with pointers named after the line, and fields of a text that computes them."""
        (op,) = (op for op in self.loops if op.line == number)
        name = f"%block_{number}"
        loop = self.loops[op]
        counter = f"{name}_zero"
        if loop and loop.name == "scf.for" and " : i64" not in loop.text:
            counter = _text(loop.regions[0].arguments[0])
        fields = {
            "name": name,
            "tensor": self._argument(argument),
            "loop": counter,
            "pointer": re.findall(r"!tt\.ptr<\w+>", op.text)[0],
            "shape": "x".join(map(str, op.shape)),
        }
        operand = re.escape(_text(op.operands[0]))
        line = re.sub(rf"{operand}(?![\w$.-])", name, self.lines[number], count=1)
        return op, line, fields


# Row stride of a transposed matrix, in elements.
_PITCH = 1024

_MATRIX = """\
{name}_zero = arith.constant 0 : i32
{name}_x = tt.get_program_id x : i32
{name}_y = tt.get_program_id y : i32
{name}_z = tt.get_program_id z : i32
{name}_columns = arith.constant {grid[0]} : i32
{name}_layers = arith.constant {grid[1]} : i32
{name}_zy = arith.muli {name}_z, {name}_layers : i32
{name}_row = arith.addi {name}_zy, {name}_y : i32
{name}_before = arith.muli {name}_row, {name}_columns : i32
{name}_program = arith.addi {name}_before, {name}_x : i32
{name}_at = arith.addi {name}_program, {loop} : i32
{name}_step = arith.constant {step} : i32
{name}_start = arith.muli {name}_at, {name}_step : i32
{name}_first = tt.addptr {tensor}, {name}_start : {pointer}, i32
{name}_all = tt.splat {name}_first : {pointer} -> tensor<{shape}x{pointer}>
{name}_i = tt.make_range {{end = {sizes[0]} : i32, start = 0 : i32}} : tensor<{sizes[0]}xi32>
{name}_j = tt.make_range {{end = {sizes[1]} : i32, start = 0 : i32}} : tensor<{sizes[1]}xi32>
{name}_y0 = tt.expand_dims {name}_i {{axis = 1 : i32}} : tensor<{sizes[0]}xi32> -> tensor<{sizes[0]}x1xi32>
{name}_x0 = tt.expand_dims {name}_j {{axis = 0 : i32}} : tensor<{sizes[1]}xi32> -> tensor<1x{sizes[1]}xi32>
{name}_dy = arith.constant dense<{pitch[0]}> : tensor<{sizes[0]}x1xi32>
{name}_dx = arith.constant dense<{pitch[1]}> : tensor<1x{sizes[1]}xi32>
{name}_y1 = arith.muli {name}_y0, {name}_dy : tensor<{sizes[0]}x1xi32>
{name}_x1 = arith.muli {name}_x0, {name}_dx : tensor<1x{sizes[1]}xi32>
{name}_y2 = tt.broadcast {name}_y1 : tensor<{sizes[0]}x1xi32> -> tensor<{shape}xi32>
{name}_x2 = tt.broadcast {name}_x1 : tensor<1x{sizes[1]}xi32> -> tensor<{shape}xi32>
{name}_n = arith.addi {name}_y2, {name}_x2 : tensor<{shape}xi32>
{name} = tt.addptr {name}_all, {name}_n : tensor<{shape}x{pointer}>, tensor<{shape}xi32>
"""

# Each operation and each iteration of a loop takes another block. Otherwise, the compiler merges them.
_BLOCK = """\
{name}_zero = arith.constant 0 : i32
{name}_number = arith.constant {number} : i32
{name}_at = arith.addi {loop}, {name}_number : i32
{name}_stride = arith.constant {stride} : i32
{name}_start = arith.muli {name}_at, {name}_stride : i32
{name}_first = tt.addptr {tensor}, {name}_start : {pointer}, i32
{name}_all = tt.splat {name}_first : {pointer} -> tensor<{count}x{pointer}>
{name}_n = tt.make_range {{end = {count} : i32, start = 0 : i32}} : tensor<{count}xi32>
{name} = tt.addptr {name}_all, {name}_n : tensor<{count}x{pointer}>, tensor<{count}xi32>
"""
_REPETITION = """
{name}_split = tt.reshape {name}_once : tensor<{count}x{element}> -> tensor<{count}x1x{element}>
{name}_wide = tt.broadcast {name}_split : tensor<{count}x1x{element}> -> tensor<{count}x{repeats}x{element}>
{result} = tt.reshape {name}_wide : tensor<{count}x{repeats}x{element}> -> tensor<{shape}x{element}>"""


def _text(name: str) -> str:
    """Return a value's name in the text: see `ttgir.Op`."""
    return name.partition("@")[0]
