"""Launch experiments to be counted: `python -m kernels.measuring.counted_launch FILE REPEATS`, a list in JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(file: Path, repeats: int) -> None:
    """Launch all of them on this machine's GPU, one after the other, each so many times."""
    from kernels.measuring import worker

    worker.start("cuda", os.environ["TRITON_CACHE_DIR"])

    import torch

    from kernels import discover
    from kernels.experiment import from_json, resolve_gpu
    from kernels.gpus import this_gpu
    from kernels.measuring.prepared import prepare

    for payload in json.loads(file.read_text(encoding="utf-8")):
        experiment = from_json(payload, discover())
        prepared = prepare(experiment, resolve_gpu(experiment, this_gpu()))
        for _ in range(repeats):
            prepared.launch()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
