"""What a Dask worker of a test does in place of launching: made-up times; it dies once, where it is told to."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

from fakes import FakeDevice


def run_trial(payload: bytes, folder: str, host: str) -> bytes:
    """Times of a trial. The first worker that is to try what the file `dies_at` names dies with it."""
    trial, _ = pickle.loads(payload)
    told, died = Path(folder) / "dies_at", Path(folder) / "died"
    if told.exists() and any(repr(one.config) == told.read_text() for one in trial.experiments):
        try:
            died.touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return pickle.dumps(FakeDevice(noise=0.01, seed=os.getpid()).attempt(trial))
