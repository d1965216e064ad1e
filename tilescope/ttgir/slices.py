"""Find the values that addresses, masks and control flow depend on, and the loads that ptxas moves."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import pairwise
from typing import TypeVar

from tilescope.ttgir.parser import MEMORY_OPS, Op, Region, Source

Node = TypeVar("Node")


def reach(starts: Iterable[Node], follow: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return the starts and all that they lead to, the nearest first."""
    reached = dict.fromkeys(starts)
    found = list(reached)
    for node in found:
        new = [each for each in dict.fromkeys(follow(node)) if each not in reached]
        reached.update(dict.fromkeys(new))
        found += new
    return found


class Slice:
    """The backward slice of a function: the values that addresses, masks and control flow depend on.

    Building it also sets `has_memory` of each operation.

    Attributes:
        values: names of the values.
        atomics: the results of atomics.
        sunk: the loop or branch for each load that ptxas moves behind its test; None if that is unclear.
        quotients: the results of divisions. Their operands limit a loop or the grid.
        trips: a name for each loop's bounds and step, on which its results depend.
    """

    def __init__(self, body: Region, depths: Mapping[Source, int]) -> None:
        self._sources: dict[str, list[str]] = defaultdict(list)
        self.quotients = set[str]()
        self.trips = set[str]()
        self.atomics = set[str]()
        self._roots: list[str] = []
        self._collect(body)
        self.values = self.reach(self._roots)
        self.sunk = dict(_sunk_loads(body, depths))

    def reach(self, names: Iterable[str], without: Set[str] = frozenset()) -> set[str]:
        """Return the values that the given values depend on, including themselves.

        Args:
            without: values whose operands are left out.
        """
        return set(
            reach(names, lambda name: () if name in without else self._sources.get(name, ()))
        )

    def _collect(self, region: Region) -> bool:
        for op in region.ops:
            inner = [self._collect(inner) for inner in op.regions]
            op.has_memory = op.name in MEMORY_OPS or any(inner)
            self._connect(op)
            if op.name in ("ttng.tensormap_create", "cf.cond_br"):
                self._roots += op.operands
            elif op.name in MEMORY_OPS:
                self._roots += filter(None, (op.operands[0], *op.coordinates, op.mask))
            elif op.has_memory and op.name in ("scf.for", "scf.if"):
                self._roots += op.operands
            elif op.has_memory and op.name == "scf.while":
                self._roots.append(op.regions[0].yielded[0])
        return any(op.has_memory for op in region.ops)

    def _connect(self, op: Op) -> None:
        """Record on which values an operation's results and its regions' arguments depend."""
        sources = self._sources
        last = [inner.yielded for inner in op.regions]
        sources |= {name: list(op.operands) for name in op.results}
        if op.name.startswith("tt.atomic"):
            self.atomics.update(op.results)
        if op.name in ("arith.divsi", "arith.divui", "arith.ceildivsi"):
            self.quotients.update(op.results)
        match op.name:
            case "scf.for":
                low, _, step = op.operands
                induction, *carried = op.regions[0].arguments
                sources |= {
                    name: [low, step, *pair]
                    for name, *pair in zip(carried, op.inits, last[0], strict=True)
                }
                sources[induction] = [low, step]
                # The number of iterations matters for results. Inside, whether the loop runs is needed anyway.
                trips = f"{induction}/trips"
                self.trips.add(trips)
                sources[trips] = op.operands
                sources |= {
                    name: [trips, own] for name, own in zip(op.results, carried, strict=True)
                }
            case "scf.while":
                condition, *passed = last[0]
                pairs = zip(op.regions[0].arguments, op.inits, last[1], strict=True)
                sources |= {name: [condition, *pair] for name, *pair in pairs}
                for names in (op.results, op.regions[1].arguments):
                    sources |= {
                        name: [condition, value] for name, value in zip(names, passed, strict=True)
                    }
            case "scf.if":
                for name, *passed in zip(op.results, *last, strict=True):
                    sources[name] += passed
            case "ttg.warp_specialize":
                for inner in op.regions:
                    sources |= {
                        name: [value]
                        for name, value in zip(inner.arguments, op.operands, strict=False)
                    }
            case "tt.reduce" | "tt.scan":
                for name in op.results:
                    sources[name] += [
                        value for inner in op.regions[0].ops for value in inner.operands
                    ]
            case "ttg.local_load":
                sources[op.results[0]] = op.operands[:1]  # without the token of an earlier copy
            case "ttg.memdesc_index" | "ttg.memdesc_subview":
                # A buffer depends on the indices of its slots
                sources[op.operands[0]] += op.results


def _find_moved(region: Region, depths: Mapping[Source, int]) -> set[Op]:
    """Return the loads directly in a region that more branches skip in the SASS than its other accesses.

    Accesses behind a two-way branch are left out, because either path may skip others.
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
            heights[op] = depths[op.source] - returns
    least = 0 if len(heights) == 1 and region.is_body else min(heights.values(), default=0)
    return {op for op, height in heights.items() if height > least and op.name == "tt.load"}


def _sunk_loads(region: Region, depths: Mapping[Source, int]) -> Iterator[tuple[Op, Op | None]]:
    """Yield each load that ptxas moves behind the test of the only loop or branch that uses it, and the loop or branch.

    Whether ptxas moves it is visible in the SASS. The second operation is None if several loops or branches use a moved
    scalar.
    """
    for op in region.ops:
        for inner in op.regions:
            yield from _sunk_loads(inner, depths)
    moved = _find_moved(region, depths)
    returns = any(op.name == "cf.cond_br" for op in region.ops)
    users: dict[str, set[Op]] = defaultdict(set)
    for op in region.ops:
        for nested in Region([], [op]).walk():
            for name in (*nested.operands, *nested.inits):
                users[name].add(op)
    for load in region.ops:
        is_plain = load.name == "tt.load" and not load.shape and not load.mask
        if load not in moved:
            continue
        derived = list(load.results)
        ends = set[Op]()
        for name in derived:
            for op in users[name]:
                if op.name.startswith(("arith.", "math.")) or op.name in (
                    "tt.splat",
                    "tt.broadcast",
                ):
                    derived += (result for result in op.results if result not in derived)
                else:
                    ends.add(op)
        tests = [
            op
            for op in ends
            if op.name.startswith("scf.") and not {*load.results} & {*op.operands, *op.inits}
        ]
        alternatives = (inner for op in tests if op.name == "scf.if" for inner in op.regions[1:])
        is_in_else = any(
            set(derived) & {*op.operands} for inner in alternatives for op in inner.walk()
        )
        if len(tests) == 1 and not is_in_else:
            yield load, tests[0]
        elif tests and is_plain and not returns:
            yield load, None
