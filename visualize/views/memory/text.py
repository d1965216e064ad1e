"""The Memory view's sentences: how much of what a request moves is used, by which operation, and the occupancy.

One definition of waste holds everywhere. A sector has 32 bytes, or fewer on a blackboard with shorter lines. Of the
sectors that a request touches, bytes that a lane accesses are used, and the others are wasted. Efficiency is another
number: the fewest sectors that could hold the request's bytes, divided by the sectors that it touches.
"""

from collections.abc import Sequence

from markupsafe import Markup

from kernels.results import Compiled
from kernels.spec import Kernel, Launch
from visualize.predict.agreement import Verdicts, compare_costs, count_of, launch_totals, sum_costs
from visualize.predict.schedule import Occupancy
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import Cost, Operation
from visualize.views.memory.why import cause
from visualize.views.numbers import bytes_of, count_noun, join_names, percent
from visualize.views.prose import Code, Link, Mark, Sentence, Sourced, Strong, headline, html, say

# From this multiple of the sectors needed, the headline is the multiple; below, it is the share of used bytes.
_NOTABLE_FACTOR = 1.1

_NOUNS = {"descriptor": "descriptor copy", "atomic": "atomic update"}
_INTO = {"load": "load from", "store": "store into", "atomic": "update"}
_VERDICTS = {
    "equal": "as {} ✓",
    "at least": "at least as many as {} ✓",
    "undercounted": "a count that misses some; lines are as {} ✓",
    "different": "not as {} ≠",
}
_VERBS = {"load": "load", "store": "store", "atomic": "update", "descriptor": "copy"}


def used_bytes(op: Operation, cost: Cost | None = None) -> int:
    """Return the bytes that an operation's requests use: each byte counts once per request.

    Args:
        cost: the operation's cost over one tile; None for the whole launch.
    """
    code, replicas = op.compiled, 0
    if code and code.layout and code.op == "load":  # lanes with replicas load them too
        replicas = sum(not any(base) for base in code.layout.lane)
    return (cost or op.launch).bytes_wanted >> replicas


def used_share(used: int, cost: Cost) -> str:
    """Return the used bytes as a percentage of the bytes in all sectors: "100 %" only if all are used.

    The counter of copies that bypass L1 may count fewer sectors than requests touch; the share is then 100 %.
    """
    moved = cost.sector_bytes * cost.sectors
    return f"{100 * min(used / moved, 0.999):.3g} %" if used < moved else "100 %"


def place(op: Operation) -> Code:
    """Return the operation's source line, "flat.py:33", with its path as hover text."""
    file, line = op.access.source
    return Code(f"{file.rsplit('/', 1)[-1]}:{line}", f"{file}, line {line}")


def memory_headline(found: Verdicts, number: int, worst: int, *more: Sentence | str) -> Markup:
    """Render the cost of one operation as compiled, or on the blackboard until it is compiled.

    Args:
        number: index of the operation in the picture.
        worst: index of the operation that wastes the most sectors.
    """
    op, board, operations = _find(found, number), found.board[number].launch, found.compiled
    cost, is_used = op.launch, _uses_all(op)
    share = used_share(used_bytes(op), cost)
    named = say("{} of {} ({})", _noun(op), op.access.tensor, place(op))
    factor = cost.sectors / max(cost.ideal_sectors, 1)
    number_text, label = f"{factor:.2g} ×", "the sectors needed"
    if factor < _NOTABLE_FACTOR:
        coalesced = ": fully coalesced" if is_used else ""
        number_text, label = share, f"of the bytes in its sectors are used{coalesced}"
    # Lanes per request, used bytes per sector, and sectors per request, with their remainders.
    parts = [divmod(used_bytes(op), max(unit, 1)) for unit in (cost.requests * op.width_bytes, cost.sectors)]
    (lanes, _), (each, _), (sectors, _) = parts = [*parts, divmod(cost.sectors, max(cost.requests, 1))]
    if cost.wasted_sectors > 0 and lanes and not any(rest for _, rest in parts):  # all requests are alike
        sentence = say(
            "{} lanes {} {} different sectors and use {} of each. In the {}, {}.",
            *(lanes, _INTO.get(op.access.op, "access"), sectors, count_noun(each, "byte"), named, cause(op)),
        )
    elif cost.wasted_sectors > 0:
        sentence = say("The {} uses only {} of the bytes in its sectors: {}.", named, Strong(share), cause(op))
    elif not is_used:
        sentence = say("The {} touches as few sectors as possible, but uses only {} of their bytes.", named, share)
    elif operations and board.sectors >= _NOTABLE_FACTOR * board.ideal_sectors:
        predicted = f"{board.sectors / board.ideal_sectors:.2g} ×"
        sentence = say("The blackboard predicts {} the sectors needed for the {}.", predicted, named)
        sentence = say("{} As compiled, it uses every byte: {}.", sentence, cause(op))
    else:
        sentence = say("The {} uses every byte of its sectors: {}.", named, cause(op))
    comparison: Sentence | str = ""
    if number != worst and operations and (most := _find(found, worst)).launch.wasted_sectors > 0:
        comparison = say("The {} of {} wastes the most sectors.", _noun(most), most.access.tensor)
    elif operations and all(map(_uses_all, operations)):
        comparison = "No operation of this launch wastes a byte."
    source = "predicted" if operations else "textbook"
    return headline(number_text, Sourced(label, source), sentence, comparison, *launch_sentences(found), *more)


def _noun(op: Operation) -> str:
    return _NOUNS.get(op.access.op, op.access.op)


def flow_title(kernel: Kernel, op: Operation, label: str, query: str = "") -> Markup:
    """Render what a picture shows: a kernel, as a link if `query` names its address, and an operation."""
    name = f"{kernel.family.root.id}: {kernel.title}"
    shown = Link(name, query) if query else Strong(name)
    return Markup("<p>{}: {}, {} of {}</p>").format(label, shown, _noun(op), op.access.tensor)


def launch_bar(operations: Sequence[Operation], beside: Sequence[Operation], *more: Sentence | str) -> Markup:
    """Render the used and wasted bytes of operations over the whole launch.

    Args:
        beside: the operations of the other picture: the longer bar of both takes the whole width.
        more: sentences below. Empty ones are omitted.
    """
    cost, used = sum_costs(operations), sum(map(used_bytes, operations))
    moved, other = (sum(op.launch.sector_bytes * op.launch.sectors for op in ops) for ops in (operations, beside))
    width, share = 100 * moved / max(moved, other, 1), used_share(used, cost)
    sentence = say("Whole launch: {} sectors, {} used.", f"{cost.sectors:,}", share)
    return Markup(
        '<div class="bytes" aria-hidden="true" style="width: {:.2f}%"><i style="width: {:.2f}%"></i></div><p>{}</p>'
    ).format(width, 100 * min(1, used / max(moved, 1)), html([sentence, *more]))


def alike_sentence(kernel: Kernel) -> str:
    """Say that the other kernels of a family give the same picture."""
    return f"The other {kernel.family.root.id} kernels use as much of what they touch."


def counted_sentence(found: Verdicts, number: int) -> Sentence | str:
    """Return the counted sectors of an operation, and whether they are the predicted ones; "" if they were not counted.

    Operations that share a counter are counted together.
    """
    tensors, costs = compare_costs(found, number)
    cost, counters = costs.get("counted"), found.counters
    if cost is None or counters is None:
        return ""
    device, code = counters.device.name, "predicted"
    if found.compiled and not found.counted_is_compiled:
        code = f"predicted for the code of Triton {counters.device.triton}"
    return say(
        "Counted on {}{}: {:,} sectors, {}.",
        Sourced(device, "recorded" if counters.backend == "recorded" else "counted"),
        f" for {join_names(tensors)}" if len(tensors) > 1 else "",
        cost.sectors,
        _VERDICTS[cost.agreement].format(code),
    )


def _find(found: Verdicts, number: int) -> Operation:
    """Return the operation as compiled, if known. Of an atomic that became a load and a loop, return the loop."""
    return [op for op in found.compiled or found.board if op.number == number][-1]


def _uses_all(op: Operation) -> bool:
    return used_bytes(op) >= op.launch.sector_bytes * op.launch.sectors


def launch_sentences(found: Verdicts) -> tuple[Sentence | str, ...]:
    """Return the compiled launch's cost, and whether Nsight Compute counted the same; () until it is compiled."""
    operations = found.compiled
    if not operations:
        return ()
    cost = sum_costs(operations)
    sectors = Sourced(Strong(f"{cost.sectors:,} sectors"), "predicted")
    if all(op.is_box for op in operations):
        template = "As compiled for {}, no lane issues a request: the TMA copies boxes of {}."
        return say(template, found.launch.gpu.name, sectors), _counted_sentence(found)
    return (
        say(
            "As compiled for {}, the launch issues {}{} that touch {}; {} of them are needed.",
            found.launch.gpu.name,
            "at least " if cost.is_lower_bound else "",
            Strong(f"{cost.requests:,} requests"),
            sectors,
            Strong(percent(cost.efficiency)),
        ),
        _counted_sentence(found),
    )


def _counted_sentence(found: Verdicts) -> Sentence | str:
    counters = found.counters
    if counters is None:
        return ""
    kinds = [count.agreement for op in found.predicted if (count := count_of(op, found))]
    kinds += [total.agreement for _, total in launch_totals(found).values()]
    source = "recorded" if counters.backend == "recorded" else "counted"
    predicted = sum_costs(found.predicted)
    if "different" in kinds:
        return say("{}: see the rows marked ≠.", Sourced("Nsight Compute counted different numbers", source))
    if not found.counted_is_compiled:
        return say(
            "Nsight Compute counted different code, from {}: {:,} requests, as predicted for it.",
            Sourced(f"Triton {counters.device.triton}", source),
            predicted.requests,
        )
    repeats = ", except for the atomics, which retry" if predicted.is_lower_bound else ""
    device = Sourced(f"{counters.device.name}{repeats}", source)
    return say("Nsight Compute counted {} on {}.", Strong("the same"), device)


def textbook_headline(operations: Sequence[Operation], board: Textbook, is_copy: bool, *more: Sentence | str) -> Markup:
    """Render the transactions of the first tile with textbook lanes; see `textbook_sentences`."""
    total = sum(op.tile.lines for op in operations)
    label = Sourced("transactions per tile", "textbook")
    return headline(f"{total:,}", label, *textbook_sentences(operations, board, is_copy), *more)


def textbook_sentences(operations: Sequence[Operation], board: Textbook, is_copy: bool) -> tuple[Sentence, Sentence]:
    """Return the transactions of the first tile with textbook lanes, and what a transaction is.

    Args:
        is_copy: whether the kernel stores what it loads, so that elements per transaction have a meaning.
    """
    lines: dict[str, int] = {}
    for op in operations:  # an output written by two instructions is stored once
        purpose = f"to {_VERBS[op.access.op]} {op.access.tensor}"
        lines[purpose] = lines.get(purpose, 0) + op.tile.lines
    (purpose, first), *rest = lines.items()
    parts = [f"{first:,} transactions {purpose}", *(f"{count:,} {purpose}" for purpose, count in rest)]
    ratio: Sentence | str = ""
    if is_copy:
        elements = operations[-1].tile.bytes_wanted // operations[-1].width_bytes
        each = elements / sum(lines.values())
        ratio = ": less than one element per transaction"
        if each >= 1:
            ratio = say(": {} elements per transaction", Strong(f"{each:.2f}"))
    return (
        say("On the blackboard, the first tile takes {}{}.", Strong(join_names(parts)), ratio),
        say("A transaction is a line of {} bytes that a warp of {} lanes touches.", board.line_bytes, board.warp_size),
    )


def compiler_headline(launch: Launch, compiled: Compiled, occupancy: Occupancy) -> Markup:
    """Render the predicted occupancy, and the registers and shared memory behind it."""
    spills = f"{compiled.spilled_bytes:,} bytes spilled" if compiled.spilled_bytes else "none spilled"
    return headline(
        f"{100 * occupancy.occupancy:.3g} %",
        say("occupancy on {} {}", compiled.gpu, Mark("predicted")),
        say(
            "An SM holds {}, {} of its {} warps, limited by {}. {} of shared memory per program, {} per thread, {}.",
            Strong(count_noun(occupancy.programs_per_sm, "program")),
            occupancy.programs_per_sm * launch.config.num_warps,
            launch.gpu.max_warps_per_sm,
            join_names(occupancy.limited_by),
            bytes_of(compiled.shared_bytes),
            count_noun(compiled.registers, "register"),
            Sourced(spills, "compiled"),
        ),
        say("Triton {} compiled it.", compiled.triton),
        launch.gpu.caveat,
    )
