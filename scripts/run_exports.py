"""Export every kernel's script, and run each on this machine: `python -m scripts.run_exports [--keep FOLDER]`.

Each script runs in a separate Python process, in an empty folder, without this project on its path. Prints how it
ended, its check, and on a GPU its times and torch's. A kernel that declares a data race is expected to be wrong.

`--shipped` runs every default, preset and recommended config instead. `--jobs` runs several scripts at a time: their
checks remain valid, but their times do not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, default_experiment, from_json, resolve_gpu
from tilescope.declare.gpus import DEFAULT_GPU, GPUS, Gpu, this_gpu
from tilescope.declare.spec import Launch
from tilescope.export import script
from visualize.predict.offer import offers

# A large problem in each family's default type, and scripts with other features.
LARGE = {"M": 2048, "N": 2048, "K": 2048}
MORE: list[dict[str, Any]] = [
    {"kernel": "matmul.grouped", "problem": {**LARGE, "dtype": "float32", "precision": precision}}
    for precision in ("tf32", "tf32_rounded", "tf32x3", "ieee")
] + [
    {"kernel": "matmul.persistent", "problem": {**LARGE, "dtype": "bfloat16", "layout": "TN"}},
    {"kernel": "matmul.persistent", "problem": {**LARGE, "dtype": "float8_e4m3fn", "layout": "NT"}},
    {"kernel": "matmul.persistent", "problem": {**LARGE, "K": 2047}, "run": {"l2": "cold"}},
    {
        "kernel": "matmul.split_k_atomic",
        "problem": {"M": 512, "N": 512, "K": 8192, "dtype": "bfloat16"},
    },
    {
        "kernel": "matmul.fused_add_relu",
        "problem": {"M": 1023, "N": 777, "K": 511},
        "run": {"distribution": "uniform"},
    },
    {"kernel": "transpose.tiled", "problem": {"M": 8192, "N": 8192, "dtype": "float8_e5m2"}},
]


def main() -> int:
    """Run all scripts; return the number that ended unexpectedly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep", type=Path, help="a folder for the scripts; by default they are deleted"
    )
    parser.add_argument(
        "--shipped", action="store_true", help="every default, preset and recommended config"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of scripts that run at a time")
    options, gpu = parser.parse_args(), this_gpu()
    chosen = (
        shipped_experiments(gpu or GPUS[DEFAULT_GPU])
        if options.shipped
        else map(from_json, _payloads())
    )
    experiments = [each if gpu else _shrink(each) for each in chosen]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as threads:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, experiment in enumerate(experiments):
            exported = script(experiment, resolve_gpu(experiment, gpu))
            paths.append(folder / f"{number:03}_{exported.name}.py")
            paths[-1].write_text(exported.text, encoding="utf-8")
        unexpected = 0
        for path, experiment, (code, output) in zip(
            paths, experiments, threads.map(run, paths), strict=True
        ):
            end = "ok" if code == 0 else _expected_failure(experiment, gpu, output)
            unexpected += not end
            print(f"{path.stem}: {end or f'UNEXPECTED, exit {code}'}")
            print(
                "".join(f"    {line}\n" for line in output.strip().splitlines()[-12:]),
                end="",
                flush=True,
            )
    where = gpu.name if gpu else "the interpreter"
    print(f"{len(experiments)} scripts on {where}: {unexpected} ended unexpectedly.")
    return unexpected


def shipped_experiments(gpu: Gpu) -> Iterator[Experiment]:
    """Yield every default, preset and recommended config."""
    for name, kernel in discover().items():
        yield default_experiment(name)
        for preset in kernel.presets:
            yield from_json({"kernel": name, "problem": preset.problem, "config": preset.config})
        for offered in offers(kernel, gpu):
            yield offered.experiment


def _payloads() -> list[dict[str, Any]]:
    """Return one large problem of each kernel, and more."""
    return [
        {
            "kernel": name,
            "problem": {size: LARGE[size] for size in LARGE if size in kernel.problem_knobs()},
        }
        for name, kernel in discover().items()
    ] + MORE


def _expected_failure(experiment: Experiment, gpu: Gpu | None, output: str) -> str:
    if gpu is None:
        return "needs a GPU" if "needs a GPU" in output else ""
    races = discover()[experiment.kernel].race(Launch(experiment.problem, experiment.config, gpu))
    return "wrong, as the kernel declares" if races and "check FAILED" in output else ""


def run(path: Path) -> tuple[int, str]:
    """Return the exit status of a script and its output."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    command = [sys.executable, "-I", str(path)]
    with tempfile.TemporaryDirectory() as empty:
        ended = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, timeout=540
        )
    return ended.returncode, ended.stdout + ended.stderr


def _shrink(experiment: Experiment) -> Experiment:
    """Return the experiment with a problem that the interpreter finishes quickly."""
    payload = experiment.to_json()
    problem = {
        name: min(value, 96) if isinstance(value, int) else value
        for name, value in payload["problem"].items()
    }
    return from_json({**payload, "problem": problem})


if __name__ == "__main__":
    sys.exit(main())
