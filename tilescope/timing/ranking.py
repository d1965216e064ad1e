"""Predict the time of each launch of a capture, for `tilescope.prune`.

    python -m tilescope.timing.ranking CAPTURE PROCESSES SECONDS

It prints a line of JSON per launch: `predicted_us`, or `why_missing`.
"""

import functools
import json
import multiprocessing
import sys
import time
from pathlib import Path

from tilescope.captures.listings import UnsupportedOperation
from tilescope.captures.reader import BaseCapture, Capture, CapturedLaunch
from tilescope.evaluate.captured import count_launch
from tilescope.inside.execution import execute
from tilescope.inside.launches import make_launch
from tilescope.sass.listing import parse
from tilescope.timing.gpus import find_constants, find_gpu
from tilescope.timing.launches import predict_launch
from tilescope.timing.model import TimePrediction


@functools.cache
def _open(path: Path) -> Capture:
    """Open a capture once per process: forks would share the file's position."""
    return Capture(path)


def predict_captured(
    capture: BaseCapture, launch: CapturedLaunch, is_warm: bool = False
) -> TimePrediction:
    """Evaluate a captured launch, and predict its time.

    Args:
        is_warm: as for `predict_launch`.

    Raises:
        UnsupportedOperation: the GPU, or the launch's traffic or executions are unknown.
    """
    device = capture.content.gpu
    gpu = find_gpu(device["name"], device["sms"], tuple(device["compute_capability"]))
    constants, _ = find_constants(gpu)
    counts = count_launch(capture, launch)
    code = parse(capture.read_code(launch.kernel, "sass"))
    executions = execute(code, make_launch(capture, launch))
    return predict_launch(capture, launch, counts, executions, gpu, constants, is_warm)


def _predict_us(path: Path, number: int) -> float | str:
    """Return the predicted microseconds of a launch, or why it has no prediction."""
    capture = _open(path)
    try:
        return predict_captured(capture, capture.content.launches[number]).total_us
    except UnsupportedOperation as error:
        return f"{error}"
    except Exception as error:  # one config must not hide the others' predictions
        return f"{type(error).__name__}: {error}"


def main(path: Path, processes: int, limit_s: float) -> None:
    """Print the predictions that are known after a number of seconds."""
    deadline = time.monotonic() + limit_s
    launches = len(Capture(path).content.launches)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        tasks = [pool.apply_async(_predict_us, (path, number)) for number in range(launches)]
        for task in tasks:
            try:
                reply = task.get(max(0, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                reply = f"The prediction took longer than {limit_s:.0f} s."
            name = "why_missing" if isinstance(reply, str) else "predicted_us"
            print(json.dumps({name: reply}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
