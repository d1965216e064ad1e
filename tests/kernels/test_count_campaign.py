"""Recording: which experiments are measured, and how results are written and compared with their predictions."""

import itertools
import json
from dataclasses import replace

import pytest

from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.results import Failure, records
from kernels.spec import DTYPE_BYTES, Launch
from scripts.drawn_experiments import LARGEST, draw, presets, valid_experiments, with_descriptors
from scripts.record import KINDS, choose_experiments, parse_flags, record

H200 = GPUS["H200"]


def take(experiments, count):
    return list(itertools.islice(experiments, count))


def chosen(kind, *flags):
    return choose_experiments(parse_flags([kind, "FILE", *flags]), H200)


def is_prime(number):
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def test_a_seed_repeats_its_draw_and_another_seed_draws_others():
    first, again, other = (take(valid_experiments(draw(seed)), 30) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


def test_a_draw_has_primes_powers_of_two_and_tiny_sizes():
    found = take(valid_experiments(draw(0)), 300)
    sizes = {getattr(one.problem, name) for one in found for name in "MNK" if hasattr(one.problem, name)}
    assert min(sizes) >= 1
    assert max(sizes) <= LARGEST
    assert sum(map(is_prime, sizes)) > 50
    assert len({2**k + step for k in range(1, 13) for step in (-1, 0, 1)} & sizes) > 15
    assert len([size for size in sizes if size <= 40]) > 15
    assert {one.config.num_warps for one in found} == {1, 2, 4, 8, 16}


def test_a_draw_with_descriptors_has_all_types_layouts_and_widths_of_box_rows(kernels):
    found = take(valid_experiments(with_descriptors(draw(0), H200)), 120)
    widths, begins = set(), set()
    for one in found:
        launch = Launch(one.problem, one.config, H200)
        size = DTYPE_BYTES[one.problem.dtype]
        for access in kernels[one.kernel].accesses(launch):
            if access.tensor == "partials":
                continue
            assert access.op == "descriptor"
            widths.add(min(128, access.columns.block * size))
            begins.add(kernels[one.kernel].family.tensors(one.problem)[access.tensor].stored[1] * size % 32)
    assert widths == {16, 32, 64, 128}
    assert begins == {0, 16}, "rows that begin in the middle of a sector, too"
    assert {one.problem.dtype for one in found} == set(DTYPE_BYTES)
    assert {one.problem.layout for one in found} == {"NN", "NT", "TN", "TT"}
    assert any(is_prime(one.problem.M) for one in found), "a size that is no row of a tensor stays as drawn"


def test_all_experiments_with_a_recording_of_the_kind_are_recorded_again_each_once(kernels):
    for kind in KINDS:
        found = chosen(kind)
        assert len(set(found)) == len(found) > 10
    assert set(valid_experiments(presets())) <= set(chosen("counters"))
    assert {(one.kernel, one.problem.dtype) for one in valid_experiments(presets(every_dtype=True))} == {
        (name, dtype) for name, kernel in kernels.items() for dtype in kernel.problem_knobs()["dtype"].choices
    }


def test_a_draw_has_as_many_experiments_as_asked_for():
    assert chosen("counters", "--draw", "3", "--launches", "7") == take(valid_experiments(draw(3)), 7)


def test_experiments_of_a_file_are_measured_in_its_order(tmp_path):
    file = tmp_path / "these"
    payloads = [{"kernel": "transpose.flat"}, {"kernel": "matmul.grouped", "problem": {"M": 77}}]
    file.write_text("\n\n".join(map(json.dumps, payloads)))
    found = chosen("counters", "--these", str(file))
    assert [(one.kernel, one.problem.M) for one in found] == [("transpose.flat", 1024), ("matmul.grouped", 77)]
    file.write_text(json.dumps({"kernel": "matmul.grouped", "problem": {"M": 0}}))
    with pytest.raises(ConfigError, match="M must be a whole number from 1 to 16384"):
        chosen("counters", "--these", str(file))


@pytest.fixture
def counts():
    """Two recorded launches on an H200: one with lanes, one with descriptors."""
    found = [one.measured for one in _shipped("counters") if one.gpu == "H200"]
    return [
        next(one for one in found if one.experiment.kernel == "transpose.tiled"),
        next(one for one in found if one.launch["tma_ld_sectors"]),
    ]


def _shipped(kind):
    from kernels.measuring.session import MEASUREMENTS

    return records.shipped(MEASUREMENTS[kind].form)


def test_counts_are_recorded_beside_their_predictions_and_differences_are_reported(counts, capsys, tmp_path):
    file = tmp_path / "counted.jsonl"
    persistent = counts[1]
    sectors = f"{persistent.launch['tma_ld_sectors']:,.0f}"
    assert record("counters", [(one.experiment, one) for one in counts], file, "H200") == 0
    assert f"TMA load: {sectors} sectors predicted, {sectors} counted: equal" in capsys.readouterr().out
    assert len(file.read_text().splitlines()) == 2

    wrong = replace(persistent, launch={**persistent.launch, "tma_ld_sectors": 5.0})
    assert record("counters", [(wrong.experiment, wrong)], file, "H200") == 1
    assert f"DIFFERENT TMA load: {sectors} sectors predicted, 5 counted: different" in capsys.readouterr().out
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["counters"]["launch"]["tma_ld_sectors"] == 0
    assert second["counters"]["launch"]["tma_ld_sectors"] == 5, "measured again, so replaced"


def test_failures_are_reported_and_not_recorded(counts, capsys, tmp_path):
    file = tmp_path / "counted.jsonl"
    failure = Failure("compile", "out_of_resources", "Too large.")
    assert record("counters", [(counts[0].experiment, failure)], file, "H200") == 1
    assert "Too large." in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("kind", ["run", "timeline", "reuse"])
def test_each_kind_of_result_is_recorded_as_it_was_shipped(kind, capsys, tmp_path):
    recording = _shipped(kind)[0]
    file = tmp_path / "recorded.jsonl"
    assert record(kind, [(recording.measured.experiment, recording.measured)], file, recording.gpu) == 0
    fields = json.loads(file.read_text())
    assert fields["gpu"] == recording.gpu
    assert kind in capsys.readouterr().out
