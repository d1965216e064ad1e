"""Follow values through a function's operations: to what addresses, masks and control flow depend on."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import pairwise, product
from typing import TypeVar

from tilescope.ttgir.parser import COPIES, MEMORY_OPS, Op, Region, Source

Node = TypeVar("Node")
# The start of the names of operations on values, which need no memory.
_COMPUTED = ("arith.", "math.", "tt.splat", "tt.broadcast")
# Operations that write values to a buffer in shared memory.
_BUFFER_WRITES = ("ttg.async_copy_global_to_local", "ttg.local_store")
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


def depend(op: Op) -> Links:
    """Link values to those that they depend on, with the conditions of branches and the bounds of loops."""
    if op.name not in ("scf.while", "ttg.local_load"):
        yield from derive(op)
    match op.name:
        case "scf.for":
            low, _, step = op.operands
            # The number of iterations matters for results. Inside, whether the loop runs is needed anyway.
            trips = _name_trips(op)
            arguments = op.regions[0].arguments
            yield from product(arguments, (low, step))
            yield from product([trips], op.operands)
            yield from product(op.results, [trips])
            yield from zip(op.results, arguments[1:], strict=True)
        case "scf.while":
            before, after = op.regions
            condition, *passed = before.yielded
            yield from product((*before.arguments, *op.results, *after.arguments), [condition])
            for values in (op.inits, after.yielded):
                yield from zip(before.arguments, values, strict=True)
            for names in (op.results, after.arguments):
                yield from zip(names, passed, strict=True)
        case "scf.if":
            yield from product(op.results, op.operands)
        case "tt.reduce" | "tt.scan":
            for inner in op.inner:
                yield from product(op.results, inner.operands)
        case "ttg.local_load":
            yield op.results[0], op.operands[0]  # without the token of an earlier copy
        case "ttg.memdesc_index":
            yield op.operands[0], op.results[0]  # a buffer depends on the indices of its slots


def _name_trips(loop: Op) -> str:
    return f"{loop.regions[0].arguments[0]}/trips"


class Slice(Graph):
    """A function's values and their dependencies, with the slice on which addresses, masks and control flow depend.

    Attributes:
        values: names of the values.
        atomics: the results of atomics.
        sunk: the loop or branch for each load that ptxas moves behind its test; None if that is unclear.
        quotients: the results of divisions. Their operands limit a loop or the grid.
        trips: a name for each loop's bounds and step, on which its results depend.
    """

    def __init__(self, body: Region, depths: Mapping[Source, int]) -> None:
        super().__init__(body, depend)
        self.atomics = self.find_results(("tt.atomic_rmw", "tt.atomic_cas"))
        self.quotients = self.find_results(("arith.divsi", "arith.divui", "arith.ceildivsi"))
        self.trips = {_name_trips(op) for op in body.walk() if op.name == "scf.for"}
        self.values = self.reach(value for op in body.walk() for value in _find_roots(op))
        self.sunk = dict(_sunk_loads(body, depths))

    def reach(self, names: Iterable[str], without: Collection[str] = ()) -> set[str]:
        """Return the values that the given values depend on, including themselves.

        Args:
            without: values whose operands are left out.
        """
        return set(self.trace_sources(names, without))

    def keeps_state(self, body: Region) -> bool:
        """Return whether an iteration of a loop may use a descriptor or a buffer that an earlier one wrote."""
        return any(
            op.name == "ttng.tensormap_create"
            or (op.name in _BUFFER_WRITES and op.destination in self.values)
            for op in body.walk()
        )

    def find_stored_constant(self, pointer: str) -> Op | None:
        """Return the constant that the kernel stores at a scalar pointer; None if it stores none, or several values."""
        stores = (
            op
            for op in self.users[pointer]
            if op.name == "tt.store" or (op.name == "tt.atomic_rmw" and "exch" in op.text)
        )
        values = {op.operands[1] for op in stores if op.operands[0] == pointer}
        ops = self.definitions.values()
        constants = (op for op in ops if op.name == "arith.constant" and values == {*op.results})
        return next(constants, None)


def _find_roots(op: Op) -> Iterable[str]:
    """Return the operands on which the addresses, the mask or the control flow of an operation depend."""
    if op.name in ("ttng.tensormap_create", "cf.cond_br"):
        return op.operands
    if op.name in MEMORY_OPS:
        return filter(None, (op.operands[0], *op.coordinates, op.mask))
    if op.name == "scf.while" and op.has_memory:
        return op.regions[0].yielded[:1]
    return op.operands if op.name in ("scf.for", "scf.if") and op.has_memory else ()


def _find_moved(region: Region, depths: Mapping[Source, int]) -> set[Op]:
    """Return the loads directly in a region that more branches skip in the SASS than its other accesses.

    Accesses behind a two-way branch are left out, because either path may skip others. Loads of a number without a mask
    are compared with the code itself: all other accesses may be behind the test for the thread that stores.
    """
    exits = {block.text for block, first in pairwise(region.ops) if first.name == "tt.return"}
    heights = dict[Op, int]()
    returns = 0
    for op in region.ops:
        if op.name == "cf.cond_br":
            if exits.isdisjoint(label for label, _ in op.targets):
                break
            returns += 1
        elif op.name in ("tt.load", "tt.store") and op.source in depths:
            heights[op] = max(0, depths[op.source] - returns)
    least = 0 if len(heights) == 1 and region.is_body else min(heights.values(), default=0)
    return {
        op
        for op, height in heights.items()
        if op.name == "tt.load" and height > (0 if region.is_body and _is_plain(op) else least)
    }


def _is_plain(load: Op) -> bool:
    return not (load.shape or load.mask)


def _sunk_loads(region: Region, depths: Mapping[Source, int]) -> Iterator[tuple[Op, Op | None]]:
    """Yield each load that ptxas moves behind the test of the only loop or branch that uses it, and the loop or branch.

    Whether ptxas moves it is visible in the SASS. The second operation is None for another moved number.
    """
    for op in region.ops:
        for inner in op.regions:
            yield from _sunk_loads(inner, depths)
    moved = _find_moved(region, depths)
    users = defaultdict[str, set[Op]](set)
    passed = {*region.yielded}
    for op in region.ops:
        for _, names in op.targets:
            passed.update(names)
        for nested in op.walk():
            for name in nested.uses:
                users[name].add(op)

    def compute(name: str) -> Iterator[str]:
        return (each for op in users[name] if op.name.startswith(_COMPUTED) for each in op.results)

    for load in region.ops:
        if load not in moved:
            continue
        derived = {*reach(load.results, compute)}
        tests = {op for name in derived for op in users[name] if not op.name.startswith(_COMPUTED)}
        # A loop passes the values that it starts with, and the evaluator skips loops and branches without accesses.
        is_free = derived.isdisjoint(passed) and all(
            op.regions and op.has_memory and derived.isdisjoint(op.uses) for op in tests
        )
        is_in_else = any(
            derived & {*inner.uses, *nested.yielded}
            for op in tests
            if op.name == "scf.if"
            for region in op.regions[1:]
            for inner in region.walk()
            for nested in (region, *inner.regions)
        )
        if len(tests) == 1 and is_free and not is_in_else:
            yield load, tests.pop()
        elif _is_plain(load):
            yield load, None
