"""Defects of what times are made into: ratios, samples, clocks, and what is said of them."""

from __future__ import annotations

from tests.mutants.defect import planted

TIMES = (
    *planted(
        "kernels",
        "pairs.py",
        "tests/kernels/test_pairs.py",
        ("np.sort(ours / theirs)", "np.sort(ours) / np.sort(theirs)[::-1]"),
        ("tail = 50 * (1 - CONFIDENCE)", "tail = 100 * (1 - CONFIDENCE)"),
        ("return not self.low <= 1 <= self.high", "return self.ratio != 1"),
        ("_tick_ms(ours, theirs) / 2", "0.0"),
    ),
    *planted(
        "kernels/measuring",
        "sampling.py",
        "tests/kernels/test_sampling.py",
        ("if taken < look_at or times_ms.sum() * stream.launches_per_sample < effort.least_ms:", "if taken < look_at:"),
        ("ratio.noise <= half_width + ratio.resolution", "ratio.noise <= 10 * half_width"),
        ("max(last) <= (1 + _STEADY) * min(last)", "last[-1] <= (1 + _STEADY) * last[0]"),
        ("for others in times_ms[1:]", "for others in times_ms[1:2]"),
        ("min(stream.most_turns, int(", "min(MOST_TURNS, int("),
    ),
    *planted(
        "kernels/measuring",
        "overhead.py",
        "tests/kernels/test_launch_overhead.py",
        ("statistics.median(enqueue_ms)", "max(enqueue_ms)"),
        ("        call()\n        synchronize()\n", "        call()\n"),
    ),
    *planted(
        "kernels/measuring",
        "clocks.py",
        "tests/kernels/test_sampling.py",
        ("spans[spans[:, 1] >= _LEAST_NS]", "spans[spans[:, 1] > 0]"),
    ),
    *planted(
        "visualize/text",
        "time_text.py",
        "tests/panels/test_times.py",
        ('result.experiment.run.l2 == "warm" and ', ""),
        ("cost.enqueue_ms <= timing.median_ms", "cost.enqueue_ms >= timing.median_ms"),
    ),
    *planted(
        "visualize/predict",
        "bounds.py",
        "tests/panels/test_roofline.py",
        ("return min(self.tflops, self.gbps * intensity / 1000)", "return self.tflops"),
        ("or run.experiment.problem.dtype == dtype", "or True"),
    ),
)
