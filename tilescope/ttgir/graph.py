"""Follow values through the operations of a function."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import product
from typing import TypeVar

from tilescope.ttgir.operations import COPIES
from tilescope.ttgir.parser import Op, Region

Node = TypeVar("Node")
# Pairs of values: the first derives from the second.
Links = Iterator[tuple[str, str]]


def reach(starts: Iterable[Node], follow: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return the starts and all that they lead to, the nearest first."""
    nodes = list(dict.fromkeys(starts))
    reached = set(nodes)
    for node in nodes:
        for following in follow(node):
            if following not in reached:
                reached.add(following)
                nodes.append(following)
    return nodes


def pass_values(op: Op) -> Links:
    """Link the results and the arguments of a loop, a branch or warp groups to the values that may become them."""
    if op.name == "ttg.warp_specialize":
        for region in op.regions:
            yield from zip(region.arguments, op.operands, strict=False)
    elif op.name.startswith("scf."):
        # A loop's counter, or its condition, comes first.
        for names in (op.results, *(region.arguments for region in op.regions)):
            for values in (op.inits, *(region.yielded for region in op.regions)):
                yield from zip(reversed(names), reversed(values), strict=False)


def derive(op: Op) -> Links:
    """Link results to the operands, and values that pass through regions."""
    yield from pass_values(op)
    if not op.name.startswith("scf."):
        yield from product(op.results, op.operands)


def copy(op: Op) -> Links:
    """Link values to those that they may be copies of, and pointers to those to the same memory."""
    yield from pass_values(op)
    if op.name == "ttng.tensormap_create":
        yield op.operands[0], op.operands[1]
    elif op.name in ("tt.store", "tt.atomic_rmw"):  # the block becomes one of the tensor
        yield op.operands[1], op.operands[0]
    elif op.name.startswith(COPIES):
        yield from zip(op.results, op.operands, strict=False)


class Graph:
    """How values pass through a function.

    Attributes:
        definitions: the operation that computes each value.
        users: the operations that use it.
        sources, targets: the values from which it derives, and that derive from it.
    """

    def __init__(self, body: Region, link: Callable[[Op], Links] = derive) -> None:
        self.definitions = dict[str, Op]()
        self.users = defaultdict[str, list[Op]](list)
        self.sources = defaultdict[str, list[str]](list)
        self.targets = defaultdict[str, list[str]](list)
        for op in body.walk():
            self.definitions.update(dict.fromkeys(op.results, op))
            for name in op.operands:
                self.users[name].append(op)
            for target, source in link(op):
                self.connect(target, source)

    def connect(self, target: str, source: str) -> None:
        self.sources[target].append(source)
        self.targets[source].append(target)

    def find_results(self, names: Collection[str]) -> set[str]:
        """Return the results of the operations with certain names."""
        return {value for value, op in self.definitions.items() if op.name in names}

    def trace_sources(self, values: Iterable[str], ends: Collection[str] = ()) -> list[str]:
        """Return values and those from which they derive, the nearest first, but not the sources of `ends`."""
        return reach(values, lambda value: () if value in ends else self.sources.get(value, ()))

    def trace_targets(self, values: Iterable[str]) -> list[str]:
        """Return values and those that derive from them, the nearest first."""
        return reach(values, lambda value: self.targets.get(value, ()))
