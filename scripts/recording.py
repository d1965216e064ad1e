"""What the recording campaigns share: submit experiments on this machine's GPU, and write one recording a line."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# So many clients that some experiments are compiled while another one runs.
_CLIENTS = 8

# What is recorded: a payload and the measurement's name.
Wanted = tuple[dict[str, Any], str]


def flags_of(about: str | None) -> argparse.ArgumentParser:
    """A parser of a campaign's arguments: the file, and --append."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("file", type=Path)
    parser.add_argument("--append", action="store_true", help="keep what the file holds")
    return parser


def record(
    outcomes: Iterable[tuple[Wanted, Any]],
    said: Callable[[Any], str],
    file: Path,
    append: bool = False,
    kept: Callable[[Any], bool] = lambda measured: True,
    replaced: Path | None = None,
) -> int:
    """Write outcomes as they come, one recording a line, and print what is `said` of each.

    Args:
        outcomes: what was wanted, each with its result or a Failure.
        kept: results that go into the file.
        replaced: a file whose recordings are kept too, each in its place, but for those that were measured anew.

    Returns:
        The number of failures.
    """
    from kernels.gpus import this_gpu
    from kernels.measuring.measurements import MEASUREMENTS
    from kernels.results import Failure
    from kernels.results.records import Recording

    gpu, failed = this_gpu(), 0
    if gpu is None:
        print("There is no GPU here, so there is nothing to record.", file=sys.stderr)
        return 1
    anew: list[str] = []
    with file.open("a" if append else "w", encoding="utf-8") as target:
        for (payload, name), outcome in outcomes:
            if isinstance(outcome, Failure):
                failed += 1
                print(f"not recorded: {name} {payload}: {outcome}", file=sys.stderr)
                continue
            date = datetime.datetime.now(datetime.UTC).date().isoformat()
            if kept(outcome):
                anew.append(MEASUREMENTS[name].form.line(Recording(gpu.name, date, outcome)))
                target.write(anew[-1] + "\n")
                target.flush()
            print(f"{name} {payload}: {said(outcome)}", flush=True)
    if replaced:
        lines = merged(replaced.read_text(encoding="utf-8").splitlines(), anew)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return failed


def merged(old: Sequence[str], anew: Sequence[str]) -> list[str]:
    """Lines of recordings: each old one, or what was measured anew in its place; then what is new."""
    fresh = {_what(line): line for line in anew}
    places = [_what(line) for line in old]
    return [fresh.get(what, line) for what, line in zip(places, old, strict=True)] + [
        line for what, line in fresh.items() if what not in places
    ]


def unrecorded(wanted: Sequence[Wanted], file: Path) -> list[Wanted]:
    """What is wanted and a file holds no recording of, from whatever GPU: `file` is one GPU's."""
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.measuring.measurements import MEASUREMENTS

    held = {(word, key) for word, _, key in map(_what, file.read_text(encoding="utf-8").splitlines())}
    return [
        (payload, name)
        for payload, name in wanted
        if (MEASUREMENTS[name].form.word, MEASUREMENTS[name].form.key(from_json(payload, discover()))) not in held
    ]


def _what(line: str) -> tuple[str, str, Any]:
    """What a line is a recording of: its kind, its GPU, and the experiment that stands for all with the same result."""
    from kernels.measuring.measurements import MEASUREMENTS

    fields = json.loads(line)
    form = next(one.form for one in MEASUREMENTS.values() if one.form.word in fields)
    return form.word, fields["gpu"], form.key(form.recording(fields).measured.experiment)


def submitted(wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Any]]:
    """Each of what is wanted with its outcome, in order, as a session on this machine measures it."""
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.measuring.session import Session

    session = Session.here()
    try:
        with ThreadPoolExecutor(_CLIENTS) as clients:
            outcomes = clients.map(lambda one: session.submit(from_json(one[0], discover()), one[1]).result(), wanted)
            yield from zip(wanted, outcomes, strict=True)
    finally:
        session.close()
