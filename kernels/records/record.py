"""Record runs on this machine's GPU: `python -m kernels.records.record FILE [--append]`.

Every kernel's default and presets, in every dtype, and the large square shapes. The file holds one Recording a line.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator
from pathlib import Path


def experiments() -> Iterator[dict[str, object]]:
    """The payloads that are recorded."""
    from kernels import discover
    from kernels.spec import knobs

    for kernel in discover().values():
        choices = knobs(kernel.family.problem)["dtype"].choices or ()
        settings = [({}, {}), *((dict(preset.problem), dict(preset.config)) for preset in kernel.presets)]
        for problem, config in settings:
            for dtype in choices:
                yield {"kernel": kernel.id, "problem": {**problem, "dtype": dtype}, "config": config}


def main() -> int:
    """Record; returns the number of experiments that could not be."""
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.records import Recording
    from kernels.runner.results import Failure
    from kernels.runner.session import Session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--append", action="store_true", help="keep what the file holds")
    flags = parser.parse_args()
    session = Session.here()
    if session.gpu is None:
        print("There is no GPU here, so there is nothing to record.", file=sys.stderr)
        return 1
    failed = 0
    lines = []
    try:
        for payload in experiments():
            outcome = session.submit(from_json(payload, discover())).result()
            if isinstance(outcome, Failure) or outcome.timing is None:
                failed += 1
                print(f"not recorded: {payload}: {outcome}", file=sys.stderr)
                continue
            date = datetime.datetime.now(datetime.UTC).date().isoformat()
            lines.append(Recording(session.gpu.name, date, outcome).to_line())
            print(f"{payload}: {outcome.timing.median_ms:.4f} ms")
    finally:
        session.close()
    with flags.file.open("a" if flags.append else "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return failed


if __name__ == "__main__":
    sys.exit(main())
