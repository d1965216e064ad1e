"""Defects of sweeps: who is tried again, what is out, who ties, and what is resumed."""

from __future__ import annotations

from tests.mutants.defect import planted

SWEEPS = (
    *planted(
        "kernels/sweep",
        "trial.py",
        "tests/sweep/test_trial.py",
        ("allowance == one.allowance and torch.equal", "torch.equal"),
        ("passed.append((one.allowance, one.output.clone()))", "passed.append((one.allowance, one.output))"),
    ),
    *planted(
        "kernels/sweep",
        "race.py",
        "tests/sweep/test_race.py",
        ("/ self._devices) * self._devices", ")"),
    ),
    *planted(
        "kernels/measuring",
        "held_stream.py",
        "tests/kernels/test_held_stream.py",
        ("_QUEUED // queued)", "2 * _QUEUED // queued)"),
        ("_QUEUED_COLD if self._flush else _QUEUED_WARM", "_QUEUED_WARM"),
        ("if queue_was_full or graph is not None:", "if True:"),
        ("if graph is None else _REPLAY_S", ""),
        (
            "self._dice.permuted(np.tile(np.arange(len(self._calls)), (turns, 1)), axis=1)",
            "np.tile(np.arange(len(self._calls)), (turns, 1))",
        ),
        ("np.put_along_axis(times_ms, order,", "np.put_along_axis(times_ms, np.sort(order),"),
    ),
    *planted(
        "kernels/measuring",
        "leased.py",
        "tests/kernels/test_leased.py",
        ("if time.monotonic() > deadline:", "if False:"),
        ("                    self._lease.end()\n", ""),
        ("if self._ended.done():", "if False:"),
    ),
    *planted(
        "kernels/sweep",
        "search.py",
        "tests/sweep/test_search.py",
        ("if outcome.wrong:", "if False:"),
        ("if task.is_retry or failure.kind in _OF_ALL:", "if True:"),
        ("np.median(outcome.times_ms / outcome.reference_ms)", "np.median(outcome.times_ms)"),
        ("if not self._are_built(window):", "if not self._are_built(window[:1]):"),
    ),
    *planted(
        "kernels/sweep",
        "search.py",
        "tests/sweep/test_resume.py",
        ("self._next_turn = (row.turn or 0) + 1", "pass"),
    ),
    *planted(
        "kernels/sweep",
        "first_rows.py",
        "tests/sweep/test_resume.py",
        ("row.device == gpu.name and ", ""),
        ("row.device == gpu.name and row.is_done", "row.device == gpu.name"),
    ),
    *planted(
        "kernels/sweep",
        "sweeping.py",
        "tests/sweep/test_kept_sweep.py",
        ("                self._keep(told)\n", ""),
    ),
    *planted(
        "kernels/sweep",
        "kept_sweep.py",
        "tests/sweep/test_kept_sweep.py",
        ("resumes = latest.triton == _triton()", "resumes = True"),
        ('return CUT_OFF if stored.state == "running" else stored.state', "return stored.state"),
        ("return before.rows, SweepKeeper(store, gpu, before.name)", "return before.rows, SweepKeeper(store, gpu)"),
    ),
    *planted(
        "kernels/sweep",
        "builder.py",
        "tests/sweep/test_builder.py",
        ('value.kind in ("worker_died", "cancelled")', 'value.kind in ("worker_died",)'),
    ),
    *planted(
        "visualize/panels",
        "running_sweeps.py",
        "tests/panels/test_running_sweeps.py",
        ("        if not others:\n            under_way.cancel()", "        under_way.cancel()"),
        ("self._search[-1] if sweeping in self._search else sweeping", "sweeping"),
        ("here is not None and here.stamp == there", "here is not None"),
    ),
    *planted(
        "kernels/sweep",
        "ranking.py",
        "tests/sweep/test_search.py",
        ("times_ms is fastest_ms or ratio.low <= 1", "True"),
        ("return config.num_warps, config.num_stages,", "return -config.num_warps, config.num_stages,"),
        ("max(at_least, math.ceil(len(ranked) / ETA))", "max(at_least, len(ranked) - 1)"),
    ),
    *planted(
        "kernels/sweep",
        "trial.py",
        "tests/sweep/test_trial.py",
        ('float("nan")', "0.0"),
        ("(once[place], once[0])", "(once[place], again[0])"),
    ),
    *planted(
        "visualize/predict",
        "launch_time.py",
        "tests/predict/test_launch_time.py",
        ("SUSTAINED * (1.0 if in_groups else _OLDER_RATE)", "SUSTAINED"),
        ("max(0 if staged else config.num_stages - 1, _UNPIPELINED)", "_UNPIPELINED"),
    ),
)
