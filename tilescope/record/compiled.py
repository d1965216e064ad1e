"""Describe compiled kernels: their metadata, TTGIR, PTX and SASS, registers and spills. Compile changed modules."""

import functools
import hashlib
import inspect
import multiprocessing
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import get_cache_manager

from . import VERSION, Values
from .allocation import allocate
from .ttgir import read_ttgir

# Maximum seconds for compiling a report's changed modules.
_RECOMPILE_S = 20

_INLINE_ASSEMBLY = re.compile(r"// begin inline asm\n.*?// end inline asm", re.DOTALL)
_LINE_MARKER = re.compile(r"\t\.loc\t.*\n")
# Fewest registers per thread that ptxas allocates: Nsight Compute reports 16 on an H200 for code that uses fewer.
_LEAST_REGISTERS = 16
# #loc = loc("/home/me/softmax.py":12:0)
_COMPILED_FROM = re.compile(r'^#loc = loc\("([^"]+)":', re.MULTILINE)
# STL.64 [R1+0x8], R4 ;
_STACK_ACCESS = re.compile(
    r"\b(STL|LDL)(?:\.[SU]?(8|16|64|128)|\.\w+)* [^;]*\[R1(?:\+(0x[0-9a-f]+))?\]"
)


def keep_source_lines(backend: Any = None, stages: Any = None, *_: Any) -> tuple[str, str]:
    """Change the PTX before ptxas reads it: all lines of inline assembly belong to the source line of their operation.

    From Triton 3.8 on, LLVM assigns the second line of inline assembly to the next source line, and so on. The SASS
    would name that line. This is a value of `triton.knobs.runtime.add_stages_inspection_hook`, which returns a key.
    """

    def make_ptx(*arguments: Any) -> str:
        ptx = make_shifted(*arguments)
        return _INLINE_ASSEMBLY.sub(lambda assembly: _LINE_MARKER.sub("", assembly[0]), ptx)

    if stages:
        make_shifted = stages["ptx"]
        stages["ptx"] = make_ptx
    return "source lines", "source lines"


# If unneeded, it would bypass the cache of the kernels that the user has compiled.
STAGES_HOOK = keep_source_lines if VERSION >= (3, 8) else None


def _run_tool(name: str, code: bytes, *flags: str) -> str:
    """Return the messages of one of the CUDA tools in Triton's wheel for a file; "" if the tool fails."""
    with tempfile.NamedTemporaryFile() as file, suppress(OSError, AttributeError):
        Path(file.name).write_bytes(code)
        command = [getattr(triton.knobs.nvidia, name).path, *flags, file.name]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode == 0 else ""
    return ""


@functools.lru_cache(64)
def disassemble(cubin: bytes) -> str:
    """Return the SASS. Triton's cache keeps it, because nvdisasm takes 0.3 s even for a small kernel."""
    key = hashlib.sha256(triton.__version__.encode() + cubin).hexdigest()
    sass = ""
    with suppress(OSError):
        if path := get_cache_manager(key).get_file("kernel.sass"):
            sass = Path(path).read_text()
    if not sass:
        sass = _run_tool("nvdisasm", cubin, "-g", "-c", "-ndf")
        with suppress(OSError):
            if sass:
                get_cache_manager(key).put(sass, "kernel.sass")
    if " BRX" in sass:  # the listing lacks the table of its targets
        dump = _run_tool("cuobjdump", cubin, "--dump-elf")
        sass += "".join(re.findall(r"^\.nv\.constant2\..*\n(?:0x.*\n)+", dump, re.MULTILINE))
    return sass


@functools.lru_cache(64)
def read_resources(cubin: bytes) -> tuple[int, int]:
    """Return a kernel's registers and spilled bytes, both per thread."""
    usage = _run_tool("cuobjdump", cubin, "--dump-resource-usage")
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    has_stack = used.get("STACK", 0) + used.get("LOCAL", 0)
    spilled = _count_spilled_bytes(disassemble(cubin)) if has_stack else 0
    return max(_LEAST_REGISTERS, used.get("REG", 0)), spilled


def _count_spilled_bytes(sass: str) -> int:
    """Return the bytes of the stores to the stack that are reloaded, as ptxas counts them.

    A stack frame may also hold arrays, such as a table of `sin`, which other registers than R1 index.
    """
    slots: dict[str, list[range]] = {"STL": [], "LDL": []}
    for name, bits, start in _STACK_ACCESS.findall(sass):
        first = int(start or "0", 16)
        slots[name].append(range(first, first + int(bits or 32) // 8))
    reloaded = set().union(*slots["LDL"])
    return sum(len(slot) for slot in slots["STL"] if not reloaded.isdisjoint(slot))


def describe_kernel(compiled: Any) -> Values:
    """Return the JSON of a compiled kernel, without its resources."""
    metadata = compiled.metadata
    function = compiled.src.fn.fn
    source, line = inspect.getsourcelines(function)
    ttgir = compiled.asm["ttgir"]
    options = {k: v for k, v in metadata._asdict().items() if isinstance(v, int | str)}
    # The metadata's number includes the warps that specialization adds
    options["num_warps"] = int(re.findall(r'"ttg.num-warps" = (\d+)', ttgir)[0])
    allocation = allocate(ttgir, compiled.asm.get("ttir", ""), metadata.target.arch, options)
    return {
        "name": function.__name__, "file": inspect.getsourcefile(function) or "", "line": line,
        "source": "".join(source), "shared_bytes": metadata.shared, "num_warps": metadata.num_warps,
        "num_ctas": metadata.num_ctas, "layouts": read_ttgir(ttgir).layouts, "options": options,
        "allocation": allocation,
    }  # fmt: skip


def read_kernel(path: Path, kernel: Values) -> dict[str, str]:
    """Add a kernel's resources to its JSON. Return its TTIR (unless Gluon made it), TTGIR, PTX and SASS."""
    paths = ((stage, path.with_suffix(f".{stage}")) for stage in ("ttir", "ttgir", "ptx"))
    codes = {stage: path.read_text() for stage, path in paths if path.exists()}
    cubin = path.with_suffix(".cubin").read_bytes()
    kernel["registers"], kernel["spilled_bytes"] = read_resources(cubin)
    codes["sass"] = disassemble(cubin)
    new = Path(kernel["file"]).name
    compiled_from = _COMPILED_FROM.search(codes["ttgir"])
    if not compiled_from or new in codes["ttgir"]:
        return codes
    # Triton's cache knows the same source in another file
    old = Path(compiled_from[1]).name
    return {stage: code.replace(old, new) for stage, code in codes.items()}


def recompile(modules: Sequence[Values], capability: int) -> list[Values | None]:
    """Compile TTIR modules, each with its options. Return {} for one that fails, None for a timeout."""
    deadline = time.monotonic() + _RECOMPILE_S + 2 * len(modules)
    replies: list[Values | None] = []
    workers = min(os.cpu_count() or 1, len(modules))
    # Threads may deadlock in Triton.
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        results = [pool.apply_async(_recompile_one, (module, capability)) for module in modules]
        for result in results:
            try:
                replies.append(result.get(max(0, deadline - time.monotonic())))
            except multiprocessing.TimeoutError:
                replies.append(None)
            except Exception:  # the compiler can raise any type
                replies.append({})
    return replies


def _recompile_one(module: Values, capability: int) -> Values:
    triton.knobs.runtime.add_stages_inspection_hook = STAGES_HOOK
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        Path(file.name).write_text(module["ttir"])
        target = GPUTarget("cuda", capability, 32)
        with redirect_stdout(None):  # Triton prints the PTX if ptxas fails
            compiled = triton.compile(file.name, target=target, options=module["options"])
    codes = {stage: compiled.asm[stage] for stage in ("ttgir", "ptx")}
    codes["sass"] = disassemble(compiled.asm["cubin"])
    registers, spilled = read_resources(compiled.asm["cubin"])
    return {
        "registers": registers, "spilled_bytes": spilled, "shared_bytes": compiled.metadata.shared,
        "num_warps": compiled.metadata.num_warps, "layouts": read_ttgir(codes["ttgir"]).layouts, "codes": codes,
        "allocation": None,
    }  # fmt: skip
