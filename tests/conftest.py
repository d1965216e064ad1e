"""Fixtures that several test files share: every kernel, its configs, and sessions that run it.

The test process reads kernels but never runs one, because importing Triton fixes whether it interprets.
"""

import functools
import importlib.util
import json
import math
import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import version

import pytest
from hypothesis import settings

from scripts.record_examples import start_server
from tilescope.advice import findings
from tilescope.captures.reader import Capture
from tilescope.cli.command import run_command
from tilescope.cli.show import show
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import ALL_GPUS, DEFAULT_GPU, GPUS, this_gpu
from tilescope.declare.knobs import ConfigError, knobs
from tilescope.declare.spec import Launch
from tilescope.measure.session import MEASUREMENTS, Session
from tilescope.reports.launch import make_report
from tilescope.results import Compiled
from tilescope.results.store import Store
from visualize.commands import quick_import

# Several tests run at a time, so more threads would only compete. torch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

FEW_SMS = replace(GPUS["H200"], sms=7)


# Examples differ from test to test but not from run to run. A run of all combinations draws many more.
settings.register_profile("default", max_examples=25, derandomize=True, deadline=None)
settings.register_profile("all", max_examples=300, deadline=None)


def pytest_addoption(parser):
    parser.addoption(
        "--all-combinations",
        action="store_true",
        help="run all combinations, not only every pair; more drawn examples",
    )
    parser.addoption("--approve", action="store_true", help="write the views' texts as approved")


def pytest_configure(config):
    """Deselect GPU tests unless the run selects by marker or names a single test."""
    settings.load_profile("all" if config.option.all_combinations else "default")
    if not config.option.markexpr and not any("::" in argument for argument in config.args):
        config.option.markexpr = "not gpu"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import test files with `quick_import`, because they import Gradio."""
    with quick_import():
        return (yield)


# Folders whose tests start programs or compile many kernels.
_LONG = ("tests", "tilescope", "cli", "advice", "record")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Deselect combinations whose pairs of values other tests cover, unless the run includes all combinations."""
    if config.getoption("loadgroup", default=False):
        _name_groups(items)
        # Start the longest tests first, so that no worker waits for another at the end: tests of the whole project,
        # which start programs, and the test that looks at every tab.
        items.sort(
            key=lambda item: (
                item.path.parent.name not in _LONG and "test_every_picture" not in item.name
            )
        )
    if config.option.all_combinations or any("::" in argument for argument in config.args):
        return
    left_out = {item for item in items if item.get_closest_marker("all_combinations")}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _name_groups(items):
    """Append each test's group to its id, so that pytest-xdist runs all tests of a group in one worker.

    pytest-xdist 3.8 does this in a way that pytest 9.2 ignores: https://github.com/pytest-dev/pytest-xdist/issues/1386.
    """
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group and not item.nodeid.endswith(suffix := f"@{group.args[0]}"):
            item._id = type(item._id).parse(item.nodeid + suffix)


def _is_for_gpu(config):
    """Return whether the run contains only GPU tests."""
    return bool(config.option.markexpr.startswith("gpu"))


def _missing_for_the_page(config):
    """In a run of only GPU tests, return the missing packages that tests of the page need."""
    if not _is_for_gpu(config):
        return []
    return [name for name in ("gradio", "playwright") if importlib.util.find_spec(name) is None]


def pytest_ignore_collect(collection_path, config):
    """In a run of only GPU tests, collect only files that contain them: other files may import missing packages.

    If the packages that drive the page are missing, the summary says so, and the other tests run.
    """
    if not _is_for_gpu(config):
        return None
    lacks_page = collection_path.name == "page" and _missing_for_the_page(config)
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return True if lacks_page or not any("mark.gpu" in file.read_text() for file in files) else None


def pytest_terminal_summary(terminalreporter, config):
    if missing := _missing_for_the_page(config):
        why = f"this Python has no {' and no '.join(missing)}; `make` installs both"
        terminalreporter.write_line(
            f"NOT RUN: the page on this GPU, tests/visualize/page: {why}.", red=True, bold=True
        )


@pytest.fixture(scope="session")
def all_combinations(request):
    """Return whether to run every combination instead of only enough combinations to cover every pair."""
    return request.config.option.all_combinations


@pytest.fixture(scope="session")
def kernels():
    return discover()


@pytest.fixture(params=discover().values(), ids=lambda kernel: kernel.id)
def kernel(request):
    """Each declared kernel in turn."""
    return request.param


def configs_of(kernel):
    """Return configs of a kernel by name: the default, the smallest and largest tiles, and tiles with unequal sides."""
    tile = {name: knob for name, knob in knobs(kernel.config).items() if knob.group == "Tile"}
    values = {name: knob.choices or (knob.low, 3, knob.high) for name, knob in tile.items()}
    return {
        "smallest": kernel.config(
            **{name: allowed[0] for name, allowed in values.items()}, num_warps=1
        ),
        "default": kernel.config(),
        "unequal": kernel.config(
            **{
                name: allowed[1 + (place % 2 if tile[name].choices else 0)]
                for place, (name, allowed) in enumerate(values.items())
            },
            num_warps=2,
            num_stages=2,
        ),
        "largest": kernel.config(
            **{name: allowed[-1] for name, allowed in values.items()}, num_warps=8
        ),
    }


def accepted(kernel, problem, config):
    """Return whether the kernel's family accepts the problem and the config together."""
    try:
        kernel.family.refuse(problem, config)
    except ConfigError:
        return False
    return True


@pytest.fixture
def configs(kernel):
    return configs_of(kernel)


def problem_for(kernel, shape, dtype="float32", **others):
    """Return the kernel's problem of a shape. Ignore fields that its family lacks, such as K or a layout."""
    values = {**dict(zip("MNK", shape, strict=True)), "dtype": dtype, **others}
    return kernel.family.problem(
        **{n: v for n, v in values.items() if n in knobs(kernel.family.problem)}
    )


@pytest.fixture
def problem_of(kernel):
    return functools.partial(problem_for, kernel)


@pytest.fixture
def launch_of(kernel, problem_of):
    """Return a function that makes launches on a GPU with few SMs, so that persistent programs loop."""

    def launch(shape, config=None, dtype="float32", gpu=FEW_SMS, **others):
        return Launch(problem_of(shape, dtype, **others), config or kernel.config(), gpu)

    return launch


@pytest.fixture(scope="session")
def tilescope_cache(pytestconfig, tmp_path_factory):
    """Return a cache that outlives a test run. Triton's cache key covers everything that affects a compiled kernel."""
    if not hasattr(pytestconfig, "cache"):
        return tmp_path_factory.mktemp("compiled")
    return pytestconfig.cache.mkdir(f"triton-{version('triton')}")


@pytest.fixture(scope="session")
def compiled_before(tilescope_cache):
    """Return the cache's folder for compiled kernels, which the app uses, too."""
    return tilescope_cache / "triton"


@pytest.fixture(scope="session")
def capture_server(compiled_before):
    """Yield a process that captures scripts for an H200, and compiles."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_CACHE_DIR", str(compiled_before))
            server = start_server(stack)
        yield server


@pytest.fixture(scope="session")
def capture_script(tmp_path_factory, capture_server):
    """Return a function that captures a script, given as a text, for a GPU. It returns the capture's path."""

    def capture(text, gpu=DEFAULT_GPU, *options):
        script = tmp_path_factory.mktemp("captured") / "script.py"
        script.write_text(text)
        path = script.with_suffix(".tilescope")
        target = "--gpu-json", json.dumps(asdict(ALL_GPUS[gpu]))
        capture_server.capture(path, [str(script)], (*target, *options))
        return path

    return capture


@pytest.fixture(scope="module")
def captured(request, capture_script):
    """Capture the script in the module's SCRIPT. Return the capture's path."""
    return capture_script(request.module.SCRIPT)


@pytest.fixture(scope="module")
def launches(captured, capture_server):
    """Return the reports of the script's launches, with their findings."""
    return make_report(Capture(captured), capture_server.compile, most_seconds=math.inf).launches


@pytest.fixture(scope="module")
def facts(captured):
    """Return the reports of the script's launches, for which no changes were tried."""
    return make_report(Capture(captured)).launches


@pytest.fixture(scope="module")
def no_options():
    """Let reports try no options of the compiler: many compilations, of which no test of the module needs a result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(findings, "_MOST_LAUNCHES", 0)
        yield


@pytest.fixture
def run_show(capfd):
    """Return a function that runs `tilescope show`, checks its exit status, and returns what it printed."""

    def run(status, *arguments):
        assert run_command(show, list(map(str, arguments))) == status
        return capfd.readouterr()

    return run


@pytest.fixture(scope="session")
def session(compiled_before):
    """Yield a session on Triton's interpreter, even on a machine with a GPU."""
    session = Session(None, compiled_before)
    yield session
    session.close()


@pytest.fixture(scope="session")
def compile_kernel(session):
    """Return a function that compiles an experiment, and fails with the compiler's reason."""

    def compile_experiment(experiment):
        outcome = session.compile(experiment).result()
        assert isinstance(outcome, Compiled), outcome
        return outcome

    return compile_experiment


@pytest.fixture(scope="session")
def here():
    """Return this machine's GPU. Fail without a GPU, because the run selected a test that needs it."""
    gpu = this_gpu()
    if gpu is None:
        pytest.fail("The selected test needs a GPU, but this machine has none.", pytrace=False)
    return gpu


@pytest.fixture(scope="session")
def gpu(here, tmp_path_factory):
    """Yield a session on this machine's GPU with an empty cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILESCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        session = Session.here()
    yield session
    session.close()


@pytest.fixture
def made_up(monkeypatch):
    """Return a function that makes the measurement "made_up" of a `measure` function."""

    def make(measure):
        measurement = replace(MEASUREMENTS["run"], name="made_up", measure=measure, refuse=None)
        monkeypatch.setitem(MEASUREMENTS, "made_up", measurement)

    return make


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """Return a function that makes a shell script the program ncu."""

    def make(script):
        path = tmp_path / "ncu"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


@pytest.fixture
def store_path(tmp_path):
    """Return the path of a store that only this test uses."""
    return tmp_path / "kept" / "tilescope.db"


@pytest.fixture
def store(store_path):
    opened = Store(store_path)
    yield opened
    opened.close()
