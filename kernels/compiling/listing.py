"""Map each line of TTGIR, PTX and SASS to its source line, and find the lines that access memory."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels.jit import display_path

# Accesses to global memory at each stage, including copies to shared memory and tensor (TMA) copies.
_MEMORY = {
    "ttgir": re.compile(r"tt\.(load|store|atomic|descriptor)|async_copy_global_to_local|async_tma"),
    "ptx": re.compile(r"\b(ld|st|red|atom)\.global|cp\.async\.(cg|ca|bulk)"),
    "sass": re.compile(r"\b(LDG|STG|LDGSTS|RED|REDG|ATOM|ATOMG|UTMALDG|UTMASTG|UTMAPF)\b"),
}

# A place is (file without its folders, line, column). A location adds the inlined calls, innermost first.
Place = tuple[str, int, int]
Location = tuple[Place, ...]

_PLACE = re.compile(r'"?([^"\s(]+?)"?:(\d+):(\d+)')
# PTX: `.loc file line column` applies until the next `.loc`; its comment names the file and the calls.
# SASS: `//## File "file", line n` applies until the next marker. Of several in a row, the first is the innermost.
_MARKERS = {"ptx": re.compile(r"\s*\.loc\s"), "sass": re.compile(r"\s*//## File ")}
_SASS_PLACE = re.compile(r'File "([^"]+)", line (\d+)()')
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([\w.]+)")
_QUOTED_PATH = re.compile(r'"(/[^"\n]+)"')


class Unreadable(Exception):
    """The compiled kernel has a form that these parsers do not know."""


def hide_paths(text: str) -> str:
    """Shorten the absolute paths quoted in TTGIR, PTX or SASS, as `display_path` does."""
    return _QUOTED_PATH.sub(lambda match: f'"{display_path(match[1])}"', text)


def locate_lines(text: str, kind: str) -> list[tuple[str, Location]]:
    """Return each line with its source location, or () where it has none.

    Args:
        kind: "ttgir", "ptx" or "sass". SASS gives no columns, so they are 0.
    """
    lines = text.splitlines()
    if kind == "ttgir":
        return list(zip(lines, _ttgir_locations(lines), strict=True))
    located = []
    current: Location = ()
    follows_marker = False
    for line in lines:
        is_marker = bool(_MARKERS[kind].match(line))
        if is_marker:
            comment = line.partition("//")[2]
            places = tuple(map(_place, (_SASS_PLACE if kind == "sass" else _PLACE).finditer(comment)))
            current = current + places if kind == "sass" and follows_marker else places
        follows_marker = is_marker
        located.append((line, () if is_marker else current))
    return located


def memory_lines(text: str, kind: str, file: str, first: int, last: int) -> list[int]:
    """Return the line numbers (from 0) that access global memory on behalf of source lines `first` to `last`.

    Inlined code counts for the innermost function. `file` is a name without folders.
    """
    return [
        number
        for number, (line, location) in enumerate(locate_lines(text, kind))
        if location and location[0][0] == file and first <= location[0][1] <= last and _MEMORY[kind].search(line)
    ]


def _place(match: re.Match[str]) -> Place:
    return match[1].rsplit("/", 1)[-1], int(match[2]), int(match[3] or 0)


def _ttgir_locations(lines: list[str]) -> list[Location]:
    """Resolve each line's location. An operation ends with `loc(#loc7)`.

    Definitions such as `#loc7 = loc("file":line:column)` name a place, a call site, or another location.
    """
    matches = (re.match(r"(#loc\d*) = loc\((.*)\)$", line) for line in lines)
    definitions = {match[1]: match[2] for match in matches if match}

    @functools.cache
    def resolve(name: str) -> Location:
        content = definitions.get(name, "")
        if match := _PLACE.match(content):
            return (_place(match),)
        return tuple(place for inner in re.findall(r"#loc\d*", content) for place in resolve(inner))

    used = (re.search(r"loc\((#loc\d*)\)$", line) for line in lines)
    return [resolve(match[1]) if match else () for match in used]


def instructions(sass: str) -> list[tuple[str, Location]]:
    """Return the opcode and location of every SASS instruction, in order."""
    located = ((_INSTRUCTION.match(line), location) for line, location in locate_lines(sass, "sass"))
    return [(match[1], location) for match, location in located if match]


def lane_bytes(instruction: str, line: str) -> int:
    """Return the bytes that one lane moves.

    Args:
        instruction: a PTX instruction without its operands.
        line: the same instruction with its operands.

    Raises:
        Unreadable: the instruction's name gives no width.
    """
    if instruction.startswith("cp.async.bulk"):
        return 0
    if instruction.startswith("cp.async"):
        return int(line.split(",")[2].strip().rstrip(";"), 0)
    vector, bits = re.search(r"\.v(\d)\b", instruction), re.search(r"(\d+)(x2)?$", instruction)
    if not bits:
        raise Unreadable(f"The width of {instruction} is unknown.")
    return int(bits[1]) * (2 if bits[2] else 1) * int(vector[1] if vector else 1) // 8


def disassemble(kernel: Any) -> str:
    """Return the SASS of a compiled kernel, annotated with source lines.

    The SASS is cached next to the kernel in Triton's cache, because nvdisasm takes at least half a second.

    Raises:
        subprocess.CalledProcessError: nvdisasm rejected the code.
    """
    import triton
    from triton.runtime.cache import get_cache_manager

    cache, cubin = get_cache_manager(kernel.hash), kernel.asm["cubin"]
    if path := cache.get_file("listing.sass"):
        # The digest detects a truncated file, or the SASS of a different cubin.
        digest, _, sass = Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")
        if digest == hashlib.sha256(cubin + sass.encode()).hexdigest():
            return sass
    sass = cuda_tool(triton.knobs.nvidia.nvdisasm.path, cubin, "--print-line-info", "--print-code", "--no-dataflow")
    with suppress(OSError):  # without a cache entry, the next request runs nvdisasm again
        cache.put(f"{hashlib.sha256(cubin + sass.encode()).hexdigest()}\n{sass}", "listing.sass", binary=False)
    return sass


def cuda_tool(path: str, cubin: bytes, *arguments: str) -> str:
    """Run one of the CUDA tools in Triton's wheel on a compiled kernel, and return its output."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([path, *arguments, file.name], capture_output=True, text=True, check=True).stdout
