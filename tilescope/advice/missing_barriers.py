"""Find accesses of two warps of a program to one address, one of them a write, with no barrier in between.

The accesses of a program are evaluated again, in order. Those of one warp count as ordered: the hardware executes a
warp's instructions in order, although CUDA does not promise that its lanes stay together.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache

import numpy as np
from numpy import ndarray

from tilescope.advice.experiments import Alternatives, Candidate, TrialRunner
from tilescope.captures.listings import isolate
from tilescope.evaluate.captured import make_evaluator
from tilescope.evaluate.counts import OperationCounts
from tilescope.evaluate.evaluator import Evaluator
from tilescope.evaluate.global_memory import MOST_WORK, PointerAccess
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.sectors import LANES
from tilescope.sass.instructions import parse_sass
from tilescope.sass.registers import analyze
from tilescope.ttgir.graph import reach
from tilescope.ttgir.parser import Op, Site

_VERBS = {"load": "loads", "async copy": "copies", "store": "stores", "atomic": "updates"}
_WRITES = ("store", "atomic")
# Maximum work of the second evaluation, and the recorded elements per unit of it.
_WORK = 1 << 13
_ELEMENTS = 64
# The `share` of a fault.
_FAULT = 2.0

# An execution of an operation: the addresses of its elements, and the threads that access them.
_Access = tuple[Site, list[int], list[int]]
# An address, the threads that access it first and second, and whether the second one writes.
_Conflict = tuple[int, int, int, bool]


@isolate(lambda why, _: [])
def find_missing_barriers(runner: TrialRunner) -> list[Alternatives]:
    """Find accesses of one warp to what another warp of its program writes or reads, with no barrier in between."""
    build = runner.capture.build(runner.launch.kernel)
    ops = [op for op in runner.counts.operations if op.tally.starts]
    pairs = {
        ((writer.op, writer.source), (reader.op, reader.source)): (writer, reader)
        for writer in ops
        for reader in ops
        if writer.op in _WRITES
        and (reader.counter == "ld" or (writer.op, reader.op) == _WRITES)
        and {*writer.tensors} & {*reader.tensors}
    }
    # The warps of partitions do different work, and wait for one another at barriers in shared memory.
    is_partitioned = "ttg.warp_specialize(" in build.codes["ttgir"]
    if not pairs or not build.codes["sass"] or runner.kernel.num_warps == 1 or is_partitioned:
        return []
    _, evaluator = make_evaluator(runner.capture, runner.launch, build)
    first, *_ = pairs.values()
    evaluator.all_programs = first[0].tally.starts[0][0][:1]
    accesses = _record(evaluator, {site for pair in pairs for site in pair})
    separates = _read_order(build.codes["sass"])
    findings = list[Alternatives]()
    for sites, (writer, reader) in pairs.items():
        own = [access for access in accesses if access[0] in sites]
        if conflict := _find_conflict(own, sites[0], separates):
            ordered = (reader, writer) if conflict[-1] else (writer, reader)
            findings += _explain(runner, evaluator.all_programs[0], conflict, *ordered)
    return findings


def _record(evaluator: Evaluator, sites: Collection[Site]) -> list[_Access]:
    """Evaluate a program. Return its executions of operations at certain sites, in order."""
    memory = evaluator.memory
    accesses = list[_Access]()
    find_users = cache(lambda op: _find_users(evaluator, op))

    def record(access: PointerAccess, members: ndarray) -> None:
        op = access.op
        if op.site not in sites:
            return
        (address,), (active,) = access.lanes(members)
        warp = np.arange(len(active)) * memory.num_warps // len(active)
        if op.name == "tt.load":
            active = active & np.isin(warp, find_users(op))[:, None]
        request, lane = np.nonzero(active)
        steps = np.arange(0, access.instruction.width_bytes, op.element_bytes)
        addresses = np.add.outer(address[request, lane], steps).ravel()
        threads = np.repeat(warp[request] * LANES + lane, len(steps))
        memory.spend(len(addresses) // _ELEMENTS)
        accesses.append((op.site, addresses.tolist(), threads.tolist()))

    memory.spend(MOST_WORK - _WORK)
    memory.on_access = record
    evaluator.keeps_order = True
    evaluator.run()
    return accesses


def _find_users(evaluator: Evaluator, load: Op) -> list[int]:
    """Return the warps that store values computed from a load. Others may load copies without using them."""
    values = evaluator.slice
    names = values.trace_targets(load.results)
    warps = list[int]()
    for op in {op for name in names for user in values.users[name] for op in user.walk()}:
        instruction = evaluator.memory.instructions.get(op)
        if op.traits.kind in _WRITES and isinstance(instruction, MemoryInstruction):
            _, owner = instruction.lanes()
            warps.extend(
                np.flatnonzero(owner.any(axis=1)) * evaluator.memory.num_warps // len(owner)
            )
    return warps


def _read_order(sass: str) -> Callable[[Site, Site], bool]:
    """Return a function that decides whether each path from one site to another one passes a barrier."""
    code = parse_sass(sass)
    numbers = defaultdict[Site, set[int]](set)
    for number, each in enumerate(code):
        numbers[each.traits.operation, each.source].add(number)
    _, edges, _ = analyze(sass)
    loops = [(low, high) for high, targets in enumerate(edges) for low in targets if low < high]
    # Paths end at barriers, and skip no loop.
    following = [
        [
            target
            for target in edges[number]
            if each.effect != "barrier"
            and not any(number < low and high < target for low, high in loops)
        ]
        for number, each in enumerate(code)
    ]

    @cache
    def separates(first: Site, second: Site) -> bool:
        starts = (after for number in numbers[first] for after in following[number])
        reached = reach(starts, following.__getitem__)
        return first != second and numbers[second].isdisjoint(reached)

    return separates


def _find_conflict(
    accesses: Sequence[_Access], site: Site, separates: Callable[[Site, Site], bool]
) -> _Conflict | None:
    """Return the first conflict of two warps that no barrier separates, otherwise one within a warp, if any.

    Args:
        site: of the writes.
    """
    within = None
    writes = dict[int, int]()
    reads = dict[int, int]()
    last = site
    for current, addresses, threads in accesses:
        if separates(last, current):
            writes.clear()
            reads.clear()
        last = current
        is_write = current == site
        own, others = (writes, reads) if is_write else (reads, writes)
        for address, thread in zip(addresses, threads, strict=True):
            own[address] = thread
            if address in others:
                conflict = address, others[address], thread, is_write
                if others[address] // LANES != thread // LANES:
                    return conflict
                within = within or conflict
    return within


def _explain(
    runner: TrialRunner,
    program: int,
    conflict: _Conflict,
    earlier: OperationCounts,
    later: OperationCounts,
) -> Iterator[Alternatives]:
    address, *threads, _ = conflict
    is_fault = len({thread // LANES for thread in threads}) > 1
    layouts = {op.instruction and op.instruction.layout for op in (earlier, later)}
    if not is_fault and len(layouts) == 1:
        return
    argument = next(each for each in runner.launch.arguments if each.name in later.tensors)
    tensor = argument.own_tensor
    assert tensor
    index = (address - runner.start(argument)) // tensor.element_bytes
    first, second = (f"warp {each // LANES}, lane {each % LANES}" for each in threads)
    does = _VERBS[earlier.op]
    redoes = _VERBS[later.op]
    who = "the same warp"
    details = ". It is correct only because of the layouts that the compiler chose."
    if is_fault:
        who = "another warp of the same program"
        details = (
            f": in program {program}, {second} {redoes} element {index:,}, which {first} {does}."
        )
    text = (
        f"Line {later.source[1]} {redoes} an element of {argument.name} that {who} {does} on line {earlier.source[1]}, "
        f"with no barrier in between{details} Put tl.debug_barrier() between the two."
    )
    kind = "barrier" if is_fault else "unordered"
    yield [Candidate(kind, text, later, share=_FAULT * is_fault)]
