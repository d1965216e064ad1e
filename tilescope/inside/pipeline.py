"""Read from the TTGIR how Triton pipelined each loop, and why it did not pipeline some loads.

Copies for a loop's first steps precede the loop, and those in the loop are for later steps. All have the location of
the load that they replace, so their number says how many steps a copy is ahead. The reasons follow the passes
AssignLatencies and LowerLoops of Triton 3.6 and 3.7.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from tilescope.captures.listings import Location
from tilescope.evaluate.matching import find_instructions
from tilescope.evaluate.sectors import LEAST_COPY_BYTES
from tilescope.inside.layouts import Encodings
from tilescope.inside.report import LoopLoad, Moment, Pipeline, PipelineEvent
from tilescope.ttgir.graph import Graph
from tilescope.ttgir.parser import LOOPS, Op, Region

# Events.
_COPIES = ("copy", "TMA copy")
_LOADS = ("load", *_COPIES)
# ttg.async_wait %token {num = 2 : i32}
# ttng.warp_group_dot_wait %total {pendings = 0 : i32}
_PENDING = re.compile(r"\b(?:num|pendings) = (\d+)")
# ttg.local_alloc : () -> !ttg.memdesc<3x64x32xf16, #shared, #smem, mutable>
_SLOTS = re.compile(r"-> !ttg\.memdesc<(\d+)x")
# } {tt.num_stages = 4 : i32}
_STAGES = re.compile(r"tt\.num_stages = (\d+)")
# ttg.target = "cuda:90"
_CAPABILITY = re.compile(r'ttg\.target = "cuda:(\d+)"')
# ttg.local_alloc %y : (tensor<64x16xbf16, #blocked>) -> !ttg.memdesc<64x16xbf16, #shared, #smem>
_ALLOCATION = re.compile(r"\(tensor<(?:\d+x){2}\w+, (#\w+)>\) -> !ttg\.memdesc<[^,]*, (#\w+),")

# The first compute capability, times ten, for which Triton pipelines loops.
_FIRST_PIPELINED = 80

# Identifies a source operation. All its copies have the same key.
_Key = tuple[str, Location]


def _key(op: Op) -> _Key:
    return op.name, op.location


def _walk(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield the operations with events in the order of the text, without those of inner loops."""
    for op in ops:
        if op.traits.event:
            yield op
        if op.name not in LOOPS:
            yield from _walk(op.inner)


def read_pipelines(
    body: Region, ttgir: str, ptx: str, num_stages: int | None
) -> tuple[Pipeline, ...]:
    """Return the pipeline of each loop with loads or multiplications, in the order of the text.

    Args:
        num_stages: the compiler's option; None if Triton's pipeliner did not compile the kernel, as for Gluon.
    """
    kernel = _Kernel(body, ttgir, ptx, num_stages)
    return tuple(
        loop.describe() for loop in sorted(kernel.loops(body), key=lambda loop: loop.op.line)
    )


def unroll(pipeline: Pipeline, steps: int) -> tuple[Moment, ...]:
    """Return the operations of a loop with the given number of steps, in order, without copies for later steps."""
    moments = list[Moment]()
    flying = list[tuple[int, int]]()
    # The copies of each committed group, and those since the last commit.
    groups = list[list[tuple[int, int]]]()
    copied = list[tuple[int, int]]()
    for at in range(-1, steps + 1):
        phase = "prologue" if at < 0 else "loop" if at < steps else "epilogue"
        for event in pipeline.events:
            if event.phase != phase:
                continue
            step = event.step + max(at, 0)
            arrived = list[tuple[int, int]]()
            if event.kind == "commit":
                groups.append(copied)
                copied = []
                continue
            if event.kind == "wait" and event.pending is not None:
                last = max(0, len(groups) - event.pending)
                arrived = list(chain.from_iterable(groups[:last]))
                groups = groups[last:]
            elif event.kind == "wait":
                arrived = [each for each in flying if each[0] in event.loads and each[1] <= step]
            elif step >= steps:
                continue
            slot = None
            if event.kind in ("copy", "TMA copy"):
                load = event.loads[0]
                flying.append((load, step))
                slot = step % pipeline.loads[load].slots
                if event.kind == "copy":
                    copied.append((load, step))
            flying = [each for each in flying if each not in arrived]
            moments.append(Moment(event, at, step, slot, len(flying), tuple(arrived)))
    return tuple(moments)


class _Kernel:
    """Facts about a kernel's values.

    Attributes:
        loaded: the results of loads and copies.
        capability: the compute capability for which it is compiled, times ten.
        claimed: lines of the TTGIR in prologues and epilogues of inner loops.
    """

    def __init__(self, body: Region, ttgir: str, ptx: str, num_stages: int | None) -> None:
        self.graph = Graph(body)
        is_specialized = False
        for op in body.walk():
            is_specialized |= op.name == "ttg.warp_specialize"
            if op.traits.event in _COPIES:  # it produces the values that are read from its buffer
                copy = f"copy {op.line}"
                self.graph.definitions[copy] = op
                self.graph.connect(self.buffer(op.destination), copy)
        definitions = self.graph.definitions.items()
        self.loaded = {value for value, op in definitions if op.traits.event in _LOADS}
        self.num_stages = None if is_specialized else num_stages
        target = _CAPABILITY.search(ttgir)
        self.capability = int(target[1]) if target else _FIRST_PIPELINED
        self.ptx = ptx
        self.encodings = Encodings(ttgir)
        self.claimed = set[int]()

    def loops(self, region: Region) -> Iterator["_Loop"]:
        """Yield the loops in a region that load or multiply, inner loops first."""
        for op in region.ops:
            for inner in op.regions:
                yield from self.loops(inner)
        places = [place for place, op in enumerate(region.ops) if op.name in LOOPS]
        for start, place, end in zip([-1, *places], places, [*places[1:], None], strict=False):
            loop = _Loop(
                self, region.ops[place], region.ops[start + 1 : place], region.ops[place + 1 : end]
            )
            if any(op.traits.event in (*_LOADS, "multiplication") for op in loop.inside):
                yield loop

    def buffer(self, value: str) -> str:
        """Return the value that allocates the shared memory of a view."""
        while (op := self.graph.definitions.get(value)) and op.name.startswith("ttg.memdesc_"):
            value = op.operands[0]
        return value

    def buffers(self, op: Op) -> set[str]:
        """Return the allocations of shared memory, with those of barriers, that an operation uses."""
        return set(map(self.buffer, op.operands))


class _Loop:
    """A loop and its copies.

    Attributes:
        inside, before, after: the operations of its body, prologue and epilogue.
        ahead: how many steps each operation in the loop runs ahead.
        loads: its loads and copies.
        has_own_stages: whether the loop sets num_stages.
        stages: num_stages of the loop or the kernel; None if Triton's pipeliner did not compile it.
    """

    def __init__(self, kernel: _Kernel, op: Op, before: Sequence[Op], after: Sequence[Op]) -> None:
        self.kernel = kernel
        self.op = op
        inside = _walk(op.inner)
        self.inside = [each for each in inside if each.line not in kernel.claimed]
        counts = Counter(map(_key, self.inside))
        self.before = [each for each in _walk(before) if _key(each) in counts]
        self.after = [
            each
            for each in _walk(after)
            if _key(each) in counts
            or (each.traits.event.endswith("wait") and each.source == op.source)
        ]
        kernel.claimed.update(each.line for each in (*self.before, *self.after))
        copies = Counter(map(_key, self.before))
        self.ahead = {key: copies[key] // counts[key] for key in counts}
        loads = sorted(
            (each for each in self.inside if each.traits.event in _LOADS),
            key=lambda each: each.location,
        )
        self.loads = {_key(each): each for each in loads}
        own = _STAGES.search(op.text)
        self.has_own_stages = own is not None
        self.stages = int(own[1]) if own and kernel.num_stages else kernel.num_stages

    def describe(self) -> Pipeline:
        counts = Counter(map(_key, self.inside))
        seen = Counter[_Key]()
        events = list[PipelineEvent]()
        for op in self.before:
            events.append(self.event(op, "prologue", seen[_key(op)] // counts[_key(op)]))
            seen[_key(op)] += 1
        events += [self.event(op, "loop", self.ahead[_key(op)]) for op in self.inside]
        events += [self.event(op, "epilogue", -1) for op in self.after]
        loads = tuple(map(self.load, self.loads.values()))
        return Pipeline(*self.op.place, self.stages, loads, tuple(events))

    def event(self, op: Op, phase: str, step: int) -> PipelineEvent:
        kind = op.traits.event
        loads = [number for number, key in enumerate(self.loads) if key == _key(op)]
        if op.name == "ttng.wait_barrier":
            barrier = self.kernel.buffer(op.operands[0])
            loads = [
                number
                for number, load in enumerate(self.loads.values())
                if barrier in self.kernel.buffers(load)
            ]
            # The barrier of a multiplication on Blackwell may be an argument of the loop.
            if not loads and any(each.name == "ttng.tc_gen5_mma" for each in self.inside):
                kind = "multiplication wait"
        pending = _PENDING.search(op.text) if op.traits.event.endswith("wait") else None
        left = int(pending[1]) if pending else None
        return PipelineEvent(kind, *op.place, phase, step, tuple(loads), left)

    def load(self, op: Op) -> LoopLoad:
        """Return how far ahead a load runs, or why it is not pipelined."""
        slots = 0
        ahead = self.ahead[_key(op)]
        if op.traits.event in _COPIES:
            buffer = self.kernel.buffer(op.destination)
            allocation = self.kernel.graph.definitions.get(buffer)
            match = (
                _SLOTS.search(allocation.text) if allocation and op.destination != buffer else None
            )
            slots = int(match[1]) if match else 1
            readers = (
                each
                for each in self.inside
                if each.traits.event not in _COPIES and buffer in self.kernel.buffers(each)
            )
            ahead -= min((self.ahead[_key(reader)] for reader in readers), default=0)
        elif any(user.name != "scf.yield" for user in self.kernel.graph.users[op.results[0]]):
            ahead = 0  # its value is used in the same step
        return LoopLoad(*op.place, ahead, slots, "" if ahead else self.explain(op))

    def explain(self, op: Op) -> str:
        """Return why a load is not pipelined; "" if the reason is uncertain."""
        line = op.place[1]
        body = self.op.regions[-1]
        if self.kernel.num_stages is None:
            return ""
        if self.kernel.capability < _FIRST_PIPELINED:
            return "Triton pipelines no loop for GPUs before compute capability 8.0."
        if self.op.name == "scf.while":
            return f"Line {line} is in a while loop, which Triton does not pipeline."
        if any(each.name in LOOPS for each in body.ops):
            return f"Line {line} is in an outer loop. Triton pipelines only the innermost loop."
        if self.stages == 1:
            return f"With num_stages = 1, line {line} waits for its load in every step."
        if not any(self.ahead.values()) and set(body.yielded) & set(body.arguments[1:]):
            return f"The loop uses a value from two steps earlier, so Triton does not pipeline line {line}."
        if op not in body.ops:
            return f"Line {line} is inside an if, where Triton does not pipeline loads."
        return self.explain_width(op, line) or self.explain_use(op, line)

    def explain_width(self, op: Op, line: int) -> str:
        if op.name != "tt.load":
            return ""
        if not op.shape:
            return f"Line {line} loads a scalar. Triton pipelines only loads of blocks."
        accesses = find_instructions(self.kernel.ptx).get(("load", op.location), ())
        width = max((each.width_bytes for each in accesses), default=LEAST_COPY_BYTES)
        if width < LEAST_COPY_BYTES:
            return (
                f"Each lane loads only {width} B at a time on line {line}. "
                f"An asynchronous copy needs at least {LEAST_COPY_BYTES} B."
            )
        for user in self.kernel.graph.users[op.results[0]]:
            if allocation := _ALLOCATION.search(user.text):
                block, shared = map(self.kernel.encodings.expand, allocation.groups())
                turned = "[1" if "transposed = true" in shared else "[0"
                is_turned = block.startswith("#ttg.blocked") and f"order = {turned}" in block
                if is_turned and op.element_bytes < LEAST_COPY_BYTES:
                    return (
                        f"The multiplication needs the block loaded on line {line} transposed, which takes a copy per "
                        f"element. An asynchronous copy needs at least {LEAST_COPY_BYTES} B."
                    )
        return ""

    def explain_use(self, op: Op, line: int) -> str:
        feeding = self.find_feeding()
        if _key(op) not in feeding:
            if self.has_own_stages:
                return ""
            return (
                f"No tl.dot in the loop uses the block loaded on line {line}. "
                "To pipeline such loads, pass num_stages to tl.range."
            )
        distance, users = feeding[_key(op)]
        loads = [self.load(user) for user in users if user in self.op.regions[-1].ops]
        if len(loads) < len(users):
            return ""  # it also feeds a multiplication
        if all(load.why for load in loads):
            return f"Line {line} loads addresses for line {loads[0].line}, which is not pipelined."
        if self.stages is not None and distance >= self.stages - 1:
            return (
                f"Line {line} loads addresses for line {loads[0].line}, which already uses "
                f"num_stages = {self.stages}. Set num_stages = {distance + 2} to pipeline both."
            )
        return ""

    def find_feeding(self) -> dict[_Key, tuple[int, list[Op | None]]]:
        """Return the loads that feed multiplications, each with the number of loads in between and its users.

        A user is a load, or None for a multiplication. If the loop sets num_stages, other operations count as well.
        """
        graph = self.kernel.graph
        feeding = dict[_Key, tuple[int, list[Op | None]]]()
        queue = list[tuple[Op | None, int, Sequence[str]]]()
        for op in self.op.regions[-1].ops:
            if op.traits.event == "multiplication":
                queue.append((None, 0, op.operands[:2]))
            elif self.has_own_stages and op.traits.event not in _LOADS:
                queue.append((None, 0, op.operands))
        for user, distance, values in queue:
            for value in graph.trace_sources(values, self.kernel.loaded):
                load = graph.definitions.get(value)
                if load and _key(load) in self.loads:
                    key = _key(load)
                    if key not in feeding:
                        feeding[key] = (distance, [])
                        queue.append((self.loads[key], distance + 1, self.loads[key].operands))
                    feeding[key][1].append(user)
        return feeding
