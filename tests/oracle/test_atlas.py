"""The atlas: what Nsight Compute counted of launches on two GPUs against the models, on the facts recorded with it."""

from __future__ import annotations

import collections
import functools
import json

import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.measuring.measurements.counters_measurement import COUNTERS as COUNTED
from kernels.results import records
from kernels.spec import Launch
from visualize.predict.agreement import Verdicts, count_of
from visualize.predict.banks import wavefronts_per_instruction
from visualize.predict.schedule import occupancy
from visualize.scoreboard.predictions import beside_counters, of_counters, shipped

# What is predicted for a launch is computed once, for all tests that hold it to what was counted.
pytestmark = pytest.mark.xdist_group("atlas")

ATLAS = records.shipped(COUNTED.form)
COUNTERS = {"load": ("ld",), "store": ("st",), "atomic": ("red", "atom")}


def ids(recording):
    experiment = recording.measured.experiment
    return f"{experiment.kernel}-{'-'.join(map(str, vars(experiment.problem).values()))}"


def launch_of(recording):
    experiment = recording.measured.experiment
    return discover()[experiment.kernel], Launch(experiment.problem, experiment.config, GPUS[recording.gpu])


@functools.cache
def found_of(place) -> Verdicts:
    """What the models say of one recording."""
    return beside_counters(ATLAS[place])


# Of five recordings one, unless all are asked for: the scoreboard's tests hold every launch's totals.
PLACES = [pytest.param(place, marks=pytest.mark.all_combinations if place % 5 else ()) for place in range(len(ATLAS))]


@pytest.fixture(params=PLACES, ids=lambda place: ids(ATLAS[place]))
def place(request):
    return request.param


@pytest.fixture
def case(place):
    return *launch_of(ATLAS[place]), ATLAS[place].measured


@pytest.fixture
def found(place):
    return found_of(place)


def test_enough_was_counted(kernels):
    assert len(ATLAS) >= 200
    problems = [recording.measured.experiment.problem for recording in ATLAS]
    configs = [recording.measured.experiment.config for recording in ATLAS]
    assert {recording.measured.experiment.kernel for recording in ATLAS} == set(kernels)
    assert {problem.dtype for problem in problems} == {
        dtype for kernel in kernels.values() for dtype in kernel.problem_knobs()["dtype"].choices
    }
    assert {config.num_warps for config in configs} >= {1, 2, 4, 8}
    assert sum(problem.M % 16 > 0 or problem.N % 16 > 0 for problem in problems) > len(ATLAS) / 4
    kinds = collections.Counter(o.op for r in ATLAS for o in r.measured.compiled.operations)
    assert set(kinds) == {"load", "async copy", "store", "atomic", "descriptor"}
    assert min(kinds.values()) > 20


def test_the_hardwares_counters_are_what_the_model_predicts(case, found):
    """Requests and sectors of all loads, stores and atomics; of a loop that repeats, no less than a turn."""
    _, _, counted = case
    for op, names in COUNTERS.items():
        mine = [o for o in found.predicted if o.access.op == op and o.compiled.layout is not None]
        for what in ("requests", "sectors"):
            predicted = sum(getattr(o.launch, what) for o in mine)
            count = sum(counted.launch[f"{name}_{what}"] for name in names)
            if any(o.launch.is_lower_bound for o in mine):
                assert count >= predicted, (op, what)
            else:
                assert count == predicted, (op, what)


def test_the_boxes_of_descriptors_are_what_the_accelerator_counts(case, found):
    """Read and written, inside the tensor and past its edge."""
    kernel, launch, counted = case
    tensors = kernel.family.tensors(launch.problem)
    boxes = [op for op in found.predicted if op.compiled.layout is None]
    read, written = (
        sum(op.launch.sectors for op in boxes if tensors[op.access.tensor].is_input is reads) for reads in (True, False)
    )
    assert read == counted.launch["tma_ld_sectors"]
    assert written == counted.launch["tma_st_sectors"]


def test_many_boxes_that_were_counted_reach_past_an_edge():
    """So that the test above holds what lies there, too: on each GPU, in every type and layout."""
    reaching = collections.defaultdict(set)
    for place, recording in enumerate(ATLAS):
        problem = recording.measured.experiment.problem
        if any(op.launch.extra_sectors for op in found_of(place).predicted):
            reaching[recording.gpu].add((problem.dtype, problem.layout))
    for cases in reaching.values():
        dtypes, layouts = (set(values) for values in zip(*cases, strict=True))
        assert dtypes == {"float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"}
        assert layouts == {"NN", "NT", "TN", "TT"}
    assert set(reaching) == {"H200", "H100"}


def test_the_counts_of_each_instruction_are_what_the_model_predicts(case, found):
    """Lines equal in every one, sectors in all but one opcode, which ncu counts differently in every run."""
    _, _, counted = case
    assert all(row.operation >= 0 for row in counted.ops)
    for op in found.predicted:
        count = count_of(op, found)
        if op.compiled.layout is None:
            assert count is None
            continue
        agreed = count.agreement
        assert agreed in (
            ("at least",) if op.launch.is_lower_bound and agreed != "equal" else ("equal", "undercounted")
        ), (
            op,
            count,
        )
        if not op.launch.is_lower_bound:
            assert count.lines == op.launch.lines
            assert count.executed >= op.launch.requests


def test_few_instructions_are_undercounted():
    """ncu's own defect stays one: of copies past the L1 alone, and never of a launch's counters."""
    kinds = collections.Counter()
    for found in map(found_of, range(len(ATLAS))):
        kinds.update(count.agreement for op in found.predicted if (count := count_of(op, found)))
    assert kinds["different"] == 0
    assert kinds["undercounted"] < kinds["equal"] / 20, kinds


def test_the_scoreboards_predictions_are_these_models():
    """All that are shipped: where a model changes, `python -m scripts.predict_records` writes them anew."""
    found = [of_counters(recording, found_of(place)) for place, recording in enumerate(ATLAS)]
    assert found == [one for one in shipped() if one.operations]


def test_what_ncu_calls_ideal_counts_copies_as_wanted(found):
    """Our ideal counts distinct bytes. ncu counts those of all lanes, copies too; before a swap, whole words."""
    for op in found.predicted:
        count = count_of(op, found)
        if count and not op.launch.is_lower_bound and count.agreement == "equal":
            assert op.launch.ideal_sectors <= count.ideal_sectors <= count.sectors
            if op.compiled.issued_by_owners and not op.compiled.swaps:
                assert count.ideal_sectors == op.launch.ideal_sectors


def test_the_passes_over_the_banks_of_a_conversion_are_what_was_counted(case):
    """In all steps but one kind: where lanes past the edge store nothing, ptxas lets them read nothing, either."""
    _, _, counted = case
    for conversion in counted.compiled.conversions:
        for kind, opcode in (("store", "STS"), ("store matrix", "STSM"), ("load", "LDS"), ("load matrix", "LDSM")):
            rows = [row for row in counted.shared if row.source == conversion.source]
            rows = [row for row in rows if row.opcode.partition(".")[0] == opcode and row.executed]
            alike = [o for o in counted.compiled.shared if (o.source, o.op) == (conversion.source, kind)]
            if not rows:
                continue
            assert alike, "every step was read"
            passes = sum(row.wavefronts for row in rows) / sum(row.executed for row in rows)
            if kind == "load":
                assert passes <= wavefronts_per_instruction(alike)[0]
            else:
                assert passes == wavefronts_per_instruction(alike)[0], (conversion, kind)


def test_few_reads_of_a_conversion_take_fewer_passes_than_predicted():
    """So that the allowance above stays one for edges."""
    equal = fewer = 0
    for recording in ATLAS:
        counted = recording.measured
        for source in {conversion.source for conversion in counted.compiled.conversions}:
            rows = [row for row in counted.shared if row.source == source and row.opcode.startswith("LDS.")]
            alike = [o for o in counted.compiled.shared if (o.source, o.op) == (source, "load")]
            if executed := sum(row.executed for row in rows):
                equal += sum(row.wavefronts for row in rows) / executed == wavefronts_per_instruction(alike)[0]
                fewer += sum(row.wavefronts for row in rows) / executed < wavefronts_per_instruction(alike)[0]
    assert equal > 50
    assert fewer <= equal / 10, (equal, fewer)


def test_registers_and_shared_memory_of_the_compile_are_those_of_the_launch(case):
    _, _, counted = case
    assert counted.compiled.registers == counted.launch["registers"]
    assert counted.compiled.shared_bytes == counted.launch["shared_bytes"]


def test_occupancy_is_what_was_counted_and_so_is_each_limit(case):
    _, launch, counted = case
    said = counted.launch
    held = occupancy(launch.gpu, launch.config.num_warps, int(said["registers"]), int(said["shared_bytes"]))
    assert 100 * held.occupancy == pytest.approx(said["occupancy_percent"], abs=0.01)
    for name in ("warps", "programs", "registers"):
        assert held.limits[name] == said[f"limit_{name}"], name
    # The driver gives no more of the memory to a kernel than it needs for the programs that the rest allows, so the
    # limit counted is that of a part of the memory.
    assert held.limits["shared memory"] >= said["limit_shared"] >= held.programs_per_sm


def test_a_record_survives_being_written_and_read():
    for recording in ATLAS[::40]:
        again = COUNTED.form.recording(json.loads(COUNTED.form.line(recording)))
        assert again.measured.compiled == recording.measured.compiled
        assert again.measured.ops == recording.measured.ops
        assert again.measured.launch == recording.measured.launch


def test_recorded_counts_are_found_whatever_the_inputs_are(kernels):
    kernel = kernels["matmul.grouped"]
    from kernels.experiment import Experiment, Run

    wanted = Experiment(kernel.id, kernel.family.problem(), kernel.config(), "H200", Run(seed=9))
    found = records.find(COUNTED.form, wanted, "H200")
    assert found is not None
    assert found.experiment == wanted
    assert records.find(COUNTED.form, wanted, "B200") is None
    same = Experiment(kernel.id, kernel.family.problem(precision="ieee"), kernel.config(), "H200")
    assert records.find(COUNTED.form, same, "H200") is not None, "float16 is multiplied in one way alone"
    other = Experiment(kernel.id, kernel.family.problem(dtype="float32", precision="tf32x3"), kernel.config(), "H200")
    assert records.find(COUNTED.form, other, "H200") is None
