"""How soon a sweep finds a fast config, replayed on times of every config: `python -m benchmarks.search`.

Needs no GPU. `--record FILE` times every config of eight shapes on this machine's GPU, in some minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

# Times of every config, as recorded on an H200.
RECORDED = Path(__file__).parent / "measured" / "searches_h200.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=RECORDED, help="times of every config")
    parser.add_argument("--record", metavar="FILE", type=Path, help="time every config on this GPU into a file")
    parser.add_argument("--last", type=int, default=0, metavar="N", help="of the last N shapes alone")
    flags = parser.parse_args()
    # Not above: worker processes import this file, and are told how Triton runs before it is imported.
    from benchmarks.search_replay import replayed, report
    from benchmarks.search_times import read, record

    if flags.record:
        record(flags.record, flags.last)
    else:
        print(report([replayed(found) for found in read(flags.file)]))


if __name__ == "__main__":
    main()
