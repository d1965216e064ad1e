"""What every kernel must hold: its result is right, whatever the dtype, the shape, the tiles and the inputs."""

from __future__ import annotations

import itertools
import math

import pytest

from kernels.experiment import Experiment, Run
from kernels.runner import worker
from kernels.runner.results import RunResult
from kernels.spec import DTYPE_BYTES

SHAPES = (
    (1, 1, 1),
    (1, 129, 577),
    (577, 1, 129),
    (129, 577, 1),
    (577, 129, 1000),
    (1023, 777, 511),
    (4096, 16, 16),
    (16, 1023, 4097),
)
LARGE_SHAPES = ((16, 4096, 4097), (1000, 1000, 1000), (1023, 1000, 4097), (4096, 4096, 4096), (8192, 1023, 577))
DISTRIBUTIONS = ("normal", "uniform", "integers", "zeros")
SEED = 12345

# The interpreter takes about a millisecond for one execution of a memory operation, its addresses included.
MOST_EXECUTIONS = 400


def executions(kernel, problem, config):
    """How often the memory operations of one launch are executed."""
    extents = kernel.extents(problem, config)
    return sum(math.prod(extents[index] for index in access.over) for access in kernel.accesses(problem, config))


def experiment(kernel, problem, configs, place):
    """The experiment of one case: config, distribution and case change in steps of their own."""
    counts = {name: executions(kernel, problem, config) for name, config in configs.items()}
    fit = [name for name in counts if counts[name] <= MOST_EXECUTIONS]
    name = fit[(place + place // 4) % len(fit)]
    run = Run(distribution=DISTRIBUTIONS[place % len(DISTRIBUTIONS)], seed=SEED)
    return Experiment(kernel.id, problem, configs[name], run=run)


PLACES = {case: place for place, case in enumerate(itertools.product(SHAPES, DTYPE_BYTES))}


@pytest.mark.parametrize(("shape", "dtype"), PLACES, ids=str)
def test_every_result_is_right_under_the_interpreter(session, kernel, configs, problem_of, shape, dtype):
    problem = problem_of(shape, dtype)
    case = experiment(kernel, problem, configs, PLACES[shape, dtype])
    result = session.submit(case).result()
    assert isinstance(result, RunResult), result
    assert result.check.passed, result.check
    assert result.check.elements == math.prod(kernel.family.tensors(problem)[kernel.family.output(problem)].shape)
    assert (result.backend, result.timing, result.baseline) == ("interpreter", None, None)
    assert result.experiment == case


def test_every_config_dtype_and_distribution_are_run(kernel, configs, problem_of):
    cases = [experiment(kernel, problem_of(*case), configs, place) for case, place in PLACES.items()]
    assert {case.config for case in cases} == set(configs.values())
    assert {(case.problem.dtype, case.run.distribution) for case in cases} == set(
        itertools.product(DTYPE_BYTES, DISTRIBUTIONS)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("shape", SHAPES + LARGE_SHAPES, ids=str)
def test_every_result_is_right_on_a_gpu(gpu, kernel, configs, problem_of, shape, dtype):
    place = (SHAPES + LARGE_SHAPES).index(shape) + list(DTYPE_BYTES).index(dtype)
    # Tiles as large as they get can't be compiled for any GPU; the other configs take turns.
    config = configs[("smallest", "default", "unequal")[place % 3]]
    run = Run(distribution=DISTRIBUTIONS[place % len(DISTRIBUTIONS)], seed=SEED)
    result = gpu.submit(Experiment(kernel.id, problem_of(shape, dtype), config, run=run)).result()
    assert isinstance(result, RunResult), result
    assert result.check.passed, result.check
    assert result.backend == "cuda"
    assert result.timing is not None
    assert 0 < result.timing.p20_ms <= result.timing.median_ms <= result.timing.p80_ms


@pytest.mark.gpu
def test_the_run_worker_compiles_nothing(gpu, kernel, problem_of):
    result = gpu.submit(Experiment(kernel.id, problem_of((577, 1000, 129)), kernel.config())).result()
    assert isinstance(result, RunResult), result
    assert gpu.ask_runner(worker.compiled_here) == 0
