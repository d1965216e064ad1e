"""Write every kernel's script, and run each on this machine: `python -m scripts.run_exports [--keep FOLDER]`.

Each script runs in a Python of its own, in an empty folder, with nothing of ours in its path. What is printed: how it
ended, its check, and on a GPU its times beside torch's. A kernel that declares a data race is expected to be wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernels import discover
from kernels.experiment import from_json, resolve_gpu
from kernels.export.script import script
from kernels.gpus import this_gpu
from kernels.spec import Launch

# A launch of some size in each family's default type, and what else a script can hold.
LARGE = {"M": 2048, "N": 2048, "K": 2048}
MORE: list[dict[str, Any]] = [
    {"kernel": "matmul.grouped", "problem": {**LARGE, "dtype": "float32", "precision": one}}
    for one in ("tf32", "tf32_rounded", "tf32x3", "ieee")
] + [
    {"kernel": "matmul.persistent", "problem": {**LARGE, "dtype": "bfloat16", "layout": "TN"}},
    {"kernel": "matmul.persistent", "problem": {**LARGE, "dtype": "float8_e4m3fn", "layout": "NT"}},
    {"kernel": "matmul.persistent", "problem": {**LARGE, "K": 2047}, "run": {"l2": "cold"}},
    {"kernel": "matmul.split_k_atomic", "problem": {"M": 512, "N": 512, "K": 8192, "dtype": "bfloat16"}},
    {"kernel": "matmul.fused_add_relu", "problem": {"M": 1023, "N": 777, "K": 511}, "run": {"distribution": "uniform"}},
    {"kernel": "transpose.tiled", "problem": {"M": 8192, "N": 8192, "dtype": "float8_e5m2"}},
]


def main() -> int:
    """Run; returns the number of scripts that did not end as they should."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--keep", type=Path, help="a folder for the scripts; by default they are thrown away")
    kept = flags.parse_args().keep
    with tempfile.TemporaryDirectory() as folder:
        return run_all((kept or Path(folder)).resolve())


def run_all(folder: Path) -> int:
    """Write all scripts into a folder, run them one after the other, and print a table."""
    here, unexpected = this_gpu(), 0
    payloads: list[dict[str, Any]] = [
        {"kernel": name, "problem": {size: LARGE[size] for size in LARGE if size in kernel.problem_knobs()}}
        for name, kernel in discover().items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for number, payload in enumerate([*payloads, *MORE]):
        experiment = from_json(payload if here else _smaller(payload), discover())
        kernel, gpu = discover()[experiment.kernel], resolve_gpu(experiment, here)
        path = folder / f"{number:02}_{script(experiment, gpu).name}.py"
        path.write_text(script(experiment, gpu).text, encoding="utf-8")
        code, said = run(path)
        races = here is not None and bool(kernel.race(Launch(experiment.problem, experiment.config, gpu)))
        wrong = races and "check FAILED" in said
        needs_gpu = here is None and "needs a GPU" in said
        end = {(True, False): "wrong, as it declares", (False, True): "needs a GPU"}.get((wrong, needs_gpu), "")
        is_expected = code == 0 or bool(end)
        unexpected += not is_expected
        print(f"{path.stem}: {end or ('ok' if is_expected else f'UNEXPECTED, exit {code}')}")
        print("".join(f"    {line}\n" for line in said.strip().splitlines()[-12:]), end="", flush=True)
    where = here.name if here else "the interpreter"
    print(f"{len(payloads) + len(MORE)} scripts on {where}: {unexpected} did not end as they should.")
    return unexpected


def run(path: Path) -> tuple[int, str]:
    """The exit status of a script, and what it said."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [sys.executable, "-I", str(path)]
        ended = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, timeout=300)
    return ended.returncode, ended.stdout + ended.stderr


def _smaller(payload: dict[str, Any]) -> dict[str, Any]:
    """A problem that the interpreter finishes at once."""
    problem = {name: min(value, 96) if isinstance(value, int) else value for name, value in payload["problem"].items()}
    return {**payload, "problem": problem}


if __name__ == "__main__":
    sys.exit(main())
