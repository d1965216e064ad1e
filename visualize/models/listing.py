"""Which lines of TTGIR, PTX and SASS come from which line of a kernel's source, and which of them touch memory."""

from __future__ import annotations

import re

# What accesses global memory, in each text. A copy to shared memory and a tensor copy are among them.
_MEMORY = {
    "ttgir": re.compile(
        r"tt\.load|tt\.store|tt\.atomic|tt\.descriptor|async_copy_global_to_local|async_tma|ttng\.async_tma"
    ),
    "ptx": re.compile(r"\b(ld|st|red|atom)\.global|cp\.async\.(cg|ca|bulk)"),
    "sass": re.compile(r"\b(LDG|STG|LDGSTS|RED|REDG|ATOM|ATOMG|UTMALDG|UTMASTG|UTMAPF)\b"),
}

Source = tuple[str, int]


def source_lines(text: str, kind: str) -> list[Source | None]:
    """For each line of a text, the (file name, line) of the source that it came from, or None.

    Inlined code belongs to the innermost function. File names are without their folders.

    Args:
        kind: "ttgir", "ptx" or "sass".
    """
    return {"ttgir": _of_ttgir, "ptx": _of_ptx, "sass": _of_sass}[kind](text.splitlines())


def memory_lines(text: str, kind: str, file: str, first: int, last: int) -> list[int]:
    """The lines (from 0) of a text that access global memory for lines `first` to `last` of a source file."""
    return [
        place
        for place, (line, source) in enumerate(zip(text.splitlines(), source_lines(text, kind), strict=True))
        if source and source[0] == file and first <= source[1] <= last and _MEMORY[kind].search(line)
    ]


def _of_ttgir(lines: list[str]) -> list[Source | None]:
    """`#loc7 = loc("file":line:column)`, or a callsite, or a name for another; operations end with `loc(#loc7)`."""
    matches = (re.match(r"(#loc\d*) = loc\((.*)\)$", line) for line in lines)
    defined = {match[1]: match[2] for match in matches if match}

    def resolved(name: str, depth: int = 0) -> Source | None:
        content = defined.get(name, "")
        if match := re.match(r'"([^"]+)":(\d+):\d+', content):
            return match[1].rsplit("/", 1)[-1], int(match[2])
        inner = re.search(r"#loc\d*", content)
        return resolved(inner[0], depth + 1) if inner and depth < 64 else None

    places = {name: resolved(name) for name in defined}
    used = (re.search(r"loc\((#loc\d*)\)$", line) for line in lines)
    return [places.get(match[1]) if match else None for match in used]


def _of_ptx(lines: list[str]) -> list[Source | None]:
    """`.loc file line column` holds until the next one; its comment names the file."""
    found: list[Source | None] = []
    current: Source | None = None
    for line in lines:
        if match := re.match(r"\s*\.loc\s+\d+ (\d+) \d+.*?// ([\w.]+):", line):
            current = match[2], int(match[1])
            found.append(None)
        else:
            found.append(current)
    return found


def _of_sass(lines: list[str]) -> list[Source | None]:
    """`//## File "file", line n` holds until the next one; of several in a row, the first is the innermost."""
    found: list[Source | None] = []
    current: Source | None = None
    fresh = True
    for line in lines:
        if match := re.match(r'\s*//## File "([^"]+)", line (\d+)', line):
            if fresh:
                current = match[1].rsplit("/", 1)[-1], int(match[2])
            fresh = False
            found.append(None)
        else:
            fresh = True
            found.append(current)
    return found
