"""Read the assembly of kernels for AMD GPUs: their instructions and spills by source line.

Source of the mnemonics: AMD's "CDNA 3" and "CDNA 4" Instruction Set Architecture manuals.
"""

import re
from collections import Counter, defaultdict

from tilescope.captures.listings import find_user_place, locate_lines
from tilescope.inside.report import Inside, LineInstructions, LineSpills

# The kinds of instructions; the first match counts.
_KINDS = {
    "barriers": r"s_barrier",
    "shuffles": r"ds_(b?permute|swizzle)|v_permlane|\w+_dpp\b",
    "special functions": r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_",
    "type conversions": r"v_(cvt|rndne|trunc|floor|ceil)",
    "AGPR moves": r"v_accvgpr_",
    "local loads": r"scratch_load",
    "local stores": r"scratch_store",
    "shared loads": r"ds_(read|load)",
    "shared stores": r"ds_(write|store)",
    "shared atomics": r"ds_",
    "async copies": r"(buffer|global)_load_(lds|\w+ .* lds\b)",
    "global loads": r"(buffer|global|flat)_load",
    "global stores": r"(buffer|global|flat)_store",
    "global atomics": r"(buffer|global|flat)_atomic",
    "scalar loads": r"s_(buffer_)?load",
    "float arithmetic": r"[sv]_\w+_b?f(16|32|64)",
    "control and others": r"s_(c?branch|endpgm|waitcnt|nop|set|get|sleep|sendmsg|swappc|trap|\w+_inv)",
    "integer arithmetic": r"[sv]_",
}
_MATRIX = re.compile(r"v_s?mfmac?_\w+")
# 	v_exp_f32_e32 v1, v2                    ; comment
_INSTRUCTION = re.compile(r"\t([a-z]+_[^;]*)")
# 	scratch_store_dwordx4 off, v[2:5], off offset:16 ; 16-byte Folded Spill
_SPILL = re.compile(r"\tscratch_(store|load).*; (\d+)-byte Folded")


def inspect_assembly(amdgcn: str) -> Inside:
    """Return the instructions and the spills of each source line. LLVM gives some instructions no line."""
    numbers = Counter[tuple[tuple[str, int], tuple[tuple[str, int], ...], str]]()
    spills = defaultdict[tuple[str, int], Counter[str]](Counter)
    for line, location in locate_lines(amdgcn, "amdgcn"):
        instruction = _INSTRUCTION.match(line)
        if not instruction:
            continue
        location = tuple(each for each in location if each[1])
        place = location[0][:2] if location else ("", 0)
        user = find_user_place(location)
        callers = (user,) if user and user != place else ()
        numbers[place, callers, _find_kind(instruction[1])] += 1
        if spill := _SPILL.match(line):
            spills[place][spill[1]] += 1
            spills[place]["bytes"] += int(spill[2]) * (spill[1] == "store")
    return Inside(
        instructions_by_line=tuple(
            LineInstructions(*place, kind, count, None, callers)
            for (place, callers, kind), count in sorted(numbers.items())
        ),
        spills_by_line=tuple(
            LineSpills(*place, each["store"], each["load"], each["bytes"])
            for place, each in spills.items()
        ),
    )


def _find_kind(instruction: str) -> str:
    if product := _MATRIX.match(instruction):
        return product[0]
    kinds = (kind for kind, pattern in _KINDS.items() if re.match(pattern, instruction))
    return next(kinds, "control and others")
