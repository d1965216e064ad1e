"""`tilescope show`: reports, findings and comparisons of a script with kernels that waste something."""

import csv
import io
import itertools
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.examples import EXAMPLES
from tests.covering import pairs_of
from tests.tables import read_table
from tests.trees import ROOT
from tests.waiting import free_port, run_coroutine, until
from tilescope.advice.same_work import find_equal_launches
from tilescope.captures.content import CountedLaunch, Finding, OutputErrors
from tilescope.captures.reader import Capture
from tilescope.captures.server import CaptureFailed, CaptureServer, install_triton
from tilescope.cli.command import (
    BROKEN_PIPE,
    FINE,
    GREW,
    INTERRUPTED,
    USAGE,
    CommandFailed,
    run_command,
)
from tilescope.inside.report import ChangedTime, Inside, LineSpills, SharedAccess
from tilescope.measure.counters import launch_keys, read_counters
from tilescope.measure.ncu import METRICS
from tilescope.numbers import percent
from tilescope.processes import guard
from tilescope.reports.comparison import differences
from tilescope.reports.findings import list_findings
from tilescope.reports.launch import (
    Launches,
    LaunchReport,
    OperationReport,
    Refusal,
    Report,
    make_report,
    read_report,
)
from tilescope.reports.text import (
    brief,
    describe_total,
    markdown,
    markdown_growth,
    table,
)
from tilescope.timing.changes import add_times
from visualize.web.scripts import (
    Script,
    Scripts,
    capture_options,
    changed_values,
    launch_form,
    shipped_scripts,
)

# One worker captures the scripts once
pytestmark = pytest.mark.xdist_group("show")

SCRIPT = """
import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, out, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i * STEP, mask=i < n), mask=i < n)


@triton.jit
def unmasked(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))


@triton.jit
def rows(x, out, cols, BLOCK: tl.constexpr):
    i = tl.program_id(0) * cols + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < cols
    tl.store(out + i, tl.load(x + i, mask=inside), mask=inside)


@triton.jit
def rows_of_constant_length(x, out, cols: tl.constexpr, BLOCK: tl.constexpr):
    rows(x, out, cols, BLOCK)


x = torch.zeros(8192 + 4, device="cuda")
copy[(2,)](x, torch.empty(1024, device="cuda"), 1024, 1, BLOCK=512)
copy[(2,)](x[1:], torch.empty(1024, device="cuda"), 1024, 1, BLOCK=512)
copy[(8,)](x, torch.empty(1024, device="cuda"), 1024, 8, BLOCK=128)
unmasked[(4,)](x[:1000].clone(), torch.empty(1024, device="cuda"), BLOCK=256)
rows[(8,)](x, torch.empty(8008, device="cuda"), 1001, BLOCK=1024)
rows[(8,)](x, torch.empty(8008, device="cuda"), 1000, BLOCK=1024)
rows_of_constant_length[(8,)](x, torch.empty(8008, device="cuda"), 1000, BLOCK=1024)
"""
# The same kernels with two launches that waste nothing.
SHORT_SCRIPT = f"""{SCRIPT.partition("x = torch")[0]}
x = torch.zeros(2048, device="cuda")
copy[(2,)](x, torch.empty(1024, device="cuda"), 1024, 1, BLOCK=512)
unmasked[(4,)](x, torch.empty(1024, device="cuda"), BLOCK=256)
"""

APP = sys.executable, str(ROOT / "app.py")
SHOW = *APP, "show"
SHIPPED = str(Path(EXAMPLES[0]).with_suffix(".tilescope"))


@pytest.fixture(scope="module", autouse=True)
def cache(compiled_before):
    """Let all captures of this module find their kernels in the cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(compiled_before))
        yield


def test_each_launch_names_its_kernel_source_line_grid_and_config(launches):
    launch = launches[2]
    first_line = SCRIPT.splitlines().index("@triton.jit") + 1
    assert (launch.kernel, launch.source, launch.line) == ("copy", "script.py", first_line)
    assert launch.grid == (8, 1, 1)
    assert launch.config == {"STEP": 8, "BLOCK": 128, "num_warps": 4, "num_stages": 3}
    assert launch.registers >= 16


def test_a_sweep_launches_all_combinations_and_names_those_that_fail(run_show):
    sets = ["--set", "cols=1000,1024", "--set", "num_warps=2,3"]
    content = json.loads(run_show(FINE, EXAMPLES[1], "--json", "--gpu", "H200", *sets).out)
    assert [launch["settings"] for launch in content["launches"]] == [
        {"cols": 1000, "num_warps": 2},
        {"cols": 1024, "num_warps": 2},
    ]
    assert [reason.partition(":")[0] for reason in content["not_captured"]] == [
        "cols=1000 num_warps=3",
        "cols=1024 num_warps=3",
    ]


def test_a_capture_without_sass_is_read_but_has_no_executions(captured, tmp_path):
    path = tmp_path / "old.tilescope"
    with zipfile.ZipFile(captured) as whole, zipfile.ZipFile(path, "w") as part:
        for name in whole.namelist():
            part.writestr(name, b"" if name.endswith(".sass") else whole.read(name))
    launch = make_report(Capture(path)).launches[0]
    assert not launch.unread
    assert (launch.instructions_executed, launch.not_executed) == (None, "The capture has no SASS.")
    assert launch.totals["lds_wavefronts"] is None
    assert launch.totals["ld_sectors"] == 128


def test_counters_join_the_launches_that_nsight_compute_saw_and_are_compared(
    captured, launches, tmp_path
):
    """A benchmark launches more or less often under the profiler, and a launch that fails has no counters."""
    path = Path(shutil.copy(captured, tmp_path))
    totals = [{**launch.totals} for launch in launches]
    totals[0]["ld_sectors"] += 1
    rows = [
        (totals[number], *key[:2])
        for number, key in enumerate(launch_keys(Capture(path)))
        if number not in (1, 3)
    ]
    rows.insert(1, (totals[0], "other", "(1, 1, 1)"))
    rows.insert(4, ({**totals[4], "ld_sectors": "n/a"}, "rows", "(8, 1, 1)"))
    header = ["ID", "Kernel Name", "Grid Size", *(METRICS[name] for name in totals[0])]
    units = ["", "", "", *["sector"] * len(totals[0])]
    lines = [[number, name, grid, *row.values()] for number, (row, name, grid) in enumerate(rows)]
    page = io.StringIO()
    page.write("==PROF== Connected\n")
    csv.writer(page, quoting=csv.QUOTE_ALL).writerows([header, units, *lines])
    counters = read_counters(page.getvalue())
    joined = [counters.get(key) for key in launch_keys(Capture(path))]
    assert joined == [None if number in (1, 3) else totals[number] for number in range(7)]
    Capture(path).write_counters([CountedLaunch(row, 0.5) for row in joined])
    report = make_report(Capture(path))
    agree = [None if number in (1, 3) else number > 0 for number in range(7)]
    assert [launch.agrees for launch in report.launches] == agree
    assert report.launches[0].elapsed_ms == 0.5
    text = table(report)
    assert text.count("Nsight Compute: not counted") == 2
    assert "sectors of loads 129 (predicted 128)" in text


def test_controls_of_the_page_become_options_of_the_capture():
    chosen = {"case_cols": 1024, "sweep": "num_warps=2,4 -8", "config_softmax": 3}
    options = ["--set=cols=1024", "--set=num_warps=2,4", "--set=-8", "--config=softmax=3"]
    assert capture_options(chosen) == options


UNWRITABLE = """
runs.py --text --html runs.py | --html must be a .html file (got runs.py).
--out new.tilescope | --out needs a script.
runs.py --text --out missing/run.tilescope | --out missing/run.tilescope cannot be written (No such file or directory).
runs.py --text --out symbolic.tilescope | --out symbolic.tilescope cannot be written ({OTHERS}).
runs.py --text --html missing/report.html | --html missing/report.html cannot be written (No such file or directory).
runs.py --text --html symbolic.html | --html symbolic.html cannot be written ({OTHERS}).
--html hard.html -m runs | --html hard.html cannot be written ({OTHERS}).
""".replace("{OTHERS}", "Tilescope did not write the existing file")


@pytest.mark.parametrize(("flags", "sentence"), read_table(UNWRITABLE))
def test_a_file_that_cannot_be_written_or_is_someone_elses_is_named_before_the_script_runs(
    flags, sentence, tmp_path, monkeypatch, run_show
):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs.py"
    runs.write_text("open('ran', 'w')")
    (tmp_path / "symbolic.html").symlink_to(runs)
    (tmp_path / "symbolic.tilescope").symlink_to(runs)
    (tmp_path / "hard.html").hardlink_to(runs)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert run_show(USAGE, *flags.split()).err == f"{sentence}\n"
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_report_that_cannot_be_written_as_a_whole_leaves_the_earlier_one(
    captured, tmp_path, run_show
):
    """A limit of 100 kB fails in the middle of the file, as a full disk does."""
    output = tmp_path / "report.html"
    arguments = captured, "--html", output
    run_show(FINE, *arguments)
    whole = output.read_bytes()
    limited = ["prlimit", "--fsize=100000", *SHOW, *arguments]
    done = subprocess.run(limited, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (USAGE, f"{output}: File too large.\n")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        ("report.html", whole)
    ]


def test_a_full_disk_behind_stdout_is_one_sentence(captured):
    for command in ([*SHOW, str(captured), "--text"], [*APP, "--version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (USAGE, "stdout: No space left on device.\n")


# A recorder that names what it does, so that a test can end `show` then. A child of the script has left its session.
RECORDER = """#!{python}
import json, os, shutil, signal, subprocess, sys
from pathlib import Path

def wait(phase):
    if phase == os.environ["PHASE"]:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path(phase).touch()
        while True:
            signal.pause()

wait("starting")
for line in sys.stdin:
    request = json.loads(line)
    wait("capturing" if isinstance(request, list) else "evaluating")
    if isinstance(request, list):
        shutil.copy("whole.tilescope", request[1])
    print(flush=True)
"""


def list_marked(mark):
    """Return the processes whose environment has a value."""
    processes = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in environment.read_bytes():
                processes.append(environment.parent.name)
    return processes


@pytest.fixture
def recorder(tmp_path, captured):
    """A command that shows a script with a recorder that waits in a phase, and its folder."""
    with (
        zipfile.ZipFile(captured) as whole,
        zipfile.ZipFile(tmp_path / "whole.tilescope", "w") as part,
    ):
        for name in whole.namelist():
            if name != "findings.json":
                part.writestr(name, whole.read(name))
    fake = tmp_path / "python"
    fake.write_text(RECORDER.format(python=sys.executable))
    fake.chmod(0o755)
    (tmp_path / "script.py").touch()
    (tmp_path / "temporary").mkdir()
    flags = ["--python", str(fake), "--out", "run.tilescope", "--gpu", "H200"]
    return tmp_path, [*SHOW, "script.py", *flags]


SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
PHASES = "starting", "capturing", "evaluating"


@pytest.mark.parametrize(
    ("number", "phase", "is_page"), pairs_of(itertools.product(SIGNALS, PHASES, (False, True)))
)
def test_whatever_ends_show_ends_its_processes_and_temporary_files(
    number, phase, is_page, recorder
):
    folder, command = recorder
    flags = ["--port", str(free_port())] if is_page else ["--text", "--html", "report.html"]
    with subprocess.Popen(
        [*command, *flags],
        cwd=folder,
        env={**os.environ, "PHASE": phase, "MARK": str(folder), "TMPDIR": f"{folder}/temporary"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as shown:
        until((folder / phase).exists)
        shown.send_signal(number)
        shown.stdout.read()  # ends once no process has the pipe
    assert shown.returncode in (USAGE, INTERRUPTED, -number)
    until(lambda: not list_marked(f"MARK={folder}"))
    until(lambda: not [*(folder / "temporary").iterdir()])
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_capture_process_that_died_is_replaced(recorder):
    folder, _ = recorder
    fake = folder / "python"
    fake.write_text(
        fake.read_text().replace("    print(flush", "    Path('once').mkdir()\n    print(flush")
    )
    with guard() as marked, ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PHASE", "none")
        server = CaptureServer(str(fake), (), stack, marked)
        server.capture(folder / "a.tilescope", ["script.py"])
        with pytest.raises(CaptureFailed, match="ended; the terminal shows why"):
            server.capture(folder / "b.tilescope", ["script.py"])
        (folder / "once").rmdir()
        server.capture(folder / "c.tilescope", ["script.py"])
    assert not marked.exists()


def test_what_follows_two_dashes_goes_to_the_script_and_its_exit_status_is_kept(tmp_path, run_show):
    """Also without a launch."""
    path = tmp_path / "prints.py"
    path.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    output = run_show(7, path, "--text", "--gpu", "H200", "--", "-m", "--", "1")
    assert "['-m', '--', '1']" in output.err
    assert "prints.py exited with status 7" in output.out
    assert "exited with status" not in output.err


def test_flags_after_a_modules_name_are_named_before_its_page_is_served(monkeypatch, run_show):
    monkeypatch.delenv("SPACE_ID", raising=False)
    port = free_port()
    own = "--brief", "-q", "--html=a.html"
    output = run_show(USAGE, "--port", port, "-m", "no_such_module", *own)
    assert output.err.splitlines()[:2] == [
        f"Capturing no_such_module, then serving the page on http://127.0.0.1:{port}.",
        "--brief and --html=a.html: passed to no_such_module; flags of `show` come before -m.",
    ]


def test_all_arguments_after_a_modules_name_reach_it_unchanged(tmp_path, monkeypatch, run_show):
    (tmp_path / "prints.py").write_text("import sys\nprint(sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    own = ["--text", "--", "x", "-m", "--"]
    output = run_show(USAGE, "--text", "-m", "prints", *own)
    assert output.err.startswith(f"{own}\nprints launched no Triton kernels.")


def test_json_is_one_object_and_against_names_what_grew(tmp_path, run_show, capture_script):
    script = tmp_path / "script.py"
    script.write_text(SHORT_SCRIPT)
    path = tmp_path / "run.tilescope"
    text = run_show(FINE, script, "--json", "--gpu", "h200", "--out", path).out
    assert json.loads(text)["gpu"] == "H200"
    before = tmp_path / "before.json"
    before.write_text(text)
    run_show(FINE, path, "--text", "--against", before)
    moved = f"# A comment moves all lines.\n{SHORT_SCRIPT}"
    worse = capture_script(moved.replace("1024, 1, BLOCK", "1024, 2, BLOCK"))
    output = run_show(GREW, worse, "--text", "--against", before)
    change = (
        "Line 11, load x: sectors 128 → 1,024, requests 8 → 32. Global loads 1 → 4 (line 11 +3)"
    )
    assert f"script.py:8 copy: {change}" in output.out
    assert "Launches" not in output.out
    assert f"regressions since {before}." in output.err
    before.write_text(text.replace('"gpu": "H200"', '"gpu": "L4"'))
    output = run_show(FINE, path, "--text", "--against", before)
    assert ", L4 to Triton " in output.out.splitlines()[0]
    # Another script with the same launches, which ends where it reads a result
    text = SHORT_SCRIPT.replace("(x, torch.empty", "(x, y := torch.empty")
    copied = capture_script(f"{text}y.sum().item()\n")
    output = run_show(FINE, copied, "--json", "--against", before)
    assert json.loads(output.out)["differences"] == []


def test_an_interrupted_script_has_a_report_of_its_launches_and_a_status_that_ci_sees(
    launches, tmp_path
):
    before = tmp_path / "before.json"
    before.write_text(json.dumps(report_of(*launches).to_json()))
    path = tmp_path / "waits.py"
    interrupt = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    interrupt += "os.killpg(0, signal.SIGINT)\nsignal.pause()\n"
    path.write_text(SHORT_SCRIPT + interrupt)
    done = subprocess.run(
        [*SHOW, str(path), "--text", "--gpu", "H200", "--against", str(before)],
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    fault, *_ = done.stdout.splitlines()
    assert done.returncode == USAGE
    assert "H200: 2 launches, " in done.stdout
    assert "rows: Launches 2 → 0." in done.stdout
    assert "waits.py raised KeyboardInterrupt" in fault
    assert "app.py" not in done.stderr


def test_a_report_ends_quietly_when_the_reader_closes_the_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*SHOW, SHIPPED, "--text"],
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_ends_well_without_a_standard_stream(closed):
    command = shlex.join([*SHOW, SHIPPED, "--brief"])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (FINE, "")
    assert done.stdout.startswith("No findings." if closed == "2>&-" else "")


def test_an_interrupted_command_has_no_traceback(capfd):
    def interrupt():
        raise KeyboardInterrupt

    assert run_command(interrupt) == INTERRUPTED
    assert capfd.readouterr().err == ""


def test_a_load_that_becomes_asynchronous_copies_is_the_same_operation():
    """Each pipeline stage of a load through a table may access other tensors. A `red` is an atomic without a result."""

    def launch(*ops):
        return LaunchReport("k", "a.py", 1, (1, 1, 1), 16, 0, 0, tuple(map(operation, ops)))

    def operation(fields):
        op, counter, tensor, sectors = fields
        return OperationReport(op, counter, tensor, "a.py", 8, requests=0, sectors=sectors)

    before = launch(("load", "ld", "a, b", 8), ("atomic", "atom", "c", 2))
    copies = ("async copy", "ld", "a", 2), ("async copy", "ld", "a, b", 6)
    after = launch(*copies, ("atomic", "red", "c", 2))
    assert list(differences([before], [after])) == []
    (difference,) = differences([launch(*copies)], [launch(("load", "ld", "a, b", 9))])
    assert difference.sentence == "a.py:8 in k, load a, b: sectors rose from 8 to 9."


def report_of(*launches, gpu="H200", **fields):
    return Report("3", gpu, launches, **fields)


def inside_report(*shared, **fields):
    """A launch whose lines access shared memory: each a line, an opcode, wavefronts and ideal wavefronts."""
    accesses = tuple(
        SharedAccess("a.py", line, opcode, 64, wavefronts, ideal)
        for line, opcode, wavefronts, ideal in shared
    )
    fields = {"instructions_executed": 5000, "shared": accesses, **fields}
    return LaunchReport("k", "a.py", 1, (1, 1, 1), 16, 0, 4096, (), **fields)


def test_bank_conflicts_and_spill_traffic_that_increase_are_regressions_with_their_lines():
    spills = LineSpills("a.py", 7, 1, 1, stored_bytes=4, moved_bytes=256)
    before = inside_report((4, "LDS", 64, 64), (9, "STS", 64, 64))
    after = inside_report((4, "LDS", 512, 64), (9, "STS", 64, 64), spills_by_line=(spills,))
    changed = differences([before], [after])
    assert [each.sentence for each in changed if each.is_worse] == [
        "a.py:1 k: wavefronts of shared memory rose from 128 to 576 (line 4 LDS +448).",
        "a.py:1 k: bank conflicts rose from 0 to 448 (line 4 LDS +448).",
        "a.py:1 k: bytes of spill traffic rose from 0 to 256.",
    ]
    assert not any(each.is_worse for each in differences([after], [before]))


# The predicted times before and after, what grows, and whether that is a regression.
GROWTH = """
(9.0, 8.0) | registers | False
(9.0, 9.0) | shared_bytes | False
(9.0, 8.0) | shared | False
(9.0, 9.01) | registers | True
(9.0, None) | registers | True
(None, 8.0) | shared_bytes | True
(9.0, 8.0) | spilled_bytes | True
(9.0, 8.0) | ops | True
"""
GROWN = {
    "registers": 20,
    "shared_bytes": 5000,
    "spilled_bytes": 4,
    "shared": (SharedAccess("a.py", 4, "LDS", 64, 512, 64),),
    "ops": (OperationReport("load", "ld", "x", "a.py", 4, 9, 9),),
}


@pytest.mark.parametrize(("times", "name", "is_worse"), read_table(GROWTH))
def test_more_resources_are_no_regression_if_the_predicted_time_does_not_grow(
    times, name, is_worse
):
    before = inside_report((4, "LDS", 64, 64), predicted_us=times[0])
    after = replace(before, predicted_us=times[1], **{name: GROWN[name]})
    changed = differences([before], [after])
    (grown, *_) = [each for each in changed if each.what != "predicted_us"]
    assert any(each.is_worse for each in changed) == is_worse
    assert ("but the predicted time did not" in grown.sentence) != is_worse


def test_a_report_lists_the_lines_with_bank_conflicts_and_omits_the_others():
    launch = inside_report((4, "LDS", 96, 64), (5, "STS", 64, 64), (9, "ATOMS", 640, 64))
    lines = table(report_of(launch)).splitlines()
    assert "   warp instructions executed: 5,000" in lines
    assert "   shared-memory wavefronts: loads 96, stores 64, atomics 640" in lines
    assert "   bank conflicts: 608" in lines
    assert lines[:2] == [
        "a.py:9 in k, ATOMS (launch 0): 576 bank conflicts in 640 wavefronts.",
        "a.py:4 in k, LDS (launch 0): 32 bank conflicts in 96 wavefronts.",
    ]
    first, _, total = brief(report_of(launch, launch)).partition("\n\n")
    assert first.splitlines() == [
        "a.py:9 in k, ATOMS (launch 0; 1 similar finding): 576 bank conflicts in 640 wavefronts.",
        "a.py:4 in k, LDS (launch 0; 1 similar finding): 32 bank conflicts in 96 wavefronts.",
    ]
    assert total.endswith("Shared memory: 1,600 wavefronts, 1,216 bank conflicts.")
    timed = replace(launch, predicted_us=2.0, range_us=(1.0, 4.0))
    _, _, total = brief(report_of(timed, timed, launch)).partition("\n\n")
    assert total.endswith("Predicted time: 4.00 µs (2.00 µs to 8.00 µs); unknown in 1 launch.")


def test_wavefronts_that_are_unknown_on_one_line_make_the_totals_unknown():
    unknown = SharedAccess("a.py", 4, "LDS", 64, None, None, why="The address is unknown.")
    launch = inside_report(shared=(unknown,))
    text = table(report_of(launch))
    assert "shared-memory wavefronts: loads unknown" in text
    assert "bank conflicts: unknown" in text
    assert "LDS at line 4: The address is unknown." in text
    assert (
        launch.predict_counters()["lds_wavefronts"],
        launch.predict_counters()["sts_wavefronts"],
    ) == (None, 0)
    assert differences([inside_report()], [launch]) == []
    report = report_of(launch, inside_report((4, "LDS", 96, 64)))
    assert "96 wavefronts, 32 bank conflicts; unknown in 1 launch." in brief(report)


LOOP = f"""{SCRIPT.partition("x = torch")[0]}
x = torch.zeros(1000, device="cuda")
aligned = torch.zeros(2048, device="cuda")
for repeat in range(3):
    unmasked[(4,)](x, torch.empty(1024, device="cuda"), BLOCK=256)
    for _ in range(2):
        copy[(2,)](aligned, torch.empty(1024, device="cuda"), 1024, 1, BLOCK=512)
copy[(2,)](aligned[1:], torch.empty(1024, device="cuda"), 1024, 1, BLOCK=512)
copy[(1,)](aligned, torch.empty(1024, device="cuda"), 1024, 1, BLOCK=512)
"""
# Each lane takes two elements of 256, so element 232 of the last program is the first of warp 3's lane 20.
FAULT = (
    "script.py:16 in unmasked, load x, 3 equal launches (0, …, 6): Program 3, warp 3, lane 20: "
    "element (232) of the block lies outside x, right after its end."
)


@pytest.fixture(scope="module")
def loop_path(capture_script, capture_server):
    path = capture_script(LOOP)
    make_report(Capture(path), capture_server.compile)  # adds the findings
    return path


def test_equal_launches_are_counted_and_printed_once(loop_path):
    """Memory of an earlier launch's result is unknown, but the kernel does not read it for an address."""
    counted = []
    launches = Launches(Capture(loop_path))
    count = launches.counts
    launches.counts = lambda number: counted.append(number) or count(number)
    report = make_report(launches.capture, counted=launches)
    assert {*counted} == {0, 1, 9, 10}
    firsts = [None, None, 1, 0, 1, 1, 0, 1, 1, None, None]
    assert [launch.equal_to for launch in report.launches] == firsts
    names = ["3 equal launches (0, …, 6)", "6 equal launches (1, …, 8)", "9", "10"]
    headings = [line for line in table(report).splitlines() if "  grid " in line]
    assert [line.partition("  ")[0] for line in headings] == names
    headings = [line for line in markdown(report).splitlines() if line.startswith("#")]
    assert [line.count("equal launches") for line in headings].count(1) == 2
    form = json.loads(launch_form(launches, 0, None))
    assert form["fields"][0]["choices"] == [0, 1, 9, 10]
    assert "<option>9: copy</option>" in form["html"]
    assert "copy: 8 launches, " in brief(report)
    assert "unmasked: 3 equal launches (0, …, 6), " in brief(report)
    # Tensors may lie elsewhere, but not with another alignment
    content = launches.capture.content
    storages = list(content.storages)
    output = content.launches[3].arguments[1].tensor.storage
    address_bytes = storages[output].address_bytes + 4
    storages[output] = replace(storages[output], address_bytes=address_bytes)
    assert find_equal_launches(replace(content, storages=tuple(storages)))[3] == 3


def test_a_fault_is_the_first_thing_in_every_form_of_a_report(loop_path, run_show, tmp_path):
    before = tmp_path / "before.json"
    before.write_text(run_show(FINE, loop_path, "--json", "--text").out)
    content = json.loads(before.read_text())
    assert (next(iter(content)), content["faults"]) == ("faults", [FAULT])
    assert content["text"].startswith(f"{FAULT}\n")
    assert content["html"].partition(">")[2].startswith(f"{FAULT}\n")
    assert content["brief"].startswith(f"{FAULT}\n")
    for flags in (["--text"], ["--brief"], ["--markdown"], ["--text", "--against", before]):
        text = run_show(FINE, loop_path, *flags).out
        assert text.lstrip("-* ").startswith(FAULT.partition(" (")[0])
    page = Scripts({"script.loop": Script(loop_path, "script.py")}, "script.loop")
    slots = page.fill(page.find({"open": ""}))
    assert slots["launches"].striptags().startswith(FAULT)
    assert "Program 3" not in slots["requests-headline"]
    assert "1 finding, on line 13." in slots["requests-headline"]


def test_failed_checks_exceptions_and_launches_that_do_not_fit_are_faults(launches):
    wrong = replace(launches[0], results={"out": OutputErrors(0.25, 1.0, False)})
    excess = Finding("shared memory", "script.py", 7, "", "", "The launch fails.")
    fails = replace(wrong, findings=(excess,))
    report = report_of(wrong, fails, stopped="It raised.", failed=True)
    assert table(report).splitlines()[:3] == [
        "It raised.",
        "script.py:7 in copy, output out (launch 0; 1 similar finding): "
        "It is wrong: its relative RMS error is 0.25.",
        "script.py:7 in copy (launch 1): The launch fails.",
    ]


def test_no_control_character_reaches_the_terminal(capfd, monkeypatch, launches):
    """Names in a report or a capture may be hostile. A script's own output passes through."""
    hostile = "\x1b[2J\x9b31m\r\x07\u202etxt.\x00\x7f\udcff"

    def command():
        print(brief(report_of(replace(launches[2], kernel=f"k{hostile}"), gpu=hostile)))
        print(hostile, file=sys.stderr)
        os.write(1, b"\x1b[1mscript")
        raise CommandFailed(f"No {hostile}.", USAGE)

    assert run_command(command) == USAGE
    output = capfd.readouterr()
    assert "in k[2J31mtxt., load x" in output.out
    assert output.err == "[2J31mtxt.\nNo [2J31mtxt..\n"
    assert "\x1b[1mscript" in output.out
    assert not set(output.out.replace("\x1b[1m", "")) & {
        *hostile[:1],
        "\x9b",
        "\r",
        "\x07",
        "\u202e",
    }


def test_totals_that_are_bounds_say_so(launches):
    exact, other = launches[0].ops
    lower = replace(exact, refused="Locks retry.")
    upper = replace(other, refused="Some lanes may be off.", is_upper_bound=True)
    sums = {
        (exact, other): "256",
        (lower, other): "at least 256",
        (exact, upper): "at most 256",
        (lower, upper): "at least 128",
    }
    for ops, total in sums.items():
        refused = tuple(Refusal(op.line, op.refused) for op in ops if op.refused)
        launch = replace(launches[0], ops=ops, refused=refused)
        assert describe_total([launch], "sectors") == total
        assert f", {total} sectors (ideal: {total})." in brief(report_of(launch))


def test_the_table_shortens_file_names_and_no_line_number(launches):
    name = "a_name_of_more_than_20_letters"
    op = replace(launches[0].ops[0], file="a_script_with_a_long_name.py", tensor=name)
    report = report_of(replace(launches[0], ops=(op,)))
    line = next(line for line in table(report).splitlines() if "load" in line)
    assert line.split()[:3] == [f"a_script_with_a_long…:{op.line}", "load", name]


def test_markdown_has_a_table_per_launch_and_what_grew(launches):
    op = replace(launches[0].ops[0], tensor="a|b")
    finding = Finding("order", op.file, op.line, op.op, op.tensor, "Use *x* < y\n&amp; $z$.")
    launch = replace(launches[0], ops=(op,), findings=(finding,))
    text = markdown(report_of(launch))
    assert "| line | op | tensor | bytes | requests | sectors | ideal% |" in text
    assert rf"| {op.file}:{op.line} | load | a\|b | 16 | 8 | 128 | 100% |" in text
    where = rf"- {op.file}:{op.line} in copy, load a\|b (launch 0): "
    assert rf"{where}Use \*x\* \< y \&amp; \$z\$." in text.splitlines()
    changed = list(differences(launches[:1], launches[2:3]))
    short = launches[:3]
    report = report_of(*short, untried="No changes were tried.", stopped="It *ended*.")
    grown = markdown_growth("Differences", changed, report)
    assert f"| {op.file}:10 in copy, load x | sectors | 128 | 1,024 | +700.0% |" in grown
    assert grown.splitlines()[-1] == r"It \*ended\*."
    assert len(grown.splitlines()) == 6 + sum(each.is_worse for each in changed)
    empty = markdown_growth("Differences", [], report_of(*short))
    assert empty == "### Differences: 0 regressions"


def test_a_brief_report_begins_with_wrong_results_and_then_the_largest_cost(launches):
    lines = brief(report_of(*launches[1:4])).splitlines()
    assert "in unmasked, load x (launch 2): Program 3, warp 3, lane 20" in lines[0]
    assert "in copy, load x (launch 1): " in lines[1]


def test_findings_without_a_tried_change_are_ranked_by_an_estimated_saving_or_come_last(launches):
    cause = launches[1].findings[0]
    times = {"sectors": 9_000, "predicted_ns": 9_000}
    changed = replace(cause, before=times, after={"sectors": 100, "predicted_ns": 8_000})
    scattered = replace(cause, kind="scattered", change="", before={}, after={})
    idle = Finding("grid", "script.py", 1, text="4 of 132 SMs stay idle.")
    grid = ChangedTime("equal work per SM (132 programs)", 5.0)
    launch = replace(launches[1], predicted_us=9.0, changes=(grid,))
    findings = (scattered, changed, idle)
    rows = list_findings([((0,), replace(launch, findings=findings))])
    assert [row.finding for row in rows] == [idle, changed, scattered]
    _, (described,) = add_times(launch, [idle])
    assert described.text == (
        "4 of 132 SMs stay idle. With equal work per SM (132 programs), the launch would take 5.00 µs, 44 % less "
        "(predicted without compiling)."
    )
    rows = list_findings([((0,), replace(launch, findings=findings, changes=()))])
    assert [row.finding for row in rows] == [changed, scattered, idle]


def test_a_brief_report_drops_whole_findings_with_the_least_saving_and_counts_them(launches):
    cause = launches[1].findings[0]

    def finding(number):
        before = {"sectors": 800 - number, "predicted_ns": 9_000}
        after = {"sectors": 100, "predicted_ns": 9_000 - 100 * number}
        condition = f"Condition {number} must hold. {'It must. ' * 30}"
        return replace(
            cause,
            line=number,
            change=f"Change {number}.",
            before=before,
            after=after,
            needs=condition,
        )

    findings = tuple(map(finding, range(30)))
    report = report_of(replace(launches[1], findings=findings))
    *lines, count, _, _ = brief(report).splitlines()
    listed = [*zip(*[iter(lines)] * 4, strict=True)]
    for number, (fact, change, effect, needs) in zip(range(29, 0, -1), listed, strict=False):
        assert fact.startswith(f"script.py:{number} in copy, load x (launch 0): x starts 4 bytes")
        assert change == f"   Change {number}."
        time = f"9.00 µs → {9 - number / 10:.2f} µs (−{percent(number / 90)})"
        assert effect == f"   Tried: predicted time {time}, sectors {800 - number} → 100."
        assert needs.startswith(f"   Condition {number} must hold. It must.")
    assert len(listed) > 5
    assert count == f"{30 - len(listed)} more findings: see --text."


def test_similar_findings_are_one_line_that_claims_the_numbers_of_one_launch(launches):
    smaller = replace(
        launches[1],
        findings=tuple(replace(each, text=f"Another {each.text}") for each in launches[1].findings),
    )
    lines = brief(report_of(launches[1], smaller)).splitlines()
    assert "in copy, load x (launch 0; 1 similar finding): " in lines[0]
    assert "Another" not in "".join(lines)


def test_a_brief_report_of_any_size_has_at_most_4_kb(launches):
    wide = [replace(launch, kernel="k" * 300 + str(n)) for n, launch in enumerate(launches * 40)]
    many = report_of(*wide, stopped="é" * 1000, not_captured=("ü" * 900,) * 3)
    text = brief(many, ["A difference."] * 999)
    assert 3000 < len(f"{text}\n".encode()) <= 4096
    assert text.startswith("script.py:16 in kkk")
    assert "\n\nA difference.\n" in text
    assert "more differences: see --text.\n\n" in text
    assert "é…\n" in text
    assert " (launch " in text
    assert "more findings: see --text." in text
    assert "more remarks: see --text." in text


def test_launches_in_another_order_are_compared_with_those_of_the_same_kernel(launches):
    copy, worse, other = launches[0], launches[2], launches[4]
    (sectors,) = (
        each for each in differences([copy, other], [other, worse]) if each.what == "sectors"
    )
    assert (sectors.before, sectors.after) == (128, 1024)
    assert list(differences([copy, other], [other, copy])) == []


def test_the_largest_increase_comes_first_and_equal_differences_are_merged(launches):
    copy, worse, other = launches[0], launches[2], launches[4]
    changed = differences([copy, copy, other], [worse, worse])
    sentences = [each.sentence for each in changed]
    assert sentences[0] == "rows: launches fell from 1 to 0."
    assert sentences[1].endswith("copy, load x (2 launches): sectors rose from 128 to 1,024.")
    ranks = [each.is_worse for each in changed]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0]
    (added,) = differences([], [copy])
    assert not added.is_worse


def test_a_report_is_read_back_from_its_json(captured, tmp_path):
    report = make_report(Capture(captured))
    first = replace(report.launches[0], results={"out": OutputErrors(math.inf, 1e-3, False)})
    path = tmp_path / "report.json"
    content = replace(report, launches=(first, *report.launches[1:])).to_json()
    content["of_a_later_version"] = 1
    path.write_text(json.dumps(content, allow_nan=False))
    read = read_report(path)
    assert math.isnan(read.launches[0].results["out"].relative_rms)  # JSON has null for it
    assert (
        replace(read, launches=(replace(read.launches[0], results=None), *read.launches[1:]))
        == report
    )


def test_reports_of_an_earlier_version_can_be_compared(launches, tmp_path):
    """They lack fields that were added later, so nothing is known about bank conflicts."""
    launches = (*launches, inside_report((4, "LDS", 512, 64)))
    content = report_of(*launches).to_json()
    for launch in content["launches"]:
        for name in ("settings", "results", "findings", "counted", "agrees", *vars(Inside())):
            del launch[name]
        for op in launch["ops"]:
            del op["refused"], op["is_upper_bound"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps({**content, "notes": []}))
    assert list(differences(read_report(path).launches, launches)) == []
    assert "bank conflicts" not in table(read_report(path))


BAD_INPUT = """
missing.py --text | There is no script missing.py.
missing.py --gpu RTX-4091 | there is no GPU 'RTX-4091'
-m | argument -m: expected one argument
-m -- x | argument -m: expected one argument
{script} -m pytest | give a script, or -m and a module
--host 0.0.0.0 {script} | listens only on this machine
{script} --text --against missing.json | is not a report of `show --json`
{script} --text --triton 3.2.0 | Tilescope needs Triton 3.6 or later
{script} --triton 3.6.0 --against a | --triton and --against are mutually
{script} --markdown --text | --text and --markdown are mutually exclusive.
{script} --text --json --brief | --text and --brief are mutually exclusive.
{capture} --triton 3.6.0 --set n=1 --gpu L4 --out x.tilescope -- 1 | --gpu, --set, --out, --triton and arguments after
"""


@pytest.mark.parametrize(("arguments", "sentence"), read_table(BAD_INPUT))
def test_bad_input_ends_with_status_2_and_one_sentence(arguments, sentence, run_show):
    files = {"script": EXAMPLES[0], "capture": SHIPPED}
    assert sentence in run_show(USAGE, *arguments.format(**files).split()).err


def test_a_space_serves_no_scripts(monkeypatch, run_show):
    monkeypatch.setenv("SPACE_ID", "somebody/space")
    assert "does not serve its page on a Space" in run_show(USAGE, EXAMPLES[0]).err


def test_a_version_of_triton_is_installed_once_per_version_of_python_by_its_own_pip(
    tmp_path, capfd
):
    python = tmp_path / "python"
    pip = 'while [ "$1" != --target ]; do shift; done; mkdir "$2"; echo "$3" >> "$2/installed"'
    python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo cpython-399; else {pip}; fi\n')
    python.chmod(0o755)
    cache = tmp_path / "cache"
    for _ in range(2):
        folder = install_triton("3.6.0", cache, str(python), tmp_path)
        assert folder == cache / "triton-3.6.0-cpython-399"
        assert (folder / "installed").read_text() == "triton==3.6.0\n"
    assert list(cache.iterdir()) == [folder]
    announced = capfd.readouterr().err
    assert (
        announced.count(f"downloads about 200 MB and unpacks to about 900 MB in {folder}; delete")
        == 1
    )


def test_a_save_between_a_pages_message_and_its_stream_still_redraws_the_page(captured, tmp_path):
    source, captures = tmp_path / "script.py", []
    source.touch()
    script = Script(captured, str(source), lambda *request: captures.append(request) or captured)
    scripts = Scripts({"script.mine": script}, "script.mine")
    states = [scripts.find({"open": ""}) for _ in range(2)]
    os.utime(source, (1, 1))

    def redraw(state):
        return "request-plot" in run_coroutine(anext(scripts.watch(state)))

    # The first page sees the save before the other page asks.
    for state in states:
        until(lambda state=state: redraw(state))
    assert len(captures) == 1


def test_pages_are_answered_during_a_capture_that_a_later_change_of_the_script_ends(
    captured, tmp_path
):
    source = tmp_path / "script.py"
    source.touch()
    hung = []

    def recapture(source, options, is_superseded):
        hung.append(options)
        if len(hung) == 1:
            until(is_superseded)
            raise CaptureFailed("It was killed.")
        return captured

    script = Script(captured, str(source), recapture)
    scripts = Scripts({"script.mine": script}, "script.mine")
    states = [scripts.find({"open": ""}) for _ in range(20)]
    os.utime(source, (1, 1))
    for state in states:
        assert run_coroutine(anext(scripts.watch(state))) == {"watch": "0"}
        assert "is being captured again" in scripts.fill(state)["problems"]
    os.utime(source, (2, 2))
    for state in states:
        until(lambda state=state: "request-plot" in run_coroutine(anext(scripts.watch(state))))
    assert (len(hung), script.version, script.problem) == (2, 1, "")


def test_a_module_is_captured_again_when_a_file_with_its_kernels_is_saved(captured, tmp_path):
    captures = []
    module = Script(captured, "package.module", lambda *given: captures.append(given) or captured)
    for count in (0, 1, 1):
        module.follow()
        until(lambda: not module.is_capturing)
        assert len(captures) == count
        if count == 0:
            os.utime(captured.with_suffix(".py"), (2, 2))


def test_an_example_opens_without_being_captured_and_follows_its_controls():
    captures = []

    def recapture(source, options, _):
        captures.append((source, options))
        return Path(source).with_suffix(".tilescope")

    scripts = Scripts(shipped_scripts(recapture))
    settings = {
        "kernel": "script.softmax",
        "form_of": "matmul.grouped",
        "tab": "sweep",
        "case_cols": 7,
    }
    state = scripts.find({"settings": settings})
    assert (state.view.tab, captures) == ("requests", [])
    form = json.loads(scripts.fill(state)["script"])
    assert form["values"]["case_cols"] == 1000
    for _ in range(2):
        scripts.find({"settings": {**settings, "form_of": "script.softmax", "case_cols": 1024}})
    until(lambda: not scripts.scripts["script.softmax"].is_capturing)
    assert captures == [(EXAMPLES[1], ["--set=cols=1024"])]


def test_an_autotuned_kernel_has_a_control_that_pins_one_of_its_configs(capture_script):
    config = '@triton.autotune([triton.Config({"BLOCK": block}) for block in (256, 512, 1024)], key=["n"])\n@triton.jit'
    head, _, rest = SCRIPT.partition("@triton.jit")
    kernel = rest.partition("@triton.jit")[0]
    launch = (
        'copy[(4,)](torch.zeros(4096, device="cuda"), torch.zeros(4096, device="cuda"), 1024, 1)\n'
    )
    launches = Launches(Capture(capture_script(head + config + kernel + launch)))
    form = json.loads(launch_form(launches, 0, {}))
    (control,) = (field for field in form["fields"] if field["name"] == "config_copy")
    assert (control["low"], control["high"], form["values"]["config_copy"]) == (0, 3, 0)
    given = {"config_copy": 2, "launch": 0, "gpu": "H200"}
    assert changed_values(launches, given, "H200") == {"config_copy": 2}
