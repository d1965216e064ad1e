"""What the Coalescing tab says of the blackboard: transactions of one tile."""

from __future__ import annotations

from collections.abc import Sequence

from visualize.models.textbook import Textbook
from visualize.models.traffic import Operation
from visualize.text.prose import Sentence, Sourced, Strong, say
from visualize.text.words import enumerated

_OPS = {"descriptor": "descriptor copy"}


def blackboard_claim(counted: Sequence[Operation], board: Textbook, is_copy: bool) -> tuple[Sentence, ...]:
    """In the blackboard's words: transactions of one tile, and elements that each moves.

    Args:
        is_copy: whether what is loaded is stored, so that elements per transaction can be told.
    """
    parts = [f"{op.tile.lines:,} {_OPS.get(op.access.op, op.access.op)} ({op.access.tensor})" for op in counted]
    each: Sentence | str = ""
    if is_copy:
        total = sum(op.tile.lines for op in counted)
        moved = counted[-1].tile.bytes_wanted // counted[-1].width_bytes
        each = say(", {:,} in all: {} elements each", total, Strong(f"{moved / total:.2f}"))
    takes = say("{} transactions{}", Strong(enumerated(parts)), each)
    return (
        say("On the blackboard, the first tile takes {}.", Sourced(takes, "textbook")),
        say("A transaction is a line of {} bytes that a warp of {} lanes touches.", board.line_bytes, board.warp_size),
    )


def unreadable(why: str) -> Sentence:
    return say("The compiled kernel could not be read: {}", why)
