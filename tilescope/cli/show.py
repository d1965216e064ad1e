"""`tilescope show`: run a script, and serve or print the memory requests of every Triton launch in it."""

import argparse
import json
import os
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilescope.captures.content import Stop
from tilescope.captures.reader import Capture, UnreadableCapture
from tilescope.captures.server import CaptureFailed, CaptureServer, install_triton, split_case
from tilescope.cli.command import (
    GREW,
    LOOPBACK,
    USAGE,
    CommandFailed,
    load_page,
    missing_page,
    obstacle,
    whole_number,
)
from tilescope.declare.discovery import examples
from tilescope.declare.gpus import ALL_GPUS, DEFAULT_GPU, find_gpu, this_gpu
from tilescope.numbers import count_noun, join_names
from tilescope.processes import check_output, guard, replacing
from tilescope.reports.comparison import Difference, compare, differences
from tilescope.reports.launch import Launches, Report, make_report, read_report
from tilescope.reports.text import (
    brief,
    describe_changes,
    html,
    markdown,
    markdown_growth,
    sections,
    table,
    to_json,
)

# Maximum lines of a comparison.
_MOST_CHANGED = 30


class _Once(argparse.Action):
    """Store one value; refuse a second one."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} names one GPU; compare two with --against gpu=NAME.")
        setattr(namespace, self.dest, values)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags of `tilescope show`."""
    parser = argparse.ArgumentParser(
        prog="tilescope show",
        description="Run a script, and show the memory requests of every Triton launch in it. Exit status: 0 on "
        "success; the script's own status if it exits with one; otherwise 2 if the flags are invalid, the script "
        "raised an exception, or nothing was captured; otherwise 1 if there is a regression since --against: a number "
        "increased, or a launch is missing.",
        epilog="Run it only on scripts that you trust. A script's own arguments come last, after `--`. "
        "Everything after a module's name is passed to the module. Examples: tilescope show softmax.py --gpu H200 "
        "--json; tilescope show --brief -m pytest tests/test_softmax.py",
    )
    add = parser.add_argument
    add(
        "script", metavar="SCRIPT[:CASE]", nargs="?",
        help="a script or notebook, one case of it, or a capture (.tilescope) (default: the first example)",
    )  # fmt: skip
    add(
        "-m", dest="module", metavar="MODULE[:CASE]",
        help="a module, or one case of it, with its arguments: run it instead of a script, as `python -m` does",
    )  # fmt: skip
    add(
        "--gpu",
        action=_Once,
        type=_gpu,
        metavar="NAME",
        help=f"compile for this GPU (default: this machine's, or {DEFAULT_GPU} if it has none): {', '.join(ALL_GPUS)}",
    )
    add(
        "--text",
        action="store_true",
        help="print a table and exit; with --json, add tables as `text` and `html`",
    )
    add("--json", action="store_true", help="print one JSON object and exit")
    add(
        "--markdown",
        action="store_true",
        help="print tables for GitHub and exit; with --against, only the regressions",
    )
    add(
        "--brief",
        action="store_true",
        help="print at most 4 KB and exit: a sentence per finding, largest cost first, and totals",
    )
    add(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="also write the page to one file, which needs neither a server nor a network",
    )
    add(
        "--against",
        metavar="OTHER",
        help="print what differs from OTHER: a report of --json, or triton=VERSION, gpu=NAME or NAME=VALUE, with "
        "which the script is captured a second time. With a report, the exit status is 1 if requests, sectors or "
        "spills increased, if registers, shared memory or bank conflicts increased along with the predicted time, or "
        "if a launch is missing",
    )
    add(
        "--triton",
        metavar="VERSION",
        help="the same as --against triton=VERSION",
    )
    add(
        "--count",
        action="store_true",
        help="also count each launch with Nsight Compute (needs a GPU)",
    )
    add("--mcp", action="store_true", help="also offer the page's report as an MCP tool")
    add(
        "--python",
        metavar="PATH",
        help="Python interpreter for the script (default: this one), or to try changes to a capture (default: none)",
    )
    add(
        "--values",
        action="store_true",
        help="run launches in Triton's interpreter, so that later launches see their results",
    )
    add(
        "--set", action="append", default=[], metavar="NAME=VALUE,...",
        help="set a parameter of the case (repeatable); multiple values sweep over all combinations",
    )  # fmt: skip
    add(
        "--config",
        action="append",
        default=[],
        metavar="KERNEL=N",
        help="pin config N of a kernel's autotuner",
    )
    add("--out", type=Path, metavar="FILE.tilescope", help="save the capture to this file")
    add(
        "--host",
        default="127.0.0.1",
        help="loopback address to serve the page on (default: 127.0.0.1)",
    )
    add(
        "--port",
        type=whole_number(1, 65535),
        default=7860,
        help="port to serve the page on (default: 7860)",
    )
    return parser


def show(arguments: Sequence[str]) -> None:
    """Capture a script, and print or serve its launches.

    Raises:
        CommandFailed: see the parser's description.
    """
    flags = _parse(arguments)
    formats = (flags.text, flags.json, flags.markdown, flags.brief)
    prints = any((*formats, flags.html, flags.against, flags.triton))
    if problem := "" if prints else _obstacle(flags):
        raise CommandFailed(problem, USAGE)
    with guard(*flags.outputs) as folder, ExitStack() as stack:
        try:
            _show(flags, prints, folder, stack)
        except (UnreadableCapture, CaptureFailed) as error:
            raise CommandFailed(str(error), USAGE) from error


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the flags. `command` is the script and its arguments; `is_capture` says that it is a capture file."""
    parser = make_parser()
    ends = [number for number, argument in enumerate(arguments) if argument in ("-m", "--")]
    end = ends[0] if ends else len(arguments)
    if arguments[end : end + 1] == ["-m"]:
        end += 2
        own = arguments[end:]
    else:
        own = arguments[end + 1 :]
    flags = parser.parse_args(arguments[:end])
    _check_outputs(flags)
    if flags.module is None:
        flags.script = flags.script or examples()[0]
        flags.command = [flags.script, "--", *own]
    elif flags.script:
        parser.error("give a script, or -m and a module with its arguments")
    else:
        flags.script = flags.module
        flags.command = ["-m", flags.script, "--", *own]
    flags.option = f"triton={flags.triton}" if flags.triton else ""
    if "=" in (flags.against or "") and not Path(flags.against).exists():
        flags.option = flags.against
    name, case = split_case(flags.script)
    path = Path(name)
    if flags.module is None and not path.exists():
        raise CommandFailed(f"There is no script {name}.", USAGE)
    is_archive = path.suffix == ".tilescope" or zipfile.is_zipfile(path)
    flags.is_capture = flags.module is None and is_archive
    flags.outputs = [path for path in (flags.html, flags.out) if path]
    if flags.is_capture:
        flags.outputs.append(path)  # findings may be added
    if flags.is_capture and case:
        raise CommandFailed(f"{name} is a capture, so it cannot run the case {case!r}.", USAGE)
    return flags


def _check_combination(flags: argparse.Namespace) -> None:
    """Raise CommandFailed if a flag would have no effect."""
    formats = [name for name in ("text", "json", "markdown", "brief") if getattr(flags, name)]
    if formats[:2] == ["text", "json"]:
        formats = formats[2:] and ["text", *formats[2:]]
    for names in (formats, [name for name in ("triton", "against") if getattr(flags, name)]):
        if len(names) > 1:
            message = f"--{names[0]} and --{names[1]} are mutually exclusive."
            raise CommandFailed(message, USAGE)
    if flags.is_capture:
        of_scripts = ("gpu", "set", "config", "values", "count", "out", "triton")
        given = [f"--{name}" for name in of_scripts if getattr(flags, name)]
        given += [f"--against {flags.option}"] if flags.option and not flags.triton else []
        given += ["arguments after --"] if len(flags.command) > 2 else []
        if given:
            message = (
                f"{flags.script} is a capture, not a script: {join_names(given)} can't be used."
            )
            raise CommandFailed(message, USAGE)
    if flags.count and _is_amd(flags.gpu):
        message = (
            f"--count uses Nsight Compute, which supports only NVIDIA GPUs (--gpu is {flags.gpu})."
        )
        raise CommandFailed(message, USAGE)


def _is_amd(gpu: str | None) -> bool:
    return gpu in ALL_GPUS and bool(ALL_GPUS[gpu].arch)


def _check_outputs(flags: argparse.Namespace) -> None:
    """Raise CommandFailed before anything runs if an output has the wrong suffix or cannot be written."""
    for name, suffix in (("html", ".html"), ("out", ".tilescope")):
        path = getattr(flags, name)
        if path and path.suffix != suffix:
            raise CommandFailed(f"--{name} must be a {suffix} file (got {path}).", USAGE)
        if path and not (flags.script or flags.module):
            raise CommandFailed(f"--{name} needs a script.", USAGE)
    if flags.html:
        try:
            check_output(flags.html, b'<meta name="generator" content="Tilescope">')
        except OSError as error:
            message = f"--html {flags.html} cannot be written ({error.strerror})."
            raise CommandFailed(message, USAGE) from error


def _show(flags: argparse.Namespace, prints: bool, folder: Path, stack: ExitStack) -> None:
    path = Path(flags.script)
    _check_combination(flags)
    before = None
    other = None
    if flags.against and not flags.option:
        try:
            before = read_report(Path(flags.against))
        except (OSError, ValueError) as error:
            message = f"--against {flags.against} is not a report of `show --json` ({error})."
            raise CommandFailed(message, USAGE) from error
    elif flags.option:
        other = _prepare_other(flags, folder, stack)
    process = None
    if not flags.is_capture or (flags.python and prints):
        process = _ScriptProcess(flags, folder, stack)
    if process and not flags.is_capture:
        if not prints:
            _announce_page(flags)
        processes = [process, other] if other else [process]
        # On a GPU, launches that run at the same time would slow each other down
        max_concurrency = len(processes) if this_gpu() is None else 1
        with (
            ThreadPoolExecutor(max_concurrency) as pool,
            _pass_interrupts_on(*processes) if prints else nullcontext(),
        ):
            path, *rest = pool.map(lambda each: each.capture(flags.script), processes)
        before = make_report(Capture(rest[0])) if rest else before
    is_compared = bool(before) and not (flags.json or flags.brief)
    compiler = process.server.compile if process and not is_compared else None
    if not prints:
        os.environ.setdefault("GRADIO_TEMP_DIR", str(folder))
        recapture = (process.capture, process.server.compile) if process else ()
        load_page("commands").serve_script(path, flags, *recapture)
        return
    capture = Capture(path)
    launches = Launches(capture, compiler)
    report = launches.report()
    if before and _is_amd(report.gpu) != _is_amd(before.gpu):
        message = (
            f"--against can't compare an AMD GPU with an NVIDIA GPU ({report.gpu}, {before.gpu})."
        )
        raise CommandFailed(message, USAGE)
    changed = [] if before is None else differences(before.launches, report.launches)
    _print(flags, report, before, changed)
    if flags.html and report.launches:
        page = load_page("web.report_file").render_report(launches)
        with replacing(flags.html) as partial:
            partial.write_text(page, encoding="utf-8")
    _check(flags, report, capture.content.stopped, changed)


def _prepare_other(flags: argparse.Namespace, folder: Path, stack: ExitStack) -> "_ScriptProcess":
    """Start the process that captures the script with the other Triton, GPU or parameter."""
    name, _, value = flags.option.partition("=")
    other = argparse.Namespace(**vars(flags))
    packages = None
    if name == "triton":
        from tilescope.measure.worker import default_cache_directory  # imports all declarations

        python = flags.python or sys.executable
        packages = install_triton(value, default_cache_directory(), python, folder)
    elif name == "gpu":
        try:
            other.gpu = find_gpu(value)
        except ValueError as error:
            raise CommandFailed(f"--against {flags.option}: {error}.", USAGE) from error
    else:
        others = [each for each in flags.set if each.partition("=")[0] != name]
        other.set = [*others, flags.option]
    return _ScriptProcess(other, folder, stack, packages, "-other")


def _announce_page(flags: argparse.Namespace) -> None:
    """Say where the page will be, and which flags after a module's name may have been meant to prevent it."""
    host = f"[{flags.host}]" if ":" in flags.host else flags.host
    page = f"the page on http://{host}:{flags.port}"
    print(f"Capturing {flags.script}, then serving {page}.", file=sys.stderr, flush=True)
    own = flags.command[3:] if flags.module else []
    printing = ("--text", "--json", "--markdown", "--brief", "--html", "--against", "--triton")
    passed_on = [argument for argument in own if argument.partition("=")[0] in printing]
    if passed_on:
        target = f"passed to {flags.script}; flags of `show` come before -m."
        print(f"{join_names(passed_on)}: {target}", file=sys.stderr, flush=True)


@contextmanager
def _pass_interrupts_on(*processes: "_ScriptProcess") -> Iterator[None]:
    """Continue after Ctrl+C, which ends the script, in order to report its launches. The next one ends this process."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, previous)
        for process in processes:
            process.server.interrupt()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _print(
    flags: argparse.Namespace, report: Report, before: Report | None, changed: Sequence[Difference]
) -> None:
    if flags.json:
        content = to_json(report)
        if flags.text:
            content |= {"text": table(report), "html": html(table(report))}
            for (numbers, _), section in zip(report.distinct, sections(report), strict=True):
                for number in numbers:
                    content["launches"][number] |= {
                        "text": section.text,
                        "html": html(section.text),
                    }
        if flags.option:
            content["compared_with"] = before and before.to_json()
        if before is not None:
            content["differences"] = [
                {**asdict(each), "is_worse": each.is_worse, "sentence": each.sentence}
                for each in changed
            ]
        print(json.dumps(content, allow_nan=False))
        return
    title = f"Compared with {flags.option}" if flags.option else "Differences"
    if before is not None and (before.triton, before.gpu) != (report.triton, report.gpu):
        title = f"From Triton {before.triton}, {before.gpu} to Triton {report.triton}, {report.gpu}"
    if flags.markdown:
        print(markdown(report) if before is None else markdown_growth(title, changed, report))
        return
    if before is None:
        print(brief(report) if flags.brief else table(report))
        return
    launches = compare(before.launches, report.launches)
    different = f"{sum(each.pairs for each in launches) or 'none'} different"
    lines = [f"{title}: {count_noun(len(report.launches), 'launch')}, {different}."]
    lines += [each.sentence for each in launches[:_MOST_CHANGED]]
    if rest := sum(each.pairs for each in launches[_MOST_CHANGED:]):
        lines.append(f"{rest} more differ: see `differences` of --json.")
    print(brief(report, lines) if flags.brief else describe_changes(report, lines))


def _check(
    flags: argparse.Namespace, report: Report, stopped: Stop | None, changed: Sequence[Difference]
) -> None:
    """Raise CommandFailed if the script failed, if there is no launch, or if a number increased.

    A reason that the report gives is not repeated.
    """
    if stopped is not None and stopped.kind != "host_read":
        raise CommandFailed("", stopped.status or USAGE)
    if not report.launches:
        advice = "Call one, or add a function whose name begins with `case`."
        none = f"{flags.script} launched no Triton kernels. {advice}"
        raise CommandFailed("" if stopped else none, USAGE)
    if flags.against and not flags.option and (count := sum(each.is_worse for each in changed)):
        raise CommandFailed(f"{count_noun(count, 'regression')} since {flags.against}.", GREW)


class _ScriptProcess:
    """Captures scripts as the flags say, and adds Nsight Compute's counters if requested.

    Args:
        folder: of the captures, except that of --out.
        stack, packages: see `CaptureServer`.
        suffix: of the names of captures, if it is the second process.
    """

    def __init__(
        self,
        flags: argparse.Namespace,
        folder: Path,
        stack: ExitStack,
        packages: Path | None = None,
        suffix: str = "",
    ) -> None:
        gpu = ALL_GPUS.get(flags.gpu or "") or this_gpu() or ALL_GPUS[DEFAULT_GPU]
        options = ["--gpu-json", json.dumps(asdict(gpu)), *(["--values"] if flags.values else [])]
        for name, values in (("set", flags.set), ("config", flags.config)):
            options += [f"--{name}={value}" for value in values]
        self._flags = flags
        self._folder = folder
        self._suffix = suffix
        python = flags.python or sys.executable
        self.server = CaptureServer(python, options, stack, folder, packages)

    def capture(
        self,
        script: str,
        more: Sequence[str] = (),
        is_superseded: Callable[[], bool] = bool,
    ) -> Path:
        """Capture a script, and return the capture.

        Args:
            more: further options of the recorder.
            is_superseded: as for `CaptureServer.capture`.
        """
        path = self._folder / f"{Path(script).stem}{self._suffix}.tilescope"
        is_own = script == self._flags.script
        if self._flags.out and is_own and not self._suffix:
            path = self._flags.out
        command = self._flags.command if is_own else [script]
        self.server.capture(path, command, more, is_superseded)
        if self._flags.count:
            from tilescope.measure.counters import count_capture  # imports Triton

            count_capture(self.server, path, command, more)
        return path


def _gpu(text: str) -> str:
    try:
        return find_gpu(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _obstacle(flags: argparse.Namespace) -> str:
    """Return why the page can't be served, or "" if it can. Anyone who can reach the page can make it run scripts."""
    if "SPACE_ID" in os.environ:
        return "`show` does not serve its page on a Space, where visitors could run code. Use --text or --json."
    if missing := missing_page():
        return f"{missing}. With --text, `show` prints a table."
    if flags.host not in LOOPBACK:
        return f"`show` listens only on this machine: --host must be {', '.join(LOOPBACK)} (got {flags.host!r})."
    return obstacle(flags.host, flags.port)
