"""Damaged and hostile captures are refused in a sentence, within seconds, and without much memory.

As a script: `python tests/tilescope/record/test_capture_file.py FIRST_SEED CAPTURES FOLDER` prints all other outcomes.
"""

import collections
import contextlib
import io
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

from tilescope.captures.reader import Capture, UnreadableCapture
from tilescope.evaluate.captured import count_launch

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "kernels/examples"
NAMES = ("gather", "layer_norm", "attention")
CAPTURES = 200
MOST_SECONDS = 5
MOST_BYTES = 1 << 30
DEEP = "[" * 100_000 + "]" * 100_000
VALUES = (
    None, True, -1, 0, 1, 3, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 64, 1e308, float("nan"), "", "nan", "../../x", DEEP,
    [], {}, [[[]]], {"a": 1}, [0] * 3, [3, 5, 7], [1 << 20, 1 << 20, 1], [(1 << 31) - 1] * 3, [1 << 24], [1] * 1000,
)  # fmt: skip
ARRAYS = [np.zeros(9, kind) for kind in ("O", "U9", "i4,f4", "?", "c16", "M8[s]", "i1")]
ARRAYS += [
    np.full((9, 9), np.nan),
    np.zeros(0),
    np.array(5),
    np.full(99999, 1 << 62),
    np.full(99999, -7),
]
PATTERNS = [
    r"(?<=[<x:])\d+",
    r"(?<=constant\s)-?\d+",
    r"%[\w#]+",
    r"\b[a-z]+\.[a-z_]+",
    r"\b[if]\d+",
    r"\S+",
]
TEXTS = ("", "-1", "nothing", "dense<[1, 2]>", *(str(1 << bits) for bits in (0, 3, 12, 31, 40, 70)))
MEMBERS = (b"", b"\xff" * 99, bytes(1 << 20), bytes(70 << 20), b"(" * (8 << 20))


def mutate_json(random, text):
    """Replace, delete or repeat a value anywhere in a JSON text."""
    content = json.loads(text)
    part = random.choice([content, *content["kernels"], *content["launches"] * 2])
    key = random.choice(list(part))
    while isinstance(part[key], dict | list) and part[key] and random.random() < 0.7:
        part = part[key]
        key = random.choice(list(part) if isinstance(part, dict) else range(len(part)))
    if isinstance(part, list) and random.random() < 0.3:
        part += [part[key]] * random.choice((1, 3, 1000))
    elif random.random() < 0.9:
        part[key] = random.choice(VALUES)
    else:
        del part[key]
    return json.dumps(content).replace(f'"{DEEP}"', DEEP).encode()


def mutate_text(random, data):
    """Truncate compiled code, shuffle or delete lines, or replace a number, name, type or location."""
    text, action = data.decode(), random.randrange(8)
    if action == 0:
        return data[: random.randrange(len(data))]
    if action < 4:
        lines = text.splitlines()
        start, end = sorted(random.sample(range(len(lines)), 2))
        lines[start:end] = random.sample(
            lines[start:end], random.choice((end - start, (end - start) // 2))
        )
        return "\n".join(lines).encode()
    places = list(re.finditer(random.choice(PATTERNS), text))
    place, new = (
        random.choice(places),
        random.choice((random.choice(places)[0], random.choice(TEXTS))),
    )
    return (text[: place.start()] + new + text[place.end() :]).encode()


def mutate_array(random, data):
    file = io.BytesIO()
    np.save(file, random.choice(ARRAYS), allow_pickle=True)
    huge = data.replace(b"'shape': (", b"'shape': (99999999, ", 1)
    return random.choice(
        (file.getvalue(), data[: random.randrange(len(data))], huge, data.replace(b"<i8", b"<i4"))
    )


def mutate(random, source, path):
    """Write a changed copy of a capture."""
    with zipfile.ZipFile(source) as file:
        members = {name: file.read(name) for name in file.namelist()}
    mutations = {"json": mutate_json, "npy": mutate_array}
    for _ in range(random.choice((1, 1, 2, 5))):
        kind = random.choice(("json", "json", "ttgir", "ttgir", "ttgir", "ptx", "npy"))
        name = random.choice([name for name in members if name.endswith(kind)] or list(members))
        with contextlib.suppress(
            ValueError, LookupError, TypeError, RecursionError
        ):  # nothing is left to change
            members[name] = mutations.get(name.rpartition(".")[2], mutate_text)(
                random, members[name]
            )
    members |= random.choice(
        [{}] * 9 + [{name: random.choice(MEMBERS)}, {"../../etc/x": b"", "a" * 9999: b""}]
    )
    if random.random() < 0.05:
        del members[name]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, data in members.items():
            file.writestr(name, data)
    data = bytearray(path.read_bytes())
    if random.random() < 0.15:
        for _ in range(random.choice((1, 10, 1000))):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(data[: random.choice((len(data), random.randrange(len(data))))])


def count_all(path):
    """Return how counting a capture's launches ends."""
    try:
        capture = Capture(path)
        counts = [count_launch(capture, launch) for launch in capture.content.launches[:3]]
    except UnreadableCapture:
        return "unreadable"
    reasons = [
        why
        for c in counts
        for why in (c.refused, *(op.tally.refused for op in c.operations))
        if why
    ]
    assert not any("Memory" in why for why in reasons), reasons
    return "refused" if reasons or not all(count.totals() for count in counts) else "counted"


def main(first, count, folder):
    """Print each seed whose capture raises another error or exceeds a limit, and then how many ended in each way."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # Raises KeyboardInterrupt, which nothing may catch
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    ends = collections.Counter()
    for seed in range(first, first + count):
        generator, path = random.Random(seed), folder / "damaged.tilescope"
        mutate(generator, EXAMPLES / f"{generator.choice(NAMES)}.tilescope", path)
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, -1))
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        try:
            ends[count_all(path)] += 1
        except BaseException as error:
            print(f"Seed {seed}: {error!r}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    print(json.dumps(ends))


def test_damaged_captures_are_counted_or_refused(tmp_path):
    command = [sys.executable, __file__, "0", str(CAPTURES), tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *failures, ends = ended.stdout.splitlines()
    assert not failures
    assert "Internal error: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (
        min(json.loads(ends)[end] for end in ("counted", "refused", "unreadable")) > CAPTURES / 20
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
