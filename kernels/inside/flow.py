"""Follow values through a kernel's TTGIR."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from kernels.evaluate.ttgir import Op, Region


class Flow:
    """How values pass through a kernel.

    Attributes:
        definitions: the operation that computes each value.
        users: the operations that use it.
        sources, targets: the values from which it derives, and that derive from it.
    """

    def __init__(self, body: Region) -> None:
        self.definitions = dict[str, Op]()
        self.users = defaultdict[str, list[Op]](list)
        self.sources = defaultdict[str, list[str]](list)
        self.targets = defaultdict[str, list[str]](list)
        for op in body.walk():
            self.definitions.update(dict.fromkeys(op.results, op))
            for name in op.operands:
                self.users[name].append(op)
            if op.name.startswith("scf."):
                for names in (op.results, *(region.arguments for region in op.regions)):
                    for values in (op.inits, *(region.yielded for region in op.regions)):
                        self.connect(zip(reversed(names), reversed(values), strict=False))
            else:
                self.connect((name, value) for name in op.results for value in op.operands)

    def connect(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Link pairs of values: the first derives from the second."""
        for name, value in pairs:
            self.sources[name].append(value)
            self.targets[value].append(name)

    def search(
        self,
        values: Iterable[str],
        edges: Mapping[str, Sequence[str]],
        stops: Collection[str],
        without: str = "",
    ) -> list[str]:
        """Return values and those that are linked to them, the nearest first.

        Args:
            stops: names of operations whose results end the search.
            without: a value to leave out.
        """
        found = list(values)
        reached = {*found, without}
        for name in found:
            definition = self.definitions.get(name)
            if definition is None or definition.name not in stops:
                new = [each for each in dict.fromkeys(edges.get(name, ())) if each not in reached]
                reached.update(new)
                found += new
        return found
