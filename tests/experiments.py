"""Experiments, written as an address: "matmul.grouped M=64 num_warps=8" is a kernel and its fields. And outcomes."""

from dataclasses import replace

from tests.waiting import PATIENCE_S
from tilescope.declare.experiment import from_json, launch_of, nest, resolve_gpu
from tilescope.results import Failure, RunResult


def fields(text):
    """Return the fields of an address by name; a mapping is returned unchanged. The kernel may be absent."""
    if not isinstance(text, str):
        return text
    return dict((word if "=" in word else f"kernel={word}").split("=", 1) for word in text.split())


def experiment_of(text="transpose.tiled", **others):
    """Return an experiment; `others` are fields that are computed."""
    flat = fields(text) | others
    made = from_json(nest(flat))
    assert flat.keys() <= {*made.to_address(), "gpu"}, "a field that the kernel lacks"
    return made


def fill_sms(schedule, programs_per_sm):
    """Return a schedule with this many programs on each SM."""
    return replace(schedule, resident_programs=schedule.sms * programs_per_sm)


def launch_from(text="transpose.tiled", **others):
    """Return an experiment's kernel, and its launch on the GPU that it names, or on the default GPU."""
    experiment = experiment_of(text, **others)
    return launch_of(experiment, resolve_gpu(experiment, None))


def assert_failed(future, stage, kind, text=""):
    """Wait for the outcome of a job or a call, which must be a failure of this stage and kind."""
    failure = future.result(PATIENCE_S)
    assert isinstance(failure, Failure), failure
    assert (failure.stage, failure.kind) == (stage, kind)
    assert text in failure.message


def run(session, text, **others):
    """Return the result of a run, which must pass its check."""
    result = session.submit(experiment_of(text, **others)).result(PATIENCE_S)
    assert isinstance(result, RunResult), result
    assert result.check.passed, result.check
    return result
