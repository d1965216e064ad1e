"""Ask Triton's compiler where a kernel keeps its buffers in shared and tensor memory. Needs only Triton.

    python allocation.py < REQUEST.json

The request holds the arguments of `allocate` for each kernel, and the reply their results.

Triton runs its own passes up to the lowering to LLVM, which record each buffer's offset in the module. A buffer's size
is the shared memory of a function that contains only the buffer's operation.
"""

import functools
import itertools
import json
import math
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from triton import __version__
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler import make_backend

_END = re.compile(r" loc\((#loc\d*)\)$", re.MULTILINE)
_LOCATION = re.compile(r" loc\((?:[^()]|\([^()]*\))*\)")
_PLACE = re.compile(r'^(#loc\d*) = loc\("[^"]*\.ttgir":(\d+):\d+\)$', re.MULTILINE)
_CALL = re.compile(r"^(#loc\d*) = loc\(callsite\((#loc\d*) at ", re.MULTILINE)
_OPERATION = re.compile(r' *(?:%\S+ = )?("?([a-z_]+\.\w[\w.]*).*)')
_FUNCTION = re.compile(r"^  tt\.func public .*", re.MULTILINE)
_NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
_OFFSET = re.compile(r"\ballocation\.offset = (\d+)")
# ttng.tmem_alloc {tensor_memory_col_offset = 0 : i32, tensor_memory_row_offset = 16 : i32} : () ->
# !ttg.memdesc<64x128xf32, #tmem, #ttng.tensor_memory, mutable> loc(#loc37)
_TENSOR_BUFFER = re.compile(
    r"_col_offset = (\d+) : i32, tensor_memory_row_offset = (\d+) .*memdesc<([\dx]+)x[a-z]+(\d+).* loc\((#loc\d*)\)$",
    re.MULTILINE,
)
# Bytes of a column of tensor memory: 128 lanes of 4 bytes.
_COLUMN_BYTES = 512
# Triton removes partitions without side effects.
_EFFECT = 'llvm.inline_asm has_side_effects asm_dialect = att "nop", "" : () -> ()'
_PARTITION = re.compile(r" *partition\d+\(.*\) num_warps\((\d+)\)")

# The types of the operands and of the results of each operation, by name.
_Types = defaultdict[str, list[tuple[list[str], list[str]]]]


class _Stopped(Exception):
    """Interrupts Triton's stage where it would lower the module to LLVM."""


class _PassRecorder:
    """Keeps Triton's pass manager, which has the passes before the lowering to LLVM, and interrupts the stage."""

    passes: Any = None

    def load_dialects(self, context: Any) -> None:
        pass

    def patch(self, name: str, passes: Any, context: Any) -> None:
        self.passes = passes
        raise _Stopped


class _Operation(NamedTuple):
    """A printed operation with a buffer.

    Attributes:
        number: its number among the operations of that name.
        lines: its text, without the operations in its regions.
        num_warps: the number of warps of its warp group; "" for the default.
    """

    name: str
    number: int
    lines: list[str]
    num_warps: str


def make_target(capability: int | str) -> GPUTarget:
    """Return the target of a compute capability, such as 90, or of an architecture of AMD's, such as "gfx942"."""
    if isinstance(capability, str):
        return GPUTarget("hip", capability, 64)
    return GPUTarget("cuda", capability, 32)


class Allocator:
    """Allocates the shared memory of TTGIR modules for one target.

    Args:
        capability: see `make_target`.
        options: of the compiler.
    """

    def __init__(self, capability: int | str, options: Mapping[str, Any]) -> None:
        self._backend = make_backend(make_target(capability))
        self._options = self._backend.parse_options(dict(options))
        self._stages: dict[str, Any] = {}
        self._backend.add_stages(self._stages, self._options, Language.TRITON)
        self._context = ir.context()
        ir.load_dialects(self._context)
        self._backend.load_dialects(self._context)

    def count_bytes(self, ttir: str) -> int:
        """Compile a TTIR module, and return its bytes of shared memory."""
        module = parse_module(ttir, ".ttir", self._context)
        return self._count(self._stages["ttgir"](module, vars(self._options).copy()))

    def find_buffers(self, ttgir: str) -> list[dict[str, int]]:
        """Return the buffers of a TTGIR module in shared and tensor memory, each with its line in the text, from 0."""
        # Without their locations, operations are located by their lines in the text
        module = self._run(parse_module(_END.sub("", ttgir), ".ttgir", self._context))
        types = _read_types(module)
        text = str(module)
        places = dict(_PLACE.findall(text))
        calls = dict(_CALL.findall(text))
        header = [
            _LOCATION.sub("", line)
            for line in text.splitlines()
            if line.startswith(("#", "module")) and not line.startswith("#loc")
        ]

        @functools.cache
        def count(probe: str) -> int:
            return self._count(parse_module(probe, ".ttgir", self._context))

        def find_line(location: str) -> int:
            while location in calls:
                location = calls[location]
            return int(places[location]) - 1

        buffers = []
        states = 0
        for op in _find_operations(text.splitlines()):
            if op.name == "tt.call":
                raise ValueError("The size of a noinline function's shared memory is unknown.")
            probe = "\n".join([*header, *_make_function(op, types), "}"])
            if op.num_warps:
                probe = re.sub(r'"ttg.num-warps" = \d+', f'"ttg.num-warps" = {op.num_warps}', probe)
            size = count(probe)
            if op.name == "ttg.warp_specialize":
                # The function has another buffer, with a byte for each warp of the partitions
                warps = sum(int(match[1]) for match in map(_PARTITION.match, op.lines) if match)
                states = max(states, warps)
                size -= warps
            line = find_line(_END.findall(op.lines[-1])[0])
            buffers.append(_describe(line, "".join(op.lines), size))
        for column, row, shape, bits, location in _TENSOR_BUFFER.findall(text):
            size = math.prod(map(int, shape.split("x"))) * int(bits) // 8
            # The second buffer that has half of the lanes of the same columns follows the first one
            offset = _COLUMN_BYTES * int(column) + size * (row != "0")
            buffers.append(
                {"line": find_line(location), "offset_bytes": offset, "size_bytes": size}
            )
        (function,) = _FUNCTION.finditer(text)
        if _OFFSET.search(function[0]):
            (own,) = _FUNCTION.finditer(ttgir)
            buffers.append(_describe(ttgir.count("\n", 0, own.start()), function[0], states))
        return buffers

    def _count(self, module: Any) -> int:
        return self._run(module).get_int_attr("ttg.shared")

    def _run(self, module: Any) -> Any:
        recorder = _PassRecorder()
        with mock.patch.object(type(self._backend), "instrumentation", recorder):
            try:
                self._stages["llir"](module, {})
            except _Stopped:
                recorder.passes.run(module, "allocate")
        return module


def parse_module(text: str, suffix: str, context: Any) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=suffix) as file:
        Path(file.name).write_text(text)
        module = ir.parse_mlir_module(file.name, context)
    module.context = context  # must outlive the module
    return module


def read_values(get: Callable[[int], Any], count: int) -> list[tuple[int, str]]:
    """Return the IDs and types of values of the IR."""
    return [(value.id(), str(value.get_type())) for value in map(get, range(count))]


def _read_types(module: Any) -> _Types:
    types = _Types(list)

    def visit(op: Any) -> None:
        operands = read_values(op.get_operand, op.get_num_operands())
        results = read_values(op.get_result, op.get_num_results())
        types[op.get_name()].append(([kind for _, kind in operands], [kind for _, kind in results]))

    module.walk(visit)
    return types


def _describe(line: int, text: str, size: int) -> dict[str, int]:
    return {"line": line, "offset_bytes": int(_OFFSET.findall(text)[0]), "size_bytes": size}


def _find_operations(lines: Sequence[str]) -> Iterator[_Operation]:
    """Yield the operations with a buffer in a printed module."""
    counts = Counter[str]()
    starts = list[tuple[str, int, int]]()  # of operations whose regions are open
    num_warps = ""
    for number, line in enumerate(lines):
        if match := _OPERATION.match(line):
            name = match[2]
            start = name, counts[name], number
            counts[name] += 1
            if line.endswith("({"):
                starts.append(start)
            elif name == "ttg.warp_specialize" and _OFFSET.search(line):
                yield _Operation(*start[:2], [line, *_find_partitions(lines[number + 1 :])], "")
            elif name != "tt.func" and _OFFSET.search(line):
                yield _Operation(*start[:2], [line], num_warps)
        elif match := _PARTITION.match(line):
            num_warps = match[1]
        elif line.lstrip().startswith("})"):
            name, index, start_line = starts.pop()
            if _OFFSET.search(line):
                first, arguments = lines[start_line : start_line + 2]
                yield _Operation(
                    name, index, [first, arguments, _return_first(name, arguments), line], num_warps
                )
        elif line.lstrip().startswith("} : "):
            num_warps = ""


def _find_partitions(lines: Sequence[str]) -> list[str]:
    """Return the rest of a warp-specialized operation without results, given the lines after its first."""
    partitions = ["default {", "ttg.warp_yield", "}"]
    for line in lines:
        if _PARTITION.match(line):
            partitions += [line, _EFFECT, "ttg.warp_return", "}"]
        elif line.lstrip().startswith("} : "):
            types, _, end = line.rpartition(" -> ")
            return [*partitions[:-1], f"{types} -> (){end[end.index(' loc') :]}"]
    raise ValueError("The operation does not end.")


def _return_first(name: str, arguments: str) -> str:
    """Return the end of a reduction's or scan's region, which returns the first half of its arguments."""
    pairs = re.findall(r"(%[\w$.-]+): ([^,()]+)", _LOCATION.sub("", arguments))
    values, types = zip(*pairs[: len(pairs) // 2], strict=True)
    return f"{name}.return {', '.join(values)} : {', '.join(types)}"


def _make_function(op: _Operation, types: _Types) -> Iterator[str]:
    """Yield the lines of a function that contains only the operation."""
    operands, results = types[op.name][op.number]
    if op.name == "ttg.warp_specialize":
        results = []
        if not operands:  # from Triton 3.7 on
            operands, _ = types["ttg.warp_specialize.partitions"][op.number]
    first, *rest = (_LOCATION.sub("", line) for line in op.lines)
    (operation,) = _OPERATION.findall(first)
    numbers = itertools.count()
    text = _NAME.sub(lambda _: f"%operand{next(numbers)}", operation[0])
    parameters = ", ".join(f"%operand{n}: {kind}" for n, kind in enumerate(operands))
    kinds = ", ".join(results)
    yield f"tt.func public @probe({parameters}) -> ({kinds}) {{"
    if results:
        text = f"%result:{len(results)} = {text}"
    yield from (text, *rest)
    # An unused buffer would not be allocated
    values = ", ".join(f"%result#{n}" for n in range(len(results)))
    yield f"tt.return {values} : {kinds}" if results else "tt.return"
    yield "}"


def allocate(
    ttgir: str, ttir: str, capability: int | str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON of a kernel's `Allocation`.

    Args:
        capability: see `make_target`.
        ttir: "" if it is unknown.
        options: of the compiler.
    """
    try:
        buffers = Allocator(capability, options).find_buffers(ttgir)
        bytes_by_stages = {}
        if "scf." in ttir and "tt.dot" in ttir:  # this option affects no other loops
            for stages in {options["num_stages"] - 1, options["num_stages"] + 1} - {0}:
                changed = {**options, "num_stages": stages}
                bytes_by_stages[stages] = Allocator(capability, changed).count_bytes(ttir)
    except Exception:  # the compiler can raise any type
        why = f"Triton {__version__} can't allocate the shared memory of this kernel's TTGIR."
        return {"why_missing": why}
    return {"buffers": buffers, "bytes_by_stages": bytes_by_stages}


if __name__ == "__main__":
    json.dump([allocate(**kernel) for kernel in json.load(sys.stdin)], sys.stdout)
