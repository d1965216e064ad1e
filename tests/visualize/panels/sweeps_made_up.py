"""Sweeps on made-up devices, as the page starts them."""

import threading

from tests.tilescope.search.fakes import FakeBuilder, FakeDevice, predicting
from tests.waiting import PATIENCE_S, until
from tilescope.declare.gpus import GPUS
from tilescope.results.store import Store
from tilescope.search.sweep_run import SweepRun
from tilescope.search.tune import Sweeps
from visualize.views.tabs import read_state
from visualize.views.tune.view import swept_space

FEW = "BLOCK_M=32,64 BLOCK_N=32,64 num_warps=4,8"
# 1,152 configs.
MANY = "BLOCK_M=16,32,64,128 BLOCK_N=16,32,64,128 BLOCK_K=16,32,64 GROUP_SIZE=1,4,8,16 num_warps=2,4,8 num_stages=2,3"

# A store that keeps nothing.
NOTHING = Store(None)


def state_of(vary=FEW, **flat):
    return read_state(
        {"kernel": "matmul.grouped", "gpu": "H200", "tab": "sweep", "sweep_vary": vary, **flat},
        None,
    )


def space_of(vary=FEW, **flat):
    return swept_space(state_of(vary, **flat))


class Session:
    """A session whose sweeps are of made-up devices."""

    gpu = None
    cache = ""

    def __init__(self, store=NOTHING):
        self.store = store
        self.ends = []
        self.before_close = self.ends.append


class Started:
    """Sweeps on made-up devices, which wait in each trial until `go` is set.

    Attributes:
        devices: the device of each sweep.
        done: the rows with which each sweep began.
    """

    def __init__(self):
        self.devices = []
        self.done = []
        self.go = threading.Event()
        self.go.set()

    def make_sweep(self, session, task):
        """Replace `sweep_run.make_sweep`."""
        device = FakeDevice()
        device.before = lambda trial: self.go.wait(PATIENCE_S)
        cancel = device.cancel
        device.cancel = lambda: (cancel(), self.go.set())
        self.devices.append(device)
        self.done.append(task.earlier.rows if task.earlier else ())
        return SweepRun(task, device, FakeBuilder(), session.store, predicting())

    def sweeps(self, **bounds):
        """Return the sweeps of a page, on these devices."""
        return Sweeps(self.make_sweep, **bounds)


def press(panel, button, session, state):
    """Return the slots after a press of a panel's button, named by its DOM id."""
    (slots,) = panel.actions[button](session, state)
    return slots


def finished(sweeps, space, gpu=GPUS["H200"], store=NOTHING):
    """Wait until a sweep has ended and is stored, and return it."""
    return until(lambda: sweeps.running(space, gpu) is None and sweeps.find(store, space, gpu))
