"""The inside of our kernels, against Nsight Compute's recorded counts. The code needs no GPU."""

import pytest

from tests.experiments import experiment_of
from tilescope.measure.counters import COUNTERS
from tilescope.measure.run import RUN
from tilescope.results import records
from visualize.views.inside.figures import match_counts

# Of these kernels, the installed Triton's code and the counted one access shared memory alike.
RECORDED = [
    "matmul.grouped M=512 N=512 K=512 gpu=H200",
    "matmul.grid_2d M=512 N=512 K=512 gpu=H200",
    "matmul.split_k_atomic M=512 N=512 K=512 gpu=H100",
    "matmul.persistent M=512 N=512 K=512 gpu=H200",
    "transpose.tiled M=1024 N=1024 gpu=H200",
]


@pytest.mark.parametrize("flat", RECORDED)
def test_wavefronts_of_shared_memory_equal_the_recorded_counts(session, flat):
    experiment = experiment_of(flat)
    counters = records.find(COUNTERS.form, experiment, experiment.gpu)
    inside, executions = session.inspect(experiment).result()
    assert executions.accesses
    counted = match_counts(inside.shared, counters.shared)
    assert counted == {each: each.wavefronts for each in inside.shared if each.wavefronts}
    assert sum(row.ideal_wavefronts for row in counters.shared) == sum(
        each.ideal_wavefronts for each in inside.shared
    )


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2048), ("float32", 1024)])
def test_the_predicted_time_of_atomics_is_close_to_the_recorded_one(session, dtype, size):
    flat = f"matmul.split_k_atomic M={size} N={size} K={size} dtype={dtype} gpu=H200"
    experiment = experiment_of(flat)
    recorded = records.find(RUN.form, experiment, "H200")
    inside, _ = session.inspect(experiment).result()
    assert inside.predicted_warm_us == pytest.approx(1e3 * recorded.timing.median_ms, rel=0.15)
