"""What the Coalescing tab says first: how much of what a request moves is wanted, of which operation, and why."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from visualize.predict.agreement import Verdicts
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import Operation
from visualize.text import verdicts, why
from visualize.views.numbers import enumerated, percent
from visualize.views.prose import Code, Sentence, Sourced, Strong, headline, hint, say

# From this many times the sectors that are needed on, the number is how many times; below, how much is wanted.
_WORTH_A_FACTOR = 1.1

_NOUNS = {"descriptor": "descriptor copy", "atomic": "atomic update"}
_VERBS = {"load": "load", "store": "store", "atomic": "update", "descriptor": "copy"}


def of_compiled(found: Verdicts, number: int, worst: int, *more: Sentence | str) -> Markup:
    """The claim for the operation that is drawn, by the compiled kernel, or by the blackboard while that is not known.

    Args:
        number: of the drawn operation.
        worst: of the one that wastes most sectors.
    """
    op, source = _operation(found, number), "predicted" if found.compiled else "textbook"
    named = say("the {} of {} ({})", noun(op), op.access.tensor, place(op))
    sentence = _sentence(found, op, named)
    times = op.launch.sectors / max(op.launch.ideal_sectors, 1)
    if times >= _WORTH_A_FACTOR:
        large, what = f"{times:.2g} ×", "the sectors needed: not coalesced"
    else:
        large, what = percent(op.launch.efficiency), "of the bytes moved are wanted: coalesced"
    return headline(
        large,
        Sourced(what, source),
        sentence,
        why.of_operation(op, found),
        _others(found, number, worst),
        *verdicts.claim(found),
        *more,
    )


def origins(found: Verdicts) -> dict[str, str]:
    """Name the origins of compiled and counted costs."""
    if found.counters is None:
        return {"compiled": "predicted"}
    device, source = found.counters.device, "recorded, " if found.counters.backend == "recorded" else ""
    is_other = found.compiled and not found.counted_is_compiled
    compiler = f", as Triton {device.triton} compiled it" if is_other else ""
    return {"compiled": "predicted", "counted": f"{source}{device.name}{compiler}"}


def noun(op: Operation) -> str:
    """What an operation is called in a sentence."""
    return _NOUNS.get(op.access.op, op.access.op)


def place(op: Operation) -> Code:
    """Where it stands in the source."""
    file, line = op.access.source
    return Code(f"{file.rsplit('/', 1)[-1]}:{line}", f"{file}, line {line}")


def _operation(found: Verdicts, number: int) -> Operation:
    """As compiled, where that is known. Of an atomic that became two, the loop."""
    operations = found.compiled or found.board
    return [op for op in operations if op.number == number][-1]


def _sentence(found: Verdicts, op: Operation, named: Sentence) -> Sentence:
    board = found.board[op.number].launch
    cause = why.in_short(op)
    if op.launch.efficiency < 1:
        return say(
            "Only {} of the bytes moved by {} are wanted: {}.",
            Strong(f"{100 * op.launch.efficiency:.3g} %"),
            named,
            cause,
        )
    if found.compiled and board.sectors >= _WORTH_A_FACTOR * board.ideal_sectors:
        factor = f"{board.sectors / board.ideal_sectors:.2g} ×"
        return say("The textbook predicts {} the sectors for {}. Compiled, it wastes none: {}.", factor, named, cause)
    return say("No byte moved by {} is wasted: {}.", named, cause)


def _others(found: Verdicts, number: int, worst: int) -> Sentence | str:
    """What there is to say of the operations that are not drawn."""
    operations = found.compiled
    wasteful = [op for op in operations if op.launch.efficiency < 1]
    if number != worst and any(op.number == worst for op in wasteful):
        op = _operation(found, worst)
        return say("The {} of {} wastes the most sectors.", noun(op), op.access.tensor)
    if operations and not wasteful:
        return "No operation of this launch wastes a sector."
    return ""


def of_blackboard(counted: Sequence[Operation], board: Textbook, is_copy: bool, *more: Sentence | str) -> Markup:
    """The claim in the blackboard's words: transactions of one tile, and elements that each moves.

    Args:
        is_copy: whether what is loaded is stored, so that elements per transaction can be told.
    """
    takes, explained = blackboard_claim(counted, board, is_copy)
    total = sum(op.tile.lines for op in counted)
    return headline(f"{total:,}", Sourced("transactions per tile", "textbook"), takes, explained, *more)


def blackboard_claim(counted: Sequence[Operation], board: Textbook, is_copy: bool) -> tuple[Sentence, Sentence]:
    """How many transactions the first tile takes, and what a transaction is."""
    # A tensor that is stored by two instructions is stored once.
    lines: dict[str, int] = {}
    for op in counted:
        purpose = f"to {_VERBS[op.access.op]} {op.access.tensor}"
        lines[purpose] = lines.get(purpose, 0) + op.tile.lines
    (purpose, first), *others = lines.items()
    parts = [f"{first:,} transactions {purpose}", *(f"{count:,} {purpose}" for purpose, count in others)]
    each: Sentence | str = ""
    if is_copy:
        total = sum(op.tile.lines for op in counted)
        moved = counted[-1].tile.bytes_wanted // counted[-1].width_bytes
        each = say(": {} elements each", Strong(f"{moved / total:.2f}"))
    return (
        say("On the blackboard, the first tile takes {}{}.", Strong(enumerated(parts)), each),
        say("A transaction is a line of {} bytes that a warp of {} lanes touches.", board.line_bytes, board.warp_size),
    )


def unreadable(reason: str) -> Sentence:
    return say("The compiled kernel could not be read: {}", reason)


def not_known() -> Markup:
    return hint("This is known once the kernel is compiled.")
