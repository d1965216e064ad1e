"""The store returns what was written, survives killed processes, and explains what is wrong with its file."""

import contextlib
import datetime
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.experiments import experiment_of
from tests.results_made_up import INTERPRETER, START, run
from tests.stores import ONE, OTHER, RUN, again, execute, medians, put, put_sweep, writing
from tests.waiting import PATIENCE_S
from tilescope.declare.experiment import Run
from tilescope.declare.gpus import GPUS
from tilescope.declare.space import space
from tilescope.measure.session import MEASUREMENTS
from tilescope.results import SweepRow, records
from tilescope.results.database import VERSION
from tilescope.results.store import (
    ResultFilter,
    Store,
    experiment_key,
    experiment_text,
    machine_store,
    read_experiment,
)

ALL = ResultFilter()
OF_ONE = ResultFilter(key=(experiment_key(ONE),))
SPACE = space(ONE, {"BLOCK_M": [16, 32, 64]})
BLOCKS_16 = SPACE.experiments[0]


def median_ms(store, of=ONE, gpu="H200", backend="cuda"):
    found = store.find(RUN, of, gpu, backend)
    return found and found.timing and found.timing.median_ms


def test_the_latest_result_of_an_experiment_counts_for_its_own_gpu_alone(store):
    for time_ms in (0.1, 0.2):
        assert put(store, run(ONE, time_ms))
    put(store, run(ONE, 0.3), gpu="H100")
    put(store, run(ONE, None, INTERPRETER))
    put(store, run(ONE, 0.4), kind=MEASUREMENTS["check"])
    assert median_ms(store) == median_ms(store, replace(ONE, gpu="this")) == 0.2
    assert store.find(RUN, ONE, "H200", "interpreter").timing is None
    for other in (OTHER, replace(ONE, run=Run(seed=1))):
        assert store.find(RUN, other, "H200") is None
    assert store.find(RUN, ONE, "B200") is None


def test_a_listing_has_the_latest_result_first_with_its_time_in_utc(store):
    put(store, run(replace(ONE, gpu="this"), 0.1))
    east = datetime.timezone(datetime.timedelta(hours=9))
    ended = datetime.datetime(2026, 11, 2, 3, 0, tzinfo=east)
    put(store, run(OTHER, None, INTERPRETER), ended=ended)
    checked, timed = store.latest(ALL, 10)
    assert timed.ended == START
    assert timed.experiment == ONE, "the spelling of the GPU is left out"
    assert checked.summary["median_ms"] is None
    assert checked.ended == datetime.datetime(2026, 11, 1, 18, 0, tzinfo=datetime.UTC)
    assert checked.number > timed.number


def test_an_experiments_key_is_the_same_in_every_process_and_ignores_defaults():
    assert experiment_text(experiment_of()) == '{"kernel":"transpose.tiled"}'
    assert experiment_text(ONE) == '{"kernel":"transpose.tiled","problem":{"M":128}}'
    assert (
        experiment_key(replace(ONE, gpu="this"))
        == experiment_key(ONE)
        == "f94ba76c2e5bd497c7fea2397f84d822"
    )


@pytest.mark.parametrize(
    "text", ['{"kernel":"sort"}', "{", "[]", '{"kernel":"transpose.tiled","problem":{"M":-1}}']
)
def test_an_experiment_that_this_version_does_not_know_is_none(text):
    assert read_experiment(text) is None


def test_a_result_that_cannot_be_read_back_is_logged_and_ignored(store, caplog):
    put(store, run(ONE))
    put(store, run(OTHER))
    execute(store.path, "UPDATE result SET recording = x'00' WHERE number = 1")
    assert store.find(RUN, ONE, "H200") is None
    assert "result" in caplog.text
    assert median_ms(store, OTHER) == 0.1


def test_the_oldest_results_and_sweeps_are_deleted_when_the_file_is_full(store_path):
    shipped = next(
        result for result in records.shipped(RUN.form) if result.measured.diff is not None
    ).measured
    with closing(Store(store_path, max_bytes=400_000)) as store:
        for place in range(150):
            put_sweep(store, str(place), SPACE, {0: SweepRow(BLOCKS_16, "failed", "x" * 1000)})
            assert put(store, replace(shipped, experiment=experiment_of(M=1 + place)))
        kept = [stored.experiment.problem.M for stored in store.latest(ALL, 1000)]
        assert kept == list(range(150, 150 - len(kept), -1))
        assert 20 < len(kept) < 150
        assert 20 < len(store.sweeps(1000)) < 150
        assert store_path.stat().st_size < 1.1 * 400_000
        assert store.sweeps(1)[0].name == "149"
    orphans = "SELECT * FROM sweep_row WHERE sweep NOT IN (SELECT number FROM sweep)"
    assert execute(store_path, orphans) == [], "a sweep's rows are deleted with it"
    with closing(Store(store_path, max_bytes=1)) as small:
        assert small.count(ALL) == 1
        assert len(small.sweeps(9)) == 1, "the latest of each stays"


def test_a_sweep_grows_row_by_row(store):
    slow, fast, failed = (SweepRow(BLOCKS_16, "timed", median_ms=ms) for ms in (0.2, 0.1, None))
    put_sweep(store, "a1", SPACE, {0: slow}, "running")
    put_sweep(store, "b2", space(OTHER, {"BLOCK_M": [16]}), {0: slow}, "cancelled")
    assert store.add_to_sweep("gone", {0: slow}, 1, None), "rows of a deleted sweep are dropped"
    put_sweep(store, "a1", SPACE, {1: failed, 0: fast}, "running")
    back = again(store)
    assert [(sweep.name, sweep.ended, sweep.changes) for sweep in back.sweeps(5)] == [
        ("b2", "cancelled", 2),
        ("a1", "cut off", 3),
    ]
    sweep = back.load_sweep(SPACE, GPUS["H200"])
    assert [row.median_ms for row in sweep.rows] == [0.1, None, None]
    assert [row.experiment for row in sweep.rows] == list(SPACE.experiments), (
        "the place determines the config"
    )
    assert back.latest_sweep(SPACE, GPUS["H100"]) is None


def test_the_environment_names_the_machines_store(tmp_path, monkeypatch):
    monkeypatch.delenv("TILESCOPE_DB", raising=False)
    store = machine_store(tmp_path)
    assert store.path == tmp_path / "tilescope.db"
    store.close()
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "there" / "mine.db"))
    store = machine_store(tmp_path)
    put(store, run(ONE))
    store.close()
    assert Store(tmp_path / "there" / "mine.db").count(ALL) == 1
    monkeypatch.setenv("TILESCOPE_DB", "OFF")
    assert machine_store(tmp_path).path is None


def test_threads_and_processes_write_and_read_one_file_at_once(store, store_path):
    def write(of):
        for place in range(10):
            assert put(store, run(of, 1.0 + place))
            assert store.latest(ALL, 3)

    processes = [writing(store_path, 1000 * number, 60) for number in (1, 2)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    threads = [
        threading.Thread(target=write, args=(experiment_of(M=1 + number),)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        printed, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert len(printed.splitlines()) == 60
    assert store.count(ALL) == 40 + 2 * 60
    assert store.problem == ""


@contextlib.contextmanager
def locked(path):
    """Hold the file's lock as another program would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


@contextlib.contextmanager
def full(path):
    """Let no file grow beyond 100 kB, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def read_only(path):
    """Make the file and its folder read-only. Root ignores permissions, so the test runs as the user nobody."""
    path.chmod(0o444)
    path.parent.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.parent.chmod(0o755)


@pytest.fixture
def public_path():
    """A file in a folder that every user can open."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder / "tilescope.db"
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (locked, "another program has locked it"),
        (full, "the disk reports an error"),
        (read_only, "it is read-only"),
    ],
)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_that_cannot_be_written_is_left_alone_named_and_still_read(
    public_path, trouble, reason, is_open, caplog
):
    store = Store(public_path)
    put(store, run(ONE, 0.1))
    if trouble is read_only or not is_open:
        store.close()
    with trouble(public_path):
        if not is_open:
            store = Store(public_path)
        written = 0
        while put(store, run(ONE, 0.2)):
            written += 1
        assert not put(store, run(ONE, 0.3))
        assert f"New results are not stored in tilescope.db: {reason}" in store.problem
        assert str(public_path.parent) not in store.problem, "the page is public"
        assert caplog.text.count("can't be written") == 1, "the log has each reason once"
        assert medians(store, OF_ONE) == [0.2] * written + [0.1]
        assert median_ms(store) == (0.2 if written else 0.1)
        store.close()
    assert bool(written) == (trouble is full)
    after = Store(public_path)
    assert put(after, run(ONE, 0.5))
    assert after.problem == ""
    assert medians(after) == [0.5] + [0.2] * written + [0.1]
    after.close()


def test_writing_resumes_after_a_lock(store_path, caplog):
    with closing(Store(store_path, pause_s=0)) as store:
        for _ in range(2):
            with locked(store_path):
                assert not put(store, run(ONE, 0.1))
            assert put(store, run(ONE, 0.3))
            assert store.problem == ""
        assert medians(store) == [0.3, 0.3]
    assert caplog.text.count("can't be written") == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "PRAGMA user_version = 99",
            f"a newer Tilescope wrote it: its version is 99, but this Tilescope reads version {VERSION}",
        ),
        ("PRAGMA user_version = 1", "an older Tilescope wrote it: its version is 1"),
        ("PRAGMA application_id = 7", "it is another program's database"),
        ("truncate", "it is not a readable database"),
        ("overwrite", "it is not a readable database"),
    ],
)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_corrupt_file_or_another_programs_or_versions_is_left_alone(
    store_path, change, reason, is_open
):
    store = Store(store_path)
    for place in range(40):
        put(store, run(experiment_of(M=1 + place)))
    if change.startswith("PRAGMA"):
        execute(store_path, change)
    execute(store_path, "PRAGMA wal_checkpoint(TRUNCATE)")
    if not is_open:
        store.close()
    if change == "truncate":
        os.truncate(store_path, 20_000)
    if change == "overwrite":
        store_path.write_bytes(b"this is not a database at all" * 1000)
    before = store_path.read_bytes()
    if not is_open:
        store = Store(store_path)
        assert reason in store.problem
    assert not put(store, run(ONE, 0.3))
    assert reason in store.problem or change in ("truncate", "overwrite")
    assert not put(store, run(ONE, 0.4))
    assert store.latest(ALL, 5) == []
    assert store.find(RUN, ONE, "H200") is None
    assert reason in store.problem
    store.close()
    assert store_path.read_bytes() == before
    assert {file.stem for file in store_path.parent.iterdir()} == {store_path.stem}


def test_a_deleted_file_is_replaced_by_a_new_one(store, store_path):
    put(store, run(ONE, 0.1))
    assert median_ms(store) == 0.1
    for file in store_path.parent.iterdir():
        file.unlink()
    assert store.latest(ALL, 5) == []
    assert put(store, run(ONE, 0.2))
    assert medians(store) == [0.2]
    assert median_ms(store) == 0.2
    assert again(store).count(ALL) == 1


# A kill takes most of its time to start the process, so the default is few kills; `make test-all` runs a hundred.
FEW = 3
MANY = 100

# Maximum seconds of writing before the kill: dozens of results, and sometimes a checkpoint.
_LONGEST_S = 0.25


def test_a_killed_process_loses_at_most_the_result_in_progress(tmp_path, all_combinations):
    path = tmp_path / "tilescope.db"
    dice = random.Random(20261122)
    acknowledged = set()
    kills = MANY if all_combinations else FEW
    for kill in range(kills):
        process = writing(path, 1_000_000 * kill, 100_000, dice.uniform(0.001, _LONGEST_S))
        printed, _ = process.communicate("go\n", timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGALRM
        whole = [line for line in printed.splitlines(keepends=True) if line.endswith("\n")]
        acknowledged |= {1_000_000.0 * kill + int(line) for line in whole}
        with closing(Store(path)) as store:
            stored = {result.summary["median_ms"] for result in store.latest(ALL, 10**6)}
            assert store.problem == ""
        assert acknowledged <= stored
        assert len(stored - acknowledged) <= 1, "the result in progress may or may not be stored"
        acknowledged = stored
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]
    assert len(acknowledged) > 5 * kills
