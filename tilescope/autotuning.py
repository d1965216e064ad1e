"""Drop the configs of `@triton.autotune` that are predicted to be slow, before the autotuner times them.

This runs in the user's process, which compiles each config and describes its launch as a capture. Another process
predicts the times.
"""

import contextlib
import functools
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilescope.declare import gpus
from tilescope.processes import environment

# The autotuner times the configs whose predicted times are at most this many times the shortest one: at least one in
# ten of the predicted configs, at most one in three. Chosen on 24 problems of two kernels: it keeps the fastest config
# of each, and one in ten alone misses it by up to 8 % (`benchmarks/measured/tunings_h200.jsonl`).
_CLOSE = 1.15
_FEWEST = 10
_MOST = 3

# Maximum seconds to compile all configs.
_COMPILE_S = 300

# Seconds that the autotuner takes to time a config: `do_bench` launches it for 125 ms.
_BENCH_S = 0.15

# Below this limit, no prediction finishes. Describing the configs takes at least as long.
_LEAST_S = 1

# A process takes about 100 MB.
_MOST_PROCESSES = 16

# Maximum characters of a reason: an error may quote a kernel.
_MOST_TEXT = 300

_NOT_PREDICTED = "all were compiled in parallel; timing them is faster than predicting"

# Compiles the config with a given number, in forks of this process.
_compile: Callable[[int], Any]


class _AllKept(Exception):
    """The configs cannot be ranked. The message is the reason."""


def prune(configs: Sequence[Any], nargs: Mapping[str, Any], **keywords: Any) -> list[Any]:
    """Return the configs of an autotuner whose predicted times are within 15 % of the shortest one.

        @triton.autotune(configs, key=["M", "N"], prune_configs_by={"early_config_prune": prune})

    At least 10 % of the configs are returned, and at most a third. Configs that do not compile or need too much shared
    memory are dropped. Configs without a prediction are kept. With fewer than 20 configs, all are compiled in parallel
    and kept. If anything fails, all configs are kept. One line on stderr reports how many were kept.

    Args:
        configs: the autotuner's configs.
        nargs, keywords: the launch's arguments by name, and its grid, as Triton passes them.
    """
    start = time.monotonic()
    name = "the kernel"
    kept = list(configs)
    try:
        tuner = _find_tuner(sys._getframe(1))
        name = tuner.base_fn.__name__
        kept, text = _rank(tuner, configs, {**nargs, **keywords})
    except _AllKept as reason:
        text = str(reason)
    except Exception as error:  # a prediction must never fail the user's run
        text = f"{type(error).__name__}: {error}"
    text = " ".join(text.split())[:_MOST_TEXT]
    counts = f"{len(kept)} of {len(configs)} configs of {name}"
    seconds = time.monotonic() - start
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr may be None or closed
        sys.stderr.write(f"tilescope.prune kept {counts} in {seconds:.1f} s: {text}\n")
    return kept


def _find_tuner(frame: types.FrameType | None) -> Any:
    """Return the autotuner that called `prune`. Triton does not pass the kernel."""
    from triton.runtime import Autotuner

    while frame:
        if isinstance(tuner := frame.f_locals.get("self"), Autotuner):
            return tuner
        frame = frame.f_back
    raise _AllKept("prune was not called by an autotuner")


def _rank(tuner: Any, configs: Sequence[Any], keywords: dict[str, Any]) -> tuple[list[Any], str]:
    """Return the configs to keep, and a description of the predictions."""
    times, refused, missing = predict_configs(tuner, configs, keywords)
    if not times:
        raise _AllKept(
            f"no config could be predicted. {next(iter({**refused, **missing}.values()))}"
        )
    fastest = select_close(times)
    kept = [config for number, config in enumerate(configs) if number in {*fastest, *missing}]
    first, last, slowest = times[fastest[0]], times[fastest[-1]], max(times.values())
    text = f"{first:.1f} to {last:.1f} µs predicted, {slowest:.1f} µs for the slowest config"
    if refused:
        text += f"; {len(refused)} do not compile or fit"
    if missing:
        text += f"; {len(missing)} kept without a prediction"
    return kept, text


def select_close(times: Mapping[int, float]) -> list[int]:
    """Return the numbers of the configs to time, by predicted time."""
    ranked = sorted(times, key=lambda number: times[number])
    close = sum(each <= _CLOSE * times[ranked[0]] for each in times.values())
    fewest, most = (math.ceil(len(ranked) / part) for part in (_FEWEST, _MOST))
    return ranked[: min(max(close, fewest), most)]


def predict_configs(
    tuner: Any, configs: Sequence[Any], keywords: dict[str, Any]
) -> tuple[dict[int, float], dict[int, str], dict[int, str]]:
    """Predict the time of a launch with each config.

    Returns:
        By config number: the microseconds, why the config does not compile or fit, or why it has no prediction.
    """
    gpu = gpus.this_gpu()
    if not gpu:
        raise _AllKept("this machine has no NVIDIA GPU")
    from triton.runtime import JITFunction

    function, launches = _list_launches(tuner, configs, keywords)
    if not isinstance(function, JITFunction):
        raise _AllKept("Triton does not compile the kernel here")
    # Predictions may take as long as timing the configs that they drop
    limit_s = _BENCH_S * len(configs) * (1 - 1 / _MOST)
    if limit_s < 2 * _LEAST_S:
        for _ in _compile_in_parallel(function, launches):
            pass
        raise _AllKept(_NOT_PREDICTED)
    from tilescope.record.capture_file import write_capture  # imports torch
    from tilescope.record.recorder import Recorder

    with tempfile.TemporaryDirectory(prefix="tilescope-") as name, _start_predictor() as predictor:
        folder = Path(name)
        path = folder / "configs.tilescope"
        recorder = Recorder(asdict(gpu), "cuda", folder, maps_memory=False)
        with recorder.journal:
            refused, missing = _record(recorder, function, launches)
        deadline = time.monotonic() + limit_s
        write_capture(folder, path)
        limit_s = deadline - time.monotonic()
        if limit_s < _LEAST_S:
            raise _AllKept(_NOT_PREDICTED)
        predicted = _predict(predictor, path, len(recorder.launches), limit_s)
    times = dict[int, float]()
    recorded = (number for number in range(len(configs)) if number not in {*refused, *missing})
    for number, reply in zip(recorded, predicted, strict=True):
        if "predicted_us" in reply:
            times[number] = reply["predicted_us"]
        else:
            missing[number] = reply["why_missing"]
    return times, refused, missing


def _record(
    recorder: Any, function: Any, launches: Sequence[Callable[[], dict[str, Any]]]
) -> tuple[dict[int, str], dict[int, str]]:
    """Record a launch of each config. By number, return why it does not compile or fit, or why it has no record."""
    from triton.errors import TritonError

    refused = {}
    missing = {}
    for number, is_compiled in _compile_in_parallel(function, launches):
        if not is_compiled:
            missing[number] = f"The compilation took longer than {_COMPILE_S} s."
            continue
        keywords = launches[number]()
        try:
            recorder.record(function, (), keywords.pop("grid"), keywords)
        except (TritonError, RuntimeError) as error:  # a compiler pass raises RuntimeError
            refused[number] = f"{type(error).__name__}: {error}"
        except Exception as error:  # Tilescope's own error: the config may be good
            missing[number] = f"{type(error).__name__}: {error}"
    return refused, missing


def _list_launches(
    tuner: Any, configs: Sequence[Any], keywords: dict[str, Any]
) -> tuple[Any, list[Callable[[], dict[str, Any]]]]:
    """Return the kernel's function and, per config, a function that prepares its arguments and returns them."""
    from triton.runtime import Heuristics

    heuristics = []
    function = tuner.fn
    while isinstance(function, Heuristics):
        heuristics.append(function.values)
        function = function.fn
    given = {name: value for name, value in keywords.items() if name != "warmup"}

    def prepare(config: Any) -> dict[str, Any]:
        values = {**given, **config.all_kwargs()}
        if config.pre_hook:
            config.pre_hook(values)
        for names in heuristics:
            for name, choose in names.items():
                values[name] = choose(values)
        return values

    return function, [functools.partial(prepare, config) for config in configs]


def _compile_in_parallel(
    function: Any, launches: Sequence[Callable[[], dict[str, Any]]]
) -> Iterator[tuple[int, bool]]:
    """Compile in forks of this process, which fill Triton's cache. Errors appear when the launches are recorded.

    Yields:
        The number of each config, and whether its compilation ended in time.
    """
    global _compile
    from triton.runtime import driver

    from tilescope.record.arguments import as_compiled, bind

    active = driver.active
    device = active.get_current_device()
    _ = function.device_caches[device]  # forks cannot ask CUDA for the compiler's target
    compiles = []
    for launch in launches:
        keywords = launch()
        values, options, grid = bind(function, (), keywords.pop("grid"), keywords)
        values = {name: as_compiled(value) for name, value in values.items()}
        compiles.append({**values, **options, "grid": grid})

    def compile_config(number: int) -> None:
        active.get_current_device = lambda: device
        active.get_current_stream = lambda _: 0
        function.run(**compiles[number], warmup=True)

    _compile = compile_config
    deadline = time.monotonic() + _COMPILE_S
    with warnings.catch_warnings():
        # Since Python 3.12, forking a process with threads raises a warning
        warnings.simplefilter("ignore", DeprecationWarning)
        pool = multiprocessing.get_context("fork").Pool(_count_processes(len(compiles)))
    with pool:
        done = [pool.apply_async(_compile_config, (number,)) for number in range(len(compiles))]
        for number, result in enumerate(done):
            result.wait(max(0, deadline - time.monotonic()))
            yield number, result.ready()


def _count_processes(configs: int) -> int:
    return min(len(os.sched_getaffinity(0)), configs, _MOST_PROCESSES)


def _compile_config(number: int) -> None:
    _compile(number)


def _start_predictor() -> subprocess.Popen[str]:
    """Start another process, which imports its modules while this one compiles."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "tilescope.timing.launches"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _predict(
    predictor: subprocess.Popen[str], path: Path, launches: int, limit_s: float
) -> list[dict[str, Any]]:
    """Predict a capture's launches. Return `predicted_us` or `why_missing` for each launch."""
    if not launches:
        return []
    request = {"processes": _count_processes(launches), "limit_s": limit_s}
    output, errors = predictor.communicate(json.dumps({"path": str(path), **request}))
    if predictor.returncode:
        raise RuntimeError(errors.strip().rpartition("\n")[2])
    return [json.loads(line) for line in output.splitlines()]
