"""How soon a sweep finds a fast config: `python -m benchmarks.search`.

`--record FILE` times every config of eight shapes on this machine's GPU, in a minute or two.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", metavar="FILE", type=Path, help="time all configs on this GPU into a file")
    flags = parser.parse_args()
    if flags.record:
        from benchmarks.search_times import record  # not above: worker processes import this file

        record(flags.record)


if __name__ == "__main__":
    main()
