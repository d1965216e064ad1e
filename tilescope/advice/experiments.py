"""Try changes to a launch: edit its kernel's TTIR or options, compile that, and count the launch again."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from tilescope.advice.same_work import (
    count_elements,
    find_races,
    find_refusals,
    find_same,
    place_of,
    total,
)
from tilescope.advice.ttir_edits import Module
from tilescope.captures.content import TIME, Argument, CapturedKernel, CapturedLaunch
from tilescope.captures.listings import UnsupportedOperation, isolate
from tilescope.captures.reader import Build, Capture
from tilescope.declare.gpus import ALL_GPUS
from tilescope.evaluate.captured import count_launch, find_start
from tilescope.evaluate.counts import LaunchCounts, OperationCounts, sum_costs
from tilescope.inside.execution import Executions, execute
from tilescope.inside.inspect import add_executions
from tilescope.inside.report import Inside
from tilescope.inside.shared import fit_kernel
from tilescope.inside.threads import make_launch
from tilescope.sass.instructions import parse_sass
from tilescope.timing.launches import predict_us
from tilescope.ttgir.parser import Op

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
_KERNEL_TYPE = TypeAdapter(CapturedKernel)
# Bank conflicts are reported if they are at least this fraction of the launch's wavefronts.
_LEAST_CONFLICTS = 0.2

# Compiles modules: see `record/compiled.recompile`.
Compiler = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any] | None]]
# Numbers of an operation or of the whole launch.
Numbers = Mapping[str, int]
# A place for the name of an operation's tensor in sentences. It is no name in Python.
TENSOR = "{tensor}"


@dataclass(frozen=True)
class Change:
    """A change of a kernel, of an option or of an argument.

    Attributes:
        advice: the change in the user's terms, with TENSOR for the name of the operation's tensor.
        kind: of the finding that advises it, unless the candidate has a kind.
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

    advice: str
    kind: str = ""
    cause: str = ""
    needs: str = ""
    edits: tuple[tuple[Any, ...], ...] = ()
    argument: Argument | None = None
    options: tuple[tuple[str, int], ...] = ()
    repeats: int = 1
    pads: tuple[str, ...] = ()
    is_equivalent: bool = False
    moves: bool = False


class Trial(tuple[Change, ...]):
    """Changes that are tried together; none for the captured kernel."""

    @property
    def advice(self) -> str:
        return " ".join(change.advice for change in self)

    @property
    def options(self) -> dict[str, int]:
        return dict(option for change in self for option in change.options)

    @property
    def is_equivalent(self) -> bool:
        return all(change.is_equivalent for change in self)


UNCHANGED = Trial()


def pass_options(options: Mapping[str, int]) -> Trial:
    return Trial(
        Change(f"Set {name} = {value}.", options=((name, value),), is_equivalent=True)
        for name, value in options.items()
    )


@dataclass(eq=False)
class Candidate:
    """A fact about an operation or, without one, about the launch, and changes that may help.

    Attributes:
        source: (file, line) of the fact, unless it is about an operation on global memory.
        trials: alternatives. The first that saves time is advised.
        is_fact: whether it is worth reporting if no change helps.
        cost: what a change must lower. See also `Attempt.helps`.
        share: the part of the launch's cost that the fact explains, or more than 1 if results are wrong.
        proof: the changes that are necessary and help, which proves their causes.
        is_advised: whether they also save time, or no time is predicted.
    """

    kind: str
    text: str
    op: OperationCounts | None = None
    trials: Sequence[Trial] = ()
    is_fact: bool = True
    cost: Callable[[Numbers], int] = lambda numbers: sum(numbers.values())
    source: tuple[str, int] | None = None
    share: float = 0.0
    proof: Trial = UNCHANGED
    is_advised: bool = False


# The first that saves time is reported or, if none does, the first that helps or is a fact.
Alternatives = Sequence[Candidate]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of a trial: the changed launch and its counts.

    Attributes:
        inside: the inspection of the captured SASS; None if the kernel was compiled again.
    """

    capture: Capture
    launch: CapturedLaunch
    build: Build
    counts: LaunchCounts
    inside: Inside | None

    @cached_property
    def executions(self) -> Executions | None:
        """The executions of a kernel that was compiled again; None if they are unknown."""
        if not self.inside:
            with suppress(UnsupportedOperation):
                given = make_launch(self.capture, self.launch, self.counts, self.build)
                return execute(parse_sass(self.build.codes["sass"]), given)
        return None

    @cached_property
    def shared(self) -> Numbers:
        """The launch's wavefronts; {} if they are unknown."""
        inside = self.inside
        if self.executions:
            sass = self.build.codes["sass"]
            inside = add_executions(Inside(), sass, self.executions, self.counts)
        if not inside or inside.not_executed or inside.bank_conflicts is None:
            return {}
        wavefronts = inside.shared_wavefronts or 0
        return {"shared_wavefronts": wavefronts, "bank_conflicts": inside.bank_conflicts}


class TrialRunner:
    """A launch, and the trials that were made with it.

    Attributes:
        seconds: the time of all equal launches.
        place: the file and line of the kernel.
        choices: the facts about the launch, and the trials to make.
        outcomes: of each trial; None if the counts are unknown.
        has_conflicts: whether many of the launch's wavefronts are bank conflicts.
        untried: trials that would take too long.
        trial_s: the estimated seconds of a trial.
    """

    def __init__(
        self,
        capture: Capture,
        launch: CapturedLaunch,
        counts: LaunchCounts,
        inside: Inside,
        repeats: int,
    ) -> None:
        self.capture = capture
        self.launch = launch
        self.counts = counts
        self.inside = inside
        self.gpu = ALL_GPUS.get(str(capture.content.gpu.get("name")))
        self.ttir = capture.read_code(launch.kernel, "ttir")
        # Without a predicted time, a rough estimate.
        launch_s = (inside.predicted_us or 0.0) / 1e6 or _SECTOR_S * (1 + total(counts)[1])
        self.seconds = repeats * launch_s
        self.kernel = capture.content.kernels[launch.kernel]
        self.place = Path(self.kernel.file).name, self.kernel.line
        self.num_stages = int(self.kernel.options.get("num_stages", 1))
        unchanged = Outcome(capture, launch, Build(self.kernel, {}), counts, inside)
        self.choices: list[Alternatives] = []
        self.outcomes: dict[Trial, Outcome | None] = {UNCHANGED: unchanged}
        self._times: dict[Trial, tuple[Numbers, Numbers]] = {}
        shared = unchanged.shared
        wavefronts = shared.get("shared_wavefronts", 0)
        conflicts = shared.get("bank_conflicts", 0)
        self.has_conflicts = conflicts > 0 and conflicts >= _LEAST_CONFLICTS * wavefronts
        self.untried: list[Trial] = []
        lines = capture.read_code(launch.kernel, "sass").count("\n")
        self.trial_s = _TRIAL_S + _LINE_S * lines + _WORK_S * counts.work

    @cached_property
    def module(self) -> Module:
        return Module(self.ttir)

    @cached_property
    def arguments(self) -> dict[int, Argument]:
        """The launch's arguments by their numbers in the TTIR; {} if it has one for a descriptor and its sizes."""
        arguments = self.launch.arguments
        is_same = len(self.module.body.arguments) == len(arguments)
        return dict(enumerate(arguments)) if is_same else {}

    def find_owner(self, op: OperationCounts) -> int | None:
        """Return the number of the argument that an operation accesses; None if it is unknown."""
        return next((n for n, each in self.arguments.items() if (each.name,) == op.tensors), None)

    def share(self, wasted: float) -> float:
        """Return wasted requests and sectors as a part of the launch's."""
        return wasted / max(1, total(self.counts).sum())

    def find(self, op: OperationCounts) -> list[Op]:
        """Return the operations of the TTIR from which an operation comes."""
        return self.module.find(op.source, op.op)

    def start(self, argument: Argument) -> int:
        """Return the address of a tensor's first byte: see `global_memory.STORAGE_STEP`."""
        tensor = argument.own_tensor
        assert tensor is not None
        return find_start(self.capture, tensor)

    @isolate(lambda why, *_: {"ttir": "", "options": {}})
    def edit(self, trial: Trial) -> dict[str, Any]:
        """Return a changed module as `capture.recompile` takes it."""
        module = Module(self.ttir)
        for change in trial:
            for method, *arguments in change.edits:
                method(module, *arguments)
        return {
            "ttir": "\n".join(module.lines),
            "options": {**self.kernel.options, **trial.options},
        }

    @isolate(lambda why, *_: None)
    def count(self, trial: Trial, reply: Mapping[str, Any] | None) -> None:
        """Count the launch with a kernel that was compiled again."""
        if reply is None:
            self.untried.append(trial)
        self.outcomes[trial] = None
        if reply:
            kernel = _KERNEL_TYPE.validate_python({**asdict(self.kernel), **reply})
            self.count_build(trial, Build(kernel, reply["codes"]))

    def count_build(self, trial: Trial, build: Build, inside: Inside | None = None) -> None:
        """Count the launch with other code. See `Outcome.inside`."""
        changed = {change.argument.name: change.argument for change in trial if change.argument}
        arguments = tuple(changed.get(each.name, each) for each in self.launch.arguments)
        launch = replace(self.launch, arguments=arguments)
        counts = count_launch(self.capture, launch, build=build)
        self.outcomes[trial] = Outcome(self.capture, launch, build, counts, inside)

    def numbers(self, op: OperationCounts | None, trial: Trial = UNCHANGED) -> dict[str, int]:
        """Return the numbers of an operation or of the whole launch; {} if they are unknown."""
        outcome = self.outcomes.get(trial)
        if outcome is None:
            return {}
        if op is None:
            shared = outcome.shared if self.has_conflicts else {}
            return {**shared, **self._resources(outcome.build.kernel)}
        ops = find_same(op, outcome.counts)
        # The compiler may drop an operation whose values another one also loads.
        is_known = bool(ops) or (trial.is_equivalent and not outcome.counts.refused)
        if not is_known or any(each.tally.refused for each in ops):
            return {}
        cost = sum_costs(ops)
        numbers = {"requests": cost.requests, "sectors": cost.sectors}
        if op.op == "atomic":
            numbers["atom_requests"] = sum(each.requests for each in ops if each.counter == "atom")
        elif any(each.op == "async copy" for each in self.counts.operations):
            loads = (each.requests for each in ops if each.op == "load")
            numbers["synchronous_requests"] = sum(loads)
        return numbers

    def _resources(self, kernel: CapturedKernel) -> dict[str, int]:
        names = ("registers", "spilled_bytes", "shared_bytes", "tensor_columns")
        numbers = {name: getattr(kernel, name) for name in names}
        if self.gpu:
            each = fit_kernel(self.gpu, kernel)
            numbers["resident_programs"] = each.programs_per_sm
            numbers["resident_warps"] = each.programs_per_sm * kernel.num_warps
        return numbers

    @isolate(lambda why, *_: ({}, {}))
    def compare_times(self, trial: Trial) -> tuple[Numbers, Numbers]:
        """Return the predicted times without and with changes; {} for both if one is unknown."""
        if trial not in self._times:
            self._times[trial] = {}, {}
            before_us = self.inside.predicted_us
            outcome = self.outcomes[trial]
            if before_us and outcome and outcome.executions:
                counts = self._restore_blocks(trial, outcome.counts)
                with suppress(UnsupportedOperation):
                    after_us = predict_us(
                        self.capture, outcome.launch, counts, outcome.executions, outcome.build
                    )
                    before, after = ({TIME: round(1e3 * us)} for us in (before_us, after_us))
                    self._times[trial] = before, after
        return self._times[trial]

    def _restore_blocks(self, trial: Trial, counts: LaunchCounts) -> LaunchCounts:
        """Let operations that were moved touch their original blocks, which programs share as before."""
        lines = {edit[1] for change in trial if change.moves for edit in change.edits}
        moved = {op.source for op in self.module.loops if op.line in lines}

        def restore(op: OperationCounts) -> OperationCounts:
            touches = [each.tally.touches for each in find_same(op, self.counts)]
            if not touches or op.source not in moved:
                return op
            most = max(touches, key=lambda each: each.bytes)
            own = replace(most, bytes=op.tally.touches.bytes)
            return replace(op, tally=replace(op.tally, touches=own, loads=[]))

        return replace(counts, operations=tuple(map(restore, counts.operations)))


class Attempt(NamedTuple):
    """A trial that may help a candidate."""

    runner: TrialRunner
    candidate: Candidate
    trial: Trial

    @property
    @isolate(lambda why, *_: False)
    def helps(self) -> bool:
        """Whether the trial lowers the cost of the same work.

        It must not raise the launch's requests, sectors or spills. Each line must access as many elements as before,
        because masks, loops or programs that do less work lower any cost. No two programs may store to an address that
        only one stored to before.
        """
        runner, candidate, trial = self
        before = runner.numbers(candidate.op)
        after = runner.numbers(candidate.op, trial)
        outcome = runner.outcomes[trial]
        if not outcome or not before or not after:
            return False
        counts = outcome.counts
        elements = count_elements(counts)
        if op := candidate.op:
            elements[place_of(op)] *= math.prod(change.repeats for change in trial)
        return (
            candidate.cost(after) < candidate.cost(before)
            and (trial.is_equivalent or not count_elements(runner.counts) - elements)
            and find_races(counts).keys() <= find_races(runner.counts).keys()
            and find_refusals(counts) <= find_refusals(runner.counts)
            and not (total(counts) > total(runner.counts)).any()
            and outcome.build.kernel.spilled_bytes <= runner.kernel.spilled_bytes
        )

    @property
    def saves_time(self) -> bool:
        """Whether the predicted time does not rise, or is unknown.

        Only a shorter time is a reason to change options and constants.
        """
        before, after = self.runner.compare_times(self.trial)
        saving = _RESOLUTION if self.trial.is_equivalent else 0.0
        return not after or after[TIME] <= (1 - saving) * before[TIME]

    @property
    def cost(self) -> int:
        return self.candidate.cost(self.runner.numbers(self.candidate.op, self.trial))

    @property
    def gain(self) -> float:
        """The seconds that the fact costs."""
        return self.runner.seconds * self.candidate.share

    @property
    def seconds(self) -> float:
        """The estimated seconds. A trial of several changes is repeated without each of them."""
        runs = 1 + len(self.trial) * (len(self.trial) > 1)
        return runs * self.runner.trial_s * (self.trial not in self.runner.outcomes)


def make_trials(compiler: Compiler, runners: Iterable[TrialRunner], most_seconds: float) -> None:
    """Make the trials of each choice until one saves time, the most promising first, while time is left.

    Then drop each change that is not needed.

    Args:
        most_seconds: estimated, on one core.
    """
    groups = (
        [
            Attempt(runner, candidate, trial)
            for candidate in alternatives
            for trial in candidate.trials
            if trial
        ]
        for runner in runners
        if runner.ttir
        for alternatives in runner.choices
    )
    queue = list(enumerate(filter(None, groups)))
    helpful: list[Attempt] = []
    count = len(queue)
    while queue:
        _show_progress(count - len(queue), count)
        queue.sort(key=lambda each: (-each[1][0].gain, each[0]))
        batch = queue[:_BATCH]
        del queue[:_BATCH]
        affordable = []
        for _, rest in batch:
            attempt = rest.pop(0)
            if attempt.seconds <= most_seconds:
                most_seconds -= attempt.seconds
                affordable.append((attempt, rest))
            else:
                attempt.runner.untried.append(attempt.trial)
        run_trials(compiler, [attempt for attempt, _ in affordable])
        for attempt, rest in affordable:
            if attempt.helps:
                helpful.append(attempt)
                if attempt.saves_time:
                    rest.clear()
        queue += [(number, rest) for number, rest in batch if rest]
    if count:
        _show_progress(count, count)
    for attempt in _drop_changes(compiler, helpful):
        candidate = attempt.candidate
        is_advised = attempt.saves_time
        if not candidate.proof or (is_advised and not candidate.is_advised):
            candidate.proof = attempt.trial
            candidate.is_advised = is_advised


def _show_progress(done: int, count: int) -> None:
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"Trying changes: {done} of {count}", end=end, file=sys.stderr, flush=True)


def _drop_changes(compiler: Compiler, helpful: list[Attempt]) -> list[Attempt]:
    """Drop the changes without which a trial helps as much."""
    for dropped in zip_longest(*(attempt.trial for attempt in helpful)):
        shorter = [
            attempt._replace(trial=Trial(each for each in attempt.trial if each != change))
            for attempt, change in zip(helpful, dropped, strict=True)
        ]
        run_trials(compiler, shorter)
        helpful = [
            fewer if fewer.helps and fewer.cost <= attempt.cost else attempt
            for attempt, fewer in zip(helpful, shorter, strict=True)
        ]
    return helpful


def run_trials(compiler: Compiler, attempts: Iterable[Attempt]) -> None:
    """Compile the kernels with changes, and count the launches."""
    trials = dict.fromkeys((runner, trial) for runner, _, trial in attempts)
    new = [pair for pair in trials if pair[1] not in pair[0].outcomes]
    if not new:
        return
    modules = [runner.edit(trial) for runner, trial in new]
    texts = [json.dumps(module, sort_keys=True) for module in modules]
    distinct = dict(zip(texts, modules, strict=True))  # launches of a kernel share changes
    request = {"modules": [*distinct.values()], "capability": new[0][0].capture.content.capability}
    replies = dict(zip(distinct, compiler(request), strict=True))
    for (runner, trial), text in zip(new, texts, strict=True):
        runner.count(trial, replies[text])
