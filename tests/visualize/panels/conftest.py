"""A page without a browser."""

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from tests.visualize.panels.sweeps_made_up import Started
from tests.waiting import run_coroutine
from tilescope.declare.experiment import Experiment
from tilescope.measure.fair_queue import INTERNAL
from tilescope.measure.session import Session
from visualize.views.panel import PredictionProcess
from visualize.views.tune.view import SweepPanel
from visualize.web.redraw import Redraw


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run_coroutine(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


class ScriptedSession(Session):
    """A session in which a test may replace the compiler and the cache of compiled kernels.

    Attributes:
        compiler: makes the future of each compile.
        finder: experiment → what `find_compiled` returns.
    """

    compiler: Callable[[], Future[Any]] | None = None
    finder: Callable[[Experiment], Any] | None = None

    def compile(self, experiment, client=INTERNAL):
        return self.compiler() if self.compiler else super().compile(experiment, client)

    def find_compiled(self, experiment):
        return self.finder(experiment) if self.finder else super().find_compiled(experiment)


@contextmanager
def handlers(cache, *scripts):
    """Yield the handlers of a page on a machine without a GPU."""
    session = ScriptedSession(None, cache)
    yield Redraw(session, PredictionProcess(session), *scripts)
    session.close()


@pytest.fixture
def page(compiled_before):
    with handlers(compiled_before) as made:
        yield made


@pytest.fixture(scope="module")
def compiling(compiled_before):
    """The handlers of one page for all tests of a file that compile."""
    with handlers(compiled_before) as made:
        yield made


@pytest.fixture(scope="module")
def shared_page(tmp_path_factory):
    """The handlers of one page for all tests of a file, with nothing compiled."""
    with handlers(tmp_path_factory.mktemp("cache")) as made:
        yield made


@pytest.fixture
def started():
    """Sweeps on made-up devices."""
    made = Started()
    yield made
    made.go.set()


@pytest.fixture
def panel(started):
    """The Sweep panel, whose sweeps run on made-up devices."""
    made = SweepPanel()
    made.sweeps = started.sweeps()
    return made
