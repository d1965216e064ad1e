"""Measure the regret and duration of `tilescope tune` on a GPU: `python -m benchmarks.tune RESULTS.json [NAME ...]`.

There are three kernels with 12 problems and 48 configs each. For each kernel, the benchmark tunes with an empty cache,
times every config, and compares the two results. Then it compiles and times all configs of a third of the problems in
sequence, as a script with `do_bench` would.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescope.declare.experiment import Experiment

_CASES = str(Path(__file__).with_name("tuned_cases.py"))
_CHUNKS = ["BLOCK=512,1024,2048,4096", "STAGES=1,2,4", "num_warps=1,2,4,8"]
_ROWS = ["ROWS=1,4,16,64", "STAGES=1,2,3", "num_warps=2,4,8,16"]
_TILES = [
    "BLOCK_M=64,128", "BLOCK_N=64,128,256", "num_warps=4,8", "num_stages=3,4", "GROUP_SIZE=4,16",
]  # fmt: skip

# name → kernel, values of the problem parameters, values of the config parameters
KERNELS = {
    "softmax": (
        f"{_CASES}:case_softmax", ["rows=1024,4096,16384", "cols=1000,2048,8192,16384"], _CHUNKS,
    ),
    "rms_norm_backward": (
        f"{_CASES}:case_rms_norm_backward", ["rows=2048,8192,32768", "cols=1024,2048,4096,8192"], _ROWS,
    ),
    "matmul": ("matmul.grouped", ["M=1024,4096,8192", "N=2048,5120", "K=512,4096"], _TILES),
}  # fmt: skip


def run(name: str, cache: Path, *flags: str) -> tuple[dict[str, Any], float]:
    """Tune a kernel in another process. Return the result and the duration in seconds."""
    kernel, over, chosen = KERNELS[name]
    out = cache / "result.json"
    arguments = [part for text in over for part in ("--over", text)]
    arguments += [part for text in chosen for part in ("--set", text)]
    environment = {**os.environ, "TILESCOPE_CACHE": str(cache), "TILESCOPE_DB": "off"}
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "tilescope",
        "tune",
        kernel,
        *arguments,
        "--l2",
        "cold",
        "--out",
        str(out),
        *flags,
    ]
    subprocess.run(command, env=environment, check=True)
    return json.loads(out.read_text()), time.monotonic() - began


def time_sequentially(name: str) -> None:
    """Compile and time the configs of every third problem. Print the seconds that compiles and timing took."""
    import torch
    import triton

    from tilescope.cli.tune import make_parser, read_spaces
    from tilescope.declare.gpus import this_gpu
    from tilescope.measure.run import prepare
    from tilescope.measure.session import Session
    from tilescope.results.sweep import ConfigTrial
    from tilescope.search.cases import CaseTrial
    from tilescope.search.sweep_run import explain_refusal

    kernel, over, chosen = KERNELS[name]
    arguments = [part for text in over for part in ("--over", text)]
    arguments += [part for text in chosen for part in ("--set", text)]
    gpu = this_gpu()
    assert gpu
    session = Session(gpu)
    spaces = read_spaces(make_parser().parse_args([kernel, *arguments]), session, gpu)
    session.close()

    def bind(experiment: Experiment) -> Any:
        if not experiment.is_case:
            return prepare(experiment, gpu).bind()
        config = CaseTrial(ConfigTrial((experiment,))).prepare(experiment)
        config.launch()
        return config.bind()

    compiling = timing = 0.0
    for space in spaces[::3]:
        for experiment in space.experiments:
            if explain_refusal(experiment, gpu):
                continue
            began = time.monotonic()
            try:
                launch = bind(experiment)
                launch()
                torch.cuda.synchronize()
                compiled = time.monotonic()
                triton.testing.do_bench(launch)
            except triton.runtime.OutOfResources:
                continue
            compiling += compiled - began
            timing += time.monotonic() - compiled
            launch = None
    print(json.dumps([compiling, timing]))


def compare(chosen: dict[str, Any], exhaustive: dict[str, Any]) -> dict[str, Any]:
    """Return by how much the chosen configs are slower than the best ones, and the fraction of timed configs."""
    regrets = []
    timed = tried = 0
    for tuned, complete in zip(chosen["problems"], exhaustive["problems"], strict=True):
        slowdowns = {
            json.dumps(row["config"]): row["slowdown"] or math.inf for row in complete["configs"]
        }
        regrets.append(slowdowns[json.dumps(tuned["best"])] / min(slowdowns.values()) - 1)
        timed += sum(row["status"] == "timed" for row in tuned["configs"])
        tried += len(tuned["configs"])
    mean, worst = sum(regrets) / len(regrets), max(regrets)
    return {"regrets": regrets, "mean": mean, "worst": worst, "timed": timed / tried}


def main(out: Path, names: list[str]) -> None:
    """Write and print the results."""
    results = json.loads(out.read_text()) if out.exists() else {}
    for name in names or KERNELS:
        with tempfile.TemporaryDirectory() as folder:
            chosen, tuning_s = run(name, Path(folder))
            exhaustive, all_s = run(name, Path(folder), "--all")
        result = {**compare(chosen, exhaustive), "tuning_s": tuning_s, "all_s": all_s}
        results[name] = {**result, "chosen": chosen, "exhaustive": exhaustive}
        out.write_text(json.dumps(results))
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TRITON_CACHE_DIR": folder, "TRITON_INTERPRET": "0"}
            command = [sys.executable, "-m", "benchmarks.tune", "--sequential", name]
            printed = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            ).stdout
        result["sequential_s"] = json.loads(printed)
        results[name] |= result
        out.write_text(json.dumps(results))
        print(name, json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1] == "--sequential":
        time_sequentially(sys.argv[2])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
