"""Lines of TTGIR, PTX and SASS: where in a kernel's source each comes from, and which of them access memory."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels.jit import display_path

# Global-memory accesses in each text, including copies to shared memory and tensor copies.
_MEMORY = {
    "ttgir": re.compile(
        r"tt\.load|tt\.store|tt\.atomic|tt\.descriptor|async_copy_global_to_local|async_tma|ttng\.async_tma"
    ),
    "ptx": re.compile(r"\b(ld|st|red|atom)\.global|cp\.async\.(cg|ca|bulk)"),
    "sass": re.compile(r"\b(LDG|STG|LDGSTS|RED|REDG|ATOM|ATOMG|UTMALDG|UTMASTG|UTMAPF)\b"),
}

# (file without its folders, line, column), then the calls that the code was inlined through, innermost first.
Place = tuple[str, int, int]
Location = tuple[Place, ...]

_PLACE = re.compile(r'"?([^"\s(]+?)"?:(\d+):(\d+)')
# `.loc file line column` holds until the next one; its comment names the file and the calls.
# `//## File "file", line n` holds until the next one; of several in a row, the first is the innermost.
_MARKERS = {"ptx": re.compile(r"\s*\.loc\s"), "sass": re.compile(r"\s*//## File ")}
_SASS_PLACE = re.compile(r'File "([^"]+)", line (\d+)()')
_QUOTED_PATH = re.compile(r'"(/[^"\n]+)"')


def hide_paths(text: str) -> str:
    """Replace this machine's paths, which all three texts quote, as `display_path` does."""
    return _QUOTED_PATH.sub(lambda match: f'"{display_path(match[1])}"', text)


def locations(text: str, kind: str) -> list[Location]:
    """Return the source location of each line of a text; () if the text has none.

    Args:
        kind: "ttgir", "ptx" or "sass". SASS has no columns: they are 0.
    """
    if kind == "ttgir":
        return _ttgir_locations(text.splitlines())
    found: list[Location] = []
    current: Location = ()
    follows_marker = False
    for line in text.splitlines():
        is_marker = bool(_MARKERS[kind].match(line))
        if is_marker:
            comment = line.partition("//")[2]
            places = tuple(map(_place, (_SASS_PLACE if kind == "sass" else _PLACE).finditer(comment)))
            current = current + places if kind == "sass" and follows_marker else places
        follows_marker = is_marker
        found.append(() if is_marker else current)
    return found


def memory_lines(text: str, kind: str, file: str, first: int, last: int) -> list[int]:
    """Return the lines (from 0) of a text that access global memory for lines `first` to `last` of a source file.

    Inlined code belongs to the innermost function. `file` is a name without folders.
    """
    return [
        number
        for number, (line, location) in enumerate(zip(text.splitlines(), locations(text, kind), strict=True))
        if location and location[0][0] == file and first <= location[0][1] <= last and _MEMORY[kind].search(line)
    ]


def _place(match: re.Match[str]) -> Place:
    return match[1].rsplit("/", 1)[-1], int(match[2]), int(match[3] or 0)


def _ttgir_locations(lines: list[str]) -> list[Location]:
    """`#loc7 = loc("file":line:column)`, or a callsite, or a name for another; operations end with `loc(#loc7)`."""
    matches = (re.match(r"(#loc\d*) = loc\((.*)\)$", line) for line in lines)
    definitions = {match[1]: match[2] for match in matches if match}
    resolved: dict[str, Location] = {"": ()}

    def resolve(name: str) -> Location:
        if name not in resolved:
            content = definitions.get(name, "")
            if content.startswith("callsite("):
                resolved[name] = tuple(place for inner in re.findall(r"#loc\d*", content) for place in resolve(inner))
            elif match := re.match(r'"[^"]*"\((#loc\d*)\)', content):
                resolved[name] = resolve(match[1])
            else:
                match = _PLACE.match(content)
                resolved[name] = (_place(match),) if match else ()
        return resolved[name]

    used = (re.search(r"loc\((#loc\d*)\)$", line) for line in lines)
    return [resolve(match[1] if match else "") for match in used]


def instructions(sass: str) -> list[tuple[str, Location]]:
    """Return opcode and location of every SASS instruction, in order."""
    found = []
    for line, location in zip(sass.splitlines(), locations(sass, "sass"), strict=True):
        if match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([\w.]+)", line):
            found.append((match[1], location))
    return found


def disassemble(kernel: Any) -> str:
    """Return the SASS of Triton's compiled kernel, with source lines.

    Triton's cache keeps it beside the kernel: nvdisasm takes half a second for the smallest one.

    Raises:
        subprocess.CalledProcessError: nvdisasm rejected the code.
    """
    import triton
    from triton.runtime.cache import get_cache_manager

    cache, cubin = get_cache_manager(kernel.hash), kernel.asm["cubin"]
    if path := cache.get_file("listing.sass"):
        # The digest tells a truncated file, and the SASS of other code.
        digest, _, sass = Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")
        if digest == hashlib.sha256(cubin + sass.encode()).hexdigest():
            return sass
    sass = cuda_tool(triton.knobs.nvidia.nvdisasm.path, cubin, "--print-line-info", "--print-code", "--no-dataflow")
    with suppress(OSError):  # the next request waits for nvdisasm, too
        cache.put(f"{hashlib.sha256(cubin + sass.encode()).hexdigest()}\n{sass}", "listing.sass", binary=False)
    return sass


def cuda_tool(path: str, cubin: bytes, *arguments: str) -> str:
    """Return what one of the CUDA tools in Triton's wheel prints about a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([path, *arguments, file.name], capture_output=True, text=True, check=True).stdout
