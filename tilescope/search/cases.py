"""Compile, check and launch the cases of scripts for `tilescope tune`. This code runs the script, so it needs a worker.

A compile worker calls the case without a GPU, on stand-ins for large tensors, and predicts the launch's time from the
compiled code. The run worker calls it on the GPU.
"""

import functools
import hashlib
import importlib.util
import inspect
import itertools
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tilescope.captures.listings import UnsupportedOperation
from tilescope.captures.reader import BaseCapture, Capture
from tilescope.compiling.inspection import capture_launch
from tilescope.declare.discovery import PACKAGE
from tilescope.declare.experiment import Experiment, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import combinations
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.counts import LaunchCounts
from tilescope.numbers import join_names
from tilescope.results import Failure, Stopped, SweepPrediction
from tilescope.results.sweep import ConfigBuild, ConfigTrial
from tilescope.timing.launches import predict_captured

_VARIADIC = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

# Compile workers do not compute the values of larger tensors, because predictions rarely depend on them.
_MAX_BYTES = 16 << 20

_FORM = (
    "It must return (kernel, grid, arguments) or (kernel, grid, arguments, expected), where arguments and expected are "
    "dictionaries by name."
)

V = TypeVar("V")


@dataclass(frozen=True)
class CaseDescription:
    """A case of a script.

    Attributes:
        defaults: the default value of each parameter that has a number, text or bool as its default.
        configs: the configs of the kernel's autotuner; empty without an autotuner.
        source: a hash of the code of the script and the kernel.
        parameters: the kernel's parameters.
    """

    defaults: Mapping[str, Any]
    configs: tuple[Mapping[str, Any], ...]
    source: str
    parameters: tuple[str, ...]


def describe_case(target: str, gpu: Gpu) -> CaseDescription:
    """Describe the case "/path/script.py:case". Runs in a compile worker.

    Raises:
        ConfigError: the script has no such case, or the case does not return a launch.
    """

    def describe(most_bytes: int) -> CaseDescription:
        with (
            tempfile.TemporaryDirectory(prefix="tilescope-") as name,
            _without_gpu(Path(name), gpu, most_bytes),
        ):
            defaults = _read_defaults(_find_case(target))
            kernel, *_ = _call_case(target, {})
            configs = [config.all_kwargs() for config in getattr(kernel, "configs", ())]
            path = target.rpartition(":")[0]
            jitted = _innermost(kernel)
            texts = Path(path).read_bytes(), jitted.cache_key.encode()
        source = hashlib.sha256(b"\n".join(texts)).hexdigest()[:16]
        return CaseDescription(defaults, tuple(configs), source, tuple(jitted.arg_names))

    return _compute_what_is_read(describe)


def _read_defaults(case: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(case).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
    if needed:
        name = case.__name__
        raise ConfigError(
            "no_default", f"{name} has no default for {join_names(needed)}; all need one."
        )
    return {p.name: p.default for p in parameters if isinstance(p.default, int | float | str)}


def _compute_what_is_read(function: Callable[[int], V]) -> V:
    """Call a function of the largest tensor to compute, in bytes. There is no limit if the case reads larger tensors.

    Raises:
        ConfigError: the case reads a tensor that does not fit in memory, or the result of a launch.
    """
    from tilescope.record.recorder import ADVICE, HostRead

    try:
        return function(_MAX_BYTES)
    except HostRead:
        try:
            return function(sys.maxsize)
        except HostRead as error:
            message = str(error).replace(ADVICE, "A case must not read the results of launches.")
            raise ConfigError("host_read", message) from error


def warm_up() -> None:
    """Import slow modules in a worker before its first call."""
    from tilescope.record import capture_file, patches  # noqa: F401


def build(experiment: Experiment, gpu: Gpu, is_timed: bool = False) -> ConfigBuild:
    """Compile a config into the cache that the run worker uses, and predict its time. Runs in a compile worker.

    Args:
        is_timed: the config will be timed. A kernel of ours then has no prediction, which takes as long as the compile,
            because its declaration gives an estimate.

    Raises:
        Stopped: the config does not compile, or does not fit on the GPU.
    """
    if experiment.is_case:
        return _compute_what_is_read(functools.partial(_build_case, experiment, gpu))
    began = time.monotonic()
    kernel, launch = launch_of(experiment, gpu)
    capture = capture_launch(kernel, launch, maps_memory=False)
    seconds = time.monotonic() - began
    return _describe_build(experiment, capture, seconds, not is_timed, kernel.copies_ms(launch))


def _describe_build(
    experiment: Experiment,
    capture: BaseCapture,
    seconds: float,
    predicts: bool = True,
    copies_ms: float = 0.0,
    outputs: Mapping[str, Any] = MappingProxyType({}),
) -> ConfigBuild:
    """Return the last launch's resources and, if known, its predicted time including the copies before it.

    Args:
        outputs: the uninitialized expected outputs, by name.
    """
    launch = capture.content.launches[-1]  # a script may launch kernels before the case's
    kernel = capture.content.kernels[launch.kernel]
    predicted = written = None
    why_unknown = ""
    if predicts:
        counts = count_launch(capture, launch)
        written = _find_written(counts, outputs)
        try:
            time_us = predict_captured(capture, launch, counts, experiment.run.l2 == "warm")
            predicted = SweepPrediction(time_us.total_us / 1e3 + copies_ms, time_us.bound_by)
        except UnsupportedOperation as error:
            why_unknown = str(error)
    sizes = kernel.registers, kernel.spilled_bytes, kernel.shared_bytes
    return ConfigBuild(*sizes, seconds, predicted, written, why_unknown)


def _find_written(counts: LaunchCounts, outputs: Mapping[str, Any]) -> float | None:
    """Return the value of `SweepRow.written`. An element that is written twice counts twice."""
    written_bytes = Counter[str]()
    for op in counts.operations:
        if op.counter not in ("ld", "tma_ld"):
            if len(op.tensors) != 1 or op.tally.refused:
                return None
            name = op.tensors[0]
            element_bytes = op.instruction.element_bytes if op.instruction else 0
            if not element_bytes and name in outputs:
                element_bytes = outputs[name].itemsize  # of a descriptor
            written_bytes[name] += op.tally.elements * element_bytes
    if counts.refused or not outputs.keys() <= written_bytes.keys():
        return None
    shares = [min(1.0, written_bytes[name] / (each.nbytes or 1)) for name, each in outputs.items()]
    return min(shares, default=None)


def _build_case(experiment: Experiment, gpu: Gpu, max_bytes: int) -> ConfigBuild:
    from triton.errors import TritonError
    from triton.runtime import OutOfResources

    from tilescope.record.capture_file import write_capture
    from tilescope.record.without_gpu import UninitializedTensors

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tilescope-") as name:
        folder = Path(name)
        try:
            with _without_gpu(folder, gpu, max_bytes) as recorder:
                with UninitializedTensors(recorder) as uninitialized:
                    kernel, grid, keywords, expected = _call_config(experiment)
                # A skipped element is wrong only if nothing has initialized it
                names = [] if recorder.launches else expected or ()
                outputs = {
                    name: keywords[name] for name in names if keywords[name] in uninitialized
                }
                kernel[grid](**keywords)
        except OutOfResources as error:
            raise Stopped(Failure("compile", "out_of_resources", str(error))) from error
        # A compiler pass raises RuntimeError, and a value that is not allowed for an option AssertionError
        except (TritonError, RuntimeError, AssertionError) as error:
            # The last line of a CompilationError gives the reason; the lines before quote the kernel
            reason = str(error.__cause__ or error).strip().splitlines() or ["no message"]
            message = f"{type(error).__name__}: {reason[-1]}"
            raise Stopped(Failure("compile", "compile_error", message)) from error
        seconds = time.monotonic() - began
        path = folder / "case.tilescope"
        write_capture(folder, path)
        capture = Capture(path)
        if not capture.content.launches:
            message = " ".join(capture.content.not_captured) or "The case launches nothing."
            raise Stopped(Failure("compile", "compile_error", message))
        return _describe_build(experiment, capture, seconds, outputs=outputs)


@contextmanager
def _without_gpu(folder: Path, gpu: Gpu, max_bytes: int = _MAX_BYTES) -> Iterator[Any]:
    """Record launches instead of running them. Yield the recorder."""
    from tilescope.record.patches import recording
    from tilescope.record.without_gpu import use_compiled_meta_functions

    use_compiled_meta_functions()
    with recording(folder, asdict(gpu), max_bytes=max_bytes, maps_memory=False) as recorder:
        yield recorder


@functools.cache
def _find_case(target: str) -> Callable[..., Any]:
    """Run a script once per process, and return its case."""
    warm_up()
    for module_name in [*sys.modules]:  # the script's packages may have the same names as ours
        if module_name.partition(".")[0] in (PACKAGE, "visualize"):
            del sys.modules[module_name]
    name, _, case = target.rpartition(":")
    folder = Path(name).parent
    sys.path.insert(0, str(folder))
    module_name = "tuned_script"
    while (folder / "__init__.py").exists():  # for relative imports
        module_name = f"{folder.name}.{module_name}"
        folder = folder.parent
    sys.path.insert(1, str(folder))
    spec = importlib.util.spec_from_file_location(module_name, name)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    with _explain_errors(Path(name).name):
        spec.loader.exec_module(module)
    cases = [
        key for key, value in vars(module).items() if key.startswith("case") and callable(value)
    ]
    if case not in cases:
        has = f"Its cases: {', '.join(cases)}." if cases else "It has no cases."
        raise ConfigError("unknown_case", f"{Path(name).name} has no case {case!r}. {has}")
    function: Callable[..., Any] = vars(module)[case]
    return function


def _call_case(target: str, values: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any], Any]:
    """Return a case's kernel, grid, arguments and expected outputs (None if the case returns none)."""
    import torch

    function = _find_case(target)
    torch.manual_seed(0)  # so that all configs have the same inputs
    names = inspect.signature(function).parameters
    with _explain_errors(Path(target).name):
        parts = function(**{name: values[name] for name in names if name in values})
    case = target.rpartition(":")[2]
    is_launch = isinstance(parts, tuple) and 3 <= len(parts) <= 4 and hasattr(parts[0], "run")
    if not (is_launch and all(isinstance(part, Mapping | None) for part in parts[2:])):
        raise ConfigError("no_launch", f"{case} returned no launch. {_FORM}")
    kernel, grid, keywords, *rest = parts
    expected = rest[0] if rest else None
    if unknown := (expected or {}).keys() - keywords.keys():
        missing = join_names(sorted(unknown))
        raise ConfigError("no_argument", f"{case} expects {missing}, but no argument is called so.")
    return kernel, grid, dict(keywords), expected


@contextmanager
def _explain_errors(title: str) -> Iterator[None]:
    """Say where and why a script ended.

    Raises:
        ConfigError: it raised an exception, or called `sys.exit`.
    """
    import torch

    from tilescope.record.recorder import HostRead
    from tilescope.record.tracebacks import describe_place, describe_stop

    try:
        yield
    except (ConfigError, HostRead, torch.AcceleratorError, torch.cuda.OutOfMemoryError):
        raise  # the last two affect every config
    except BaseException as error:
        stop = describe_stop(error, title)
        place = f" ({describe_place(stop)})" if stop["line"] else ""
        raise ConfigError("script_failed", f"{stop['message']}{place}") from error


def _call_config(experiment: Experiment) -> tuple[Any, Any, dict[str, Any], Any]:
    """Call an experiment's case. If the kernel has an autotuner, pass its config as arguments."""
    values = {**vars(experiment.problem), **vars(experiment.config)}
    kernel, grid, keywords, expected = _call_case(experiment.kernel, values)
    if hasattr(kernel, "configs"):
        parameters = inspect.signature(_find_case(experiment.kernel)).parameters
        tuned = {name: value for name, value in values.items() if name not in parameters}
        keywords |= {name: value for name, value in tuned.items() if value is not None}
        for config in kernel.configs:
            if config.pre_hook and config.all_kwargs().items() <= keywords.items():
                config.pre_hook(keywords)
        kernel = kernel.fn
    return kernel, grid, keywords, expected


def _innermost(kernel: Any) -> Any:
    """Return the jitted function inside autotuners and heuristics."""
    while hasattr(kernel, "fn") and not hasattr(kernel, "cache_key"):
        kernel = kernel.fn
    return kernel


class CaseTrial:
    """Prepares the configs of a trial. They share tensors after their check."""

    def __init__(self, trial: ConfigTrial) -> None:
        self._trial = trial
        self._shared: dict[Any, Any] = {}
        self._first: dict[str, Any] | None = None

    def prepare(self, experiment: Experiment) -> "PreparedCase":
        return PreparedCase(experiment, self)

    def expected(self, known: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the case's expected outputs or, without them, the tensors after a launch of the reference config."""
        if known is not None:
            return known
        if self._first is None:
            import torch

            first = self.prepare(self._trial.reference or self._trial.experiments[0])
            first.launch()
            torch.cuda.synchronize()
            self._first = first.tensors
        return self._first

    def share(self, name: str, tensor: Any) -> Any:
        """Return the tensor that another config shares under this name, shape and dtype. Otherwise, share this one."""
        key = name, tensor.dtype, tensor.shape, tensor.stride()
        return self._shared.setdefault(key, tensor)


class PreparedCase:
    """One config of a case on the GPU. The first launch calls the case."""

    allowance = None

    def __init__(self, experiment: Experiment, trial: CaseTrial) -> None:
        self.experiment = experiment
        self._trial = trial
        self._kernel: Any = None
        self._keywords: dict[str, Any] = {}
        self._expected: Mapping[str, Any] | None = None

    @property
    def tensors(self) -> dict[str, Any]:
        import torch

        return {n: value for n, value in self._keywords.items() if isinstance(value, torch.Tensor)}

    @property
    def outputs(self) -> Sequence[Any]:
        tensors = self.tensors
        return [tensors[name] for name in (self._expected or tensors)]

    def poison(self) -> None:
        """Do nothing: the case's tensors are new, and `torch.empty` fills them with NaN."""

    def launch(self) -> None:
        import torch

        if self._kernel is None:
            # Fill new outputs with NaN: their memory may still hold an earlier config's correct result
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # torch.use_deterministic_algorithms would import Inductor, which takes seconds
                torch._C._set_deterministic_algorithms(True, warn_only=True)
                kernel, grid, self._keywords, self._expected = _call_config(self.experiment)
                torch._C._set_deterministic_algorithms(False)
            self._kernel = kernel[grid]
        self._kernel(**self._keywords)

    def bind(self) -> Callable[[], Any]:
        """Return a function that launches on the tensors that the trial's configs share."""
        self._expected = None
        self._keywords |= {name: self._trial.share(name, t) for name, t in self.tensors.items()}
        return functools.partial(self._kernel, **self._keywords)

    def explain_wrong(self) -> str:
        """Return a sentence that says how an output differs from the expected one; "" if none does."""
        from tilescope.record.programs import compare

        tensors = self.tensors
        for name, expected in self._trial.expected(self._expected).items():
            if name not in tensors or tensors[name].shape != expected.shape:
                if self._expected is None:
                    continue  # a workspace whose size depends on the config
                return f"The result is wrong: {name} has not the shape {tuple(expected.shape)}, which is expected."
            error = compare(tensors[name], expected)
            if not error["passed"]:
                return f"The result is wrong: {name} has a relative RMS error of {error['relative_rms']:.2g}."
        return ""


def combine(
    values: Mapping[str, Sequence[Any]], configs: Sequence[Mapping[str, Any]]
) -> tuple[tuple[tuple[str, tuple[Any, ...]], ...], tuple[tuple[Any, ...], ...]]:
    """Return `varied` and `listed` of a `Space`: each combination of values with each config."""
    names = dict.fromkeys(itertools.chain(values, *configs))
    chosen = [{**each, **config} for each in combinations(values) for config in configs or ({},)]
    listed = tuple(tuple(each.get(name) for name in names) for each in chosen)
    columns = (tuple(dict.fromkeys(column)) for column in zip(*listed, strict=True))
    return tuple(zip(names, columns, strict=True)), listed
