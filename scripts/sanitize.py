"""Run every kernel under compute-sanitizer, over hostile shapes: `python scripts/sanitize.py [--kernel ID]`.

memcheck finds accesses out of bounds, racecheck hazards in shared memory (which the compiler uses, not the kernels'
source). Needs a GPU and compute-sanitizer (it comes with CUDA's toolkit). Ends with 1 where either finds anything.
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
    """Problems and configs: every shape in float16 and float32, layouts in turns, small and default tiles.

    With two stages, as three of float32 may need more shared memory than there is.
    """
    from kernels.knobs import knobs

    tile = {name: knob for name, knob in knobs(kernel.config).items() if knob.group == "Tile"}
    smallest = kernel.config(**{name: (knob.choices or (knob.low,))[0] for name, knob in tile.items()}, num_warps=1)
    fields = knobs(kernel.family.problem)
    for place, shape in enumerate(SHAPES):
        for dtype in ("float16", "float32"):
            values = {**dict(zip("MNK", shape, strict=True)), "dtype": dtype, "layout": ("NN", "TT", "NT")[place % 3]}
            problem = kernel.family.problem(**{name: value for name, value in values.items() if name in fields})
            yield problem, kernel.config(num_stages=2)
            if getattr(problem, "K", 0) < 200:
                yield problem, smallest


def launch(kernel_id: str) -> None:
    """Launch every case of one kernel once, each tensor in an allocation of its own."""
    import torch

    from kernels import discover
    from kernels.gpus import this_gpu
    from kernels.spec import Launch

    gpu = this_gpu()
    if gpu is None:
        raise SystemExit("There is no GPU here.")
    kernel = discover()[kernel_id]
    count = 0
    for problem, config in cases(kernel):
        setting = Launch(problem, config, gpu)
        tensors = {}
        for name, spec in kernel.family.tensors(problem).items():
            stored = torch.zeros(spec.stored, dtype=getattr(torch, problem.dtype), device="cuda")
            tensors[name] = stored.t() if spec.transposed else stored
        kernel.jitted[kernel.grid(setting)](**kernel.arguments(tensors, setting))
        torch.cuda.synchronize()
        count += 1
    print(f"{kernel_id}: {count} launches")


def sanitized(tool: str, kernel_id: str) -> bool:
    """Run one kernel's launches under a tool, in a process of its own; whether it found nothing."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, __file__]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        # Torch's cache hands out parts of larger blocks: an access past a tensor's end would stay inside of one.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    ended = subprocess.run(
        [*command, "--launch", kernel_id], env=environment, capture_output=True, text=True, check=False
    )
    summary = [line for line in ended.stdout.splitlines() if "SUMMARY" in line or "launches" in line]
    clean = ended.returncode == 0 and any("launches" in line for line in summary)
    print(f"{tool} {'clean' if clean else 'FAILED'} ({ended.returncode}): {'; '.join(summary)}", flush=True)
    if not clean:
        print(ended.stdout[:2000], ended.stderr[-2000:], sep="\n", flush=True)
    return clean


def main() -> int:
    from kernels import discover

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", action="append", choices=list(discover()), help="only this one")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only this one")
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.launch:
        launch(flags.launch)
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not in the path; it comes with CUDA's toolkit.", file=sys.stderr)
        return 2
    found = [sanitized(tool, kernel) for kernel in flags.kernel or discover() for tool in flags.tool or TOOLS]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
