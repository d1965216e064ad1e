"""The headlines and tables of the Inside view."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from kernels.gpus import occupancy
from kernels.inside.banks import Access
from kernels.inside.report import SharedAccess
from kernels.inside.sass import parse
from visualize.numbers import bytes_of, count_noun, join_names
from visualize.predict.schedule import occupancy_of
from visualize.views.inside.program import Program
from visualize.views.prose import Code, Hint, Sourced, Strong, headline, say, term
from visualize.views.tables import table

_UNUSED = "This kernel uses no shared memory."
_NO_ACCESS = "No load, store or atomic of this kernel accesses its shared memory."

# The opcodes whose wavefronts the hardware counts together.
_TOTALS = {"loads": ("LDS", "LDSM"), "stores": ("STS", "STSM")}


def conflicts(access: SharedAccess) -> int:
    """Return its bank conflicts; 0 if they are unknown."""
    if access.wavefronts is None or access.ideal_wavefronts is None:
        return 0
    return access.wavefronts - access.ideal_wavefronts


def shared_headline(program: Program) -> Markup:
    """Render the bank conflicts of the launch, and the line with the most."""
    accesses = program.inside.shared
    if not accesses:
        return headline("", "", _NO_ACCESS if program.facts.shared_bytes else _UNUSED)
    total = sum(map(conflicts, accesses))
    worst = max(accesses, key=conflicts)
    wavefronts = sum(access.wavefronts or 0 for access in accesses)
    lead = say("Each of the {} is needed.", count_noun(wavefronts, "wavefront"))
    if total:
        lead = say(
            "{} in {} takes {} instead of {}, for {}.",
            Strong(worst.opcode),
            Code(f"{worst.file}:{worst.line}"),
            count_noun(worst.wavefronts or 0, "wavefront"),
            f"{worst.ideal_wavefronts:,}",
            f"a {worst.operation}" if worst.operation else "an access",
        )
    reasons = dict.fromkeys(access.why for access in accesses)
    what = term("bank conflict", "bank conflicts" if total != 1 else "bank conflict")
    return headline(f"{total:,}", Sourced(what, "predicted"), lead, *reasons)


def group_accesses(program: Program) -> dict[str, list[Access]]:
    """Return the accesses of each line and opcode by their names, those with the most conflicts first."""
    cost = {
        (access.file, access.line, access.opcode): conflicts(access)
        for access in program.inside.shared
    }
    groups = dict[tuple[str, int, str], list[Access]]()
    for index, access in program.accesses.items():
        instruction = parse(program.sass)[index]
        if instruction.location:
            key = *instruction.location[0][:2], instruction.name
            groups.setdefault(key, []).append(access)
    keys = sorted(groups, key=lambda key: -cost.get(key, 0))
    return {f"{opcode}, {file}:{line}": groups[file, line, opcode] for file, line, opcode in keys}


def shared_table(accesses: Sequence[SharedAccess]) -> Markup:
    """Render the accesses of each line, and the totals of loads and stores."""
    if not accesses:
        return Markup()
    header = (
        "operation",
        "line",
        "opcode",
        "executed",
        term("wavefront", "wavefronts"),
        "ideal",
        term("bank conflict", "bank conflicts"),
    )
    rows: list[tuple[Any, ...]] = [
        (
            access.operation,
            Code(f"{access.file}:{access.line}"),
            access.opcode,
            *_amounts([access]),
        )
        for access in accesses
    ]
    for name, opcodes in _TOTALS.items():
        if group := [access for access in accesses if access.opcode in opcodes]:
            rows.append((Strong(f"all {name}"), "", ", ".join(opcodes), *_amounts(group)))
    return table(header, rows, "Accesses to shared memory by all programs of the launch")


def _amounts(accesses: Sequence[SharedAccess]) -> tuple[Any, ...]:
    """Return the cells of the sums, or the reason why one is missing."""
    missing = Hint("unknown", next((access.why for access in accesses if access.why), ""), "unsure")
    names = "executed", "wavefronts", "ideal_wavefronts"
    columns = [[getattr(access, name) for access in accesses] for name in names]
    cells = [missing if None in column else f"{sum(column):,}" for column in columns]
    conflict_cell = missing if missing in cells[1:] else f"{sum(map(conflicts, accesses)):,}"
    return *cells, conflict_cell


def map_headline(program: Program) -> Markup:
    """Render the bytes that a program needs, those in use at once, and how many programs fit on an SM."""
    shared_bytes = program.facts.shared_bytes
    if not shared_bytes:
        return headline("", "", _UNUSED)
    buffers = program.inside.shared_map
    used = max(
        (sum(b.size_bytes for b in buffers if b.first <= at.first <= b.last) for at in buffers),
        default=shared_bytes,
    )
    free = shared_bytes - used
    idle = f"{bytes_of(free)} lie between buffers" if free else "no byte lies between buffers"
    number, unit = bytes_of(shared_bytes).split()
    what = Sourced(f"{unit} of shared memory per program", "compiled")
    lead = say("Where most is in use, the buffers take {}, and {}.", Strong(bytes_of(used)), idle)
    if program.gpu is None:
        return headline(number, what, lead)
    resident = occupancy_of(program.gpu, program.num_warps, program.facts)
    programs = count_noun(resident.programs_per_sm, "program")
    fit = "An SM of {} holds {}. The limit is {}."
    return headline(
        number, what, lead, say(fit, program.gpu.name, programs, join_names(resident.limited_by))
    )


def map_tables(program: Program) -> Markup:
    """Render the buffers, and the shared memory that one stage more or fewer would need."""
    buffers = program.inside.shared_map
    if not buffers:
        return Markup()
    header = "line", "operation", "tensor", "stages", "bytes", "first byte"
    rows = [
        (
            Code(f"{buffer.file}:{buffer.line}"),
            buffer.operation,
            buffer.tensor,
            buffer.stages,
            f"{buffer.size_bytes:,}",
            f"{buffer.offset_bytes:,}",
        )
        for buffer in buffers
    ]
    return _stages_table(program) + table(header, rows, "Buffers in shared memory")


def _stages_table(program: Program) -> Markup:
    """Render the bytes and the programs per SM with one stage fewer, as compiled, and with one more."""
    gpu = program.gpu
    staged = [buffer for buffer in program.inside.shared_map if buffer.stages > 1]
    if not staged or gpu is None:
        return Markup()
    step = sum(buffer.size_bytes // buffer.stages for buffer in staged)
    rows = []
    for change in (-1, 0, 1):
        needed = program.facts.shared_bytes + change * step
        programs = occupancy(gpu, program.num_warps, program.facts.registers, needed).limits
        fits = needed <= gpu.shared_bytes_per_program
        rows.append(
            (
                staged[0].stages + change,
                f"{needed:,}",
                programs["shared memory"] if fits else "does not fit",
                min(programs.values()) if fits else 0,
            )
        )
    header = "buffers in flight", "bytes per program", "programs that fit in shared memory"
    return table((*header, term("programs per SM")), rows, f"One stage more or fewer on {gpu.name}")


def registers_headline(program: Program) -> Markup:
    """Render the live registers at the maximum, its line, and the spilled bytes."""
    facts = program.facts
    lines = program.inside.registers_by_line
    spilled = facts.spilled_bytes
    spills = f"It spills {spilled:,} bytes per thread." if spilled else "It spills none."
    what = Sourced("registers per thread", "compiled")
    if not lines:
        return headline(facts.registers, what, spills)
    most = max(lines, key=lambda line: line.registers)
    place = Code(f"{most.file}:{most.line}")
    lead = say("{} are live at once at {}. {}", Strong(most.registers), place, spills)
    moved = sum(line.moved_bytes or 0 for line in program.inside.spills_by_line)
    cost = f"Spills move {bytes_of(moved)} in the launch." if moved else ""
    return headline(facts.registers, what, lead, cost)


def registers_table(program: Program) -> Markup:
    """Render the live registers and the spills of each line."""
    spills = {(line.file, line.line): line for line in program.inside.spills_by_line}
    header = ["line", "live registers at most"]
    spill_header = "spill stores", "reloads", "bytes stored per thread", "bytes moved in the launch"
    rows: list[tuple[Any, ...]] = []
    for line in program.inside.registers_by_line:
        cells: tuple[Any, ...] = ()
        if spill := spills.get((line.file, line.line)):
            moved = "unknown" if spill.moved_bytes is None else f"{spill.moved_bytes:,}"
            cells = spill.stores, spill.reloads, f"{spill.stored_bytes:,}", moved
        rows.append((Code(f"{line.file}:{line.line}"), line.registers, *cells))
    if not rows:
        return Markup()
    return table([*header, *(spill_header if spills else ())], rows, "Registers by source line")
