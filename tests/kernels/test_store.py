"""The store: what is written is found again, whoever writes at once and whatever is wrong with the file."""

from __future__ import annotations

import datetime
import sqlite3
import threading
from dataclasses import replace

import pytest

from kernels.experiment import Run, from_json
from kernels.measuring.measurements import MEASUREMENTS
from kernels.results import records
from kernels.store import Store, StoredRow, StoredSweep, Wanted, machine_store
from kernels.store.experiment_key import experiment_of, key_of, text_of
from kernels.store.pruning import Bounds
from tests.kernels.results_made_up import H200, INTERPRETER, START, experiment, run
from tests.kernels.stores import ONE, OTHER, RUN, again, counted, medians, put, writing

HOSTILE = "'; DROP TABLE measured; --"


@pytest.mark.parametrize("name", [name for name in MEASUREMENTS if name != "check"])
def test_every_shipped_result_comes_back_as_it_was(store, name):
    kind = MEASUREMENTS[name]
    for shipped in records.shipped(kind.form)[::9]:
        assert put(store, shipped.measured, shipped.gpu, kind=kind)
        back = again(store).find(kind, shipped.measured.experiment, shipped.gpu, "cuda")
        assert kind.form.line(replace(back, date=shipped.date)) == kind.form.line(shipped)
        assert back.date == "2026-11-01T09:00:00+00:00"


def test_the_latest_of_an_experiment_is_found_on_its_gpu_alone(store):
    for median_ms in (0.1, 0.2):
        assert put(store, run(ONE, median_ms))
    put(store, run(ONE, 0.3), gpu="H100")
    put(store, run(ONE, None, INTERPRETER))
    put(store, run(ONE, 0.4), kind=MEASUREMENTS["check"])
    assert store.find(RUN, ONE, "H200", "cuda").measured.timing.median_ms == 0.2
    assert store.find(RUN, replace(ONE, gpu="this"), "H200", "cuda").measured.timing.median_ms == 0.2
    assert store.find(RUN, ONE, "H200", "interpreter").measured.timing is None
    assert store.find(RUN, ONE, "B200", "cuda") is None
    assert store.find(RUN, OTHER, "H200", "cuda") is None
    assert store.find(RUN, replace(ONE, run=Run(seed=1)), "H200", "cuda") is None


def test_a_row_says_what_a_listing_needs_and_counts_up(store):
    put(store, run(replace(ONE, gpu="this"), 0.1))
    put(store, run(OTHER, None, INTERPRETER))
    checked, timed = store.latest(Wanted(), 10)
    assert (timed.kind, timed.kernel, timed.gpu, timed.device) == ("run", "transpose.tiled", "H200", "NVIDIA H200")
    assert (timed.torch, timed.triton, timed.ended) == ("2.11.0", "3.6.0", START)
    assert (timed.marks.median_ms, timed.marks.p20_ms, timed.marks.samples) == (0.1, 0.1 * 0.995, 100)
    assert (timed.marks.ratio, timed.marks.ratio_low, timed.marks.passed) == (1.2, 1.19, True)
    assert timed.experiment == ONE, "a GPU that is spelled this is left out"
    assert store.find(RUN, ONE, "H200", "cuda").measured.experiment == ONE
    assert checked.marks.median_ms is None
    assert checked.marks.passed is True
    assert checked.backend == "interpreter"
    assert checked.number > timed.number


def test_times_are_kept_in_utc(store):
    east = datetime.timezone(datetime.timedelta(hours=9))
    put(store, run(ONE), ended=datetime.datetime(2026, 11, 2, 3, 0, tzinfo=east))
    assert store.latest(Wanted(), 1)[0].ended == datetime.datetime(2026, 11, 1, 18, 0, tzinfo=datetime.UTC)


def test_a_list_is_narrowed_and_paged_by_what_came_before(store):
    for place in range(7):
        put(store, run(ONE if place % 2 else OTHER, 0.1 + place))
    assert medians(store) == [6.1, 5.1, 4.1, 3.1, 2.1, 1.1, 0.1]
    first = store.latest(Wanted(), 3)
    put(store, run(ONE, 9.0))
    assert [one.marks.median_ms for one in store.latest(Wanted(), 3, first[-1].number)] == [3.1, 2.1, 1.1]
    assert medians(store, Wanted(keys=(key_of(ONE),))) == [9.0, 5.1, 3.1, 1.1]
    assert store.count(Wanted(("run", "check"), "transpose.tiled", "NVIDIA H200")) == 8
    assert store.count(Wanted(kernel="matmul.grouped")) == store.count(Wanted(device="NVIDIA H100")) == 0
    assert store.counts() == {("run", "transpose.tiled", "NVIDIA H200"): 8}
    put(store, run(ONE, 9.5))
    assert store.counts() == {("run", "transpose.tiled", "NVIDIA H200"): 9}


def test_what_looks_like_sql_is_a_value_like_any_other(store):
    put(store, run(ONE))
    named = replace(H200, name=HOSTILE, triton=HOSTILE)
    assert put(store, run(OTHER, 0.2, named), gpu=HOSTILE)
    assert store.find(RUN, OTHER, HOSTILE, "cuda").measured.device == named
    for wanted in (Wanted(kernel=HOSTILE), Wanted(kinds=(HOSTILE,)), Wanted(keys=(HOSTILE,))):
        assert store.latest(wanted, 10) == []
        assert store.count(wanted) == 0
    assert medians(store, Wanted(device=HOSTILE)) == [0.2]
    assert store.sweep_rows(HOSTILE) == []
    assert store.count(Wanted()) == 2
    assert store.problem == ""


def test_the_key_of_an_experiment_is_the_same_in_every_process_and_version():
    """Of what is left as it is by default, nothing is in the text: a new knob changes no key."""
    assert text_of(experiment()) == '{"kernel":"transpose.tiled"}'
    assert key_of(ONE) == key_of(replace(ONE, gpu="this")) == key_of(replace(ONE, gpu="H200"))
    assert key_of(ONE) == "f94ba76c2e5bd497c7fea2397f84d822"
    assert text_of(ONE) == '{"kernel":"transpose.tiled","problem":{"M":128}}'


def test_every_kernel_s_presets_have_keys_of_their_own_and_come_back(kernels):
    every = {
        from_json({"kernel": kernel.id, "problem": preset.problem, "config": preset.config}, kernels)
        for kernel in kernels.values()
        for preset in kernel.presets
    }
    assert {experiment_of(text_of(one)) for one in every} == every
    assert len({key_of(one) for one in every}) == len(every)


@pytest.mark.parametrize("text", ['{"kernel":"sort"}', "{", "[]", '{"kernel":"transpose.tiled","problem":{"M":-1}}'])
def test_an_experiment_that_this_version_does_not_know_is_none(text):
    assert experiment_of(text) is None


def test_a_result_that_cannot_be_read_back_is_no_result_and_is_named_in_the_log(store, caplog):
    put(store, run(ONE))
    put(store, run(OTHER))
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE recording SET line = x'00' WHERE number = 1")
    connection.close()
    assert store.find(RUN, ONE, "H200", "cuda") is None
    assert "result" in caplog.text
    assert store.find(RUN, OTHER, "H200", "cuda").measured.experiment == OTHER


def test_the_oldest_of_the_same_experiment_goes_first(store_path):
    store = Store(store_path, Bounds(of_one=3, results=6))
    for place in range(5):
        put(store, run(ONE, 1.0 + place))
    assert medians(store) == [5.0, 4.0, 3.0]
    put(store, run(ONE, 9.0), gpu="H100")
    for place in range(3):
        put(store, run(experiment(M=1000 + place), 10.0 + place))
    assert medians(store) == [12.0, 11.0, 10.0, 9.0, 5.0, 4.0], "the oldest that a newer one stands for"
    for place in range(3, 5):
        put(store, run(experiment(M=1000 + place), 10.0 + place))
    # Those of ONE that a newer one of it stands for are gone; where each stands alone, the oldest goes.
    assert medians(store) == [14.0, 13.0, 12.0, 11.0, 10.0, 9.0]
    assert store.find(RUN, ONE, "H200", "cuda") is None
    with sqlite3.connect(store_path) as connection:
        (lines,) = connection.execute("SELECT count(*) FROM recording").fetchone()
    connection.close()
    assert lines == 6, "a recording goes with its row"
    store.close()


def test_the_file_stays_below_its_bound(store_path):
    bounds = Bounds(file_bytes=400_000)
    store = Store(store_path, bounds)
    shipped = next(one for one in records.shipped(RUN.form) if one.measured.diff is not None).measured
    for place in range(150):
        put(store, replace(shipped, experiment=experiment(M=1 + place)))
    kept = store.count(Wanted())
    assert 20 < kept < 150
    assert store_path.stat().st_size < 1.1 * bounds.file_bytes
    assert store.find(RUN, experiment(M=150), "H200", "cuda") is not None
    store.close()


def test_a_sweep_grows_row_by_row_and_comes_back(store, store_path):
    sweep = StoredSweep("a1", ONE, "H200", START, "running", {"order": "grid"}, "s", "3.7.1", total=2)
    assert store.begin_sweep(sweep)
    store.begin_sweep(replace(sweep, name="b2", experiment=OTHER, space="t"))
    assert store.add_to_sweep("a1", [StoredRow(0, {"config": {"BLOCK_M": 32}}, 0.1, True)], 1, 0.1)
    assert store.add_to_sweep("a1", [StoredRow(1, {"reason": "full"}), StoredRow(0, {"again": 1}, 0.2, False)], 2, 0.2)
    store.add_to_sweep("none", [StoredRow(0, {})], 1, None)
    assert store.begin_sweep(sweep), "a sweep that goes on"
    assert store.end_sweep("a1", "cancelled", {"found": 1}, 0.15)
    back = again(store)
    ended = replace(sweep, state="cancelled", details={"found": 1}, done=2, best_ms=0.15, changes=4, kernel=ONE.kernel)
    assert back.sweeps(5, ONE.kernel)[1] == back.latest_sweep("s", "H200") == ended
    assert back.latest_sweep("s", "H100") is None
    assert [one.name for one in back.sweeps(5)] == ["b2", "a1"]
    assert back.sweeps(5, "matmul.grouped") == []
    assert back.sweep_rows("a1") == [StoredRow(0, {"again": 1}, 0.2, False), StoredRow(1, {"reason": "full"})]
    small = Store(store_path, Bounds(sweeps=1))
    small.begin_sweep(replace(sweep, name="c3"))
    assert [one.name for one in small.sweeps(5)] == ["c3"]
    assert small.sweep_rows("a1") == []
    small.close()


def test_sweeps_are_bounded_by_their_configs_too_and_the_latest_stays(store_path):
    store = Store(store_path, Bounds(swept=10))
    for name, total in (("a", 4), ("b", 5), ("c", 5), ("d", 50)):
        store.begin_sweep(StoredSweep(name, ONE, "H200", START, "running", {}, total=total))
        kept = [one.name for one in store.sweeps(9)]
        assert kept == {"a": ["a"], "b": ["b", "a"], "c": ["c", "b"], "d": ["d"]}[name]
    store.close()


def test_a_store_that_is_off_keeps_nothing_and_says_nothing():
    store = Store(None)
    assert not store.is_on
    assert not put(store, run(ONE))
    assert store.latest(Wanted(), 5) == []
    assert store.sweeps(5) == []
    assert store.problem == ""
    store.close()


def test_the_place_of_the_machines_store(tmp_path, monkeypatch):
    monkeypatch.delenv("TILESCOPE_DB", raising=False)
    store = machine_store(tmp_path)
    assert store.path == tmp_path / "tilescope.db"
    store.close()
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "there" / "mine.db"))
    store = machine_store(tmp_path)
    put(store, run(ONE))
    store.close()
    assert counted(tmp_path / "there" / "mine.db") == 1
    for word in ("off", "OFF"):
        monkeypatch.setenv("TILESCOPE_DB", word)
        assert not machine_store(tmp_path).is_on


def test_threads_may_write_and_read_at_once(store):
    def write(of):
        for place in range(10):
            assert put(store, run(of, 1.0 + place))
            assert store.latest(Wanted(), 3)

    threads = [threading.Thread(target=write, args=(experiment(M=1 + number),)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert store.count(Wanted()) == 40


def test_two_processes_write_one_file_at_once(store_path):
    processes = [writing(store_path, 1000 * number, 60) for number in (1, 2)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert len(said.splitlines()) == 60
    store = Store(store_path)
    assert sorted(medians(store)) == sorted(1000.0 * number + place for number in (1, 2) for place in range(60))
    assert store.problem == ""
    store.close()
