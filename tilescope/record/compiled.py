"""Describe compiled kernels: their metadata, TTGIR, PTX and SASS, registers and spills. Compile changed modules.

Triton's own bindings read the layouts of the TTGIR's pointers, and the purposes of its arguments.
"""

import functools
import hashlib
import inspect
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import triton
from triton._C import libtriton
from triton._C.libtriton import gluon_ir, ir
from triton.compiler import make_backend
from triton.experimental.gluon.nvidia.hopper import NVMMASharedLayout
from triton.runtime.cache import get_cache_manager

from . import VERSION, Values
from .allocation import allocate, make_target, parse_module, read_values

# The stages whose text is kept. The SASS is disassembled.
STAGES = "ttir", "ttgir", "ptx", "amdgcn"

# Maximum seconds for compiling a report's changed modules.
_RECOMPILE_S = 20

_INLINE_ASSEMBLY = re.compile(r"// begin inline asm\n.*?// end inline asm", re.DOTALL)
_LINE_MARKER = re.compile(r"\t\.loc\t.*\n")
# Fewest registers per thread that ptxas allocates: Nsight Compute reports 16 on an H200 for code that uses fewer.
_LEAST_REGISTERS = 16
# #loc = loc("/home/me/softmax.py":12:0)
_COMPILED_FROM = re.compile(r'^#loc = loc\("([^"]+)":', re.MULTILINE)
# STL.64 [R1+0x8], R4 ;
_STACK_ACCESS = re.compile(
    r"\b(STL|LDL)(?:\.[SU]?(8|16|64|128)|\.\w+)* [^;]*\[R1(?:\+(0x[0-9a-f]+))?\]"
)

# The specialization of pointers and integers whose value is a multiple of 16.
_DIVISIBLE = {"*": "alignment", "i": "divisible by 16", "u": "divisible by 16"}

_POINTER_OPS = (
    "tt.load",
    "tt.store",
    "tt.atomic_rmw",
    "tt.atomic_cas",
    "ttg.async_copy_global_to_local",
)
_TMA_COPIES = re.compile(r"ttng\.async_tma_(copy|store|gather|scatter|reduce)")
_NUMBERS = r"^(tensor<[\dx]+)?i\d+"
_BRANCHES = re.compile(r"scf\.(if|for|condition|index_switch)$|cf\.cond_br$")
_STORES = re.compile(
    r"tt\.(store|atomic|descriptor_(store|scatter|reduce))|"
    r"ttng\.async_tma_(copy_local|store|scatter|reduce)"
)
# AMD's operations, whose pointer is not the first operand: amdg.buffer_store %v, %y[%o], %mask
_BUFFER_STORES = re.compile(r"amdg(pu)?\.buffer_(store|atomic)")
_SPILL_STORES = re.compile(r"\tscratch_store.*; (\d+)-byte Folded Spill")

# Triton keeps the classes of layouts forever, and with them the variables of its modules, but not the modules, whose
# variables Python deletes when it ends. Nanobind lists what is left then: from Triton 3.9 on, 25 lines.
NVMMASharedLayout.modules = [
    module for name, module in sys.modules.items() if name.startswith("triton.")
]


def keep_source_lines(backend: Any = None, stages: Any = None, *_: Any) -> tuple[str, str]:
    """Change the PTX before ptxas reads it: all lines of inline assembly belong to the source line of their operation.

    From Triton 3.8 on, LLVM assigns the second line of inline assembly to the next source line, and so on. The SASS
    would name that line. This is a value of `triton.knobs.runtime.add_stages_inspection_hook`, which returns a key.
    """

    def make_ptx(*arguments: Any) -> str:
        ptx = make_shifted(*arguments)
        return _INLINE_ASSEMBLY.sub(lambda assembly: _LINE_MARKER.sub("", assembly[0]), ptx)

    if stages and "ptx" in stages:
        make_shifted = stages["ptx"]
        stages["ptx"] = make_ptx
    return "source lines", "source lines"


# If unneeded, it would bypass the cache of the kernels that the user has compiled.
STAGES_HOOK = keep_source_lines if VERSION >= (3, 8) else None


@functools.lru_cache(64)
def _run_tool(name: str, cubin: bytes, *flags: str) -> str:
    """Return the messages of one of the CUDA tools in Triton's wheel for a kernel; "" if the tool fails.

    Triton's cache keeps them, because nvdisasm takes 0.3 s even for a small kernel.
    """
    key = hashlib.sha256(f"{triton.__version__} {name} {flags}".encode() + cubin).hexdigest()
    with suppress(OSError):
        if path := get_cache_manager(key).get_file(name):
            return Path(path).read_text()
    with tempfile.NamedTemporaryFile() as file, suppress(OSError, AttributeError):
        Path(file.name).write_bytes(cubin)
        command = [getattr(triton.knobs.nvidia, name).path, *flags, file.name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            messages = done.stdout + done.stderr
            with suppress(OSError):
                get_cache_manager(key).put(messages, name)
            return messages
    return ""


def disassemble(cubin: bytes) -> str:
    """Return the SASS."""
    sass = _run_tool("nvdisasm", cubin, "-g", "-c", "-ndf")
    if " BRX" in sass:  # the listing lacks the table of its targets
        dump = _run_tool("cuobjdump", cubin, "--dump-elf")
        sass += "".join(re.findall(r"^\.nv\.constant2\..*\n(?:0x.*\n)+", dump, re.MULTILINE))
    return sass


def read_resources(cubin: bytes) -> tuple[int, int]:
    """Return a kernel's registers and spilled bytes, both per thread."""
    usage = _run_tool("cuobjdump", cubin, "--dump-resource-usage")
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    has_stack = used.get("STACK", 0) + used.get("LOCAL", 0)
    spilled = _count_spilled_bytes(disassemble(cubin)) if has_stack else 0
    return max(_LEAST_REGISTERS, used.get("REG", 0)), spilled


def read_amd_resources(amdgcn: str) -> tuple[int, int]:
    """Return a kernel's VGPRs and AGPRs, and its spilled bytes, both per lane."""
    (registers,) = re.findall(r"\.vgpr_count: +(\d+)", amdgcn)
    return int(registers), sum(map(int, _SPILL_STORES.findall(amdgcn)))


def _count_spilled_bytes(sass: str) -> int:
    """Return the bytes of the stores to the stack that are reloaded, as ptxas counts them.

    A stack frame may also hold arrays, such as a table of `sin`, which other registers than R1 index.
    """
    slots: dict[str, list[range]] = {"STL": [], "LDL": []}
    for name, bits, start in _STACK_ACCESS.findall(sass):
        first = int(start or "0", 16)
        slots[name].append(range(first, first + int(bits or 32) // 8))
    reloaded = set().union(*slots["LDL"])
    return sum(len(slot) for slot in slots["STL"] if not reloaded.isdisjoint(slot))


def describe_kernel(compiled: Any, maps_memory: bool = True) -> Values:
    """Return the JSON of a compiled kernel, without its resources.

    Args:
        maps_memory: whether to find its buffers in shared memory, which takes 0.1 to 0.4 s; predictions do without.
    """
    metadata = compiled.metadata
    function = compiled.src.fn.fn
    source, line = _find_source(function)
    ttgir = compiled.asm["ttgir"]
    options = {k: v for k, v in metadata._asdict().items() if isinstance(v, int | str)}
    # The metadata's number includes the warps that specialization adds
    options["num_warps"] = int(re.findall(r'"ttg.num-warps" = (\d+)', ttgir)[0])
    allocation = None
    if maps_memory:
        ttir = compiled.asm.get("ttir", "")
        allocation = allocate(ttgir, ttir, metadata.target.arch, options)
    return {
        "name": function.__name__, "file": inspect.getsourcefile(function) or "", "line": line,
        "source": "".join(source), "shared_bytes": metadata.shared, "num_warps": metadata.num_warps,
        "num_ctas": metadata.num_ctas, "layouts": read_ttgir(ttgir).layouts, "options": options,
        "allocation": allocation, "tensor_columns": tensor_columns(metadata),
        "specializations": _list_specializations(compiled),
    }  # fmt: skip


_find_source = functools.cache(inspect.getsourcelines)  # takes 10 ms, and a kernel has many configs


def tensor_columns(metadata: Any) -> int:
    """Return the columns of tensor memory that a program needs; 0 on GPUs that have none."""
    return getattr(metadata, "tmem_size", None) or 0


def _list_specializations(compiled: Any) -> list[Values]:
    """Return the options that a kernel was compiled with, and what Triton assumes about each argument."""
    source = compiled.src
    facts = {
        (each.name, "option"): getattr(compiled.metadata, each.name)
        for each in fields(make_backend(compiled.metadata.target).parse_options({}))
        if each.name != "extern_libs"  # paths on this machine
    }
    for number, (name, dtype) in enumerate(source.signature.items()):
        constant = source.constants.get((number,))
        if dtype != "constexpr":
            facts[name, "dtype"] = dtype
            if kind := _DIVISIBLE.get(dtype[0]):
                facts[name, kind] = ["tt.divisibility", 16] in source.attrs.get((number,), ())
        elif constant == 1 and not source.fn.params[number].is_constexpr:
            facts |= {(name, "dtype"): "i32", (name, "equal to 1"): True}
        else:
            facts[name, "constexpr"] = constant
    return [
        {"argument": argument, "kind": kind, "value": plain(value)}
        for (argument, kind), value in facts.items()
    ]


def plain(value: Any) -> int | str | None:
    """Return a constant's JSON."""
    if isinstance(value, int | str | None):
        return value
    return str(getattr(value, "__name__", value))[:60]


def read_kernel(path: Path, kernel: Values) -> dict[str, str]:
    """Add a kernel's resources to its JSON. Return its code by stage, without TTIR if Gluon made it."""
    paths = ((stage, path.with_suffix(f".{stage}")) for stage in STAGES)
    codes = {stage: path.read_text() for stage, path in paths if path.exists()}
    if "amdgcn" in codes:
        resources = read_amd_resources(codes["amdgcn"])
    else:
        cubin = path.with_suffix(".cubin").read_bytes()
        resources = read_resources(cubin)
        codes["sass"] = disassemble(cubin)
    kernel["registers"], kernel["spilled_bytes"] = resources
    new = Path(kernel["file"]).name
    compiled_from = _COMPILED_FROM.search(codes["ttgir"])
    if not compiled_from or new in codes["ttgir"]:
        return codes
    # Triton's cache knows the same source in another file
    old = Path(compiled_from[1]).name
    return {stage: code.replace(old, new) for stage, code in codes.items()}


def recompile(modules: Sequence[Values], capability: int) -> list[Values | None]:
    """Compile TTIR modules, each with its options. Return {} for one that fails, None for a timeout."""
    deadline = time.monotonic() + _RECOMPILE_S + 2 * len(modules)
    replies: list[Values | None] = []
    workers = min(os.cpu_count() or 1, len(modules))
    # Threads may deadlock in Triton.
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        results = [pool.apply_async(_recompile_one, (module, capability)) for module in modules]
        for result in results:
            try:
                replies.append(result.get(max(0, deadline - time.monotonic())))
            except multiprocessing.TimeoutError:
                replies.append(None)
            except Exception:  # the compiler can raise any type
                replies.append({})
    return replies


def _recompile_one(module: Values, capability: int) -> Values:
    triton.knobs.runtime.add_stages_inspection_hook = STAGES_HOOK
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        Path(file.name).write_text(module["ttir"])
        target = make_target(capability)
        with redirect_stdout(None):  # Triton prints the PTX if ptxas fails
            compiled = triton.compile(file.name, target=target, options=module["options"])
    codes = {stage: compiled.asm[stage] for stage in ("ttgir", "ptx")}
    codes["sass"] = disassemble(compiled.asm["cubin"])
    registers, spilled = read_resources(compiled.asm["cubin"])
    return {
        "registers": registers, "spilled_bytes": spilled, "shared_bytes": compiled.metadata.shared,
        "num_warps": compiled.metadata.num_warps, "layouts": read_ttgir(codes["ttgir"]).layouts, "codes": codes,
        "allocation": None, "tensor_columns": tensor_columns(compiled.metadata),
    }  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """Properties of a kernel that a capture stores. Arguments are identified by their index.

    Attributes:
        layouts: the layout of each memory operation's pointers; None for a scalar pointer.
        stored: arguments that the kernel may store to.
        tables: arguments that hold pointers which the kernel may store through.
        needed: arguments whose values affect addresses, masks or branches.
    """

    layouts: list[Values | None]
    stored: list[int]
    tables: list[int]
    needed: list[int]


# A value's ID, or a region's ID and a type: block arguments and results of a region are joined in one node per type.
_Node = int | tuple[int, str]
_Nodes = Iterable[_Node]
_Edges = defaultdict[_Node, set[_Node]]


@functools.cache
def read_ttgir(ttgir: str) -> Facts:
    context = ir.context()
    ir.load_dialects(context)
    for name in {"nvidia", "amd"} & vars(libtriton).keys():
        getattr(libtriton, name).load_dialects(context)
    module = parse_module(ttgir, ".ttgir", context)
    flow = _DataFlow(module, gluon_ir.GluonOpBuilder(context))
    function = module.get_function(module.get_entry_func_name())
    count = len(module.get_function_signature(function))

    def find_arguments(nodes: set[_Node]) -> list[int]:
        return [number for number in range(count) if function.args(number).id() in nodes]

    def find_tables(nodes: set[_Node]) -> list[int]:
        pointers = chain(*map(flow.loads.__getitem__, nodes))
        return find_arguments(_reach(pointers, flow.sources))

    stored = _reach(flow.stores, flow.sources)
    needed = _reach(flow.roots, flow.sources, flow.offsets)
    return Facts(flow.layouts, find_arguments(stored), find_tables(stored), find_tables(needed))


class _DataFlow:
    """Data-flow edges, from a value of a module to the values from which it derives.

    Attributes:
        sources: a pointer's base, and the operands of other operations.
        offsets: the integers that are added to a pointer, or that select what is loaded.
        loads: the pointers from which a value was loaded.
        stores: the pointers that are stored to.
        roots: the addresses, masks and conditions.
    """

    def __init__(self, module: Any, builder: Any) -> None:
        self.layouts = list[Values | None]()
        self.sources = _Edges(set)
        self.offsets = _Edges(set)
        self.loads = _Edges(set)
        self.stores = set[_Node]()
        self.roots = set[_Node]()
        self._module = module
        self._builder = builder
        module.walk(self._visit)

    def _visit(self, op: Any) -> None:
        name = op.get_name()
        block = op.get_block()
        operands = read_values(op.get_operand, op.get_num_operands())
        results = read_values(op.get_result, op.get_num_results())
        if name in _POINTER_OPS:
            self.layouts.append(_read_layout(self._builder, op.get_operand(0)))
        self._add_roots(name, operands)
        if block is not None:
            region = block.get_parent().id()
            for value, kind in read_values(block.arg, block.get_num_arguments()):
                _link(self.sources, [value], [(region, kind)])
            if name.endswith((".yield", ".condition", ".return")) or name.startswith("cf."):
                for value, kind in operands:
                    _link(self.sources, [(region, kind)], [value])
        regions = []
        if name.startswith("scf."):
            regions = list(map(op.get_region, range(op.get_num_regions())))
        elif name == "tt.call":
            callee = self._module.get_function(op.get_flat_symbol_ref_attr("callee"))
            regions = [callee.get_region(0)]
        for value, kind in (*operands, *results):
            nodes: list[_Node] = [value, *((region.id(), kind) for region in regions)]
            _link(self.sources, nodes, nodes)
        if not regions:
            self._link_results(name, operands, [value for value, _ in results])

    def _add_roots(self, name: str, operands: list[tuple[int, str]]) -> None:
        values = [value for value, _ in operands]
        is_tma = _TMA_COPIES.match(name)
        if is_tma or name in _POINTER_OPS:
            kinds = _NUMBERS if is_tma else "i1"
            self.roots.update(values[:1])
            self.roots.update(value for value, kind in operands if re.search(kinds, kind))
        if _BUFFER_STORES.match(name):
            self.stores.update(value for value, kind in operands if kind.startswith("!tt.ptr"))
        elif _STORES.match(name):
            self.stores.update(values[:1])  # the op that waits for a store has no operand
        if _BRANCHES.match(name):
            self.roots.update(values[: 3 if name == "scf.for" else 1])
        if name == "ttng.tensormap_create":
            # It writes a descriptor of its second operand to its first
            _link(self.sources, values[:1], values[1:2])
            self.roots.update(values)  # its shape and strides

    def _link_results(self, name: str, operands: list[tuple[int, str]], made: list[int]) -> None:
        values = [value for value, _ in operands]
        shared = [value for value, kind in operands if "memdesc" in kind]
        # A view shares its memory
        made = made + shared if name.startswith("ttg.memdesc_") else made or shared
        if name in _POINTER_OPS or name.startswith("ttng.async_tma_copy_global"):
            _link(self.loads, made, values[:1])
        if name == "tt.addptr" or name in _POINTER_OPS:
            _link(self.offsets, made, values)
            # An offset, and the address of a loaded value, are not the result's origin
            values = values[: name == "tt.addptr"]
        _link(self.sources, made, values)


def _link(edges: _Edges, targets: _Nodes, origins: _Nodes) -> None:
    for target in targets:
        edges[target].update(origins)


def _reach(nodes: _Nodes, *edges: _Edges) -> set[_Node]:
    reached = set[_Node]()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in reached:
            reached.add(node)
            todo += chain(*(each[node] for each in edges))
    return reached


def _read_layout(builder: Any, pointer: Any) -> Values | None:
    match = re.match(r"tensor<((?:\d+x)+)", str(pointer.get_type()))
    if match is None:
        return None
    shape = [int(size) for size in match[1][:-1].split("x")]
    attribute = builder.get_gluon_layout_from_tensor(pointer)._to_ir(builder)
    layout = builder.to_linear_layout(attribute, shape)
    return {
        "shape": shape,
        "register": layout.reg_bases,
        "lane": layout.lane_bases,
        "warp": layout.warp_bases,
    }
