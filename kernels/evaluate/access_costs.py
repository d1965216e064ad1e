"""Explain what memory operations cost: narrow requests, order, gaps, and bytes that are loaded repeatedly."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kernels.evaluate.counts import OperationCounts, sum_costs
from kernels.evaluate.experiments import (
    Change,
    Choice,
    Hypothesis,
    Lab,
    Numbers,
    find_same,
    total,
    try_option,
)
from kernels.evaluate.ttgir import Slice
from kernels.evaluate.ttir_edits import Module
from kernels.instructions import Instruction
from kernels.sectors import LANES, SECTOR_BYTES

# Triton specializes on arguments that are multiples of this, and a lane moves at most as many bytes.
_ALIGNMENT = 16
# Bytes per lane of the narrowest asynchronous copy.
_NARROWEST_COPY_BYTES = 4
# An operation is wasteful if its count is at least this multiple of what is needed.
_WASTEFUL = 2
# Repeated accesses are reported if they are at least this part of the launch's sectors.
_LEAST_SHARE = 1 / 16
_PADDING_NEEDS = (
    "The result stays the same only if TENSOR has memory for the extra elements, "
    "and they do not change what the kernel computes."
)


_ALIGN_TABLE = Change(
    "table",
    "Pass them through tl.multiple_of(pointer, 16).",
    "The compiler does not know the alignment of the addresses in a table.",
    "The result stays the same only if all addresses in the table are multiples of 16.",
    ((Module.declare_addresses_divisible,),),
)


def explain_costs(lab: Lab) -> Iterator[Choice]:
    strided: dict[tuple[str, ...], list[Hypothesis]] = {}
    for group in lab.counts.by_line():
        op = max(group, key=lambda each: each.requests)
        if not op.instruction or not op.instruction.layout or not lab.numbers(op):
            continue
        if not op.tally.example:
            continue
        access = Access(lab, op, op.instruction)
        wider = access.widen() if access.is_narrow else ()
        waste = access.explain_waste()
        yield [*wider, *access.explain_synchronous()]
        yield [*wider, *waste]
        yield access.relax()
        for each in waste:
            if each.kind == "strided" and each.changes:
                strided.setdefault(op.tensors, []).append(each)
    for hypotheses in strided.values():  # a new order of a tensor's elements changes all of them
        edits = tuple(edit for each in hypotheses for edit in each.changes[0].edits)
        for each in hypotheses:
            each.changes = (replace(each.changes[0], edits=edits),)


class Access:
    """A memory operation on a block, and an example of its addresses.

    Attributes:
        address, active: (requests, lanes), each lane's first byte, and whether its mask is true.
        warp: (requests,), the warp of each.
    """

    def __init__(self, lab: Lab, op: OperationCounts, made: Instruction) -> None:
        self.lab = lab
        self.op = op
        self.made = made
        example = op.tally.example
        assert example is not None
        assert made.layout is not None
        self.layout = made.layout
        self.example = example
        lanes = made.vectors
        issued = np.resize(~np.array(made.is_merged or (False,)), len(lanes.element))
        self.address = example.address.ravel()[lanes.element[issued]]
        self.active = example.active.ravel()[lanes.element[issued]]
        self.warp = lanes.warp[issued]
        arguments = lab.launch.arguments
        # The TTIR has one argument for a descriptor and its sizes.
        is_same = len(lab.module.body.arguments) == len(arguments)
        self.arguments = dict(enumerate(arguments)) if is_same else {}
        in_bytes = math.prod(made.layout.shape) * made.element_bytes
        per_lane = in_bytes // (LANES << len(made.layout.warp))
        self.is_narrow = made.width_bytes < min(_ALIGNMENT, per_lane) and op.op != "atomic"

    def has_share(self) -> bool:
        return self.lab.numbers(self.op)["sectors"] >= _LEAST_SHARE * total(self.lab.counts)[1]

    def widen(self) -> Choice:
        """Let the compiler know more about the arguments; otherwise, pad them."""
        op = self.op
        known = []
        padded = []
        for number, argument in self.arguments.items():
            name = argument.name
            value = argument.value
            cause = f"{name} = {value} is not a multiple of {_ALIGNMENT}."
            is_divisible = (Module.declare_divisible, number)
            if argument.tensor and (offset := self.lab.start(argument) % _ALIGNMENT):
                start = argument.tensor.offset_bytes - offset
                cause = f"{name} starts {count_bytes(offset)} after a multiple of {_ALIGNMENT}."
                advice = "Copy the view, or start it at an aligned element."
                aligned = replace(argument, tensor=replace(argument.tensor, offset_bytes=start))
                known.append(Change("misaligned", advice, cause, "", (is_divisible,), aligned))
            elif type(value) is int and value != 1 and value % _ALIGNMENT:
                edit = (Module.fix_argument, number, value)
                advice = f"Declare {name} as tl.constexpr."
                known.append(Change("divisibility", advice, cause, "", (edit,)))
                if name in op.addressed_by | op.masked_by:
                    verb = "Pad TENSOR, and pass" if name in op.addressed_by else "Pass"
                    rounded = replace(argument, value=_round_up(value))
                    advice = f"{verb} {name} = {rounded.value}."
                    edits = (is_divisible,)
                    change = Change("divisibility", advice, cause, _PADDING_NEEDS, edits, rounded)
                    padded.append(change)
        if op.index_line and re.search(r"tt\.int_to_ptr|!tt\.ptr<!tt\.ptr", self.lab.ttir):
            known.append(_ALIGN_TABLE)
        text = f"A lane moves {count_bytes(op.width_bytes)} per request."
        fact = Hypothesis("", op, text, is_fact=False, cost=_count_requests)
        padded += self._round_bounds()
        return [replace(fact, changes=tuple(changes)) for changes in (known, padded)]

    def _round_bounds(self) -> Iterator[Change]:
        for line, bound in self.lab.module.mask_bounds(self.lab.find(self.op)).items():
            if bound % _ALIGNMENT:
                cause = f"The mask's bound {bound} is not a multiple of {_ALIGNMENT}."
                advice = f"Round the bound up to {_round_up(bound)}."
                edit = (Module.set_bound, line, _round_up(bound))
                yield Change("mask", advice, cause, _PADDING_NEEDS, (edit,))

    def relax(self) -> Choice:
        made = self.made
        if self.op.counter != "atom" or made.swaps or "acq_rel" not in made.instruction:
            return []
        change = Change(
            "ordering",
            'Pass sem="relaxed".',
            needs="The result stays the same only if no other program synchronizes on this operation.",
            edits=tuple((Module.relax, each.line) for each in self.lab.find(self.op)),
        )
        text = "With acq_rel ordering, each request waits for its result and for earlier accesses."
        return [Hypothesis("ordering", self.op, text, (change,), is_fact=False)]

    def explain_synchronous(self) -> Choice:
        """State why a load in a loop is not an asynchronous copy, as others are."""
        op = self.op
        copies = {each.source[1] for each in self.lab.counts.operations if each.op == "async copy"}
        is_in_loop = op.tally.executions > math.prod(self.lab.launch.grid)
        if op.op != "load" or not copies or not is_in_loop:
            return []
        body = self.lab.module.body
        inputs = Slice(body, {})
        own = {name for each in self.lab.find(op) for name in each.results}
        loads = (each for each in body.walk() if each.name == "tt.load" and each.location)
        users = {each.location[0][1] for each in loads if own & inputs.reach(each.operands[:1])}
        dots = (each.operands for each in body.walk() if each.name.startswith("tt.dot"))
        changes: tuple[Change, ...] = ()
        if op.width_bytes < _NARROWEST_COPY_BYTES:
            width = count_bytes(op.width_bytes).replace(" ", " consecutive ")
            why = f"a lane has {width}, and a copy needs {_NARROWEST_COPY_BYTES}"
        elif users:
            stages = int(self.lab.kernel.options.get("num_stages", 1))
            why = f"the load in line {min(users)} needs its values, and num_stages is only {stages}"
            changes = (try_option("synchronous", "num_stages", stages + 1),)
        elif own.isdisjoint(inputs.reach(name for names in dots for name in names)):
            why = "no tl.dot uses its values"
        else:
            return []
        if not users and not self.has_share():
            return []
        lines = f"line{'s' * (len(copies) > 1)} {', '.join(map(str, sorted(copies)))}"
        text = f"It stays a synchronous load beside the asynchronous copies of {lines}: {why}."
        return [Hypothesis("synchronous", op, text, changes)]

    def explain_waste(self) -> Choice:
        """State that lanes access addresses far apart, or bytes that others load, too."""
        op = self.op
        same = find_same(op, self.lab.counts)
        cost = sum_costs(same)
        ratio = cost.sectors / max(1, cost.ideal_sectors)
        step, steps = self._measure_step()
        repeats = self._measure_repeats()
        times = math.prod(repeats.values())
        is_load = op.op in ("load", "async copy")
        excess = f"This operation touches {ratio:.3g} × its ideal sectors"
        if self.is_narrow and step < 0:
            width = f"A lane moves {count_bytes(op.width_bytes)} per request."
            text = f"{steps} Triton combines only ascending addresses of a lane. {width}"
            return [Hypothesis("reversed", op, text)]
        if ratio >= _WASTEFUL and abs(step) > op.width_bytes:
            text = f"{excess}. {steps} A lane uses {count_bytes(op.width_bytes)}."
            if repeats[_BY_REQUESTS] >= _WASTEFUL:
                text += " Other requests of the warp use the rest."
                return [Hypothesis("strided", op, text)]
            advice = "Keep TENSOR's elements in the order in which lanes access them, without gaps."
            needs = "All users of TENSOR must expect that order."
            changes = self._access_contiguously("strided", advice, needs, self.example.address.size)
            return [Hypothesis("strided", op, text, changes)]
        if ratio >= _WASTEFUL and op.index_line:
            why = f"the load in line {op.index_line} gives its addresses"
            return [Hypothesis("scattered", op, f"{excess}: {why}.")]
        if is_load and times >= _WASTEFUL and self.has_share():
            return self._explain_repeats(repeats)
        if ratio >= _WASTEFUL:
            why = "its lanes access unevenly spaced addresses"
            return [Hypothesis("scattered", op, f"{excess}: {why}.")]
        return []

    def _explain_repeats(self, repeats: dict[str, float]) -> Choice:
        parts = [f"{what} {times:.3g} times" for what, times in repeats.items() if times > 1]
        times = math.prod(repeats.values())
        sectors = self.lab.numbers(self.op)["sectors"]
        total = f" ({times:.3g} × in total)" if len(parts) > 1 else ""
        text = (
            f"In program {self.example.program}, {' and '.join(parts)}{total}. The launch touches "
            f"{sectors:,} sectors; {round(sectors / times):,} would suffice."
        )
        changes: list[Change] = []
        distinct = np.unique(self.example.address)
        covered = np.unique(distinct // SECTOR_BYTES).size * SECTOR_BYTES
        starts = np.concatenate([start for _, start in self.op.tally.starts])
        is_whole = distinct.size * self.made.element_bytes == covered
        if is_whole and not self.op.index_line and not (starts % SECTOR_BYTES).any():
            advice = "Load each element once, and repeat it with tl.broadcast_to and tl.reshape."
            changes += self._access_contiguously("repeated", advice, "", distinct.size)
        warps = self.lab.kernel.num_warps // round(repeats[_BY_WARPS])
        if 1 <= warps < self.lab.kernel.num_warps and "tt.dot" not in self.lab.ttir:
            changes.append(try_option("repeated", "num_warps", warps))
        fact = Hypothesis("repeated", self.op, text, cost=lambda numbers: numbers["sectors"])
        return [replace(fact, changes=(change,)) for change in changes] or [fact]

    def _access_contiguously(
        self, kind: str, advice: str, needs: str, count: int
    ) -> tuple[Change, ...]:
        """Return a change of the addresses to a block without gaps; none if a mask forbids it."""
        owners = [n for n, each in self.arguments.items() if (each.name,) == self.op.tensors]
        names = {self.lab.module.body.arguments[number] for number in owners}
        inner = [
            each
            for each in self.lab.find(self.op)
            if names & Slice(self.lab.module.body, {}).reach(each.operands[:1])
        ]
        is_same = self.layout.shape == (count,)
        is_free = self.op.op in ("load", "async copy") and not any(each.mask for each in inner)
        if (
            not owners
            or not inner
            or not (is_same or is_free)
            or self.lab.start(self.arguments[owners[0]]) % SECTOR_BYTES
        ):
            return ()
        edits = ((Module.access_contiguously, each.line, owners[0], count) for each in inner)
        repeats = math.prod(self.layout.shape) // count
        return (Change(kind, advice, "", needs, tuple(edits), repeats=repeats),)

    def _measure_step(self) -> tuple[int, str]:
        """Return the bytes from lane to lane, 0 if that varies, and a sentence that says so."""
        first = int(self.active.sum(axis=1).argmax())
        steps = np.diff(self.address[first, :8])
        step = int(steps[0]) if (steps == steps[0]).all() else 0
        side = "after" if step > 0 else "before"
        who = f"In program {self.example.program}, warp {self.warp[first]}"
        return step, f"{who}, lane 1 is {count_bytes(abs(step))} {side} lane 0."

    def _measure_repeats(self) -> dict[str, float]:
        """Return how often lanes, requests and warps access the same bytes or sectors."""

        def count_distinct(*parts: np.ndarray) -> int:
            return sum(np.unique(part[part >= 0]).size for part in parts)

        sector = np.where(self.active, self.address // SECTOR_BYTES, -1)
        of_warps = (sector[self.warp == number] for number in np.unique(self.warp))
        per_warp = count_distinct(*of_warps)
        per_request = count_distinct(*sector)
        bytes_per_request = count_distinct(*np.where(self.active, self.address, -1))
        return {
            "lanes of one request load the same bytes": self.active.sum() / bytes_per_request,
            _BY_REQUESTS: per_request / per_warp,
            _BY_WARPS: per_warp / count_distinct(sector),
        }


_BY_REQUESTS = "requests of one warp load each sector"
_BY_WARPS = "warps load the same sectors"


def _count_requests(numbers: Numbers) -> int:
    return numbers["requests"]


def _round_up(number: int) -> int:
    return number + -number % _ALIGNMENT


def count_bytes(number: int) -> str:
    return f"{number:,} byte{'s' * (number != 1)}"
