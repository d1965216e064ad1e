"""The defects: where, what the line says, what it says with the defect, and what must fail then.

Each is one that somebody could make. The kernels' own are in `tests/kernels/test_mutants.py`.
"""

from __future__ import annotations

from tests.mutants.defect import planted
from tests.mutants.planted_models import MODELS
from tests.mutants.planted_requests import REQUESTS
from tests.mutants.planted_scripts import SCRIPTS
from tests.mutants.planted_store import STORE
from tests.mutants.planted_sweeps import SWEEPS
from tests.mutants.planted_texts import TEXTS
from tests.mutants.planted_times import TIMES

COMPILED = (
    *planted(
        "kernels/compiling",
        "global_memory.py",
        "tests/oracle/test_truth.py",
        ("* int(vector[1] if vector else 1) // 8", "// 8"),
        ("(linear.reg_bases, linear.lane_bases, linear.warp_bases)", "(linear.reg_bases, linear.warp_bases, ())"),
    ),
    *planted(
        "kernels/compiling",
        "global_memory.py",
        "tests/oracle/test_compiled.py -k proves_false",
        ("sum(inside) <= count < expected", "False"),
        ("sum(inside) <= count < expected", "count < expected"),
        ("if index == access.rows.index else shape[1]", "if index == access.rows.index else shape[0]"),
    ),
    *planted(
        "kernels/compiling",
        "listing.py",
        "tests/oracle/test_compiled.py -k innermost",
        ('current + places if kind == "sass" and follows_marker else places', "places"),
    ),
    *planted(
        "kernels/compiling",
        "compiler.py",
        "tests/panels/test_whatif.py -k unknown_divisibility",
        ("else arguments[name] | 1", "else arguments[name]"),
    ),
    *planted(
        "kernels/compiling",
        "rejection.py",
        "tests/kernels/test_rejection.py",
        ("at least {match[2]} registers", "at least {match[1]} registers"),
        ('r"(?<!PTXAS )\\b(?:error', 'r"\\b(?:error'),
        ("for number in (1, 2):", "for number in (1,):"),
        ("os.dup2(before, number)", "pass"),
    ),
    *planted(
        "kernels",
        "jit.py",
        "tests/kernels/test_rejection.py",
        ('if "site-packages" in whole.parts:', "if False:"),
        ("if (_ROOT / tail).is_file()", "if True"),
    ),
)

RUNNER = (
    *planted(
        "kernels/measuring",
        "check.py",
        "tests/kernels/test_check.py",
        ("worst = (value, first + row, column,", "worst = (value, row, column,"),
    ),
    *planted(
        "kernels",
        "numerics.py",
        "tests/kernels/test_check.py",
        ("(1.05 + 2 / math.sqrt(elements))", "(10.5 + 2 / math.sqrt(elements))"),
        ("beyond / (2 * limit)", "beyond / (20 * limit)"),
        ("nonfinite = ~torch.isfinite(got) & (got != right)", "nonfinite = torch.isinf(got) & (got != right)"),
    ),
    *planted(
        "kernels/measuring",
        "measurements/timeline_measurement.py",
        "tests/kernels/test_timeline.py -k write_once",
        ("(writes != _POISON + 1)", "(writes == _POISON)"),
    ),
    *planted(
        "kernels/measuring",
        "ncu.py",
        "tests/kernels/test_counters.py",
        ('float((text or "").replace(",", ""))', 'float((text or "0").split(",")[0])'),
        ('if size != "byte" and (', "if not size and ("),
    ),
    *planted(
        "kernels/measuring",
        "job.py",
        "tests/kernels/test_session.py",
        ("self._jobs.append(job)", "self._jobs.insert(0, job)"),
    ),
    *planted(
        "kernels/measuring",
        "under_way.py",
        "tests/kernels/test_session.py -k share_it",
        ("work = self._work.get(key)", "work = None"),
    ),
    *planted(
        "kernels/measuring",
        "session.py",
        "tests/kernels/test_session.py -k wait_for_are_refused",
        ("if len(self._jobs) < MOST_JOBS:", "if len(self._jobs) <= MOST_JOBS:"),
    ),
)

PAGE = (
    *planted(
        "visualize/state",
        "state.py",
        "tests/state/test_settings.py",
        ("family.root is declared.family.root", "family.root is not declared.family.root"),
    ),
)

FIGURES = (
    *planted(
        "visualize/figures",
        "schedule_figure.py",
        "tests/figures/test_schedule_figure.py",
        ("launch.sm_of(program))", "program)"),
        ("columns[:, ::stride])", "columns[:, ::-stride])"),
        ('"matches": "x"}', '"matches": "y"}'),
    ),
    *planted(
        "visualize/figures",
        "composite.py",
        "tests/figures/test_schedule_figure.py",
        ("stride = -(-max(launch.extents) // MOST_CELLS)", "stride = max(launch.extents) // MOST_CELLS + 1"),
        ("a[:, self.slice_of]", "a[:, self.slice_of[::-1]]"),
        ("whole[top:, left:] = c", "whole[top:, left:] = c[::-1]"),
    ),
    *planted(
        "visualize/figures",
        "player_data.py",
        "tests/figures/test_schedule_figure.py",
        ("if len(parts.tiles) != count:", "if len(parts.tiles) == count:"),
        ("1 + np.flatnonzero(values[1:] != values[:-1])", "np.flatnonzero(values[1:] != values[:-1])"),
    ),
    *planted(
        "visualize/figures",
        "loads_figure.py",
        "tests/figures/test_schedule_figure.py",
        ("marked = int(np.searchsorted(counts, first))", "marked = 0"),
    ),
    *planted(
        "visualize/figures",
        "timeline_figure.py",
        "tests/figures/test_timeline_figure.py",
        ("schedule.tiles.pid_m // down * columns +", "schedule.tiles.pid_m * columns +"),
        ("execution.start_ns / 1000, execution.end_ns / 1000", "execution.start_ns / 1e6, execution.end_ns / 1e6"),
    ),
    *planted(
        "visualize/figures",
        "diff_figure.py",
        "tests/figures/test_figures.py",
        ("(cells > 0), scale.high, scale.low)", "(cells > 1), scale.high, scale.low)"),
        ("high = max(most, 0.0, low", "high = max(-_LEAST, 0.0, low"),
    ),
    *planted(
        "visualize/figures",
        "reuse_figure.py",
        "tests/figures/test_reuse_figures.py",
        ("[float(mid - one.min())", "[float(one.max() - mid)"),
        ("x=math.log10(own), y=0.12", "x=own, y=0.12"),
    ),
    *planted(
        "visualize/figures",
        "bounds_figure.py",
        "tests/figures/test_reuse_figures.py",
        ("max(0.0, measured_ms - binding.ms - extra)", "max(0.0, measured_ms - extra)"),
    ),
    *planted(
        "visualize/figures",
        "memory_figure.py",
        "tests/figures/test_memory_figures.py",
        ('return (f"{lane}", f"◂ {lane}", f"{lane} ▸")[beside]', 'return f"{lane}"'),
        ("z=drawn.state[place],", "z=drawn.state[0],"),
    ),
    *planted(
        "visualize/figures",
        "sectors_figure.py",
        "tests/figures/test_memory_figures.py",
        ("cost.sector_bytes * cost.sectors - _wanted_bytes(cost)", "_wanted_bytes(cost)"),
    ),
)

PLANTED = (*MODELS, *COMPILED, *TEXTS, *TIMES, *SWEEPS, *STORE, *RUNNER, *PAGE, *REQUESTS, *FIGURES, *SCRIPTS)
