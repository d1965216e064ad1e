"""Record runs and comparisons of layouts on this machine's GPU: `python -m scripts.record_runs FILE [--append]`.

Every kernel's default and presets, in every dtype, and the large square shapes. The file holds one Recording a line.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Whose layouts are compared: the large square product in every type that has a story there.
COMPARED: list[dict[str, Any]] = [
    {"kernel": kernel, "problem": {"M": 4096, "N": 4096, "K": 4096, "dtype": dtype}, "config": config}
    for dtype, block_k in (("float16", 64), ("float32", 32), ("float8_e4m3fn", 128))
    for kernel in ("matmul.grouped", "matmul.persistent")
    for config in ({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": block_k, "GROUP_SIZE": 8, "num_warps": 8},)
]


def experiments() -> Iterator[tuple[dict[str, Any], str]]:
    """The payloads that are recorded, each with what is submitted: "run" or "layouts"."""
    from kernels import discover
    from kernels.experiment import from_json

    for kernel in discover().values():
        settings = [({}, {}), *((dict(preset.problem), dict(preset.config)) for preset in kernel.presets)]
        seen: list[object] = []
        for problem, config in settings:
            for dtype in [problem["dtype"]] if "dtype" in problem else kernel.problem_knobs()["dtype"].choices or ():
                payload: dict[str, Any] = {"kernel": kernel.id, "config": config}
                payload["problem"] = {**problem, "dtype": dtype}
                if (experiment := from_json(payload, discover())) not in seen:
                    seen.append(experiment)
                    yield payload, "run"
    yield from ((compared, "layouts") for compared in COMPARED)


def main() -> int:
    """Record; returns the number of experiments that could not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--append", action="store_true", help="keep what the file holds")
    flags = parser.parse_args()
    return record(list(experiments()), _said, flags.file, flags.append)


def _said(outcome: Any) -> str:
    from kernels.results import RunResult

    timing = outcome.timing if isinstance(outcome, RunResult) else outcome.rows[0].timing
    return f"{timing.median_ms:.4f} ms" if timing else "wrong"


def record(
    wanted: Sequence[tuple[dict[str, Any], str]],
    said: Callable[[Any], str],
    file: Path,
    append: bool = False,
    kept: Callable[[Any], bool] = lambda outcome: True,
) -> int:
    """Submit all that is wanted, write one Recording a line, and print what is `said` of each.

    Args:
        wanted: payloads, each with what is submitted.
        kept: outcomes that go into the file.

    Returns:
        The number of experiments that could not be recorded.
    """
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.records import Recording
    from kernels.results import Failure
    from kernels.runner.session import Session

    session = Session.here()
    if session.gpu is None:
        print("There is no GPU here, so there is nothing to record.", file=sys.stderr)
        return 1
    failed = 0
    try:
        # So many clients that some are compiled while another one runs; lines are written as they come.
        with ThreadPoolExecutor(8) as clients, file.open("a" if append else "w", encoding="utf-8") as target:
            outcomes = clients.map(lambda one: session.submit(from_json(one[0], discover()), one[1]).result(), wanted)
            for (payload, what), outcome in zip(wanted, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    failed += 1
                    print(f"not recorded: {payload}: {outcome}", file=sys.stderr)
                    continue
                date = datetime.datetime.now(datetime.UTC).date().isoformat()
                if kept(outcome):
                    target.write(Recording(session.gpu.name, date, outcome).to_line() + "\n")
                    target.flush()
                print(f"{what} {payload}: {said(outcome)}", flush=True)
    finally:
        session.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
