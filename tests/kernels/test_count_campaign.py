"""The campaign that counts launches: what its dice draw, and how it sets what is counted beside what is predicted."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from kernels import gpus
from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.lanes import CompiledFacts
from kernels.measuring.measurements.counters_measurement import COUNTERS
from kernels.results import Failure, records
from kernels.spec import DTYPE_BYTES, Launch
from scripts import record_counters
from scripts.drawn_experiments import LARGEST, drawn, experiments, named, widely_drawn, with_descriptors

H200 = GPUS["H200"]


def take(experiments, count):
    return list(itertools.islice(experiments, count))


def is_prime(number):
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def test_one_seed_draws_the_same_launches_again_and_another_one_others():
    first, again, other = (take(experiments(widely_drawn(seed)), 30) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


def test_the_wide_draw_has_primes_powers_of_two_and_tiny_sizes():
    found = take(experiments(widely_drawn(0)), 300)
    sizes = {getattr(one.problem, name) for one in found for name in "MNK" if hasattr(one.problem, name)}
    assert min(sizes) >= 1
    assert max(sizes) <= LARGEST
    assert sum(map(is_prime, sizes)) > 50
    assert len({2**k + step for k in range(1, 13) for step in (-1, 0, 1)} & sizes) > 15
    assert len([size for size in sizes if size <= 40]) > 15
    assert {one.config.num_warps for one in found} == {1, 2, 4, 8, 16}


def test_a_draw_with_descriptors_has_all_types_layouts_and_widths_of_box_rows(kernels):
    found = take(experiments(with_descriptors(widely_drawn(0), H200)), 120)
    widths, begins = set(), set()
    for one in found:
        launch = Launch(one.problem, one.config, H200)
        size = DTYPE_BYTES[one.problem.dtype]
        for access in kernels[one.kernel].accesses(launch):
            assert access.op == "descriptor"
            widths.add(min(128, access.columns.block * size))
            begins.add(kernels[one.kernel].family.tensors(one.problem)[access.tensor].stored[1] * size % 32)
    assert widths == {16, 32, 64, 128}
    assert begins == {0, 16}, "rows that begin in the middle of a sector, too"
    assert {one.problem.dtype for one in found} == set(DTYPE_BYTES)
    assert {one.problem.layout for one in found} == {"NN", "NT", "TN", "TT"}
    assert any(is_prime(one.problem.M) for one in found), "a size that is no row of a tensor stays as drawn"


def wanted(*flags):
    return record_counters.wanted(record_counters.flags_of_counters().parse_args(["FILE", *flags]), H200)


def test_the_atlas_is_what_is_named_and_as_many_as_are_asked_for():
    every = take(experiments(named()), 1000)
    assert take(wanted("--random", "7", "--seed", "3"), 1000)[: len(every)] == every
    assert len(take(wanted("--random", "7"), 1000)) == len(every) + 7
    assert take(wanted("--random", "0"), 1000) == every
    assert not set(take(experiments(drawn(3)), 5)) & set(every)


def test_experiments_of_a_file_are_counted_in_its_order(tmp_path):
    file = tmp_path / "these"
    payloads = [{"kernel": "transpose.flat"}, {"kernel": "matmul.grouped", "problem": {"M": 77}}]
    file.write_text("\n\n".join(map(json.dumps, payloads)))
    found = take(wanted("--these", str(file)), 9)
    assert [(one.kernel, one.problem.M) for one in found] == [("transpose.flat", 1024), ("matmul.grouped", 77)]
    file.write_text(json.dumps({"kernel": "matmul.grouped", "problem": {"M": 0}}))
    with pytest.raises(ConfigError, match="M is 0"):
        wanted("--these", str(file))


@pytest.fixture
def recorded(monkeypatch):
    """Two recorded launches on an H200, and a machine that recalls their counts: one by lanes, one by descriptors."""
    found = {}
    for recording in records.shipped(COUNTERS.form):
        kernel = recording.measured.experiment.kernel
        if recording.gpu == "H200" and kernel in ("transpose.tiled", "matmul.persistent"):
            found.setdefault(kernel, recording.measured)
    counts = {one.experiment: one for one in found.values()}
    monkeypatch.setattr(gpus, "this_gpu", lambda: H200)
    monkeypatch.setattr(
        record_counters, "_compiled", lambda batch, *_: [(one, compiled_of(one, counts)) for one in batch]
    )
    monkeypatch.setattr(
        record_counters, "_counted", lambda batch, _: [((one.to_json(), "counters"), counts[one]) for one, _ in batch]
    )
    return counts


def compiled_of(experiment, counts):
    return counts[experiment].compiled if experiment in counts else Failure("compile", "out_of_resources", "Too large.")


def run(monkeypatch, capsys, tmp_path, experiments, *flags):
    file, these = tmp_path / "counted.jsonl", tmp_path / "these"
    these.write_text("\n".join(json.dumps(one.to_json()) for one in experiments))
    monkeypatch.setattr("sys.argv", ["record_counters", str(file), "--these", str(these), *flags])
    failed = record_counters.main()
    return failed, capsys.readouterr(), [json.loads(line) for line in file.read_text().splitlines()]


def test_what_is_predicted_stands_beside_each_count_and_misses_are_listed(recorded, monkeypatch, capsys, tmp_path):
    failed, said, lines = run(monkeypatch, capsys, tmp_path, recorded)
    assert failed == 0
    assert len(lines) == 2
    persistent = next(one for one in recorded.values() if one.experiment.kernel == "matmul.persistent")
    sectors = f"{persistent.launch['tma_ld_sectors']:,.0f}"
    assert f"TMA load: {sectors} sectors predicted, {sectors} counted: equal" in said.out
    assert "2 launches counted; 0 not as predicted." in said.out

    wrong = replace(persistent, launch={**persistent.launch, "tma_ld_sectors": 5.0})
    recorded[persistent.experiment] = wrong
    _, said, _ = run(monkeypatch, capsys, tmp_path, recorded)
    assert "2 launches counted; 1 not as predicted." in said.out
    assert f"{sectors} sectors predicted, 5 counted: different" in said.out.partition("\ndifferent: ")[2]


def test_what_is_counted_several_times_is_recorded_once(recorded, monkeypatch, capsys, tmp_path):
    failed, said, lines = run(monkeypatch, capsys, tmp_path, recorded, "--repeat", "5")
    assert (failed, len(lines)) == (0, 2)
    assert said.out.count("counted: equal") >= 10
    assert "10 launches counted; 0 not as predicted" in said.out


def test_what_does_not_compile_is_said_and_does_not_count(recorded, tmp_path):
    too_large = take(experiments(drawn(0)), 3)
    known = list(recorded)
    outcomes = list(record_counters.counted([too_large[0], *known, *too_large[1:]], H200, most=1))
    assert [isinstance(outcome, Failure) for _, outcome in outcomes] == [True, False]
    assert isinstance(outcomes[1][1].compiled, CompiledFacts)


def test_a_machine_without_a_gpu_records_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpus, "this_gpu", lambda: None)
    monkeypatch.setattr("sys.argv", ["record_counters", str(tmp_path / "file")])
    assert record_counters.main() == 1
    assert "no GPU" in capsys.readouterr().err
