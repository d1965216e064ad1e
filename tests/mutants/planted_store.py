"""Defects of what is kept: the store, and when a run is called slower."""

from __future__ import annotations

from tests.mutants.defect import planted

STORE = (
    *planted(
        "kernels/store",
        "store.py",
        "tests/kernels/test_store.py tests/kernels/test_store_trouble.py",
        ('experiment = dataclasses.replace(measured.experiment, gpu="")', "experiment = measured.experiment"),
        ("pruning.prune(connection, bounds, number)", "pass"),
        ("if is_corrupt(error) and database.is_writable:", "if False:"),
    ),
    *planted(
        "kernels/store",
        "pruning.py",
        "tests/kernels/test_store.py",
        ('ORDER BY number DESC LIMIT -1 OFFSET ?)"""', 'ORDER BY number LIMIT -1 OFFSET ?)"""'),
        ("AND new.number > old.number", "AND new.number < old.number"),
        ("if used_bytes(connection) > bounds.file_bytes:", "if False:"),
        ("place > 1 AND (place > ? OR configs > ?)", "place > ? OR (place < 0 AND configs > ?)"),
    ),
    *planted(
        "kernels/store",
        "queries.py",
        "tests/kernels/test_store.py",
        ("AND number < ? ORDER BY number DESC LIMIT ?", "AND number <= ? ORDER BY number DESC LIMIT ?"),
        (
            "WHERE key = ? AND kind = ? AND gpu = ? AND backend = ?",
            "WHERE key = ? AND kind = ? AND gpu = ? AND ? IN ('cuda', 'interpreter')",
        ),
    ),
    *planted(
        "kernels/store",
        "writer.py",
        "tests/kernels/test_store_trouble.py",
        ("                    if is_last_try:\n                        break", "                    break"),
        ("self._connection is not None and self._database.is_moved(self._connection)", "False"),
    ),
    *planted(
        "kernels/store",
        "experiment_key.py",
        "tests/kernels/test_store.py",
        ("if usual.get(name) != value}", "if True}"),
        ('fields.pop("gpu", None)', "pass"),
    ),
    *planted(
        "kernels/measuring",
        "session.py",
        "tests/kernels/test_stored_session.py",
        ("if result.backend == self.backend:", "if True:"),
        ("            self._store(result, measurement, gpu)", "            pass"),
    ),
    *planted(
        "visualize/predict",
        "history.py",
        "tests/predict/test_time_changes.py",
        ("if c.low <= 1 <= c.high or abs", "if abs"),
        ("max(np.log1p(MIN_CHANGE), SCATTERS * scatter)", "np.log1p(MIN_CHANGE)"),
        ("max(np.log1p(MIN_CHANGE), SCATTERS * scatter)", "SCATTERS * scatter"),
        ("_moved(logs, start, place, end)", "place"),
    ),
)
