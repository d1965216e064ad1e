"""Which lines of TTGIR, PTX and SASS come from which line of a kernel's source, and which of them touch memory."""

from __future__ import annotations

import re

from kernels.source import shown_path

# What accesses global memory, in each text. A copy to shared memory and a tensor copy are among them.
_MEMORY = {
    "ttgir": re.compile(
        r"tt\.load|tt\.store|tt\.atomic|tt\.descriptor|async_copy_global_to_local|async_tma|ttng\.async_tma"
    ),
    "ptx": re.compile(r"\b(ld|st|red|atom)\.global|cp\.async\.(cg|ca|bulk)"),
    "sass": re.compile(r"\b(LDG|STG|LDGSTS|RED|REDG|ATOM|ATOMG|UTMALDG|UTMASTG|UTMAPF)\b"),
}

# Where code comes from: (file without its folders, line, column), then the calls it was inlined through, inwards out.
Place = tuple[str, int, int]
Location = tuple[Place, ...]

_PLACE = re.compile(r'"?([^"\s(]+?)"?:(\d+):(\d+)')


_QUOTED_PATH = re.compile(r'"(/[^"\n]+)"')


def with_shown_paths(text: str) -> str:
    """A text with each path of this machine as `shown_path` writes it: they stand in quotes, in all three kinds."""
    return _QUOTED_PATH.sub(lambda match: f'"{shown_path(match[1])}"', text)


def locations(text: str, kind: str) -> list[Location]:
    """For each line of a text, where it comes from; empty where that is not said.

    Args:
        kind: "ttgir", "ptx" or "sass", whose columns are not known: 0.
    """
    return {"ttgir": _of_ttgir, "ptx": _of_ptx, "sass": _of_sass}[kind](text.splitlines())


def memory_lines(text: str, kind: str, file: str, first: int, last: int) -> list[int]:
    """The lines (from 0) of a text that access global memory for lines `first` to `last` of a source file.

    Inlined code belongs to the innermost function. File names are without their folders.
    """
    return [
        number
        for number, (line, location) in enumerate(zip(text.splitlines(), locations(text, kind), strict=True))
        if location and location[0][0] == file and first <= location[0][1] <= last and _MEMORY[kind].search(line)
    ]


def _place(match: re.Match[str]) -> Place:
    return match[1].rsplit("/", 1)[-1], int(match[2]), int(match[3])


def _of_ttgir(lines: list[str]) -> list[Location]:
    """`#loc7 = loc("file":line:column)`, or a callsite, or a name for another; operations end with `loc(#loc7)`."""
    matches = (re.match(r"(#loc\d*) = loc\((.*)\)$", line) for line in lines)
    defined = {match[1]: match[2] for match in matches if match}
    resolved: dict[str, Location] = {}

    def of(name: str) -> Location:
        if name not in resolved:
            content = defined.get(name, "")
            if content.startswith("callsite("):
                resolved[name] = tuple(place for inner in re.findall(r"#loc\d*", content) for place in of(inner))
            elif match := re.match(r'"[^"]*"\((#loc\d*)\)', content):
                resolved[name] = of(match[1])
            else:
                match = _PLACE.match(content)
                resolved[name] = (_place(match),) if match else ()
        return resolved[name]

    used = (re.search(r"loc\((#loc\d*)\)$", line) for line in lines)
    return [of(match[1]) if match else () for match in used]


def _of_ptx(lines: list[str]) -> list[Location]:
    """`.loc file line column` holds until the next one; its comment names the file, and the calls."""
    found: list[Location] = []
    current: Location = ()
    for line in lines:
        if re.match(r"\s*\.loc\s", line):
            current = tuple(_place(match) for match in _PLACE.finditer(line.partition("//")[2]))
            found.append(())
        else:
            found.append(current)
    return found


def _of_sass(lines: list[str]) -> list[Location]:
    """`//## File "file", line n` holds until the next one; of several in a row, the first is the innermost."""
    found: list[Location] = []
    current: Location = ()
    fresh = True
    for line in lines:
        if match := re.match(r'\s*//## File "([^"]+)", line (\d+)', line):
            place = match[1].rsplit("/", 1)[-1], int(match[2]), 0
            current = (place,) if fresh else (*current, place)
            fresh = False
            found.append(())
        else:
            fresh = True
            found.append(current)
    return found


def instructions(sass: str) -> list[tuple[str, Location]]:
    """Every instruction of a SASS text in order: its opcode, and where it comes from."""
    found = []
    for line, location in zip(sass.splitlines(), locations(sass, "sass"), strict=True):
        if match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([\w.]+)", line):
            found.append((match[1], location))
    return found
