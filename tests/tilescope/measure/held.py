"""Calls that run until a test ends them."""

import os
import time
from pathlib import Path

from tests.waiting import until
from tilescope.measure.fair_queue import Call


def hold(directory, name):
    """Write this process's id to a file, and return it once the test ends the call."""
    Path(directory, name).write_text(str(os.getpid()))
    while not Path(directory, f"{name} ends").exists():
        time.sleep(0.01)
    return os.getpid()


class Held:
    """Calls that run until the test ends them."""

    def __init__(self, directory):
        self.directory = directory

    def call(self, name, key=None):
        return Call("launch", hold, (str(self.directory), name), key)

    def process(self, name):
        """Wait until a worker has taken the call, and return its process id."""
        file = self.directory / name
        return int(until(lambda: file.exists() and file.read_text()))

    def has_run(self, name):
        return (self.directory / name).exists()

    def end(self, *names):
        for name in names:
            (self.directory / f"{name} ends").touch()
