"""Try changes to a launch: edit its kernel's TTIR, compile that, and count the launch again."""

import heapq
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from tilescope.advice.ttir_edits import Module
from tilescope.captures.listings import UnsupportedOperation, isolate
from tilescope.captures.reader import TIME, Argument, Build, Capture, CapturedKernel, CapturedLaunch
from tilescope.declare.gpus import GPUS, occupancy
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.counts import LaunchCounts, OperationCounts
from tilescope.evaluate.global_memory import STORAGE_STEP
from tilescope.evaluate.ttgir import Op
from tilescope.inside.execution import Executions, execute
from tilescope.inside.inspect import add_executions
from tilescope.inside.launches import make_launch
from tilescope.inside.report import Inside
from tilescope.sass.listing import parse as parse_sass
from tilescope.timing.launches import predict_us

# Estimated seconds on one core for the changes of a script: two idle cores take at most 15 s.
MOST_SECONDS = 20.0
# Seconds that a change takes: in any case, per line of SASS, and per unit of `LaunchCounts.work`.
_TRIAL_S = 0.4
_LINE_S = 0.6e-3
_WORK_S = 20e-6
# Seconds per sector, to rank launches without a predicted time.
_SECTOR_S = 1e-11
# Predicted times that differ by a smaller fraction may differ only in the number of simulated steps.
_RESOLUTION = 0.01
# Changes that are compiled at the same time.
_BATCH = 8
_LOADS = ("load", "async copy")
_KERNEL_TYPE = TypeAdapter(CapturedKernel)

# Bank conflicts are reported if they are at least this fraction of the launch's wavefronts.
_LEAST_CONFLICTS = 0.2


# Compiles modules: see `capture.recompile`.
Compiler = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any] | None]]
# Numbers of an operation or of the whole launch.
Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Change:
    """A change of a kernel or of its arguments.

    Attributes:
        kind: of the finding that advises it.
        advice: the change in the user's terms.
        cause: the fact that it changes; "" if the finding states it.
        needs: what must hold for the kernel's result to stay the same.
        edits: methods of `Module`, each with its arguments.
        argument: the argument with its new value.
        options: of the compiler, with their new values.
        repeats: how many elements of the block get the value of each element that is still accessed.
        pads: the tensors that need memory for the elements that the change adds.
        is_equivalent: whether it changes no kernel's behaviour.
        moves: whether its edits replace addresses by those of a block somewhere else.
    """

    kind: str
    advice: str
    cause: str = ""
    needs: str = ""
    edits: tuple[tuple[Any, ...], ...] = ()
    argument: Argument | None = None
    options: tuple[tuple[str, int], ...] = ()
    repeats: int = 1
    pads: tuple[str, ...] = ()
    is_equivalent: bool = False
    moves: bool = False


Trial = tuple[Change, ...]


@dataclass(eq=False)
class Hypothesis:
    """A fact about an operation or, without one, about the launch, and changes that may help.

    Attributes:
        source: (file, line) of the fact, unless it is about an operation on global memory.
        changes: are tried together.
        is_fact: whether it is worth reporting if no change helps.
        cost: what a change must lower. See also `Lab.helps`.
        share: the part of the launch's cost that the fact explains, or more than 1 if results are wrong.
        trial: the changes that are necessary and help, which proves their causes.
        is_advised: whether they also save time, or no time is predicted.
    """

    kind: str
    op: OperationCounts | None
    text: str
    changes: Trial = ()
    is_fact: bool = True
    cost: Callable[[Numbers], int] = lambda numbers: sum(numbers.values())
    trial: Trial = ()
    is_advised: bool = False
    source: tuple[str, int] | None = None
    share: float = 0.0


# Alternatives: the first that saves time is reported or, if none does, the first that helps or is a fact.
Choice = Sequence[Hypothesis]


def try_option(kind: str, name: str, value: int) -> Change:
    advice = f"Pass {name} = {value}."
    return Change(kind, advice, options=((name, value),), is_equivalent=True)


class Lab:
    """A launch, and the trials that were made with it.

    Attributes:
        outcomes: the kernel and the counts of each trial; None if they are unknown.
        has_conflicts: whether many of the launch's wavefronts are bank conflicts.
        conversions: through shared memory, between a load and a store.
        untried: trials that would take too long.
        trial_s: the estimated seconds of a trial.
    """

    def __init__(
        self, capture: Capture, launch: CapturedLaunch, counts: LaunchCounts, inside: Inside
    ) -> None:
        self.capture = capture
        self.launch = launch
        self.kernel = capture.content.kernels[launch.kernel]
        self.counts = counts
        self.inside = inside
        self.gpu = GPUS.get(str(capture.content.gpu.get("name")))
        self.ttir = capture.read_code(launch.kernel, "ttir")
        self.outcomes: dict[Trial, tuple[CapturedKernel, LaunchCounts] | None] = {
            (): (self.kernel, counts)
        }
        self._builds: dict[Trial, tuple[CapturedLaunch, Build]] = {}
        self._executions: dict[Trial, Executions | None] = {}
        self._times: dict[Trial, tuple[Numbers, Numbers]] = {}
        shared = _count_shared(inside)
        wavefronts = shared.get("shared_wavefronts", 0)
        conflicts = shared.get("bank_conflicts", 0)
        self.has_conflicts = conflicts > 0 and conflicts >= _LEAST_CONFLICTS * wavefronts
        self.conversions = [
            each
            for each in inside.conversions
            if each.shared_bytes and each.maker[:8] == "the load" and each.user[:9] == "the store"
        ]
        self.untried: list[Trial] = []
        lines = capture.read_code(launch.kernel, "sass").count("\n")
        self.trial_s = _TRIAL_S + _LINE_S * lines + _WORK_S * counts.work

    @property
    def seconds(self) -> float:
        """The predicted time or, if it is unknown, a rough estimate."""
        return (self.inside.predicted_us or 0.0) / 1e6 or _SECTOR_S * (1 + total(self.counts)[1])

    @cached_property
    def module(self) -> Module:
        return Module(self.ttir)

    @property
    def has_shared_costs(self) -> bool:
        """Whether trials must count wavefronts."""
        return self.has_conflicts or bool(self.conversions and _count_shared(self.inside))

    def find(self, op: OperationCounts) -> list[Op]:
        """Return the operations of the TTIR from which an operation comes."""
        return self.module.find(op.source, op.op)

    def start(self, argument: Argument) -> int:
        """Return the address of a tensor's first byte: see `global_memory.STORAGE_STEP`."""
        tensor = argument.own_tensor
        assert tensor is not None
        storage = self.capture.content.storages[tensor.storage]
        return (tensor.storage + 1) * STORAGE_STEP + storage.address_bytes + tensor.offset_bytes

    @isolate(lambda why, *_: {"ttir": "", "options": {}})
    def edit(self, trial: Trial) -> dict[str, Any]:
        """Return a changed module as `capture.recompile` takes it."""
        module = Module(self.ttir)
        options = dict(self.kernel.options)
        for change in trial:
            options |= change.options
            for method, *arguments in change.edits:
                method(module, *arguments)
        return {"ttir": "\n".join(module.lines), "options": options}

    @isolate(lambda why, *_: None)
    def count(self, trial: Trial, reply: Mapping[str, Any] | None) -> None:
        """Count the launch with a kernel that was compiled again."""
        if reply is None:
            self.untried.append(trial)
        self.outcomes[trial] = None
        if reply:
            built = {**asdict(self.kernel), **reply}
            kernel = _KERNEL_TYPE.validate_python(built)
            changed = {change.argument.name: change.argument for change in trial if change.argument}
            arguments = tuple(changed.get(each.name, each) for each in self.launch.arguments)
            launch = replace(self.launch, arguments=arguments)
            build = Build(kernel, reply["codes"])
            counts = count_launch(self.capture, launch, build=build)
            self.outcomes[trial] = kernel, counts
            self._builds[trial] = launch, build

    def numbers(self, op: OperationCounts | None, trial: Trial = ()) -> dict[str, int]:
        """Return the numbers of an operation or of the whole launch; {} if they are unknown."""
        outcome = self.outcomes.get(trial)
        if outcome is None:
            return {}
        kernel, counts = outcome
        if op is None:
            shared = self._count_shared(trial) if self.has_shared_costs else {}
            return {**shared, **self._resources(kernel)}
        ops = find_same(op, counts)
        # The compiler may drop an operation whose values another one also loads.
        is_known = bool(ops) or (_is_equivalent(trial) and not counts.refused)
        if not is_known or any(each.tally.refused for each in ops):
            return {}

        numbers = {
            "requests": sum(each.requests for each in ops),
            "sectors": sum(each.sectors for each in ops),
        }
        if op.op == "atomic":
            numbers["atom_requests"] = sum(each.requests for each in ops if each.counter == "atom")
        elif any(each.op == "async copy" for each in self.counts.operations):
            loads = (each.requests for each in ops if each.op == "load")
            numbers["synchronous_requests"] = sum(loads)
        return numbers

    def _execute(self, trial: Trial) -> Executions | None:
        """Execute a kernel that was compiled again. Return None if its executions are unknown."""
        if trial not in self._executions:
            launch, build = self._builds[trial]
            code = parse_sass(build.codes["sass"])
            self._executions[trial] = None
            with suppress(UnsupportedOperation):
                given = make_launch(self.capture, launch, build)
                self._executions[trial] = execute(code, given)
        return self._executions[trial]

    def _count_shared(self, trial: Trial) -> Numbers:
        """Count the wavefronts of a launch; {} if they are unknown."""
        if not trial:
            return _count_shared(self.inside)
        outcome = self.outcomes[trial]
        executions = self._execute(trial)
        if not outcome or not executions:
            return {}
        sass = self._builds[trial][1].codes["sass"]
        return _count_shared(add_executions(Inside(), sass, executions, outcome[1]))

    @isolate(lambda why, *_: ({}, {}))
    def compare_times(self, trial: Trial) -> tuple[Numbers, Numbers]:
        """Return the predicted times without and with changes; {} for both if one is unknown."""
        if trial not in self._times:
            self._times[trial] = {}, {}
            outcome = self.outcomes[trial]
            before_us = self.inside.predicted_us
            executions = self._execute(trial) if trial in self._builds else None
            if before_us and outcome and executions:
                counts = self._restore_blocks(trial, outcome[1])
                launch, build = self._builds[trial]
                with suppress(UnsupportedOperation):
                    after_us = predict_us(self.capture, launch, counts, executions, build)
                    times = (round(1e3 * each) for each in (before_us, after_us))
                    before, after = ({TIME: each} for each in times)
                    self._times[trial] = before, after
        return self._times[trial]

    def _restore_blocks(self, trial: Trial, counts: LaunchCounts) -> LaunchCounts:
        """Let operations that were moved touch their original blocks, which programs share as before."""
        lines = {edit[1] for change in trial if change.moves for edit in change.edits}
        moved = {op.source for op in self.module.loops if op.line in lines}
        operations = []
        for op in counts.operations:
            same = find_same(op, self.counts) if op.source in moved else []
            if same:
                blocks = max((each.tally.touches for each in same), key=lambda each: each.bytes)
                touches = replace(blocks, bytes=op.tally.touches.bytes)
                op = replace(op, tally=replace(op.tally, touches=touches, loads=[]))
            operations.append(op)
        return replace(counts, operations=tuple(operations))

    def _resources(self, kernel: CapturedKernel) -> dict[str, int]:
        names = ("registers", "spilled_bytes", "shared_bytes")
        numbers = {name: getattr(kernel, name) for name in names}
        if self.gpu:
            each = occupancy(self.gpu, kernel.num_warps, kernel.registers, kernel.shared_bytes)
            numbers["resident_programs"] = each.programs_per_sm
            numbers["resident_warps"] = each.programs_per_sm * kernel.num_warps
        return numbers

    @isolate(lambda why, *_: False)
    def helps(self, hypothesis: Hypothesis, trial: Trial) -> bool:
        """Return whether changes lower the cost of the same work.

        They must not raise the launch's requests, sectors or spills. Each line must access as many elements as before,
        because masks, loops or programs that do less work lower any cost. No two programs may store to an address that
        only one stored to before.
        """
        before = self.numbers(hypothesis.op)
        after = self.numbers(hypothesis.op, trial)
        outcome = self.outcomes[trial]
        if not outcome or not before or not after:
            return False
        kernel, counts = outcome
        elements = count_elements(counts)
        if op := hypothesis.op:
            elements[place_of(op)] *= math.prod(change.repeats for change in trial)
        is_dearer = (total(counts) > total(self.counts)).any()
        has_spills = kernel.spilled_bytes > self.kernel.spilled_bytes
        is_better = hypothesis.cost(after) < hypothesis.cost(before)
        has_same_work = _is_equivalent(trial) or not count_elements(self.counts) - elements
        is_safe = find_races(counts).keys() <= find_races(self.counts).keys()
        is_counted = find_refusals(counts) <= find_refusals(self.counts)
        is_valid = has_same_work and is_safe and is_counted
        return is_better and is_valid and not is_dearer and not has_spills

    def saves_time(self, trial: Trial) -> bool:
        """Return whether the predicted time does not rise, or is unknown.

        Only a shorter time is a reason to change options and constants.
        """
        before, after = self.compare_times(trial)
        saving = _RESOLUTION if _is_equivalent(trial) else 0.0
        return not after or after[TIME] <= (1 - saving) * before[TIME]


def _count_shared(inside: Inside) -> dict[str, int]:
    """Return the wavefronts of a launch; {} if they are unknown."""
    conflicts = [each.conflicts for each in inside.shared]
    if inside.not_executed or None in conflicts:
        return {}
    return {
        "shared_wavefronts": sum(each.wavefronts or 0 for each in inside.shared),
        "bank_conflicts": sum(filter(None, conflicts)),
    }


def _is_equivalent(trial: Trial) -> bool:
    return all(change.is_equivalent for change in trial)


def place_of(op: OperationCounts) -> tuple[str, tuple[str, int]]:
    kind = _LOADS[0] if op.op in _LOADS else op.op
    return kind, op.source


def count_elements(counts: LaunchCounts) -> Counter[tuple[str, tuple[str, int]]]:
    """Return how many elements the operations of each kind on each line access."""
    elements = Counter[tuple[str, tuple[str, int]]]()
    for op in counts.operations:
        elements[place_of(op)] += op.tally.elements
    return elements


def find_races(counts: LaunchCounts) -> dict[tuple[str, tuple[str, int]], tuple[int, int]]:
    """Return the lines with stores by which two programs write to one address, and the programs."""
    parts: dict[tuple[str, tuple[str, int]], list[tuple[np.ndarray, ...]]] = {}
    for op in counts.operations:
        if op.op == "store" and op.instruction:
            size = op.instruction.element_bytes
            for (program, low), (length, elements) in zip(
                op.tally.starts, op.tally.spans, strict=True
            ):
                # If a block has gaps, only its first address is compared.
                is_whole = length == (elements - 1) * size
                part = program, low, np.where(is_whole, length, 0), is_whole
                parts.setdefault(place_of(op), []).append(part)
    races = {}
    for place, own in parts.items():
        program, low, length, is_whole = map(np.concatenate, zip(*own, strict=True))
        order = np.lexsort((program, low))
        program = program[order]
        low = low[order]
        is_whole = is_whole[order]
        end = low + length[order]
        meets = (low[1:] == low[:-1]) | (is_whole[1:] & (low[1:] <= end[:-1]))
        pairs = np.flatnonzero(meets & (program[1:] != program[:-1]))
        if pairs.size:
            races[place] = int(program[pairs[0]]), int(program[pairs[0] + 1])
    return races


def find_refusals(counts: LaunchCounts) -> set[tuple[str, tuple[str, int]] | None]:
    """Return the operations whose counts are incomplete or bounds; None is the launch."""
    refused = (place_of(op) for op in counts.operations if op.tally.refused)
    return {*refused, *([None] if counts.refused else [])}


def find_same(op: OperationCounts, counts: LaunchCounts) -> list[OperationCounts]:
    """Return the operations of a changed launch that correspond to one of the launch."""
    candidates = (each for each in counts.operations if place_of(each) == place_of(op))
    return [each for each in candidates if op.tensors in ((), each.tensors)]


def total(counts: LaunchCounts) -> np.ndarray:
    """Return the requests and sectors of all operations."""
    return sum((np.array([op.requests, op.sectors]) for op in counts.operations), np.zeros(2, int))


def make_trials(
    compiler: Compiler,
    choices: Mapping[Lab, Sequence[Choice]],
    seconds: Mapping[Lab, float],
    most_seconds: float,
) -> None:
    """Try the hypotheses of each choice until one helps, the most promising first, while time is left.

    Then drop each change that is not needed.

    Args:
        seconds: that all launches of each kind take.
        most_seconds: estimated, on one core.
    """
    queue: list[tuple[float, int, Lab, list[Hypothesis]]] = []

    def add(lab: Lab, number: int, rest: list[Hypothesis]) -> None:
        heapq.heappush(queue, (-seconds[lab] * rest[0].share, number, lab, rest))

    for lab, own in choices.items():
        for choice in own:
            if lab.ttir and (hypotheses := [each for each in choice if each.changes]):
                add(lab, len(queue), hypotheses)
    helpful: list[tuple[Lab, Hypothesis]] = []
    left_s = most_seconds
    count = len(queue)
    while queue:
        end = "\r" if sys.stderr.isatty() else "\n"
        progress = f"Trying changes: {count - len(queue)} of {count}"
        print(progress, end=end, file=sys.stderr, flush=True)
        batch = [heapq.heappop(queue)[1:] for _ in range(min(_BATCH, len(queue)))]
        affordable = []
        for _, lab, rest in batch:
            each = rest.pop(0)
            # A trial of several changes is repeated without each of them.
            runs = 1 + len(each.changes) * (len(each.changes) > 1)
            work_s = runs * lab.trial_s * (each.changes not in lab.outcomes)
            if work_s <= left_s:
                left_s -= work_s
                affordable.append((lab, each, rest))
            else:
                lab.untried.append(each.changes)
        run_trials(compiler, [(lab, each.changes) for lab, each, _ in affordable])
        for lab, each, rest in affordable:
            if lab.helps(each, each.changes):
                each.trial = each.changes
                helpful.append((lab, each))
                if lab.saves_time(each.trial):
                    rest.clear()
        for number, lab, rest in batch:
            if rest:
                add(lab, number, rest)
    for number in range(max((len(each.changes) for _, each in helpful), default=0)):
        shorter = []
        for lab, each in helpful:
            left_out = each.changes[number : number + 1]
            fewer = tuple(change for change in each.trial if change not in left_out)
            if fewer:
                shorter.append((lab, each, fewer))
        run_trials(compiler, [(lab, fewer) for lab, _, fewer in shorter])
        for lab, each, fewer in shorter:
            if lab.helps(each, fewer):
                costs = [each.cost(lab.numbers(each.op, trial)) for trial in (fewer, each.trial)]
                if costs[0] <= costs[1]:
                    each.trial = fewer
    for lab, each in helpful:
        each.is_advised = lab.saves_time(each.trial)


def run_trials(compiler: Compiler, trials: Sequence[tuple[Lab, Trial]]) -> None:
    """Compile the kernels with changes, and count the launches."""
    new = [pair for pair in dict.fromkeys(trials) if pair[1] not in pair[0].outcomes]
    if not new:
        return
    major, minor = new[0][0].capture.content.gpu["compute_capability"]
    modules = [lab.edit(trial) for lab, trial in new]
    texts = [json.dumps(module, sort_keys=True) for module in modules]
    distinct = dict(zip(texts, modules, strict=True))  # launches of a kernel share changes
    request = {"modules": [*distinct.values()], "capability": 10 * major + minor}
    replies = dict(zip(distinct, compiler(request), strict=True))
    for (lab, trial), text in zip(new, texts, strict=True):
        lab.count(trial, replies[text])
