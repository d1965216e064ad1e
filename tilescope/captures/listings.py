"""Read the lines of TTGIR, PTX, SASS and AMDGCN: source locations and widths."""

import functools
import logging
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tilescope.captures.reader import UnreadableCapture

P = ParamSpec("P")
T = TypeVar("T")

# A place is (file without its folders, line, column). A location adds the inlined calls, innermost first.
Place = tuple[str, int, int]
Location = tuple[Place, ...]

# Triton's own functions, such as tl.sum, which are inlined into kernels.
_LIBRARY = "standard.py"
_CALLS_OF_SORT = 4

# "/home/user/kernel.py":34:8
_PLACE = re.compile(r'"?([^"\s(]+?)"?:(\d+)(?::(\d+))?')
# PTX: `.loc file line column` applies until the next `.loc`. Its comment names the file and, before Triton 3.8, the
# calls. Since then, `inlined_at file line column` names an earlier `.loc`.
# SASS: `//## File "file", line n` applies until the next marker. Of consecutive markers, the first is innermost.
# .loc 1 52 30, function_name $L__info_string0, inlined_at 1 34 8
# AMDGCN: `.loc 1 52 30 ; standard.py:52:30 @[ kernel.py:34:8 ]`.
_CALL = re.compile(r"\.loc\s+(\d+ \d+ \d+)(?:.* inlined_at (\d+ \d+ \d+))?")
_MARKERS = {kind: re.compile(r"\s*\.loc\s") for kind in ("ptx", "amdgcn")}
_MARKERS["sass"] = re.compile(r"\s*//## File ")
# //## File "/home/user/kernel.py", line 34
_SASS_PLACE = re.compile(r'File "([^"]+)", line (\d+)()')


LOG = logging.getLogger("tilescope.captures")


class UnsupportedOperation(Exception):
    """The compiled code has an unknown format, or contains an operation that is not modeled."""


def isolate(otherwise: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return `otherwise(why, *arguments)` if the decorated function fails in any way.

    A failure in one part of a launch must not affect the other parts or launches. A capture file may hold arbitrary
    text as compiled code, so any exception may occur.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except (UnsupportedOperation, UnreadableCapture) as error:
                return otherwise(str(error), *args)
            except Exception as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(frame.filename).name}:{frame.lineno}"
                why = f"Internal error: {type(error).__name__} {error!s:.200} in {place}. Please report it."
                LOG.warning(why)
                LOG.debug("The traceback:", exc_info=error)
                return otherwise(why, *args)

        return call

    return decorate


def locate_lines(text: str, kind: str) -> list[tuple[str, Location]]:
    """Return each line with its source location, or () where it has none.

    Args:
        kind: "ttgir", "ptx", "sass" or "amdgcn". SASS gives no columns, so they are 0.
    """
    lines = text.splitlines()
    if kind == "ttgir":
        return list(zip(lines, _ttgir_locations(lines), strict=True))
    located = []
    current: Location = ()
    calls = dict[str, Location]()
    follows_marker = False
    for line in lines:
        is_marker = bool(_MARKERS[kind].match(line))
        if is_marker:
            comment = line.partition(";" if kind == "amdgcn" else "//")[2]
            places = tuple(
                map(_place, (_SASS_PLACE if kind == "sass" else _PLACE).finditer(comment))
            )
            current = current + places if kind == "sass" and follows_marker else places
            if call := _CALL.search(line):
                current += calls.get(call[2], ())
                calls[call[1]] = current
        follows_marker = is_marker
        located.append((line, () if is_marker else current))
    return located


def read_rows(table: str, make_row: Callable[..., T]) -> dict[str, T]:
    """Read a table of opcodes or operations: in each line a name, values, and attributes.

    A hyphen stands for a space, or for "" if it is alone. Commas separate or end the elements of a tuple.

    >>> read_rows("LDS lsu smem=async-copy latency=30", lambda pipe, **attributes: (pipe, attributes))
    {'LDS': ('lsu', {'smem': 'async copy', 'latency': 30})}
    """

    def read(text: str) -> Any:
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        return tuple(re.findall(r"\w+", text)) if "," in text else text.replace("-", " ").strip()

    rows = {}
    for name, *cells in filter(None, map(str.split, table.splitlines())):
        values = [read(cell) for cell in cells if "=" not in cell]
        pairs = (cell.split("=") for cell in cells if "=" in cell)
        rows[name] = make_row(*values, **{key: read(text) for key, text in pairs})
    return rows


def find_user_place(location: Location) -> tuple[str, int] | tuple[()]:
    """Return the innermost file and line outside Triton's library; () if there is none."""
    return next((place[:2] for place in location if place[0] != _LIBRARY), ())


def is_in_sort(location: Location) -> bool:
    """Return whether tl.sort or tl.topk contains an operation. No other function nests as many library functions."""
    return sum(place[0] == _LIBRARY for place in location) >= _CALLS_OF_SORT


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


def lane_bytes(instruction: str, line: str) -> int:
    """Return the bytes that one lane moves.

    Args:
        instruction: a PTX instruction without its operands.
        line: the same instruction with its operands.

    Raises:
        UnsupportedOperation: the instruction's name gives no width.
    """
    if instruction.startswith(("cp.async.bulk", "tensormap")):
        return 0
    if instruction.startswith("cp.async"):
        return int(line.split(",")[2].strip().rstrip(";"), 0)
    vector = re.search(r"\.v(\d)\b", instruction)
    bits = re.search(r"(\d+)(x2)?$", instruction)
    if not bits:
        raise UnsupportedOperation(f"The width of {instruction} is unknown.")
    return int(bits[1]) * (2 if bits[2] else 1) * int(vector[1] if vector else 1) // 8
