"""Damaged and hostile captures are refused in a sentence, within seconds, and without much memory.

As a script: `python tests/kernels/test_capture_file.py FIRST_SEED CAPTURES FOLDER` prints what else happens.
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

ROOT = Path(__file__).parents[2]
EXAMPLES, CAPTURES, MOST_SECONDS, MOST_BYTES = ("gather", "layer_norm", "attention"), 200, 5, 1 << 30
DEEP = "[" * 100_000 + "]" * 100_000
VALUES = (
    None, True, -1, 0, 1, 3, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 64, 1e308, float("nan"), "", "nan", "../../x", DEEP,
    [], {}, [[[]]], {"a": 1}, [0] * 3, [3, 5, 7], [1 << 20, 1 << 20, 1], [(1 << 31) - 1] * 3, [1 << 24], [1] * 1000,
)  # fmt: skip
ARRAYS = (
    np.array([{}, []], object), np.zeros(3, "U9"), np.zeros(7, [("a", "i4")]), np.full((9, 9), np.nan),
    np.zeros(0), np.zeros(9, bool), np.array(5), np.full(99999, 1 << 62), np.full(99999, -7),
    np.zeros(9, complex), np.zeros(9, "M8"),
)  # fmt: skip
PATTERNS = (
    r"(?<=[ <x:])\d+",
    r"(?<=constant )-?\d+",
    r"%[\w#]+",
    r"\b[a-z]+\.[a-z_]+",
    r"\b[if]\d+",
    r"loc\(.*",
    r"\S+",
)
TEXTS = (*(str(1 << bits) for bits in (0, 3, 12, 20, 31, 40, 60, 70)), "-1", "nothing", "dense<[1, 2]>", "")
OTHER_NAMES = ("../../etc/x", "/tmp/x", "a" * 9999, "kernels/1.ttgir", "capture.json")


def mutate_json(random: random.Random, text: bytes) -> bytes:
    """Replace, delete or repeat a value anywhere in a JSON text."""
    content = json.loads(text)
    part = random.choice([content, *content["kernels"], *content["launches"] * 2])
    key = random.choice(["grid", *part] if "grid" in part else list(part))
    while isinstance(part[key], dict | list) and part[key] and random.random() < 0.7:
        part = part[key]
        key = random.choice(list(part) if isinstance(part, dict) else range(len(part)))
    if isinstance(part, list) and random.random() < 0.3:
        part += [part[key]] * random.choice((1, 3, 1000))
    elif random.random() < 0.1:
        del part[key]
    else:
        part[key] = random.choice(VALUES)
    return json.dumps(content).replace(f'"{DEEP}"', DEEP).encode()


def mutate_text(random: random.Random, text: bytes) -> bytes:
    """Truncate compiled code, move or delete its lines, or replace its numbers, names and types."""
    lines = text.decode().splitlines()
    i, j = (random.randrange(len(lines)) for _ in range(2))
    match random.randrange(8):
        case 0:
            return text[: random.randrange(len(text))]
        case 1:
            lines[i], lines[j] = lines[j], lines[i]
        case 2:
            del lines[i : i + random.choice((1, 5))]
        case 3:
            random.shuffle(lines)
        case _:
            places = list(re.finditer(random.choice(PATTERNS), text.decode()))
            place, other = random.choice(places), random.choice(places)[0]
            new = random.choice((other, random.choice(TEXTS)))
            return (text.decode()[: place.start()] + new + text.decode()[place.end() :]).encode()
    return "\n".join(lines).encode()


def mutate_array(random: random.Random, data: bytes) -> bytes:
    file = io.BytesIO()
    np.save(file, random.choice(ARRAYS), allow_pickle=True)
    huge = data.replace(b"'shape': (", b"'shape': (99999999, ", 1)
    return random.choice((file.getvalue(), data[: random.randrange(len(data))], huge, data.replace(b"<i8", b"<i4")))


def mutate(random: random.Random, source: Path, path: Path) -> None:
    """Write a changed copy of a capture."""
    with zipfile.ZipFile(source) as file:
        members = {name: file.read(name) for name in file.namelist()}
    mutations = {"json": mutate_json, "npy": mutate_array}
    for _ in range(random.choice((1, 1, 2, 5))):
        kind = random.choice(("json", "json", "ttgir", "ttgir", "ttgir", "ptx", "npy"))
        name = random.choice([name for name in members if name.endswith(kind)] or list(members))
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # nothing is left to change
            members[name] = mutations.get(name.rpartition(".")[2], mutate_text)(random, members[name])
    match random.randrange(20):
        case 0:
            del members[name]
        case 1:
            members[name] = random.choice((b"", b"\xff" * 99, bytes(1 << 20), bytes(70 << 20), b"(" * (8 << 20)))
        case 2:
            members[random.choice(OTHER_NAMES)] = members[name]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    data = bytearray(path.read_bytes())
    if random.random() < 0.15:
        for _ in range(random.choice((1, 10, 1000))):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(data[: random.choice((len(data), random.randrange(len(data))))])


def count_everything(path: Path) -> str:
    """Return how reading a capture ends: "counted", "refused" or "unreadable"."""
    from kernels.compiling.capture_file import Capture, UnreadableCapture
    from kernels.compiling.captured_counts import count_launch

    try:
        capture = Capture(path)
        counts = [count_launch(capture, launch) for launch in capture.content.launches[:3]]
        reasons = [why for c in counts for why in (c.refused, *(op.tally.refused for op in c.operations)) if why]
        assert not any("Memory" in why for why in reasons), reasons
        return "refused" if reasons or not all(count.totals() for count in counts) else "counted"
    except UnreadableCapture:
        return "unreadable"


def main(first: int, count: int, folder: Path) -> None:
    """Print seeds whose capture ends with another exception or exceeds a limit, and then how many ended in each way."""
    count_everything(folder / f"{EXAMPLES[0]}.tilescope")  # import everything
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # KeyboardInterrupt: nothing may catch it
    ends = collections.Counter()
    for seed in range(first, first + count):
        generator, path = random.Random(seed), folder / "damaged.tilescope"
        mutate(generator, folder / f"{generator.choice(EXAMPLES)}.tilescope", path)
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, -1))
        signal.alarm(MOST_SECONDS)
        try:
            ends[count_everything(path)] += 1
        except BaseException as error:
            print(f"Seed {seed}: {error!r}")
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    print(json.dumps(ends))


def test_damaged_captures_are_counted_or_refused(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    for name in EXAMPLES:
        out, script = tmp_path / f"{name}.tilescope", ROOT / "kernels" / "examples" / f"{name}.py"
        command = [sys.executable, ROOT / "kernels" / "compiling" / "capture.py", "--out", out, script]
        subprocess.run(command, env=environment, check=True)
    command = [sys.executable, __file__, "0", str(CAPTURES), tmp_path]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *failures, ends = ended.stdout.splitlines()
    assert not failures
    assert all(json.loads(ends)[end] > CAPTURES / 20 for end in ("counted", "refused", "unreadable"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
