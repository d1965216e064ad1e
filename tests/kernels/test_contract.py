"""Every kernel's result is right, whatever the dtype, the shape, the tiles and the inputs."""

import itertools
import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kernels.matmul.problem import LAYOUTS, PRECISIONS
from tests.conftest import FEW_SMS, accepted, problem_for
from tests.covering import covering
from tests.tilescope.measure.test_gpu_timeline import count_compiles
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, Run
from tilescope.declare.spec import Launch, interpreter_seconds
from tilescope.measure import worker
from tilescope.results import RunResult

pytestmark = pytest.mark.xdist_group("interpreted")

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
    (16, 129, 4097),
    (16, 4096, 4097),
    (208, 144, 272),
    *(tuple(_RANDOM.randrange(1, 700) for _ in range(3)) for _ in range(2)),
)
LARGE_SHAPES = ((1023, 1000, 4097), (4096, 4096, 4096), (8192, 1023, 577), (2048, 1024, 16384))
DISTRIBUTIONS = ("normal", "uniform", "integers", "zeros")

# Limits on the interpreter's estimated seconds per case, which are about half of the real time. A shape is run with all
# tiles below the first limit. If there are none, it is run with its quickest tiles, if they are below the second limit.
LIMITS_S = {"default": (0.1, 0.5), "all": (2.0, 20.0)}


def dtypes(kernel):
    return kernel.problem_knobs()["dtype"].choices


def combine(kernel, configs, shapes):
    """Return all legal cases: shape, config's name, dtype, distribution, layout, precision.

    A transpose has neither layout nor precision, and only float32 has precisions.
    """
    of_problem = kernel.problem_knobs()
    others = [
        of_problem[name].choices if name in of_problem else (None,)
        for name in ("layout", "precision")
    ]
    legal = {
        (shape, name, dtype)
        for shape, name, dtype in itertools.product(shapes, configs, dtypes(kernel))
        if accepted(kernel, problem_for(kernel, shape, dtype), configs[name])
    }
    every = itertools.product(shapes, configs, dtypes(kernel), DISTRIBUTIONS, *others)
    precisions = None, PRECISIONS[0]
    return [
        case
        for case in every
        if case[:3] in legal and (case[2] == "float32" or case[5] in precisions)
    ]


def make_experiments(kernel, configs, cases):
    """Return the experiment of each case. Each has another seed."""
    experiments = []
    for place, (shape, name, dtype, distribution, layout, precision) in enumerate(cases):
        problem = problem_for(kernel, shape, dtype, layout=layout, precision=precision)
        run = Run(distribution=distribution, seed=SEED + place)
        experiments.append(Experiment(kernel.id, problem, configs[name], run=run))
    return experiments


@pytest.fixture
def cases(kernel, configs, all_combinations):
    """Return experiments: each shape in tiles that are quick for it, and each pair of other values.

    With all combinations, each shape meets every other value, and slower tiles.
    """
    if not all_combinations:
        del configs["largest"]
    every = combine(kernel, configs, SHAPES)
    seconds = {
        (shape, name): interpreter_seconds(
            kernel, Launch(problem_for(kernel, shape), configs[name], FEW_SMS)
        )
        for shape, name in {case[:2] for case in every}
    }
    quickest = {
        shape: min(s for (of, _), s in seconds.items() if of == shape) for shape, _ in seconds
    }
    limit, most = LIMITS_S["all" if all_combinations else "default"]
    quick = [
        case for case in every if seconds[case[:2]] <= max(limit, min(most, quickest[case[0]]))
    ]
    together = None if all_combinations else ((0, 0), *itertools.combinations(range(1, 6), 2))
    chosen = covering(quick, lambda case: 0.1 + seconds[case[:2]], together)
    return make_experiments(kernel, configs, chosen)


def test_every_result_is_right_under_the_interpreter(session, kernel, cases, configs):
    assert len(cases) >= 20
    assert {case.config for case in cases} == {*configs.values()}
    for case in cases:
        result = session.submit(case).result()
        assert isinstance(result, RunResult), (case, result)
        assert result.check.passed, (case, result.check)
        output = kernel.family.tensors(case.problem)[kernel.family.output(case.problem)]
        assert result.check.elements == math.prod(output.shape)
        assert result.backend == "interpreter"
        assert result.timing is None
        assert result.baseline is None
        assert result.experiment == case


@pytest.mark.gpu
def test_every_result_is_right_on_a_gpu(gpu, kernel, configs):
    del configs["largest"]  # cannot be compiled for any GPU
    if races(kernel):
        configs = {name: replace(config, SPLIT_K=1) for name, config in configs.items()}
    every = combine(kernel, configs, SHAPES + LARGE_SHAPES)
    cases = make_experiments(kernel, configs, covering(every))
    with ThreadPoolExecutor(16) as clients:  # to compile concurrently
        results = list(clients.map(lambda case: gpu.submit(case, name="check").result(), cases))
    print(f"{kernel.id}: {len(cases)} cases on {gpu.gpu.name}")
    for case, result in zip(cases, results, strict=True):
        assert isinstance(result, RunResult), (case, result)
        assert result.check.passed, (case, result.check)
        assert result.backend == "cuda"
        assert result.timing is None


def races(kernel, **config):
    return bool(kernel.race(Launch(kernel.family.problem(), kernel.config(**config), FEW_SMS)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "kernel", [k for k in discover().values() if races(k)], ids=lambda kernel: kernel.id
)
def test_a_race_is_lost_on_a_gpu_unless_k_is_one_slice(gpu, kernel):
    """Run the default and each preset 20 times. A preset with one slice of K has no race."""
    settings = [({}, {}), *((preset.problem, preset.config) for preset in kernel.presets)]
    for problem, config in settings:
        cases = [
            Experiment(
                kernel.id,
                kernel.family.problem(**problem),
                kernel.config(**config),
                run=Run(seed=seed),
            )
            for seed in range(20)
        ]
        passed = [gpu.submit(case, name="check").result().check.passed for case in cases]
        print(
            f"{kernel.id} {problem} {config}: wrong in {passed.count(False)} of {len(passed)} runs"
        )
        assert passed.count(False) >= 19 if races(kernel, **config) else all(passed)


TIMED = [
    (kernel, dtype)
    for kernel in discover().values()
    if not races(kernel)
    for dtype in dtypes(kernel)
]


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "dtype"), TIMED, ids=lambda part: getattr(part, "id", part))
def test_a_right_result_is_timed_on_a_gpu(gpu, kernel, problem_of, dtype):
    result = gpu.submit(
        Experiment(kernel.id, problem_of((577, 1000, 128), dtype), kernel.config())
    ).result()
    assert isinstance(result, RunResult), result
    assert result.check.passed, result.check
    assert 0 < result.timing.p20_ms <= result.timing.median_ms <= result.timing.p80_ms
    assert result.baseline or "no library call" in result.note


@pytest.mark.gpu
def test_the_run_worker_compiles_nothing(gpu, kernel, problem_of):
    gpu.call_runner(worker.describe)  # compiles the clock probe, once per worker
    before = gpu.call_runner(count_compiles)
    for layout in LAYOUTS:
        problem = problem_of((577, 1000, 128), layout=layout)
        result = gpu.submit(Experiment(kernel.id, problem, kernel.config()), name="check").result()
        assert isinstance(result, RunResult), result
    assert gpu.call_runner(count_compiles) == before
