"""Patch Triton, torch and autotuners so that a recorder receives their launches, including launches in child processes.

Environment variables and a `sitecustomize` start the recorder in child processes.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod, wraps
from pathlib import Path
from timeit import Timer
from typing import Any
from unittest import mock

import torch
import triton
from triton.compiler import CompiledKernel
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime import Autotuner, OutOfResources, interpreter
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITFunction, KernelInterface

from . import Values
from .arguments import own_tensor
from .compiled import STAGES_HOOK
from .recorder import H200, LOCK, RUN, RecordedLaunch, Recorder, UsageError
from .tracebacks import FOLDER, summarize
from .without_gpu import AsIfCuda, Patch, Stub, gpu_stand_ins

# Maximum number of autotuner configs to try until one compiles and fits.
_MOST_CONFIGS = 8

_INTERPRETED = (
    "TRITON_INTERPRET=1 was ignored. Kernels that were decorated before the recording began are not recorded. To run \
launches in the interpreter, pass --values (in Python, values=True)."
)

_ELAPSED_TIME = torch.cuda.Event.elapsed_time
_SKIPPED_BY_AUTOTUNER = OutOfResources, CompileTimeAssertionFailure, PTXASError

# The environment variable with the id of the process that is being recorded.
RECORDED_PROCESS = "TILESCOPE_RECORDED_PROCESS"

# Python imports this module when a child process starts, instead of one with the same name. Recording starts once the
# child has imported torch.
_SITECUSTOMIZE = """\
import sys
from importlib.util import find_spec

sys.path.remove({folder!r})
own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = own


class Recording:
    def find_spec(self, name, *_):
        if name == "torch" and sys.argv[0] != {recorder!r}:
            sys.meta_path.remove(self)
            if spec := find_spec(name):
                run = spec.loader.exec_module
                spec.loader.exec_module = lambda module: (run(module), self.start())
            return spec

    def start(self):
        from runpy import run_path

        try:
            patches = run_path({recorder!r} + "/__main__.py", run_name="recorder")["load"]("patches")
        except ImportError:  # this interpreter has no Triton
            return
        patches.record_child(folder={folder!r}, **{options!r})


sys.meta_path.insert(0, Recording())
"""

# A stand-in for the command of the driver. Libraries ask it for the name or the memory of the GPU.
_NVIDIA_SMI = """\
#!/bin/sh
exec '{python}' -IS -c '
import json, sys
gpu = json.loads(\"\"\"{gpu}\"\"\")
name = gpu["device_name"]
capability = ".".join(map(str, gpu["compute_capability"]))
memory = str(gpu["memory_gib"] << 10) + " MiB"
clock = str(gpu["clock_mhz"]) + " MHz"
values = dict.fromkeys(["name", "gpu_name"], name) | dict.fromkeys(["memory.total", "memory.free"], memory)
values |= {{"compute_cap": capability, "count": "1", "index": "0", "gpu_bus_id": "00000000:01:00.0"}}
values |= {{"memory.used": "0 MiB", "clocks.max.sm": clock, "driver_version": "580.65.06"}}
flags = " ".join(sys.argv[1:]).replace("=", " ").split()
fields = next((flags[n + 1] for n, flag in enumerate(flags) if flag.startswith("--query-gpu")), "").split(",")
if fields[0]:
    rows = [fields] * ("noheader" not in " ".join(flags)) + [[values.get(field, "[N/A]") for field in fields]]
    text = chr(10).join(", ".join(row) for row in rows)
    print(text.replace(" MiB", "").replace(" MHz", "") if "nounits" in " ".join(flags) else text)
elif "-L" in flags:
    print(f"GPU 0: {{name}} (UUID: GPU-00000000-0000-0000-0000-000000000000)")
else:
    print("NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0")
    print(f"0  {{name}}  0 MiB / {{memory}}")
' "$@"
"""


@contextmanager
def recording(
    folder: Path, gpu: Values = H200, runs: str = "", **options: Any
) -> Iterator[Recorder]:
    """Record all Triton launches, also in child processes, in a folder, from which `write_capture` makes a capture.

    Unless `runs` is "cuda", tensors in host memory report a CUDA device.

    Args:
        options: of `Recorder`.
    """
    recorder = Recorder(gpu, runs, folder, **options)
    with recorder.journal, ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))

        if triton.knobs.runtime.interpret:
            recorder.note(_INTERPRETED)
        patches = [*_patch_launches(recorder), *_patch_timers(recorder)]
        if runs != "cuda":
            patches += gpu_stand_ins(recorder)

        def patch_tuner(tuner: type) -> None:
            if issubclass(tuner, Autotuner) and "run" in vars(tuner) and not recorder.tunes:
                patch(tuner, "run", partialmethod(_run_pinned, recorder))
            elif tuner.__name__ == "CachingAutotuner":
                patch(tuner, "run", _run_generated)
                patch(tuner, "precompile", lambda *_, **__: None)

        tuners: list[Any] = [KernelInterface]
        for tuner in tuners:
            tuners += tuner.__subclasses__()
            patch_tuner(tuner)
        # Autotuners of a library that the script imports later
        patch(KernelInterface, "__init_subclass__", classmethod(patch_tuner))
        options |= {"gpu": gpu, "runs": runs}
        stack.enter_context(_recorded_environment(folder, options))
        for each in patches:
            patch(*each)
        if runs != "cuda":
            stack.enter_context(AsIfCuda(recorder))
        yield recorder


def record_child(folder: str, **options: Any) -> None:
    """Record the launches of this process, which a recorded process started, until it ends."""
    context = recording(Path(folder), **options)
    context.__enter__().process = os.getppid()
    atexit.register(context.__exit__, None, None, None)


def _patch_launches(recorder: Recorder) -> Iterator[Patch]:
    @wraps(RUN)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        with LOCK:
            if warmup or recorder.is_paused() or recorder.journal.closed:
                return RUN(self, *arguments, grid=grid, warmup=warmup, **keywords)
            for hook in self.pre_run_hooks:
                hook(*arguments, **keywords)
            return _launch(recorder, self, arguments, grid, keywords)

    knobs = type(triton.knobs.runtime)
    interpret = vars(knobs)["interpret"]

    def refuse_interpreter(values: Any) -> bool:
        if interpret.__get__(values, knobs):
            recorder.note(_INTERPRETED)
        return False

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        recorder.note("Functions passed to torch.compile ran uncompiled.")
        return (lambda function: function) if model is None else model

    yield JITFunction, "run", run
    yield CompiledKernel, "__getitem__", _relaunch
    yield triton.knobs.runtime, "add_stages_inspection_hook", STAGES_HOOK
    yield knobs, "interpret", property(refuse_interpreter, interpret.__set__)
    yield torch, "compile", compile_nothing


def _relaunch(self: Any, grid: Any) -> Any:
    """Redirect a direct launch of a compiled kernel to its jitted function, so that the launch is recorded."""

    def launch(*arguments: Any, **_: Any) -> None:
        function = self.src.fn
        values = {
            function.arg_names[path[0]]: value
            for path, value in self.src.constants.items()
            if len(path) == 1
        }
        free = [parameter.name for parameter in function.params if not parameter.is_constexpr]
        # Constants may be left out
        names = free if len(arguments) == len(free) else function.arg_names
        options = {
            name: getattr(self.metadata, name) for name in ("num_warps", "num_stages", "num_ctas")
        }
        function[grid](**(options | values | dict(zip(names, arguments, strict=False))))

    return launch


def _launch(
    recorder: Recorder, function: Any, arguments: Sequence[Any], grid: Any, keywords: Values
) -> Any:
    """Record a launch, and run it on the GPU or in the interpreter if the recorder does so."""
    launch, values = recorder.record(function, arguments, grid, keywords)
    if min(launch.content["grid"]) < 1:
        return launch.compiled
    if recorder.runs == "cuda":
        run = partial(RUN, function, *arguments, grid=grid, warmup=False, **keywords)
        if not recorder.is_capturing_graph():
            return _run_and_time(recorder, launch, run)
        recorder.note(
            "Launches captured into a CUDA graph were recorded once, without times. Replays were not recorded."
        )
        return run()
    tensors = filter(None, map(own_tensor, launch.content["arguments"]))
    if recorder.runs and all(tensor["is_known"] for tensor in tensors):
        try:
            _interpret(launch, values)
            recorder.keep(launch, ran="interpreter")
        except Exception as error:
            recorder.note(f"{function.__name__} did not run in the interpreter: {summarize(error)}")
    if not launch.content["ran"]:
        recorder.mark_unknown(launch)
    return launch.compiled


def _run_and_time(recorder: Recorder, launch: RecordedLaunch, run: Callable[[], Any]) -> Any:
    """Launch on the GPU and wait for completion, so that a fault is attributed to this launch."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.current_stream().synchronize()  # a fault of earlier work appears here
    launch.compiled._init_handles()  # load the code now, so that the first launch's time excludes it
    try:
        start.record()
        kernel = run()
        end.record()
        end.synchronize()
    except Exception as error:
        name = recorder.name(launch)
        error.__notes__ = [name]
        recorder.note(f"{name.capitalize()} failed: {summarize(error)}")
        raise
    recorder.keep(launch, ran="cuda", elapsed_ms=_ELAPSED_TIME(start, end))
    return kernel


def _interpret(launch: RecordedLaunch, values: Values) -> None:
    """Run a launch in Triton's interpreter, on the tensors in main memory."""

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        # The interpreter's own version leaves triton.language patched.
        scope = interpreter._patch_lang(self.fn)
        try:
            return interpreter.InterpretedFunction(self.fn).rewrite()(*arguments, **keywords)
        finally:
            if hasattr(scope, "restore"):
                scope.restore()

    interpreted = interpreter.InterpretedFunction(launch.function.fn)
    grid = tuple(launch.content["grid"])
    with mock.patch.object(JITFunction, "__call__", call), torch._C.DisableTorchFunction():
        interpreted.run(grid=grid, warmup=False, **values)


def _patch_timers(recorder: Recorder) -> Iterator[Patch]:
    timeit = Timer.timeit
    search = Autotuner._bench
    is_cuda = recorder.runs == "cuda"

    def bench(*arguments: Any, **keywords: Any) -> Any:
        with recorder.paused():
            return search(*arguments, **keywords)

    def note_timeit(self: Any, *arguments: Any) -> float:
        count = len(recorder.launches)
        elapsed = timeit(self, *arguments)
        if len(recorder.launches) > count:
            recorder.note_timing("timeit")
        return elapsed

    def note_elapsed_time(*events: Any) -> float:
        recorder.note_timing("CUDA events")
        return _ELAPSED_TIME(*events) if is_cuda else 1.0

    yield Autotuner, "_bench", bench
    yield Timer, "timeit", note_timeit
    yield torch.cuda.Event if is_cuda else Stub, "elapsed_time", note_elapsed_time
    for name in ("do_bench", "do_bench_cudagraph"):
        yield triton.testing, name, _measure_once(recorder, getattr(triton.testing, name))


def _measure_once(recorder: Recorder, measure: Any) -> Any:
    """Return a version of `do_bench` that records a single call. If nothing is timed, it returns 1 ms."""

    @wraps(measure)
    def measure_once(call: Any, *arguments: Any, **options: Any) -> Any:
        call()
        if recorder.runs == "cuda" and recorder.is_timed:
            with recorder.paused():
                return measure(call, *arguments, **options)
        recorder.note_timing(measure.__name__)
        count = len(options.get("quantiles") or ()) or (options.get("return_mode") == "all")
        return [1.0] * count if count else 1.0

    return measure_once


def _run_generated(self: Any, *arguments: Any, stream: Any, **keywords: Any) -> Any:
    """Run the first config of a kernel that Inductor has generated."""
    config = self.configs[0]
    arguments, grid = self._interpret_args_grid(arguments, config)
    options = {name: getattr(config, name) for name in ("num_warps", "num_stages")}
    return self.fn[grid](*arguments, **keywords, **config.kwargs, **options)


def _run_pinned(self: Any, recorder: Recorder, *arguments: Any, **keywords: Any) -> Any:
    """Run the pinned config, or the first that compiles and fits, instead of the autotuner's search."""
    with LOCK:
        self.nargs = dict(zip(self.arg_names, arguments, strict=False))
        is_tuned = len(self.configs) > 1
        configs = self.prune_configs(keywords)[:_MOST_CONFIGS] if is_tuned else self.configs
        name = self.base_fn.__name__
        if number := recorder.configs.get(name):
            if not 1 <= number <= len(self.configs):
                raise UsageError(
                    f"--config {name}={number}: {name} has configs 1 to {len(self.configs)}."
                )
            configs = [self.configs[number - 1]]
        count = len(recorder.launches)
        for place, config in enumerate(configs, start=1):
            self.best_config = config
            values = config.all_kwargs()
            if is_tuned and (conflicts := keywords.keys() & config.kwargs.keys()):
                raise ValueError(
                    f"Conflicting meta-parameters: {', '.join(conflicts)}. Make sure that you don't re-define "
                    "auto-tuned symbols."
                )
            if config.pre_hook:
                config.pre_hook({**self.nargs, **keywords, **values})
            number = self.configs.index(config) + 1 if config in self.configs else place
            has_hook = config.pre_hook or self.user_defined_pre_hook
            restored = None if has_hook else [*self.reset_to_zero, *self.restore_value]
            tuned = {"number": number, "of": len(self.configs), "restored": restored}
            context = {**recorder.context, **({"tuned": tuned} if is_tuned else {})}
            try:
                with mock.patch.object(recorder, "context", context):
                    return self.fn.run(*arguments, **keywords, **values)
            except _SKIPPED_BY_AUTOTUNER:
                if place == len(configs):
                    raise
                recorder.drop(count)


@contextmanager
def _recorded_environment(folder: Path, options: Values) -> Iterator[None]:
    """Change the environment so that child processes record in a folder, unless a parent process has done so.

    Args:
        options: of `recording`.
    """
    variables = {"TORCH_COMPILE_DISABLE": "1", RECORDED_PROCESS: str(os.getpid())}
    hook = folder / "sitecustomize.py"
    if not hook.exists():
        text = _SITECUSTOMIZE.format(folder=str(folder), recorder=str(FOLDER), options=options)
        hook.write_text(text)
        if options["runs"] != "cuda":
            command = folder / "nvidia-smi"
            gpu = json.dumps(options["gpu"])
            command.write_text(_NVIDIA_SMI.format(python=sys.executable, gpu=gpu))
            command.chmod(0o755)
        for name in ("PATH", "PYTHONPATH"):
            paths = filter(None, (str(folder), os.environ.get(name)))
            variables[name] = os.pathsep.join(paths)
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, own in variables.items():
            if os.environ.get(name) == own:  # the script has not changed it
                del os.environ[name]
                if name in before:
                    os.environ[name] = before[name]
