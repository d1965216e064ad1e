"""Count launches on this machine's GPU: `python tests/oracle/count_launches.py FILE`. Needs Nsight Compute's `ncu`.

For some configs of every kernel, what the compiler says (registers, spilled and shared bytes) beside what Nsight
Compute says of the launch (the same, and the programs of a SM that each resource allows). FILE gets one JSON object.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METRICS = {
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block_dynamic",
    "limit_programs": "launch__occupancy_limit_blocks",
    "limit_registers": "launch__occupancy_limit_registers",
    "limit_shared": "launch__occupancy_limit_shared_mem",
    "limit_warps": "launch__occupancy_limit_warps",
    "occupancy_percent": "sm__maximum_warps_per_active_cycle_pct",
}
_UNITS = {"byte/block": 1, "Kbyte/block": 1000, "Mbyte/block": 1_000_000}
MATMUL_TILES = ((16, 32, 32), (64, 64, 32), (128, 128, 32))


def payloads():
    """Small and large tiles on 1 to 8 warps, in half and float32, sizes with and without whole 16 bytes a row."""
    from kernels import discover

    for kernel in discover().values():
        if kernel.family.id == "matmul":
            configs = [dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True)) for tile in MATMUL_TILES]
        else:
            configs = [{}]
        for place, config in enumerate(configs):
            for num_warps in (1, 2, 4, 8):
                if config.get("BLOCK_M") == 128 and num_warps < 4:
                    continue  # minutes of compiling: far too few registers
                for dtype in ("float16", "float32"):
                    size = 512 if (place + num_warps) % 3 else 500
                    problem = {"M": size, "N": size, "dtype": dtype}
                    yield {"kernel": kernel.id, "problem": problem, "config": {**config, "num_warps": num_warps}}


def launch(cases: Path) -> None:
    """Launch each case once."""
    import torch

    from kernels.experiment import from_json
    from kernels.gpus import this_gpu
    from kernels.runner import worker

    worker.start("cuda", os.environ["TRITON_CACHE_DIR"])

    from kernels import discover
    from kernels.runner.prepared import prepare

    for payload in json.loads(cases.read_text()):
        prepare(from_json(payload, discover()), this_gpu()).launch()
        torch.cuda.synchronize()


def counted(cases: Path) -> list[dict[str, float]]:
    """What Nsight Compute says of each launch, in the order in which they were."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(METRICS.values())]
    command += ["--kernel-name", "regex:^(matmul|transpose)_", sys.executable, __file__, "--launch", str(cases)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stdout[-2000:] + ended.stderr[-2000:])
    text = ended.stdout[ended.stdout.index('"ID"') :]
    units, *rows = csv.DictReader(io.StringIO(text))
    return [
        {name: float(row[metric].replace(",", "")) * _UNITS.get(units[metric], 1) for name, metric in METRICS.items()}
        | {"kernel": row["Kernel Name"]}
        for row in rows
    ]


def main() -> None:
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.gpus import this_gpu
    from kernels.runner import compiler
    from kernels.runner.results import Failure

    gpu = this_gpu()
    if gpu is None:
        raise SystemExit("There is no GPU here.")
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    taken = []
    for payload in payloads():
        compiled = compiler.compiled_for(from_json(payload, discover()), gpu)
        if isinstance(compiled, Failure):
            print(f"left out: {payload}: {compiled.message}")
            continue
        facts = {name: getattr(compiled, name) for name in ("registers", "spilled_bytes", "shared_bytes")}
        taken.append({"experiment": payload, "compiled": facts, "triton": compiled.triton})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([case["experiment"] for case in taken], file)
        file.flush()
        rows = counted(Path(file.name))
    if len(rows) != len(taken):
        raise SystemExit(f"{len(taken)} launches were made and {len(rows)} counted.")
    for case, row in zip(taken, rows, strict=True):
        case["counted"] = row
    lines = ",\n".join(json.dumps(case) for case in taken)
    Path(sys.argv[1]).write_text(f'{{"gpu": "{gpu.name}", "launches": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(taken)} launches")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1] == "--launch":
        launch(Path(sys.argv[2]))
    else:
        main()
