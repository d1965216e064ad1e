"""What can be wrong with the store's file: each is a sentence, nothing is lost silently, and the rest goes on."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace

import pytest

from kernels.results import records
from kernels.store import Store, StoredSweep, Wanted, database, migrations, writer
from kernels.store.experiment_key import key_of, text_of
from tests.kernels.results_made_up import START, experiment, run
from tests.kernels.stores import ONE, RUN, counted, medians, put
from tests.waiting import until


def version_1(path, rows=3):
    """A file as version 1 wrote it, with rows of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    migrations.upgrade(connection, to=1)
    for place in range(rows):
        connection.execute(
            "INSERT INTO measured"
            " (kind, kernel, key, experiment, gpu, device, backend, torch, triton, ended, median_ms)"
            " VALUES ('run', 'transpose.tiled', ?, ?, 'H200', 'NVIDIA H200', 'cuda', '2.11', '3.6',"
            " '2026-10-01T00:00:00+00:00', ?)",
            (key_of(ONE), text_of(ONE), 1.0 + place),
        )
    connection.close()


def test_a_file_of_version_1_is_upgraded_with_its_rows(store_path):
    version_1(store_path)
    store = Store(store_path)
    assert medians(store) == [3.0, 2.0, 1.0]
    assert store.begin_sweep(StoredSweep("a1", ONE, "H200", START, "running", {}))
    assert put(store, run(ONE, 4.0))
    assert medians(store, Wanted(keys=(key_of(ONE),))) == [4.0, 3.0, 2.0, 1.0]
    store.close()
    with sqlite3.connect(store_path) as connection:
        assert migrations.version_of(connection) == migrations.VERSION == 3
    connection.close()


def test_an_upgrade_that_fails_leaves_the_file_as_it_was_and_is_tried_again(store_path, monkeypatch):
    version_1(store_path)
    with monkeypatch.context() as patch:
        broken = (migrations._VERSIONS[0], (*migrations._VERSIONS[1], "CREATE TABLE measured (twice)"))
        patch.setattr(migrations, "_VERSIONS", broken)
        store = Store(store_path)
        assert "already exists" in store.problem
        assert medians(store) == [3.0, 2.0, 1.0], "what is there is still shown"
        store.close()
    with sqlite3.connect(store_path) as connection:
        assert migrations.version_of(connection) == 1
    connection.close()
    mended = Store(store_path)
    assert put(mended, run(ONE, 4.0))
    mended.close()


def test_a_file_of_a_newer_version_or_of_another_program_is_left_alone(store_path):
    version_1(store_path)
    for change, says in (
        ("PRAGMA user_version = 99", "a newer Tilescope wrote it: its version is 99"),
        ("PRAGMA application_id = 7", "it is another program's database"),
    ):
        connection = sqlite3.connect(store_path)
        connection.execute(change)
        connection.close()
        before = store_path.read_bytes()
        store = Store(store_path)
        assert says in store.problem
        assert not put(store, run(ONE))
        assert store.latest(Wanted(), 5) == []
        store.close()
        assert store_path.read_bytes() == before
    assert [file.name for file in store_path.parent.iterdir()] == [store_path.name]


@pytest.mark.parametrize("content", [b"this is no database at all" * 1000, "half"], ids=["no database", "half of one"])
def test_a_corrupt_file_is_set_aside_and_said(store_path, content, caplog):
    store_path.parent.mkdir()
    if content == "half":
        store = Store(store_path)
        for place in range(40):
            put(store, run(experiment(M=1 + place)))
        store.close()
        content = store_path.read_bytes()[:20_000]
    store_path.write_bytes(content)
    store = Store(store_path)
    assert put(store, run(ONE, 0.3))
    assert medians(store) == [0.3]
    (aside,) = [file for file in store_path.parent.iterdir() if ".corrupt-" in file.name]
    assert aside.read_bytes() == content, "nothing is deleted"
    assert f"set aside as {aside.name}" in store.problem
    assert "set aside" in caplog.text
    store.close()


def test_a_file_that_turns_corrupt_while_it_is_read_is_set_aside(store, store_path):
    put(store, run(ONE, 0.3))
    store._writer.close()
    store._disconnect()
    store_path.write_bytes(b"x" * 8192)
    assert store.latest(Wanted(), 5) == []
    assert "set aside" in store.problem
    assert [file.name for file in store_path.parent.iterdir() if ".corrupt-" in file.name]


def test_while_another_program_locks_the_file_results_wait_and_nothing_is_lost(store, store_path, monkeypatch, caplog):
    monkeypatch.setattr(database, "_WRITE_PATIENCE_S", 0.05)
    monkeypatch.setattr(writer, "_RETRY_S", 0.05)
    monkeypatch.setattr(writer, "_PATIENCE_S", 0.5)
    locking = sqlite3.connect(store_path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    assert not put(store, run(ONE, 0.1))
    began = time.monotonic()
    assert not put(store, run(ONE, 0.2))
    assert time.monotonic() - began < 0.4, "a result need not wait for a lock that is known"
    assert "another program has locked it" in store.problem
    assert "2 of them wait for it" in store.problem
    assert caplog.text.count("not stored") == 1, "the log says it once"
    assert medians(store) == [], "reading goes on"
    locking.execute("ROLLBACK")
    locking.close()
    until(lambda: store.count(Wanted()) == 2)
    assert medians(store) == [0.2, 0.1]
    assert store.problem == ""


def test_what_waits_is_written_when_the_store_is_closed(store, store_path, monkeypatch):
    monkeypatch.setattr(database, "_WRITE_PATIENCE_S", 0.05)
    monkeypatch.setattr(writer, "_PATIENCE_S", 0.3)
    locking = sqlite3.connect(store_path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    assert not put(store, run(ONE))
    locking.execute("ROLLBACK")
    locking.close()
    monkeypatch.setattr(writer, "_PATIENCE_S", 5)
    store.close()
    assert counted(store_path) == 1


def test_too_many_that_wait_are_given_up_and_said(store, store_path, monkeypatch):
    monkeypatch.setattr(database, "_WRITE_PATIENCE_S", 0.0)
    monkeypatch.setattr(writer, "MOST_WAITING", 3)
    for name in ("_PATIENCE_S", "_IN_TROUBLE_S"):
        monkeypatch.setattr(writer, name, 0.02)
    locking = sqlite3.connect(store_path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    for _ in range(5):
        put(store, run(ONE))
    assert "Not stored, and lost at the next start: 2." in store.problem
    locking.close()


def full(connection):
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_named_and_what_is_there_is_still_shown(store, monkeypatch):
    """SQLite's own limit on pages stands for the disk's: the same error at the same place."""
    for place in range(5):
        put(store, run(ONE, 1.0 + place))
    monkeypatch.setattr(writer, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(writer, "_RETRY_S", 60)  # another connection would have no such limit
    full(store._writer._connection)
    shipped = next(one for one in records.shipped(RUN.form) if one.measured.diff is not None).measured
    results = [put(store, replace(shipped, experiment=experiment(M=1 + place))) for place in range(10)]
    assert not all(results)
    assert "the disk is full" in store.problem
    assert medians(store, Wanted(keys=(key_of(ONE),))) == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_a_file_that_is_read_only_is_still_shown(store_path, monkeypatch):
    """Opened as SQLite opens what may not be written, whoever runs the tests: root may write everything."""
    store = Store(store_path)
    put(store, run(ONE, 0.1))
    store.close()
    connect = database._connect
    monkeypatch.setattr(
        database, "_connect", lambda _, patience_s: connect(f"{store_path.as_uri()}?mode=ro&immutable=1", patience_s)
    )
    monkeypatch.setattr(writer, "_PATIENCE_S", 0.3)
    before = store_path.read_bytes()
    read_only = Store(store_path)
    assert "it is read-only" in read_only.problem
    assert not put(read_only, run(ONE, 0.2))
    assert medians(read_only) == [0.1]
    assert read_only.find(RUN, ONE, "H200", "cuda").measured.timing.median_ms == 0.1
    read_only.close()
    assert store_path.read_bytes() == before


@pytest.mark.parametrize("place", ["a folder", "below a file"])
def test_a_place_where_no_file_can_be_is_said(tmp_path, place, monkeypatch):
    monkeypatch.setattr(writer, "_PATIENCE_S", 0.3)
    (tmp_path / "file").write_text("")
    path = tmp_path if place == "a folder" else tmp_path / "file" / "tilescope.db"
    store = Store(path)
    assert store.problem.startswith(f"New results are not stored in {path.name}: ")
    assert not put(store, run(ONE))
    assert store.latest(Wanted(), 5) == []
    assert store.find(RUN, ONE, "H200", "cuda") is None
    store.close()


def test_a_file_that_is_deleted_while_it_is_open_is_begun_anew(store, store_path):
    put(store, run(ONE, 0.1))
    assert medians(store) == [0.1]
    for file in store_path.parent.iterdir():
        file.unlink()
    assert store.latest(Wanted(), 5) == []
    assert put(store, run(ONE, 0.2))
    assert medians(store) == [0.2]
    assert store.find(RUN, ONE, "H200", "cuda").measured.timing.median_ms == 0.2
    assert counted(store_path) == 1


def test_a_change_that_cannot_be_carried_out_does_not_hold_up_the_others(store, caplog):
    assert not store._write(lambda connection: connection.execute("DELETE FROM no_table"))
    assert put(store, run(ONE))
    assert "no such table" in caplog.text
    assert "lost at the next start: 1" in store.problem


def test_a_file_that_was_locked_at_the_start_is_opened_once_it_can_be(store_path, monkeypatch):
    monkeypatch.setattr(database, "_WRITE_PATIENCE_S", 0.05)
    monkeypatch.setattr(writer, "_RETRY_S", 0.05)
    Store(store_path).close()
    locking = sqlite3.connect(store_path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    store = Store(store_path)
    assert store.problem.endswith("another program has locked it (database is locked).")
    locking.execute("ROLLBACK")
    locking.close()
    until(lambda: not store.problem)
    assert put(store, run(ONE))
    store.close()


def test_no_path_is_shown_on_the_page(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "tilescope.db")
    assert store.problem
    assert str(tmp_path) not in store.problem
    store.close()
