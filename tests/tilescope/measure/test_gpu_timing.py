"""Timing on a real GPU: ratios, clocks, graphs, a cold L2, and what a call costs."""

import pytest

from tests.experiments import run
from tilescope.measure.timing import MEASURED, RUN, pair, sample
from tilescope.results import Failure

pytestmark = [pytest.mark.gpu, pytest.mark.idle_gpu]

SMALL = "matmul.grouped"
LARGE = "matmul.persistent M=4096 N=4096 K=4096 BLOCK_N=256 num_warps=8"
# 8 MiB in, 8 MiB out.
FITS = "transpose.tiled M=2048 N=1024"


def ask(session, function):
    """Return what a function of this file returns in the run worker."""
    value = session.call_runner(function)
    assert not isinstance(value, Failure), value
    return value


@pytest.mark.parametrize("timer", ["events", "graph"])
@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_every_way_to_take_time_gives_samples_of_both(gpu, l2, timer):
    result = run(gpu, "matmul.grouped M=1024 N=1024 K=1024", l2=l2, timer=timer)
    timing = result.timing
    assert timing.samples >= 10
    assert 0 < timing.p20_ms <= timing.median_ms <= timing.p80_ms
    assert timing.tflops == pytest.approx(2 * 1024**3 / timing.median_ms / 1e9)
    assert 0 < result.peak.share < 1.1
    assert result.clock_mhz is None or result.clock_mhz > 100


def test_events_and_a_graph_agree_on_a_launch_of_a_tenth_of_a_millisecond(gpu):
    """A time that included launch overhead would differ."""
    timers = ("events", "graph")
    runs = [run(gpu, "transpose.tiled M=8192 N=8192", timer=timer) for timer in timers]
    times = [result.timing.median_ms for result in runs]
    assert times[0] == pytest.approx(times[1], rel=0.1)


@pytest.mark.parametrize("text", [SMALL, LARGE])
def test_a_ratio_has_an_interval_that_is_narrow_and_a_clock_that_was_measured(gpu, text):
    result = run(gpu, text)
    best = result.baseline
    assert best.ratio_low <= best.ratio <= best.ratio_high
    assert best.ratio == pytest.approx(best.timing.median_ms / result.timing.median_ms, rel=0.02)
    assert best.ratio_high / best.ratio_low < 1.03
    assert result.timing.samples == best.timing.samples >= 30
    clocks = result.clocks
    assert clocks.how == MEASURED
    assert 200 < clocks.lowest_mhz <= clocks.median_mhz <= clocks.highest_mhz < 3500
    assert result.clock_mhz == round(clocks.median_mhz)
    assert result.stages["time"] < 10


def test_the_librarys_alternatives_are_timed_in_the_same_turns(gpu):
    for text, names in (
        (SMALL, ["torch.matmul", "torch.matmul, cuBLASLt"]),
        ("matmul.fused_add_relu", ["torch.addmm, then relu_", "torch eager, three calls"]),
        (FITS, ["torch copy_ of A.t()", "A.t().contiguous()", "plain copy of as many bytes"]),
    ):
        result = run(gpu, text)
        assert [call.name for call in result.baselines] == names
        assert result.baseline == result.baselines[0]
        assert len({call.timing.samples for call in result.baselines}) == 1


def test_a_call_from_python_takes_longer_than_a_small_kernel_and_is_not_part_of_its_time(gpu):
    result = run(gpu, SMALL)
    cost = result.launch_overhead
    assert 0.001 < cost.enqueue_ms < 1
    assert cost.synchronized_ms > max(cost.enqueue_ms, result.timing.median_ms)
    long = run(gpu, "matmul.grouped M=4096 N=4096 K=4096")
    assert (
        long.launch_overhead.enqueue_ms
        < long.timing.median_ms
        < long.launch_overhead.synchronized_ms
    )


def test_a_short_launch_takes_less_in_a_graph_of_20(gpu):
    text = "matmul.grouped M=128 N=128 K=64"
    events, graph = (run(gpu, text, timer=timer) for timer in ("events", "graph"))
    assert events.launches_per_sample == 1
    assert graph.launches_per_sample == 20
    assert 0.0005 < graph.timing.median_ms < events.timing.median_ms
    assert run(gpu, LARGE, timer="graph").launches_per_sample == 1


def test_a_cold_launch_reads_from_dram_and_a_warm_one_does_not(gpu):
    """The matrices fit in the L2. A cold launch is no faster than the best copy in DRAM, and slower than a warm one."""
    warm, cold = (run(gpu, FITS, l2=l2) for l2 in ("warm", "cold"))
    assert cold.timing.gbps < warm.peak.rate
    assert cold.timing.median_ms > warm.timing.median_ms


def _copies(mebibytes):
    """A call that copies floats. In the run worker."""
    import torch

    source = torch.zeros(mebibytes << 18, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _time_cold_copies():
    """Median times of a copy after two and after eight L2 capacities were read. In the run worker."""
    import numpy as np

    from tilescope.measure.gated_stream import GatedStream, TimingDevice

    device = TimingDevice()
    medians_ms = []
    for capacities in (2, 8):
        device.flush_capacities = capacities
        stream = GatedStream([_copies(8)], "cold", "events", device)
        medians_ms.append(float(np.median(stream.batch(100).times_ms)))
    return medians_ms


def test_reading_more_than_two_l2_capacities_makes_it_no_colder(gpu):
    run(gpu, SMALL)
    two, eight = ask(gpu, _time_cold_copies)
    assert two == pytest.approx(eight, rel=0.05)


def _clock_of_a_spin():
    """The clock of a spin with known cycles: by events, and by the probes around it. In the run worker."""
    import torch

    from tilescope.measure.gated_stream import TimingDevice

    cycles = 20_000_000
    device = TimingDevice()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    device.probe(0)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    device.probe(1)
    torch.cuda.synchronize()
    return cycles / begin.elapsed_time(end) / 1000, device.clock_mhz()


def test_the_probes_agree_with_a_spin_of_known_cycles(gpu):
    run(gpu, SMALL)
    by_events, by_probes = ask(gpu, _clock_of_a_spin)
    assert by_probes == pytest.approx(by_events, rel=0.03)


def _compare_a_copy_with_itself():
    """The paired ratio of a copy to the same copy. In the run worker."""
    from tilescope.measure.gated_stream import GatedStream

    return pair(*sample(GatedStream([_copies(64)] * 2, "warm", "events"), RUN).times_ms)


def test_a_call_is_as_fast_as_itself(gpu):
    run(gpu, SMALL)
    ratio = ask(gpu, _compare_a_copy_with_itself)
    assert ratio.high - ratio.low < 0.02
    assert ratio.ratio == pytest.approx(1, abs=max(0.003, ratio.high - ratio.low))
    assert ratio.low - 0.002 <= 1 <= ratio.high + 0.002
