"""Run every kernel under compute-sanitizer, over awkward shapes: `python scripts/sanitize.py [--kernel ID]`.

memcheck finds out-of-bounds accesses; racecheck finds hazards in the shared memory that the compiler uses. Needs a GPU
and compute-sanitizer, a part of the CUDA toolkit. Exits with 1 if either tool reports an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck")
SHAPES = ((1, 1, 1), (1, 129, 577), (577, 1, 129), (129, 577, 1), (255, 129, 47), (256, 144, 272))
ROOT = Path(__file__).resolve().parent.parent


def cases(kernel: Any) -> Iterator[tuple[Any, Any]]:
    """Yield problems and configs: every shape in float16 and float32, layouts in rotation, small and default tiles.

    All configs have two stages: three in float32 may exceed shared memory.
    """
    from tilescope.declare.knobs import knobs

    tile = {name: knob for name, knob in knobs(kernel.config).items() if knob.group == "Tile"}
    smallest = kernel.config(
        **{name: (knob.choices or (knob.low,))[0] for name, knob in tile.items()}, num_warps=1
    )
    fields = knobs(kernel.family.problem)
    for place, shape in enumerate(SHAPES):
        for dtype in ("float16", "float32"):
            values = {
                **dict(zip("MNK", shape, strict=True)),
                "dtype": dtype,
                "layout": ("NN", "TT", "NT")[place % 3],
            }
            problem = kernel.family.problem(
                **{name: value for name, value in values.items() if name in fields}
            )
            yield problem, kernel.config(num_stages=2)
            if getattr(problem, "K", 0) < 200:
                yield problem, smallest


def launch(kernel_id: str) -> None:
    """Launch every case of a kernel once, with a separate allocation for each tensor."""
    import torch

    from tilescope.declare.discovery import discover
    from tilescope.declare.gpus import this_gpu
    from tilescope.declare.spec import Launch

    gpu = this_gpu()
    if gpu is None:
        raise SystemExit("There is no GPU here.")
    kernel = discover()[kernel_id]
    for problem, config in cases(kernel):
        tensors = {}
        setting = Launch(problem, config, gpu)
        for name, spec in kernel.tensors(setting).items():
            stored = torch.zeros(
                spec.stored, dtype=getattr(torch, spec.dtype_in(problem)), device="cuda"
            )
            tensors[name] = stored.t() if spec.transposed else stored
        kernel.jitted[kernel.grid(setting)](**kernel.arguments(tensors, setting))
        torch.cuda.synchronize()
    print(f"{kernel_id}: all cases were launched")


def is_clean(tool: str, kernel_id: str) -> bool:
    """Run a kernel's launches under a tool, in another process; return whether it reports no error."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        # Torch's cache cuts tensors out of larger blocks, which would hide an access past a tensor's end.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    command = [
        "compute-sanitizer",
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        sys.executable,
        __file__,
    ]
    ended = subprocess.run(
        [*command, "--launch", kernel_id], env=environment, capture_output=True, text=True
    )
    clean = ended.returncode == 0 and "all cases were launched" in ended.stdout
    print(
        f"{tool} of {kernel_id}: {'clean' if clean else f'FAILED ({ended.returncode})'}", flush=True
    )
    if not clean:
        print(ended.stdout[:2000], ended.stderr[-2000:], sep="\n", flush=True)
    return clean


def main() -> int:
    from tilescope.declare.discovery import discover

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kernel", action="append", choices=list(discover()), help="only this kernel"
    )
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only this tool")
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.launch:
        launch(flags.launch)
        return 0
    if shutil.which("compute-sanitizer") is None:
        print(
            "compute-sanitizer is not on the path; it is part of the CUDA toolkit.", file=sys.stderr
        )
        return 2
    results = [
        is_clean(tool, kernel)
        for kernel in flags.kernel or discover()
        for tool in flags.tool or TOOLS
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
