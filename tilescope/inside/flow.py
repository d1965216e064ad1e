"""Follow values through a kernel's TTGIR."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tilescope.ttgir.parser import Op, Region
from tilescope.ttgir.slices import reach


def pass_values(op: Op) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a loop or a branch: a result or an argument, and a value that may become it."""
    # A loop's counter, or its condition, comes first.
    for names in (op.results, *(region.arguments for region in op.regions)):
        for values in (op.inits, *(region.yielded for region in op.regions)):
            yield from zip(reversed(names), reversed(values), strict=False)


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
                self.connect(pass_values(op))
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

        def follow(name: str) -> list[str]:
            definition = self.definitions.get(name)
            if definition and definition.name in stops:
                return []
            return [each for each in edges.get(name, ()) if each != without]

        return reach(values, follow)
