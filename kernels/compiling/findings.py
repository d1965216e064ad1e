"""Find what wastes requests, registers or SMs in a launch, and try changes: compile and count the launch again.

A fact needs no experiment. Advice is a change that was tried and lowers a number without raising another.
"""

import functools
import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from kernels.accesses import vectors
from kernels.compiling.capture_file import (
    Argument,
    Build,
    Capture,
    CapturedKernel,
    CapturedLaunch,
    Finding,
)
from kernels.compiling.captured_counts import LaunchCounts, OperationCounts, count_launch
from kernels.compiling.compile_cost import LANES
from kernels.compiling.listings import UnsupportedOperation
from kernels.compiling.memory import STORAGE_STEP, Example, storage_number
from kernels.compiling.requests import Instruction
from kernels.compiling.ttgir import Op
from kernels.compiling.ttir_edits import Block, Module
from kernels.gpus import GPUS, occupancy
from kernels.sectors import IDEAL, LINE_BYTES, SECTOR_BYTES

# Triton specializes on arguments that are multiples of this, and a lane moves at most this many bytes.
_ALIGNMENT = 16
_WIDEST_BYTES = 16
# Bytes per lane of the narrowest asynchronous copy.
_NARROWEST_COPY_BYTES = 4
# An operation wastes sectors or repeats accesses if its count is at least this multiple of what is needed.
_WASTEFUL = 2
# Repeated accesses are reported if they are at least this part of the launch's sectors.
_LEAST_SHARE = 1 / 16
# Resident warps are reported if registers or shared memory limit them to less than this part of the SM's.
_LOW_OCCUPANCY = 0.25
# Maximum work of counting a launch with changes, in units of `LaunchCounts.work`.
_MOST_WORK = 1 << 17

# Compiles modules: see `capture.recompile`.
Compiler = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any] | None]]
# An operation in all versions of a launch: its place, its kind and its tensors.
Key = tuple[tuple[str, int], str, tuple[str, ...]]


def _keep(module: Module) -> None:
    pass


@dataclass(frozen=True, eq=False)
class Change:
    """A change to try, and what a finding says if it helps.

    Attributes:
        edit: changes the TTIR.
        argument: the argument with its new value, if that changes.
        options: of the compiler that change.
    """

    kind: str
    cause: str
    advice: str
    needs: str = ""
    edit: Callable[[Module], None] = _keep
    argument: Argument | None = None
    options: Mapping[str, int] = field(default_factory=dict)


Trial = tuple[Change, ...]


def find(
    capture: Capture, counts: Callable[[int], LaunchCounts], compiler: Compiler | None = None
) -> Sequence[Sequence[Finding]]:
    """Return the findings about each launch: those in the file or, without any, new ones.

    Args:
        counts: returns the counts of a launch.
        compiler: None to state facts only. With a compiler, the findings are added to the file.
    """
    if capture.findings is not None:
        return capture.findings
    studies: dict[Any, _Study] = {}
    keys = []
    for number, launch in enumerate(capture.content.launches):
        keys.append((launch.kernel, launch.grid, launch.arguments, launch.tuned))
        if keys[-1] not in studies:
            studies[keys[-1]] = _Study(capture, launch, counts(number), compiler is not None)
    running = [(study, task) for study in studies.values() for task in study.tasks()]
    while running:
        wanted = [(study, next(task, None)) for study, task in running]
        running = [pair for pair, (_, trials) in zip(running, wanted, strict=True) if trials is not None]
        _make_trials(capture, compiler, [(study, t) for study, trials in wanted for t in trials or ()])
    for study in studies.values():
        if study.untried:
            study.add(None, "untried", f"{study.untried} changes were not tried: compiling or counting takes too long.")
    findings = [tuple(sorted(studies[key].findings, key=lambda finding: finding.line)) for key in keys]
    if compiler:
        capture.write_findings(findings)
    return findings


def _make_trials(capture: Capture, compiler: Compiler | None, wanted: Sequence[tuple["_Study", Trial]]) -> None:
    """Compile the kernels with changes, each different one once, and count the launches."""
    modules: dict[str, dict[str, Any]] = {}
    users: list[tuple[str, _Study, Trial]] = []
    for study, trial in wanted:
        if trial not in study.outcomes:
            study.outcomes[trial] = None
            if study.module:
                module = study.edit(trial)
                name = repr(module)
                modules[name] = module
                users.append((name, study, trial))
    if not modules or compiler is None:
        return
    major, minor = capture.content.gpu["compute_capability"]
    compiled = compiler({"modules": list(modules.values()), "capability": 10 * major + minor})
    replies = dict(zip(modules, compiled, strict=True))
    for name, study, trial in users:
        reply = replies[name]
        if reply is None or study.work > _MOST_WORK:
            study.untried += 1
        elif reply:
            study.count(trial, reply)


class _Study:
    """The experiments with one launch."""

    def __init__(self, capture: Capture, launch: CapturedLaunch, counts: LaunchCounts, can_try: bool) -> None:
        self.capture = capture
        self.launch = launch
        self.kernel = capture.content.kernels[launch.kernel]
        self.counts = counts
        self.gpu = GPUS.get(str(capture.content.gpu.get("name")))
        self.findings: list[Finding] = []
        self.outcomes: dict[Trial, tuple[CapturedKernel, LaunchCounts] | None] = {(): (self.kernel, counts)}
        self.work = 0
        self.untried = 0
        self._rounded: dict[Any, Change] = {}
        self.ttir = capture.read_code(launch.kernel, "ttir") if can_try else ""

    @functools.cached_property
    def module(self) -> Module | None:
        try:
            return Module(self.ttir) if self.ttir else None
        except UnsupportedOperation:
            return None

    # Trials.

    def edit(self, trial: Trial) -> dict[str, Any]:
        """Return a changed module as `capture.recompile` takes it."""
        module = Module(self.ttir)
        options = dict(self.kernel.options)
        for change in trial:
            change.edit(module)
            options |= change.options
        return {"ttir": "\n".join(module.lines), "options": options}

    def count(self, trial: Trial, reply: Mapping[str, Any]) -> None:
        """Count the launch with a kernel that was compiled again."""
        kernel = TypeAdapter(CapturedKernel).validate_python({**asdict(self.kernel), **reply})
        changed = {change.argument.name: change.argument for change in trial if change.argument}
        arguments = tuple(changed.get(argument.name, argument) for argument in self.launch.arguments)
        launch = replace(self.launch, arguments=arguments)
        counts = count_launch(self.capture, launch, build=Build(kernel, reply["codes"]))
        self.work += counts.work
        self.outcomes[trial] = kernel, counts

    def numbers(self, key: Key | None, trial: Trial = ()) -> dict[str, int]:
        """Return the numbers of an operation or of the whole launch; {} if they are unknown."""
        outcome = self.outcomes.get(trial)
        if outcome is None:
            return {}
        kernel, counts = outcome
        if key is None:
            return self._resources(kernel)
        ops = [op for op in counts.operations if _key(op) == key]
        if not ops or any(op.tally.refused for op in ops):
            return {}
        numbers = {
            "requests": sum(op.requests for op in ops),
            "sectors": sum(op.sectors for op in ops),
        }
        if ops[0].op == "atomic":
            numbers["atom_requests"] = sum(op.requests for op in ops if op.counter == "atom")
        elif any(op.op == "async copy" for op in self.counts.operations):
            numbers["synchronous_requests"] = sum(op.requests for op in ops if op.op == "load")
        return numbers

    def saves(self, key: Key, trial: Trial) -> bool:
        """Return whether a trial lowers a number of an operation, and raises neither another nor the launch's."""
        before, after = self.numbers(key), self.numbers(key, trial)
        if not before or not after:
            return False
        is_lower = all(after[name] <= before[name] for name in before) and after != before
        return is_lower and self._is_cheaper(trial)

    def narrow(self, op: OperationCounts, changes: Sequence[Change]) -> Generator[Sequence[Trial], None, Trial]:
        """Try changes together and then in smaller sets. Return the smallest set that saves as much as all."""
        key, whole = _key(op), tuple(changes)
        if not whole:
            return ()
        yield [whole]
        if not self.saves(key, whole):
            return ()
        for size in range(1, min(3, len(whole))):
            trials = list(combinations(whole, size))
            yield trials
            for trial in trials:
                if self.saves(key, trial) and self.numbers(key, trial) == self.numbers(key, whole):
                    return trial
        return whole

    def tasks(self) -> list[Iterator[Any]]:
        """Return generators that find facts and try changes. Each yields lists of trials and waits for them."""
        return [self._examine_launch(), *map(self._examine, self.counts.by_line())]

    def add(self, op: OperationCounts | None, kind: str, text: str, trial: Trial = (), advice: str = "") -> None:
        key = _key(op) if op else None
        file, line = op.source if op else (Path(self.kernel.file).name, self.kernel.line)
        name = " or ".join(op.tensors) if op else ""

        def join(texts: Iterable[str]) -> str:
            return " ".join(filter(None, dict.fromkeys(texts))).replace("TENSOR", name or "the tensor")

        finding = Finding(
            kind=kind,
            file=file,
            line=line,
            op=op.op if op else "",
            tensor=", ".join(op.tensors) if op else "",
            text=text,
            change=join([advice, *(change.advice for change in trial)]),
            before=self.numbers(key) if trial else {},
            after=self.numbers(key, trial) if trial else {},
            needs=join(change.needs for change in trial),
        )
        self.findings.append(finding)

    # The whole launch.

    def _resources(self, kernel: CapturedKernel) -> dict[str, int]:
        numbers = {name: getattr(kernel, name) for name in ("registers", "spilled_bytes", "shared_bytes")}
        if self.gpu:
            each = occupancy(self.gpu, kernel.num_warps, kernel.registers, kernel.shared_bytes)
            numbers["resident_programs"] = each.programs_per_sm
            numbers["resident_warps"] = each.programs_per_sm * kernel.num_warps
        return numbers

    def _examine_launch(self) -> Iterator[Any]:
        programs = math.prod(self.launch.grid)
        if self.gpu and programs < self.gpu.sms:
            idle = self.gpu.sms - programs
            self.add(None, "grid", f"{idle} of {self.gpu.sms} SMs stay idle, because the grid's size is {programs}.")
        kernel = self.kernel
        resources = self._resources(kernel)
        spilled = kernel.spilled_bytes
        limits: tuple[str, ...] = ()
        if self.gpu and programs > self.gpu.sms:
            each = occupancy(self.gpu, kernel.num_warps, kernel.registers, kernel.shared_bytes)
            if each.occupancy < _LOW_OCCUPANCY:
                limits = tuple({"registers", "shared memory"}.intersection(each.limited_by))
        if not spilled and not limits:
            return
        stages = int(kernel.options.get("num_stages", 1))
        choices = [
            ("num_warps", number) for number in (2 * kernel.num_warps, kernel.num_warps // 2) if 1 <= number <= 16
        ]
        choices += [("num_stages", stages - 1)] if stages > 1 else []
        trials = [(_option(name, value),) for name, value in choices]
        yield trials
        better = [trial for trial in trials if self._is_cheaper(trial)]
        if spilled:
            best = min(better, key=lambda trial: self.numbers(None, trial)["spilled_bytes"], default=())
            text = f"Each thread spills {spilled:,} bytes of registers to memory."
            is_less = self.numbers(None, best)["spilled_bytes"] < spilled
            self.add(None, "spills", text, best if is_less else ())
        else:
            programs = resources["resident_programs"]
            warps = resources["resident_warps"]
            text = f"The {' and '.join(limits)} of a program limit an SM to {programs} programs, {warps} warps."
            best = max(better, key=lambda trial: self.numbers(None, trial)["resident_warps"], default=())
            is_more = self.numbers(None, best)["resident_warps"] > warps
            self.add(None, "occupancy", text, best if is_more else ())

    def _is_cheaper(self, trial: Trial) -> bool:
        """Return whether a trial raises neither the launch's requests and sectors nor its spills."""
        outcome = self.outcomes[trial]
        if not outcome or outcome[0].spilled_bytes > self.kernel.spilled_bytes:
            return False
        return bool((_total(outcome[1]) <= _total(self.counts)).all())

    # One operation.

    def _examine(self, group: Sequence[OperationCounts]) -> Iterator[Any]:
        op = max(group, key=lambda each: each.requests)
        self._check_bounds(op)
        self._check_order(op)
        made = op.instruction
        if not made or not made.layout or not op.tally.example or not self.numbers(_key(op)):
            return
        if op.op == "atomic":
            yield from self._relax(op, made)
            yield from self._explain_waste(op, made, op.tally.example)
            return
        potential = math.prod(made.layout.shape) * made.element_bytes // (LANES << len(made.layout.warp))
        is_narrow = made.width_bytes < min(_WIDEST_BYTES, potential)
        trial: Trial = ()
        if is_narrow:
            width = f"A lane moves {made.width_bytes} bytes per request."
            trial = (yield from self.narrow(op, self._assumptions)) or (yield from self.narrow(op, self._roundings(op)))
        is_wider = trial and self.numbers(_key(op), trial)["requests"] < self.numbers(_key(op))["requests"]
        if is_wider:
            self.add(op, trial[0].kind, " ".join([*(change.cause for change in trial), width]), trial)
        else:
            yield from self._explain_synchronous(group, op, made)
        descending = [each for each in group if each.tally.example and _lane_step(each)[0] < 0]
        if is_narrow and descending:
            text = "Triton combines only ascending addresses of a lane."
            self.add(op, "reversed", f"{_lane_step(descending[0])[1]} {text} {width}")
        elif not is_wider:
            yield from self._explain_waste(op, made, op.tally.example)

    def _check_bounds(self, op: OperationCounts) -> None:
        """State an access outside its tensor, or the overflow that causes it."""
        name = " or ".join(op.tensors) or "memory"
        for overflow in self.counts.overflows:
            if self._is_right_in_64_bits(op):
                size = op.instruction.element_bytes if op.instruction else 1
                limit = 1 << overflow.bits - 1
                text = (
                    f"{overflow.source[0]}:{overflow.source[1]} overflows {overflow.bits} bits: from program "
                    f"{overflow.program:,} on, the value {overflow.value:,} wraps, so the operation accesses other "
                    f"elements. Offsets fit if {name} has at most {limit:,} elements ({limit * size:,} bytes)."
                )
                advice = "Convert a factor with .to(tl.int64). Tried: then no access lies outside."
                self.add(op, "overflow", text, advice=advice)
                return
        if op.tally.outside:
            example, index = op.tally.outside
            made = op.instruction
            lane = _lane_of(made, index) if made else ""
            element = ", ".join(map(str, index)) or "0"
            address = int(example.address[index])
            number = int(storage_number(address))
            start = (number + 1) * STORAGE_STEP + self.capture.content.storages[number].address_bytes
            past = address - start - self.capture.content.storages[number].bytes
            where = f"{past:,} bytes after its end" if past >= 0 else f"{start - address:,} bytes before its start"
            text = f"Program {example.program}{lane}: element ({element}) of the block lies outside {name}, {where}."
            self.add(op, "outside", text)

    def _is_right_in_64_bits(self, op: OperationCounts) -> bool:
        """Return whether an operation that is wrong stays inside its tensor if integers have 64 bits."""
        if not (op.tally.outside or op.tally.refused):
            return False
        ops = [other for other in self._wide_counts.operations if _key(other) == _key(op)]
        return bool(ops) and not any(other.tally.outside or other.tally.refused for other in ops)

    @functools.cached_property
    def _wide_counts(self) -> LaunchCounts:
        """The counts as if 32-bit sums and products had 64 bits. Layouts and widths do not depend on it."""
        kernel, codes = self.capture.build(self.launch.kernel)
        wide = re.sub(
            r"(?m)^.* = arith\.(?:add|sub|mul)i .*$",
            lambda line: line[0].replace("i32", "i64"),
            codes["ttgir"],
        )
        return count_launch(self.capture, self.launch, build=Build(kernel, {**codes, "ttgir": wide}))

    def _check_order(self, op: OperationCounts) -> None:
        """State that the result depends on the order of programs, or on the runs of an autotuner."""
        name, made = " or ".join(op.tensors), op.instruction
        tuned = self.launch.tuned
        if (
            op.op == "atomic"
            and made
            and tuned
            and tuned.restored is not None
            and not {*op.tensors} <= {*tuned.restored}
            and re.search(r"\.(add|xor)\b", made.name)
        ):
            text = (
                f"The autotuner runs the kernel many times, and each run adds to {name} again. "
                f"Pass reset_to_zero=[{', '.join(map(repr, op.tensors))}] to triton.autotune."
            )
            self.add(op, "autotuner", text)
        if op.op == "store" and op.tally.starts and op.tally.example:
            program, start = (np.concatenate(part) for part in zip(*op.tally.starts, strict=True))
            order = np.lexsort((program, start))
            program, start = program[order], start[order]
            shared = np.flatnonzero((start[1:] == start[:-1]) & (program[1:] != program[:-1]))
            if len(shared):
                example = op.tally.example
                places = np.where(example.active, example.address, np.iinfo(np.int64).max)
                index = tuple(int(i) for i in np.unravel_index(int(places.argmin()), places.shape))
                lane = _lane_of(made, index) if made else ""
                first, second = program[shared[0] : shared[0] + 2]
                text = (
                    f"Programs {first} and {second}{lane} store to the same address of {name}: unless both store the "
                    "same value, the result depends on which is last."
                )
                self.add(op, "race", text)

    def _relax(self, op: OperationCounts, made: Instruction) -> Iterator[Any]:
        if op.counter != "atom" or made.swaps or "acq_rel" not in made.name:
            return
        change = Change(
            "ordering",
            "",
            'Pass sem="relaxed".',
            "The result stays the same only if no other program waits for this operation.",
            functools.partial(_edit_operations, op=op, change=Module.relax),
        )
        trial = yield from self.narrow(op, [change])
        if trial:
            text = "Its acq_rel order makes each request wait for an answer and for earlier accesses."
            self.add(op, "ordering", text, trial)

    @functools.cached_property
    def _assumptions(self) -> list[Change]:
        """Changes that let the compiler assume more, without changing a value that the kernel computes."""
        changes = []
        for number, argument in enumerate(self._ttir_arguments):
            name, tensor = argument.name, argument.tensor
            if tensor and (offset := self._address(argument) % _ALIGNMENT):
                aligned = replace(argument, tensor=replace(tensor, offset_bytes=tensor.offset_bytes - offset))
                cause = f"{name} starts {offset} bytes after a multiple of {_ALIGNMENT}."
                edit = functools.partial(Module.declare_divisible, number=number)
                advice = "Copy the view, or start it at an aligned element."
                changes.append(Change("misaligned", cause, advice, "", edit, aligned))
            elif _is_indivisible(argument):
                edit = functools.partial(Module.fix_argument, number=number, value=int(argument.number))
                cause = f"{name} = {argument.value} is not a multiple of {_ALIGNMENT}."
                changes.append(Change("divisibility", cause, f"Declare {name} tl.constexpr.", "", edit))
        if "tt.int_to_ptr" in self.ttir or "!tt.ptr<!tt.ptr" in self.ttir:
            cause = "The compiler does not know the alignment of the addresses in a table."
            needs = "The result stays the same only if all addresses in the table are multiples of 16."
            advice = "Pass them through tl.multiple_of(pointer, 16)."
            changes.append(Change("table", cause, advice, needs, Module.declare_addresses_divisible))
        return changes

    def _roundings(self, op: OperationCounts) -> list[Change]:
        """Changes of sizes that an operation's addresses and mask depend on."""
        changes = [change for change in self._assumptions if change.kind == "misaligned"]
        for number, argument in enumerate(self._ttir_arguments):
            name = argument.name
            if not _is_indivisible(argument) or name not in op.addressed_by | op.masked_by:
                continue
            is_stride = name in op.addressed_by
            value = int(argument.number) + -int(argument.number) % _ALIGNMENT
            cause = f"{name} = {argument.value} is not a multiple of {_ALIGNMENT}."
            advice = f"{'Pad TENSOR, and pass' if is_stride else 'Pass'} {name} = {value}."
            edit = functools.partial(Module.declare_divisible, number=number)
            rounded = replace(argument, value=value)
            change = Change("divisibility", cause, advice, _PADDING_NEEDS, edit, rounded)
            changes.append(self._rounded.setdefault((name, is_stride), change))
        for inner in self._ttir_operations(op):
            for comparison, bound in self._bounds(inner):
                if bound % _ALIGNMENT == 0:
                    continue
                value = bound + -bound % _ALIGNMENT
                edit = functools.partial(Module.set_bound, comparison=comparison, value=value)
                cause = f"The mask's bound {bound} is not a multiple of {_ALIGNMENT}."
                change = Change("mask", cause, f"Round the bound up to {value}.", _PADDING_NEEDS, edit)
                changes.append(self._rounded.setdefault(comparison.line, change))
        return changes

    def _explain_synchronous(
        self, group: Sequence[OperationCounts], op: OperationCounts, made: Instruction
    ) -> Iterator[Any]:
        """State that a load in a loop is not an asynchronous copy, as others are, and try what changes that."""
        copies = {other.source[1] for other in self.counts.operations if other.op == "async copy"}
        is_in_loop = sum(each.tally.executions for each in group) > math.prod(self.launch.grid)
        if op.op != "load" or not copies or not is_in_loop or not self._has_share(op):
            return
        text = "It stays a synchronous load beside the asynchronous copies of line "
        text += ", ".join(map(str, sorted(copies)))
        trial: Trial = ()
        if made.width_bytes < _NARROWEST_COPY_BYTES:
            text += f": a lane has {made.width_bytes} consecutive bytes, and a copy needs {_NARROWEST_COPY_BYTES}"
        elif op.index_line:
            text += f": its addresses come from the load in line {op.index_line}"
            stages = int(self.kernel.options.get("num_stages", 1)) + 1
            trial = yield from self.narrow(op, [_option("num_stages", stages)])
        self.add(op, "synchronous", f"{text}.", trial)

    def _explain_waste(self, op: OperationCounts, made: Instruction, example: Example) -> Iterator[Any]:
        """State that lanes access addresses far apart, or bytes that others load, too, and try a better block."""
        sectors = self.numbers(_key(op))["sectors"]
        ratio = op.sectors / max(1, int(op.tally.counts[IDEAL]))
        excess = f"It touches {ratio:.3g} × its ideal sectors"
        step, sentence = _lane_step(op)
        ratios = _repeats(op)
        repeats = math.prod(ratios.values())
        trial: Trial = ()
        has_mask = any(inner.mask for inner in self._ttir_operations(op))
        if ratio >= _WASTEFUL and op.index_line:
            self.add(op, "scattered", f"{excess}: the load in line {op.index_line} gives its addresses.")
        elif ratio >= _WASTEFUL and abs(step) > made.width_bytes and op.op != "atomic":
            shape = example.address.shape
            steps = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
            if not has_mask or len(shape) == 1:
                block = Block(shape, (1,) * len(shape), steps, 0)
                advice = "Keep TENSOR's elements in the order in which lanes access them, without gaps."
                needs = "All users of TENSOR must expect that order."
                trial = yield from self.narrow(op, self._block_change(op, block, advice, needs))
            text = f"{excess}. {sentence} A lane uses {made.width_bytes}."
            self.add(op, "strided", text, trial)
        elif op.op in ("load", "async copy") and repeats >= _WASTEFUL and self._has_share(op):
            parts = [f"{what} {times:.3g} times" for what, times in ratios.items() if times > 1]
            text = (
                f"In program {example.program}, {' and '.join(parts)}, {repeats:.3g} times in all: "
                f"{sectors:,} sectors, where {round(sectors / repeats):,} suffice."
            )
            fewer = self.kernel.num_warps // round(ratios[_BY_WARPS])
            changes = [_option("num_warps", max(1, fewer))]
            distinct = None if has_mask else _distinct_block(op, made, example)
            if distinct:
                advice = "Load each element once, and repeat it with tl.broadcast_to and tl.reshape."
                changes = self._block_change(op, distinct, advice, "")
            trial = yield from self.narrow(op, changes)
            self.add(op, "repeated", text, trial)
        elif ratio >= _WASTEFUL:
            self.add(op, "scattered", f"{excess}: its lanes access unevenly spaced addresses.")

    def _has_share(self, op: OperationCounts) -> bool:
        return self.numbers(_key(op))["sectors"] >= _LEAST_SHARE * _total(self.counts)[1]

    def _block_change(self, op: OperationCounts, block: Block, advice: str, needs: str) -> list[Change]:
        """Return a change of the addresses of an operation; none if its tensor is not an argument of the TTIR."""
        names = [argument.name for argument in self._ttir_arguments]
        if len(op.tensors) != 1 or op.tensors[0] not in names:
            return []
        number = names.index(op.tensors[0])
        size = op.instruction.element_bytes if op.instruction else 1
        if block.start:
            first = (block.start - self._address(self.launch.arguments[number])) % LINE_BYTES // size
            block = block._replace(start=first)
        access = functools.partial(Module.access_block, argument=number, block=block)
        edit = functools.partial(_edit_operations, op=op, change=access)
        return [Change("block", "", advice, needs, edit)]

    @functools.cached_property
    def _ttir_arguments(self) -> Sequence[Argument]:
        """The arguments, if those of the TTIR correspond to them: it has one for a descriptor and its sizes."""
        arguments = self.launch.arguments
        return arguments if self.module and len(self.module.body.arguments) == len(arguments) else ()

    def _ttir_operations(self, op: OperationCounts) -> Sequence[Op]:
        return self.module.find(op.source, _TTIR_NAMES[op.op]) if self.module else ()

    def _bounds(self, op: Op) -> list[tuple[Op, int]]:
        return self.module.constant_bounds(op) if self.module else []

    def _address(self, argument: Argument) -> int:
        tensor = argument.own_tensor
        assert tensor is not None
        return tensor.offset_bytes + self.capture.content.storages[tensor.storage].address_bytes


_BY_WARPS = "warps load the same sectors"


def _issued(op: OperationCounts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each lane's address in the requests of an example, whether it is active, and each request's warp."""
    made, example = op.instruction, op.tally.example
    assert made is not None
    assert made.layout is not None
    assert example is not None
    lanes = vectors(made.layout, max(1, made.width_bytes // made.element_bytes))
    issued = np.resize(~np.array(made.is_merged or (False,)), len(lanes.element))
    element = lanes.element[issued]
    return example.address.ravel()[element], example.active.ravel()[element], lanes.warp[issued]


def _lane_step(op: OperationCounts) -> tuple[int, str]:
    """Return the bytes from lane to lane, 0 if that varies, and a sentence that says so."""
    address, active, warp = _issued(op)
    first = int(active.sum(axis=1).argmax())
    steps = np.diff(address[first, :8])
    step = int(steps[0]) if (steps == steps[0]).all() else 0
    side = "after" if step > 0 else "before"
    assert op.tally.example is not None
    program = op.tally.example.program
    return step, f"In program {program}, warp {warp[first]}, lane 1 is {abs(step):,} bytes {side} lane 0."


def _repeats(op: OperationCounts) -> dict[str, float]:
    """Return how often lanes of a request, requests of a warp, and warps access the same bytes or sectors."""
    address, active, warp = _issued(op)

    def count_distinct(parts: Iterable[np.ndarray]) -> int:
        return sum(np.unique(part[part >= 0]).size for part in parts)

    sector = np.where(active, address // SECTOR_BYTES, -1)
    per_warp = count_distinct(sector[warp == number] for number in np.unique(warp))
    return {
        "lanes of one request load the same bytes": active.sum() / count_distinct(np.where(active, address, -1)),
        "requests of one warp load each sector": count_distinct(sector) / per_warp,
        _BY_WARPS: per_warp / count_distinct([sector]),
    }


def _option(name: str, value: int) -> Change:
    return Change("option", "", f"Pass {name} = {value}.", options={name: value})


_PADDING_NEEDS = (
    "The result stays the same only if TENSOR has memory for the elements that this adds, "
    "and they change nothing that the kernel computes."
)


def _edit_operations(module: Module, op: OperationCounts, change: Callable[[Module, Op], None]) -> None:
    """Change the operations of the TTIR from which an operation comes."""
    for made in module.find(op.source, _TTIR_NAMES[op.op]):
        change(module, made)


_TTIR_NAMES = {
    "load": ("tt.load",),
    "async copy": ("tt.load",),
    "store": ("tt.store",),
    "atomic": ("tt.atomic_rmw",),
}


def _is_indivisible(argument: Argument) -> bool:
    """Return whether an argument is an integer from which the compiler derives no alignment. It knows the value 1."""
    value = argument.value
    return isinstance(value, int) and not isinstance(value, bool) and value != 1 and value % _ALIGNMENT != 0


def _key(op: OperationCounts) -> Key:
    return op.source, "load" if op.op == "async copy" else op.op, op.tensors


def _total(counts: LaunchCounts) -> np.ndarray:
    """Return the requests and sectors of all operations."""
    return np.array([(op.requests, op.sectors) for op in counts.operations]).reshape(-1, 2).sum(axis=0)


def _lane_of(made: Instruction, index: tuple[int, ...]) -> str:
    """Name the warp and lane that access an element of a block; "" for a scalar."""
    if not made.layout:
        return ""
    single = vectors(made.layout, 1)
    holders = np.argwhere((single.place == np.array(index)[:, None, None]).all(axis=0) & single.owner)
    request, lane = holders[0]
    return f", warp {single.warp[request]}, lane {lane}"


def _distinct_block(op: OperationCounts, made: Instruction, example: Example) -> Block | None:
    """Return the block without its repeated elements if it is regular and lies equally in all programs."""
    address, size = example.address, made.element_bytes
    repeats = []
    for axis, length in enumerate(address.shape):
        lines = np.moveaxis(address, axis, 0)
        each = length
        while each > 1 and not (lines.reshape(-1, each, *lines.shape[1:]) == lines[::each, None]).all():
            each //= 2
        repeats.append(each)
    distinct = address[tuple(slice(None, None, each) for each in repeats)]
    steps = [int(np.diff(distinct, axis=axis).flat[0]) // size if n > 1 else 0 for axis, n in enumerate(distinct.shape)]
    offsets = sum(np.indices(distinct.shape)[axis] * step * size for axis, step in enumerate(steps))
    starts = np.unique(np.concatenate([start for _, start in op.tally.starts]) % LINE_BYTES)
    is_regular = (distinct == distinct.flat[0] + offsets).all() and len(starts) == 1
    if math.prod(repeats) == 1 or not is_regular:
        return None
    return Block(address.shape, tuple(repeats), tuple(steps), int(op.tally.starts[0][1][0]))
