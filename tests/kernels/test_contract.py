"""What every kernel must hold: its result is right, whatever the dtype, the shape, the tiles and the inputs."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernels import discover
from kernels.experiment import Experiment, Run
from kernels.matmul.problem import LAYOUTS, PRECISIONS
from kernels.results import RunResult
from kernels.runner import worker
from kernels.spec import Launch
from tests.conftest import FEW_SMS, accepted

SEED = 12345
_RANDOM = random.Random(SEED)

SHAPES = (
    (1, 1, 1),
    (1, 129, 577),
    (577, 1, 129),
    (577, 129, 1000),
    (1000, 1000, 1000),
    (1023, 777, 511),
    (4096, 16, 16),
    (16, 4096, 4097),
    (208, 144, 272),
    *(tuple(_RANDOM.randrange(1, 700) for _ in range(3)) for _ in range(2)),
)
LARGE_SHAPES = ((1023, 1000, 4097), (4096, 4096, 4096), (8192, 1023, 577), (2048, 1024, 16384))
DISTRIBUTIONS = ("normal", "uniform", "integers", "zeros")

# The interpreter takes about a millisecond for one execution of a memory operation, its addresses included.
MOST_EXECUTIONS = 400
MOST_PRODUCTS = 10**8


def executions(kernel, launch):
    """How often the memory operations of one launch are executed."""
    extents = kernel.extents(launch)
    return sum(math.prod(extents[index] for index in access.over) for access in kernel.accesses(launch))


def dtypes(kernel):
    return kernel.problem_knobs()["dtype"].choices


def experiment(kernel, problem, configs, place):
    """The experiment of one case: config, distribution and seed change in steps of their own."""
    configs = {name: config for name, config in configs.items() if accepted(kernel, problem, config)}
    name = list(configs)[(place + place // 4) % len(configs)]
    run = Run(distribution=DISTRIBUTIONS[place % len(DISTRIBUTIONS)], seed=SEED + place)
    return Experiment(kernel.id, problem, configs[name], run=run)


def problems(kernel, problem_of, shapes):
    """Every shape in every dtype; layouts and precisions in steps of their own."""
    for row, shape in enumerate(shapes):
        for column, dtype in enumerate(dtypes(kernel)):
            turn = row + column
            yield problem_of(shape, dtype, layout=LAYOUTS[turn % 4], precision=PRECISIONS[(turn + turn // 4) % 4])


def interpreted_cases(kernel, configs, problem_of):
    for place, problem in enumerate(problems(kernel, problem_of, SHAPES)):
        counts = {name: executions(kernel, Launch(problem, config, FEW_SMS)) for name, config in configs.items()}
        most = max(MOST_EXECUTIONS, min(counts.values()))
        yield experiment(kernel, problem, {n: c for n, c in configs.items() if counts[n] <= most}, place)


def of_shape(cases, shape):
    """The cases of one shape that are run: a large one takes the interpreter seconds, and has one dtype a kernel."""
    if math.prod(shape) < MOST_PRODUCTS:
        return cases
    return [cases[list(discover()).index(cases[0].kernel) % len(cases)]]


@pytest.mark.parametrize("place", range(len(SHAPES)), ids=lambda place: str(SHAPES[place]))
def test_every_result_is_right_under_the_interpreter(session, kernel, configs, problem_of, place):
    cases = list(interpreted_cases(kernel, configs, problem_of))
    count = len(dtypes(kernel))
    for case in of_shape(cases[count * place : count * (place + 1)], SHAPES[place]):
        result = session.submit(case).result()
        assert isinstance(result, RunResult), (case, result)
        assert result.check.passed, (case, result.check)
        output = kernel.family.tensors(case.problem)[kernel.family.output(case.problem)]
        assert result.check.elements == math.prod(output.shape)
        assert (result.backend, result.timing, result.baseline) == ("interpreter", None, None)
        assert result.experiment == case


def test_every_config_dtype_layout_and_distribution_is_run(kernel, configs, problem_of):
    cases = list(interpreted_cases(kernel, configs, problem_of))
    assert len(cases) == len(SHAPES) * len(dtypes(kernel))
    assert {case.config for case in cases} == set(configs.values())
    assert {case.problem.dtype for case in cases} == set(dtypes(kernel))
    assert {case.run.distribution for case in cases} == set(DISTRIBUTIONS)
    assert {case.config.num_warps for case in cases} >= {1, 2, 8}
    if hasattr(kernel.family.problem, "layout"):
        assert {case.problem.layout for case in cases} == set(LAYOUTS)
        assert {case.problem.precision for case in cases if case.problem.dtype == "float32"} == set(PRECISIONS)


def test_at_least_150_cases_are_interpreted(kernels):
    of_kernel = [sum(1 if math.prod(s) >= MOST_PRODUCTS else len(dtypes(k)) for s in SHAPES) for k in kernels.values()]
    assert sum(of_kernel) >= 150


def test_at_least_400_cases_are_run_on_a_gpu(kernels):
    shapes = SHAPES + LARGE_SHAPES
    assert sum(len(shapes) * len(dtypes(kernel)) for kernel in kernels.values()) >= 400


@pytest.mark.gpu
def test_every_result_is_right_on_a_gpu(gpu, kernel, configs, problem_of):
    if races(kernel):
        configs = {name: type(config)(**{**vars(config), "SPLIT_K": 1}) for name, config in configs.items()}
    # Tiles as large as they get can't be compiled for any GPU; the other configs take turns.
    configs = {name: config for name, config in configs.items() if name != "largest"}
    cases = [
        experiment(kernel, problem, configs, place)
        for place, problem in enumerate(problems(kernel, problem_of, SHAPES + LARGE_SHAPES))
    ]
    with ThreadPoolExecutor(16) as clients:  # so that several are compiled at once
        results = list(clients.map(lambda case: gpu.submit(case, name="check").result(), cases))
    print(f"{kernel.id}: {len(cases)} cases on {gpu.gpu.name}")
    for case, result in zip(cases, results, strict=True):
        assert isinstance(result, RunResult), (case, result)
        assert result.check.passed, (case, result.check)
        assert (result.backend, result.timing) == ("cuda", None)


def races(kernel, **config):
    return bool(kernel.race(Launch(kernel.family.problem(), kernel.config(**config), FEW_SMS)))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [k for k in discover().values() if races(k)], ids=lambda kernel: kernel.id)
def test_a_race_is_lost_on_a_gpu_but_for_one_slice(gpu, kernel):
    """In 20 runs of the default, and of each preset that does not cut K into one slice."""
    settings = [({}, {}), *((preset.problem, preset.config) for preset in kernel.presets)]
    for problem, config in settings:
        cases = [
            Experiment(kernel.id, kernel.family.problem(**problem), kernel.config(**config), run=Run(seed=seed))
            for seed in range(20)
        ]
        passed = [gpu.submit(case, name="check").result().check.passed for case in cases]
        print(f"{kernel.id} {problem} {config}: wrong in {passed.count(False)} of {len(passed)} runs")
        assert passed.count(False) >= 19 if races(kernel, **config) else all(passed)


TIMED = [(kernel, dtype) for kernel in discover().values() if not races(kernel) for dtype in dtypes(kernel)]


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "dtype"), TIMED, ids=lambda part: getattr(part, "id", part))
def test_a_right_result_is_timed_on_a_gpu(gpu, kernel, problem_of, dtype):
    result = gpu.submit(Experiment(kernel.id, problem_of((577, 1000, 128), dtype), kernel.config())).result()
    assert isinstance(result, RunResult), result
    assert result.check.passed, result.check
    assert 0 < result.timing.p20_ms <= result.timing.median_ms <= result.timing.p80_ms
    assert result.baseline or "No library call" in result.note


@pytest.mark.gpu
def test_the_run_worker_compiles_nothing(gpu, kernel, problem_of):
    for layout in LAYOUTS:
        problem = problem_of((577, 1000, 128), layout=layout)
        result = gpu.submit(Experiment(kernel.id, problem, kernel.config()), name="check").result()
        assert isinstance(result, RunResult), result
    assert gpu.ask_runner(worker.compiled_here) == 0
