"""Edit the text of a TTIR module: change one fact that the compiler knows, or one operation.

An edit changes lines in place and never moves a line, so that edits of one module can be combined.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from kernels.compiling.ttgir import Op, Region, Slice, parse

_ALIGNMENT = 16
_COMPARISONS = re.compile(r"\s*(slt|sle|ult|ule),")


class Module:
    """A parsed TTIR module, and the lines that edits change."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.body = parse(text)
        self.header = next(n for n, line in enumerate(self.lines) if line.lstrip().startswith("tt.func"))
        self._makers = {name: op for op in self.body.walk() for name in op.results}

    def find(self, source: tuple[str, int], names: Sequence[str]) -> list[Op]:
        """Return the operations with one of the names on a source line."""
        return [op for op in self.body.walk() if op.name in names and op.location and op.location[0][:2] == source]

    def declare_divisible(self, number: int) -> None:
        """Declare that an argument is a multiple of 16, as Triton does for a launch in which it is one."""
        name = _text(self.body.arguments[number])
        declared = r"\1 {tt.divisibility = 16 : i32}\2"
        pattern = rf"({re.escape(name)}: [^{{]*?)( loc\(|,|\))"
        self.lines[self.header] = re.sub(pattern, declared, self.lines[self.header], count=1)

    def fix_argument(self, number: int, value: int) -> None:
        """Make an argument a constant, as tl.constexpr does."""
        name = _text(self.body.arguments[number])
        header = self.lines[self.header]
        (bits,) = re.findall(rf"{re.escape(name)}: (i\d+)", header)
        used = re.compile(rf"{re.escape(name)}(?![\w$.-])")
        constant = f"%constant_{number}"
        self.lines = [used.sub(constant, line) for line in self.lines]
        self.lines[self.header] = f"{header}\n{constant} = arith.constant {value} : {bits}"

    def constant_bounds(self, op: Op) -> list[tuple[Op, int]]:
        """Return the comparisons that an operation's mask consists of, with the constant bound of each."""
        reached = Slice(self.body, {}).reach(filter(None, [op.mask]))
        bounds = []
        for name in sorted(reached & self._makers.keys()):
            maker = self._makers[name]
            if maker.name != "arith.cmpi" or not _COMPARISONS.match(maker.text):
                continue
            constant = self._makers.get(maker.operands[1])
            if constant and (value := re.match(r".*?(?:dense<)?(\d+)>? :", constant.text)):
                bounds.append((maker, int(value[1])))
        return bounds

    def set_bound(self, comparison: Op, value: int) -> None:
        """Replace the constant on the right of a comparison."""
        kind = comparison.text.rpartition(" : ")[2].strip()
        number = f"dense<{value}>" if kind.startswith("tensor") else value
        constant = f"%bound_{comparison.line}"
        line = self.lines[comparison.line]
        line = line.replace(f", {_text(comparison.operands[1])} :", f", {constant} :", 1)
        self.lines[comparison.line] = f"{constant} = arith.constant {number} : {kind}\n{line}"

    def declare_addresses_divisible(self) -> None:
        """Declare that all addresses that were loaded are multiples of 16, as tl.multiple_of does."""
        for op in self.body.walk():
            if op.name == "tt.int_to_ptr" or (op.name == "tt.load" and "!tt.ptr<!tt.ptr" in op.text):
                start, colon, kind = self.lines[op.line].partition(" : ")
                self.lines[op.line] = f"{start} {{tt.divisibility = {_ALIGNMENT} : i32}}{colon}{kind}"

    def relax(self, op: Op) -> None:
        """Remove the ordering from an atomic operation."""
        self.lines[op.line] = self.lines[op.line].replace(" acq_rel,", " relaxed,", 1)

    def access_block(self, op: Op, argument: int, block: "Block") -> None:
        """Let an operation access a regular block of a tensor instead, and repeat its elements to the old shape.

        In a loop, each iteration takes another block, so that the compiler can't move the operation out of the loop.
        """
        sizes = [size // each for size, each in zip(block.shape, block.repeats, strict=True)]
        count = math.prod(sizes)
        pointer = re.findall(r"!tt\.ptr<\w+>", op.text)[0]
        induction = _induction(self.body, op)
        fields = {
            "name": f"%block_{op.line}",
            "tensor": _text(self.body.arguments[argument]),
            "start": block.start,
            "loop": _text(induction) if induction else f"%block_{op.line}_none",
            "stride": max(1024, count),
            "count": count,
            "pointer": pointer,
            "element": pointer[len("!tt.ptr<") : -1],
        }
        made = [_BLOCK.format_map(fields)]
        inner = count
        for axis, (size, step) in enumerate(zip(sizes, block.steps, strict=True)):
            inner //= size
            made.append(_AXIS.format_map({**fields, "axis": axis, "inner": inner, "size": size, "step": step}))
            fields["name"] += "_at"
        line = self.lines[op.line].replace(_text(op.operands[0]), fields["name"], 1)
        if (count,) != block.shape:
            fields["result"] = _text(op.results[0])
            fields["split"] = "x".join(f"{size}x1" for size in sizes)
            parts = zip(sizes, block.repeats, strict=True)
            fields["spread"] = "x".join(f"{size}x{each}" for size, each in parts)
            fields["whole"] = "x".join(map(str, block.shape))
            line = re.sub(r"tensor<[\dx]+!tt", f"tensor<{count}x!tt", line)
            made.append(line.replace(fields["result"], f"{fields['name']}_once", 1))
            line = _SPREAD.format_map(fields)
        self.lines[op.line] = "\n".join([*made, line])


# Addresses of a block: its elements are numbered row by row.
_BLOCK = """\
{name}_none = arith.constant 0 : i32
{name}_stride = arith.constant {stride} : i32
{name}_start = arith.constant {start} : i32
{name}_by = arith.muli {loop}, {name}_stride : i32
{name}_from = arith.addi {name}_by, {name}_start : i32
{name}_first = tt.addptr {tensor}, {name}_from : {pointer}, i32
{name} = tt.splat {name}_first : {pointer} -> tensor<{count}x{pointer}>"""
_AXIS = """\
{name}_n = tt.make_range {{end = {count} : i32, start = 0 : i32}} : tensor<{count}xi32>
{name}_inner = arith.constant dense<{inner}> : tensor<{count}xi32>
{name}_size = arith.constant dense<{size}> : tensor<{count}xi32>
{name}_step = arith.constant dense<{step}> : tensor<{count}xi32>
{name}_q = arith.divsi {name}_n, {name}_inner : tensor<{count}xi32>
{name}_r = arith.remsi {name}_q, {name}_size : tensor<{count}xi32>
{name}_s = arith.muli {name}_r, {name}_step : tensor<{count}xi32>
{name}_at = tt.addptr {name}, {name}_s : tensor<{count}x{pointer}>, tensor<{count}xi32>"""
_SPREAD = """\
{name}_split = tt.reshape {name}_once : tensor<{count}x{element}> -> tensor<{split}x{element}>
{name}_all = tt.broadcast {name}_split : tensor<{split}x{element}> -> tensor<{spread}x{element}>
{result} = tt.reshape {name}_all : tensor<{spread}x{element}> -> tensor<{whole}x{element}>"""


class Block(NamedTuple):
    """A regular block: its shape, how often each element is repeated along each axis, and where elements lie.

    Attributes:
        steps: elements of the tensor between neighbours along each axis, without the repeats.
        start: its first element, in elements from the tensor's start; before `_block_change`, its address.
    """

    shape: tuple[int, ...]
    repeats: tuple[int, ...]
    steps: tuple[int, ...]
    start: int


def _text(name: str) -> str:
    """Return a value's name in the text: see `ttgir.Op`."""
    return name.partition("@")[0]


def _induction(region: Region, op: Op) -> str:
    """Return the 32-bit counter of the innermost loop around an operation; "" without one."""
    found = ""
    for loop in region.walk():
        if loop.name == "scf.for" and any(inner is op for inner in loop.regions[0].walk()):
            found = loop.regions[0].arguments[0] if " : i64" not in loop.text else ""
    return found
