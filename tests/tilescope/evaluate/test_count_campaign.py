"""Recording: which experiments are measured, and how results are written and compared with their predictions."""

import itertools
import json
from dataclasses import replace

import pytest

from scripts.drawn_experiments import draw, presets, valid_experiments
from scripts.record import KINDS, choose_experiments, parse_flags, record
from tests.experiments import experiment_of
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import ConfigError
from tilescope.measure.counters import COUNTERS
from tilescope.results import Failure, records

H200 = GPUS["H200"]


def chosen(kind, *flags):
    return choose_experiments(parse_flags([kind, "FILE", *flags]), H200)


def test_all_experiments_with_a_recording_of_the_kind_are_recorded_again_each_once(kernels):
    for kind in KINDS:
        found = chosen(kind)
        assert len(set(found)) == len(found) > 10
    assert set(valid_experiments(presets())) <= set(chosen("counters"))
    kinds = {
        (each.kernel, each.problem.dtype) for each in valid_experiments(presets(every_dtype=True))
    }
    assert kinds == {
        (name, dtype)
        for name, kernel in kernels.items()
        for dtype in kernel.problem_knobs()["dtype"].choices
    }


def test_a_draw_has_as_many_experiments_as_asked_for():
    drawn = list(itertools.islice(valid_experiments(draw(3)), 7))
    assert chosen("counters", "--draw", "3", "--launches", "7") == drawn


def test_experiments_of_a_file_are_measured_in_its_order(tmp_path):
    file = tmp_path / "these"
    payloads = [{"kernel": "transpose.flat"}, {"kernel": "matmul.grouped", "problem": {"M": 77}}]
    file.write_text("\n\n".join(map(json.dumps, payloads)))
    experiments = [experiment_of("transpose.flat"), experiment_of("matmul.grouped M=77")]
    assert chosen("counters", "--these", str(file)) == experiments
    file.write_text(json.dumps({"kernel": "matmul.grouped", "problem": {"M": 0}}))
    with pytest.raises(ConfigError, match="M must be a whole number from 1 to 16384"):
        chosen("counters", "--these", str(file))


@pytest.fixture
def counts():
    """Two recorded launches on an H200: one with lanes, one with descriptors."""
    found = [each.measured for each in records.shipped(COUNTERS.form) if each.gpu == "H200"]
    return [
        next(each for each in found if each.experiment.kernel == "transpose.tiled"),
        next(each for each in found if each.launch["tma_ld_sectors"]),
    ]


def test_counts_are_recorded_beside_their_predictions_and_differences_are_reported(
    counts, capsys, tmp_path
):
    file = tmp_path / "counted.jsonl"
    persistent = counts[1]
    sectors = f"{persistent.launch['tma_ld_sectors']:,.0f}"
    results = [(measured.experiment, measured) for measured in counts]
    assert record("counters", results, file, "H200") == 0
    equal = f"TMA load: {sectors} sectors predicted, {sectors} counted: equal"
    assert equal in capsys.readouterr().out
    assert len(file.read_text().splitlines()) == 2

    wrong = replace(persistent, launch={**persistent.launch, "tma_ld_sectors": 5.0})
    assert record("counters", [(wrong.experiment, wrong)], file, "H200") == 1
    different = f"DIFFERENT TMA load: {sectors} sectors predicted, 5 counted: different"
    assert different in capsys.readouterr().out
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["counters"]["launch"]["tma_ld_sectors"] == 0
    assert second["counters"]["launch"]["tma_ld_sectors"] == 5, "measured again, so replaced"


def test_failures_are_reported_and_not_recorded(counts, capsys, tmp_path):
    file = tmp_path / "counted.jsonl"
    failure = Failure("compile", "out_of_resources", "Too large.")
    assert record("counters", [(counts[0].experiment, failure)], file, "H200") == 1
    assert "Too large." in capsys.readouterr().err
    assert not file.exists()
