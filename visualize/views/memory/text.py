"""The Memory view's sentences: how much of the moved bytes each operation uses.

One definition of waste holds everywhere. A sector has 32 bytes, or fewer on a blackboard with shorter lines. Of the
sectors that a request touches, bytes that a lane accesses are used, and the others are wasted. Efficiency is another
number: the fewest sectors that could hold the request's bytes, divided by the sectors that it touches.
"""

from collections.abc import Sequence

from markupsafe import Markup

from kernels.spec import Kernel
from visualize.predict.agreement import Verdicts, compare_costs, count_of, launch_totals, sum_costs
from visualize.predict.traffic import Cost, Operation
from visualize.views.memory.reasons import cause
from visualize.views.numbers import count_noun, join_names, percent
from visualize.views.prose import Code, Link, Sentence, Sourced, Strong, headline, html, say

# From this multiple of the sectors needed, the headline is the multiple; below, it is the share of used bytes.
_NOTABLE_FACTOR = 1.1

_NOUNS = {"descriptor": "descriptor copy", "atomic": "atomic update"}
_INTO = {"load": "load from", "store": "store into", "atomic": "update"}
_VERBS = {"load": "load", "store": "store", "atomic": "update", "descriptor": "copy"}
_AGREEMENTS = {
    "equal": "as {} ✓",
    "at least": "at least as many as {} ✓",
    "undercounted": "a count that misses some; lines are as {} ✓",
    "different": "not as {} ≠",
}


def used_bytes(op: Operation, cost: Cost | None = None) -> int:
    """Return the bytes that an operation's requests use: each byte counts once per request.

    Args:
        cost: the operation's cost over one tile; None for the whole launch.
    """
    code, replicas = op.compiled, 0
    if code and code.layout and code.op == "load":  # lanes with replicas load them too
        replicas = sum(not any(base) for base in code.layout.lane)
    return (cost or op.launch).bytes_wanted >> replicas


def place(op: Operation) -> Code:
    """Return the operation's source line, "flat.py:33", with its path as hover text."""
    file, line = op.access.source
    return Code(f"{file.rsplit('/', 1)[-1]}:{line}", f"{file}, line {line}")


def _used_share(operations: Sequence[Operation]) -> str:
    """Return the used bytes as a percentage of the bytes in all sectors: "100 %" only if all are used.

    The counter of copies that bypass L1 may count fewer sectors than requests touch; the share is then 100 %.
    """
    used, moved = sum(map(used_bytes, operations)), _moved_bytes(operations)
    return f"{100 * min(used / moved, 0.999):.3g} %" if used < moved else "100 %"


def _moved_bytes(operations: Sequence[Operation]) -> int:
    return sum(op.launch.sector_bytes * op.launch.sectors for op in operations)


def _find(verdicts: Verdicts, number: int) -> Operation:
    """Return the operation as compiled, if known. Of an atomic that became a load and a loop, return the loop."""
    return [op for op in verdicts.compiled or verdicts.board if op.number == number][-1]


def _name(op: Operation) -> str:
    return f"{_NOUNS.get(op.access.op, op.access.op)} of {op.access.tensor}"


def memory_headline(verdicts: Verdicts, number: int, worst: int) -> Markup:
    """Render the cost of one operation as compiled, or on the blackboard until it is compiled.

    Args:
        number: index of the operation in the picture.
        worst: index of the operation that wastes the most sectors.
    """
    op, operations = _find(verdicts, number), verdicts.compiled
    cost, share = op.launch, _used_share([op])
    factor = cost.sectors / max(cost.ideal_sectors, 1)
    label: str = "the sectors needed"
    if factor < _NOTABLE_FACTOR:
        label = f"of the bytes in its sectors are used{': fully coalesced' if share == '100 %' else ''}"
    comparison = ""
    if number != worst and operations and (most := _find(verdicts, worst)).launch.wasted_sectors > 0:
        comparison = f"The {_name(most)} wastes the most sectors."
    elif operations and all(_used_share([each]) == "100 %" for each in operations):
        comparison = "No operation of this launch wastes a byte."
    return headline(
        share if factor < _NOTABLE_FACTOR else f"{factor:.2g} ×",
        Sourced(label, "predicted" if operations else "textbook"),
        _use_sentence(op, share, verdicts.board[number].launch if operations else cost),
        comparison,
        *launch_sentences(verdicts),
        *_textbook_sentences(verdicts),
        verdicts.kernel.note(verdicts.launch),
    )


def _use_sentence(op: Operation, share: str, board: Cost) -> Sentence:
    """Return how much of its sectors an operation uses, and why.

    Args:
        board: its cost on the blackboard.
    """
    cost, named = op.launch, say("{} ({})", _name(op), place(op))
    if cost.wasted_sectors > 0:
        # Lanes per request, used bytes per sector, and sectors per request, with their remainders.
        used, requests = used_bytes(op), max(cost.requests, 1)
        parts = [
            divmod(used, max(requests * op.width_bytes, 1)),
            divmod(used, cost.sectors),
            divmod(cost.sectors, requests),
        ]
        (lanes, _), (each, _), (sectors, _) = parts
        if lanes and not any(rest for _, rest in parts):  # all requests are alike
            return say(
                "{} lanes {} {} different sectors and use {} of each. In the {}, {}.",
                *(lanes, _INTO.get(op.access.op, "access"), sectors, count_noun(each, "byte"), named, cause(op)),
            )
        return say("The {} uses only {} of the bytes in its sectors: {}.", named, Strong(share), cause(op))
    if share != "100 %":
        return say("The {} touches as few sectors as possible, but uses only {} of their bytes.", named, share)
    if cost is not board and board.sectors >= _NOTABLE_FACTOR * board.ideal_sectors:
        predicted = f"{board.sectors / board.ideal_sectors:.2g} ×"
        sentence = "The blackboard predicts {} the sectors needed for the {}. As compiled, it uses every byte: {}."
        return say(sentence, predicted, named, cause(op))
    return say("The {} uses every byte of its sectors: {}.", named, cause(op))


def launch_sentences(verdicts: Verdicts) -> tuple[Sentence | str, ...]:
    """Return the compiled launch's cost, and whether Nsight Compute counted the same; () until it is compiled."""
    operations, gpu = verdicts.compiled, verdicts.launch.gpu.name
    if not operations:
        return ()
    cost = sum_costs(operations)
    sectors = Sourced(Strong(f"{cost.sectors:,} sectors"), "predicted")
    issued = say("As compiled for {}, no lane issues a request: the TMA copies boxes of {}.", gpu, sectors)
    if not all(op.is_box for op in operations):
        issued = say(
            "As compiled for {}, the launch issues {}{} that touch {}; {} of them are needed.",
            gpu,
            "at least " if cost.is_lower_bound else "",
            Strong(f"{cost.requests:,} requests"),
            sectors,
            Strong(percent(cost.efficiency)),
        )
    return issued, _agreement_sentence(verdicts)


def _agreement_sentence(verdicts: Verdicts) -> Sentence | str:
    counters, predicted = verdicts.counters, sum_costs(verdicts.predicted)
    if counters is None:
        return ""
    counts = [count for op in verdicts.predicted if (count := count_of(op, verdicts))]
    counts += [total for _, total in launch_totals(verdicts).values()]
    source = "recorded" if counters.backend == "recorded" else "counted"
    if any(count.agreement == "different" for count in counts):
        return say("{}: see the rows marked ≠.", Sourced("Nsight Compute counted different numbers", source))
    if not verdicts.counted_is_compiled:
        return say(
            "Nsight Compute counted different code, from {}: {:,} requests, as predicted for it.",
            Sourced(f"Triton {counters.device.triton}", source),
            predicted.requests,
        )
    repeats = ", except for the atomics, which retry" if predicted.is_lower_bound else ""
    device = Sourced(f"{counters.device.name}{repeats}", source)
    return say("Nsight Compute counted {} on {}.", Strong("the same"), device)


def textbook_headline(verdicts: Verdicts) -> Markup:
    """Render the transactions of the first tile with textbook lanes."""
    sentences = *_textbook_sentences(verdicts), *launch_sentences(verdicts)
    label = Sourced("transactions per tile", "textbook")
    total = sum(op.tile.lines for op in verdicts.board)
    return headline(f"{total:,}", label, *sentences, verdicts.kernel.note(verdicts.launch))


def _textbook_sentences(verdicts: Verdicts) -> tuple[Sentence, Sentence]:
    """Return the transactions of the first tile with textbook lanes, and what a transaction is."""
    operations, machine = verdicts.board, verdicts.machine
    lines: dict[str, int] = {}
    for op in operations:  # an output written by two instructions is stored once
        purpose = f"to {_VERBS[op.access.op]} {op.access.tensor}"
        lines[purpose] = lines.get(purpose, 0) + op.tile.lines
    first, *rest = [f"{count:,} {purpose}" for purpose, count in lines.items()]
    ratio: Sentence | str = ""
    if verdicts.kernel.family.panels is None:  # the kernel stores what it loads
        each = operations[-1].tile.bytes_wanted // operations[-1].width_bytes / sum(lines.values())
        ratio = ": less than one element per transaction"
        if each >= 1:
            ratio = say(": {} elements per transaction", Strong(f"{each:.2f}"))
    total = Strong(join_names([first.replace(" to ", " transactions to ", 1), *rest]))
    lanes = "A transaction is a line of {} bytes that a warp of {} lanes touches."
    return (
        say("On the blackboard, the first tile takes {}{}.", total, ratio),
        say(lanes, machine.line_bytes, machine.warp_size),
    )


def flow_title(kernel: Kernel, op: Operation, label: str, query: str = "") -> Markup:
    """Render the title of a picture: a kernel, as a link if `query` names its address, and an operation."""
    name = f"{kernel.family.root.id}: {kernel.title}"
    return Markup("<p>{}: {}, {}</p>").format(label, Link(name, query) if query else Strong(name), _name(op))


def launch_bar(operations: Sequence[Operation], beside: Sequence[Operation], *more: Sentence | str) -> Markup:
    """Render the used and wasted bytes of operations over the whole launch.

    Args:
        beside: the operations of the other picture: the longer bar of both takes the whole width.
        more: sentences below. Empty ones are omitted.
    """
    used, moved, other = sum(map(used_bytes, operations)), _moved_bytes(operations), _moved_bytes(beside)
    sectors = f"{sum_costs(operations).sectors:,}"
    sentence = say("Whole launch: {} sectors, {} used.", sectors, _used_share(operations))
    return Markup(
        '<div class="bytes" aria-hidden="true" style="width: {:.2f}%"><i style="width: {:.2f}%"></i></div><p>{}</p>'
    ).format(100 * moved / max(moved, other, 1), 100 * min(1, used / max(moved, 1)), html([sentence, *more]))


def count_sentence(verdicts: Verdicts, number: int) -> Sentence | str:
    """Return the counted sectors of an operation, and whether they are the predicted ones; "" if they were not counted.

    Operations that share a counter are counted together.
    """
    tensors, costs = compare_costs(verdicts, number)
    cost, counters = costs.get("counted"), verdicts.counters
    if cost is None or counters is None:
        return ""
    code = "predicted"
    if verdicts.compiled and not verdicts.counted_is_compiled:
        code = f"predicted for the code of Triton {counters.device.triton}"
    return say(
        "Counted on {}{}: {:,} sectors, {}.",
        Sourced(counters.device.name, "recorded" if counters.backend == "recorded" else "counted"),
        f" for {join_names(tensors)}" if len(tensors) > 1 else "",
        cost.sectors,
        _AGREEMENTS[cost.agreement].format(code),
    )
