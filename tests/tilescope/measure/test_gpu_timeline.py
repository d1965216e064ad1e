"""Timelines on a real GPU: every program once, on existing SMs, and a span that is the kernel's own time."""

import pytest

from tests.experiments import experiment_of
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import launch_of
from tilescope.measure import worker
from tilescope.results import Timeline

pytestmark = [pytest.mark.gpu, pytest.mark.idle_gpu]

# Kernel, sizes and config. Over 200 µs: their span is compared with the time of the launch.
LONG = [
    "matmul.grouped M=6144 N=6144 K=6144 BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 GROUP_SIZE=8 num_warps=8",
    "matmul.grouped M=8192 N=4096 K=6144 BLOCK_M=64 BLOCK_N=64 BLOCK_K=32",
    "matmul.persistent M=6144 N=6144 K=6144 BLOCK_N=256 num_warps=8",
    "matmul.split_k_atomic M=4096 N=4096 K=8192",
    "matmul.grid_2d M=4096 N=4096 K=4096",
    "transpose.tiled M=16384 N=16384",
]
LONG_MS = 0.2
SPAN_TOLERANCE = 0.03

COMPILES = []


def note_compile(*, cache_hit, **_):
    COMPILES.extend([True] * (not cache_hit))


def count_compiles():
    """Return how many kernels the run worker has compiled since the first call. In the run worker."""
    import triton

    triton.knobs.compilation.listener = note_compile
    return len(COMPILES)


def record_timeline(gpu, text):
    timeline = gpu.submit(experiment_of(text), "timeline").result()
    assert isinstance(timeline, Timeline), timeline
    return timeline


def assert_holds(timeline, gpu):
    kernel, launch = launch_of(timeline.experiment, gpu.gpu)
    assert (
        len(timeline.sm)
        == len(timeline.start_ns)
        == len(timeline.end_ns)
        == kernel.programs(launch)
    )
    assert min(timeline.sm) >= 0
    assert max(timeline.sm) < gpu.gpu.sms
    assert min(timeline.start_ns) == 0
    assert all(start < end for start, end in zip(timeline.start_ns, timeline.end_ns, strict=True))
    assert timeline.span_ns / 1e6 < timeline.kernel_ms
    assert 0 < timeline.tick_ns <= timeline.step_ns
    assert timeline.backend == "cuda"


@pytest.mark.parametrize("kernel", list(discover()))
def test_every_program_of_every_kernel_is_recorded_once(gpu, kernel):
    gpu.call_runner(worker.describe)  # compiles the clock probe, once per worker
    compiled_before = gpu.call_runner(count_compiles)
    config = "SPLIT_K=1" if kernel == "matmul.split_k_race" else ""
    timeline = record_timeline(gpu, f"{kernel} {config}")
    assert_holds(timeline, gpu)
    assert timeline.passed
    assert gpu.call_runner(count_compiles) == compiled_before, (
        "both builds come from the compile workers"
    )


@pytest.mark.parametrize("text", LONG)
def test_the_span_is_the_kernels_own_time(gpu, text):
    timeline = record_timeline(gpu, text)
    assert_holds(timeline, gpu)
    assert timeline.passed
    assert timeline.kernel_ms > LONG_MS
    assert timeline.span_ns / 1e6 == pytest.approx(timeline.kernel_ms, rel=SPAN_TOLERANCE)


@pytest.mark.parametrize(("l2", "timer"), [("cold", "events"), ("warm", "graph")])
def test_a_timeline_is_taken_as_a_run_is_timed(gpu, l2, timer):
    timeline = record_timeline(gpu, f"matmul.grouped l2={l2} timer={timer}")
    assert_holds(timeline, gpu)
    assert timeline.plain.samples >= 10


def test_a_kernel_that_races_has_a_timeline_and_a_wrong_output(gpu):
    timeline = record_timeline(gpu, "matmul.split_k_race")
    assert_holds(timeline, gpu)
    assert not timeline.passed
