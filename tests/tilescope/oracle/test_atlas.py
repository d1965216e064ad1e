"""The atlas: Nsight Compute's counts of launches on two GPUs, against the models applied to the recorded facts."""

import collections
import functools

import pytest

from scripts.predict_records import predict_counted, score_counters
from tilescope.captures.layouts import Layout
from tilescope.declare.discovery import read_text
from tilescope.declare.gpus import occupancy
from tilescope.measure.counters import COUNTERS
from tilescope.results import records
from tilescope.results.scores import parse_scores
from visualize.predict.costs import count_of, launch_totals
from visualize.views.library import DRAM, FILE

pytestmark = pytest.mark.xdist_group("atlas")

ATLAS = records.shipped(COUNTERS.form)
# The counters of operations that lanes issue.
LANES = ("ld", "st", "red", "atom")


@functools.cache
def predict(place):
    """Return the models' predictions for one recording, computed once for all tests."""
    return predict_counted(ATLAS[place])


# By default one recording in five: the scoreboard's tests compare every launch's totals.
@pytest.fixture(
    params=[
        pytest.param(at, marks=pytest.mark.all_combinations if at % 5 else ())
        for at in range(len(ATLAS))
    ],
    ids=lambda at: f"{ATLAS[at].measured.experiment.kernel}-{at}",
)
def found(request):
    return predict(request.param)


def test_every_kernel_and_kind_of_operation_was_counted(kernels):
    assert {recording.measured.experiment.kernel for recording in ATLAS} == set(kernels)
    kinds = collections.Counter(o.op for r in ATLAS for o in r.measured.compiled.operations)
    assert set(kinds) == {"load", "async copy", "store", "atomic", "descriptor"}
    assert min(kinds.values()) > 20


def test_every_recorded_layout_is_a_permutation_of_bits():
    layouts = {o.layout for r in ATLAS for o in r.measured.compiled.operations if o.layout}
    assert all(layout.is_permutation for layout in layouts)
    assert not Layout((4, 4), ((1, 1), (0, 1)), ((2, 0), (0, 2)), ()).is_permutation, (
        "a base moves in both dimensions"
    )
    assert not Layout((4,), ((1,),), ((3,),), ()).is_permutation, "a base sets two bits"
    assert not Layout((2,), ((1,),), ((1,),), ()).is_permutation, "two bases set the same bit"


def test_the_launchs_counters_are_predicted(found):
    """Requests and sectors of loads, stores, atomics and boxes; of a loop that retries, at least one iteration."""
    totals = launch_totals(found)
    for kind, (predicted, counted) in totals.items():
        assert counted.agreement in (
            ("equal", "at least") if predicted.is_lower_bound else ("equal",)
        ), kind
    # How often it polls flags varies
    lanes = LANES[:2] if found.kernel.id == "matmul.stream_k" else LANES
    for what, names in (("requests", lanes), ("sectors", (*lanes, "tma_ld", "tma_st"))):
        counts = sum(found.counters.launch[f"{name}_{what}"] for name in names)
        assert sum(getattr(counted, what) for _, counted in totals.values()) == counts, (
            "every counter is compared"
        )


def test_many_counted_boxes_reach_past_an_edge():
    """On each GPU, in every type and layout: so the test above covers the sectors there, too."""
    reaching = collections.defaultdict(set)
    for place, recording in enumerate(ATLAS):
        problem = recording.measured.experiment.problem
        if any(op.launch.extra_sectors for op in predict(place).predicted):
            reaching[recording.gpu].add((problem.dtype, problem.layout))
    for cases in reaching.values():
        dtypes, layouts = (set(values) for values in zip(*cases, strict=True))
        assert dtypes == {"float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"}
        assert layouts == {"NN", "NT", "TN", "TT"}
    assert set(reaching) == {"H200", "H100"}


def test_the_counts_of_each_instruction_are_predicted(found):
    """Lines of all, and sectors except of one opcode, which ncu counts differently in every run.

    Our ideal counts distinct bytes. ncu counts those of all lanes, including copies; before a swap, whole words.
    """
    assert all(row.operation >= 0 or ".EXCH." in row.opcode for row in found.counters.ops), (
        "only flag exchanges are undeclared"
    )
    for op in found.predicted:
        cost = op.launch
        count = count_of(op, found)
        if op.compiled.layout is None:
            assert count is None
            continue
        allowed = {"at least"} if cost.is_lower_bound else {"undercounted", "overcounted"}
        assert count.agreement in {"equal", *allowed}, (op, count)
        if not cost.is_lower_bound:
            assert count.lines == cost.lines
            assert count.executed >= cost.requests
            if count.agreement == "equal":
                assert cost.ideal_sectors <= count.ideal_sectors <= count.sectors
                if op.compiled.op != "load" and not op.compiled.swaps:
                    assert count.ideal_sectors == cost.ideal_sectors


def test_few_instructions_are_miscounted():
    """ncu miscounts only copies that bypass L1, and never in the launch's counters."""
    kinds = collections.Counter()
    for found in map(predict, range(len(ATLAS))):
        kinds.update(count.agreement for op in found.predicted if (count := count_of(op, found)))
    assert kinds["different"] == 0
    assert kinds["undercounted"] + kinds["overcounted"] < kinds["equal"] / 20, kinds


def test_the_scoreboards_predictions_are_these_models():
    """All shipped ones. If a model changes, `python -m scripts.predict_records` regenerates them."""
    found = [
        score
        for place, recording in enumerate(ATLAS)
        for score in score_counters(recording, predict(place))
    ]
    shipped = parse_scores(read_text(FILE))
    assert found == [score for score in shipped if score.model != DRAM]


def test_registers_shared_memory_and_occupancy_are_those_counted(found):
    counted = found.counters.launch
    code = found.counters.compiled
    gpu = found.launch.gpu
    assert code.registers == counted["registers"]
    assert code.shared_bytes == counted["shared_bytes"]
    predicted = occupancy(gpu, found.launch.config.num_warps, code.registers, code.shared_bytes)
    assert 100 * predicted.occupancy == pytest.approx(counted["occupancy_percent"], abs=0.01)
    for name in ("warps", "programs", "registers"):
        assert predicted.limits[name] == counted[f"limit_{name}"], name
    # The driver gives a kernel no more of the memory than it needs for the programs that the rest allows, so the
    # counted limit is that of a part of the memory.
    assert predicted.limits["shared memory"] >= counted["limit_shared"] >= predicted.programs_per_sm
