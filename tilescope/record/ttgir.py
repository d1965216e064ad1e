"""Read a kernel's TTGIR with Triton's own bindings: the layouts of its pointers, and what its arguments are for."""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from triton._C.libtriton import gluon_ir, ir, nvidia
from triton.experimental.gluon.nvidia.hopper import NVMMASharedLayout

from . import Values
from .allocation import parse_module, read_values

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

# Triton keeps the classes of layouts forever, and with them the variables of its modules, but not the modules, whose
# variables Python deletes when it ends. Nanobind lists what is left then: from Triton 3.9 on, 25 lines.
NVMMASharedLayout.modules = [
    module for name, module in sys.modules.items() if name.startswith("triton.")
]


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


@cache
def read_ttgir(ttgir: str) -> Facts:
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
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
        if _STORES.match(name):
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
