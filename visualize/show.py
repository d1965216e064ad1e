"""`app.py show`: run a script, and serve or print the memory requests of every Triton launch in it."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import kernels.compiling
from kernels.compiling.capture_file import Capture, UnreadableCapture
from kernels.gpus import DEFAULT_GPU, GPUS, this_gpu
from visualize import startup
from visualize.views.capture.report import regressions, report, table

# Exit statuses.
FINE, GREW, USAGE = 0, 1, 2

_CAPTURE = Path(kernels.compiling.__file__).with_name("capture.py")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags of `app.py show`."""
    parser = argparse.ArgumentParser(
        prog="app.py show",
        description="Run a script, and show the memory requests of every Triton launch in it. Exit status: 0; 1 if "
        "something grew since --against; 2 for invalid flags or a script without a launch.",
        epilog="Showing a script runs it. Example: app.py show softmax.py --gpu H200 --json",
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT.py[:CASE]", help="a script, one case of it, or a capture (.tilescope)")
    add("--gpu", choices=(*GPUS,), help=f"compile for this GPU (default: this machine's, or else {DEFAULT_GPU})")
    add("--text", action="store_true", help="print a table, and end")
    add("--json", action="store_true", help="print one JSON object, and end")
    add("--against", type=Path, metavar="OTHER.json", help="fail if requests, sectors, registers or memory grew")
    add("--python", default=sys.executable, metavar="PATH", help="the Python that runs the script (this one)")
    add("--values", action="store_true", help="run launches in Triton's interpreter, for addresses that need results")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the case; repeatable")
    add("--config", action="append", default=[], metavar="KERNEL=N", help="pin config N of a kernel's autotuner")
    add("--out", type=Path, metavar="FILE.tilescope", help="keep the capture")
    add("--host", default="127.0.0.1", help="address of the page: only this machine's own (127.0.0.1)")
    add("--port", type=startup.whole_number(1, 65535), default=7860, help="port of the page (7860)")
    add("arguments", nargs="*", help="arguments of the script, after `--`")
    return parser


def show(arguments: Sequence[str]) -> int:
    """Capture a script as the arguments say. Print its launches or serve them, and return the exit status."""
    parser = make_parser()
    flags = parser.parse_args(arguments)
    prints = flags.text or flags.json or flags.against
    if obstacle := "" if prints else _obstacle(flags):
        parser.exit(USAGE, f"{obstacle}\n")
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder:
        path = Path(flags.script)
        is_capture = path.suffix == ".tilescope"
        if not is_capture:
            path = flags.out or Path(folder) / "script.tilescope"
            if status := run_capture(flags, path):
                return status
        try:
            if not prints:
                from visualize.web.capture_page import serve_capture

                script = None if is_capture else Path(flags.script.partition(":")[0])
                serve_capture(path, script, lambda: run_capture(flags, path), flags.host, flags.port)
                return FINE
            content = report(Capture(path))
            before = json.loads(flags.against.read_text(encoding="utf-8")) if flags.against else None
        except UnreadableCapture as error:
            parser.exit(USAGE, f"{error}\n")
        except (OSError, ValueError) as error:
            parser.exit(USAGE, f"--against {flags.against}: {error}\n")
    print(json.dumps(content, allow_nan=False) if flags.json else table(content))
    if not content["launches"]:
        print(f"{flags.script} launched no Triton kernel.", file=sys.stderr)
        return USAGE
    grown = [] if before is None else list(regressions(before, content))
    print("".join(f"{line}\n" for line in grown), end="", file=sys.stderr)
    return GREW if grown else FINE


def _obstacle(flags: argparse.Namespace) -> str:
    """Say why the page can't be served, or "" if it can. Whoever reaches it could run code through the script."""
    if "SPACE_ID" in os.environ:
        return "A Space shows no scripts, because its visitors could run code. Use --text or --json."
    if flags.host not in _LOOPBACK:
        return (
            f"`show` listens only on this machine: --host must be one of {', '.join(_LOOPBACK)} (got {flags.host!r})."
        )
    return startup.obstacle(flags.host, flags.port)


def run_capture(flags: argparse.Namespace, path: Path) -> int:
    """Run the script in its own process. Return the exit status if it wrote no capture, else 0."""
    gpu = GPUS.get(flags.gpu or "") or this_gpu() or GPUS[DEFAULT_GPU]
    command = [flags.python, str(_CAPTURE), "--out", str(path), "--gpu-json", json.dumps(asdict(gpu))]
    command += ["--values"] if flags.values else []
    for name in ("set", "config"):
        command += [part for value in getattr(flags, name) for part in (f"--{name}", value)]
    try:
        # The script's output goes to stderr: stdout is the report's.
        done = subprocess.run([*command, flags.script, *flags.arguments], stdout=sys.stderr.fileno(), check=False)
    except OSError as error:
        print(f"--python {flags.python}: {error.strerror}.", file=sys.stderr)
        return USAGE
    return done.returncode
