"""The defects: where, what the line says, what it says with the defect, and what must fail then.

Each is one that somebody could make. The kernels' own are in `tests/kernels/test_mutants.py`.
"""

from __future__ import annotations

from tests.mutants.defect import planted
from tests.mutants.planted_requests import REQUESTS
from tests.mutants.planted_scripts import SCRIPTS
from tests.mutants.planted_store import STORE
from tests.mutants.planted_sweeps import SWEEPS
from tests.mutants.planted_texts import TEXTS
from tests.mutants.planted_times import TIMES

MODELS = (
    *planted(
        "visualize/models",
        "lru.py",
        "tests/models/test_lru.py",
        ("/ (high - low), 0, 1) ** 4", "/ (high - low), 0, 1) ** 2"),
        ("touched & (before >= 0)", "touched & (before > 0)"),
        ("np.sort(programs.start) + programs.pieces", "np.sort(programs.start)"),
        ("return whole / (2 * pieces)", "return whole / pieces"),
    ),
    *planted(
        "visualize/models",
        "reuse.py",
        "tests/models/test_reuse.py",
        ("(1 + (schedule.slices - 1) * ", "(1 + schedule.slices * "),
        ("(-round(found[size].read_bytes), size)", "(-round(found[size].read_bytes), -size)"),
        ("if one.read_bytes <= little * one.asked_bytes", "if one.read_bytes <= one.asked_bytes"),
        ("self.high_bytes > _UNSURE_RATIO * self.low_bytes", "self.low_bytes > _UNSURE_RATIO * self.high_bytes"),
        ("per_sm > 1 and per_sm * launch.config.num_warps", "per_sm > 1 and launch.config.num_warps"),
    ),
    *planted(
        "visualize/models",
        "schedule.py",
        "tests/models/test_schedule.py tests/models/test_steps.py",
        ("return program % self.sms", "return program // self.sms"),
        ("else self.wave * self.turns + self.turn", "else self.wave + self.turn"),
        ("gpu.max_warps_per_sm // num_warps))", "gpu.max_warps_per_sm))"),
        ("place %= like.extents[0] * num_pid_n", "place //= like.slices"),
        ("self.entry.min(axis=2).T, self.entry.min", "self.entry.max(axis=2).T, self.entry.min"),
    ),
    *planted(
        "visualize/models",
        "bounds.py",
        "tests/models/test_bounds.py",
        ("busiest = -(-tiles // sms)", "busiest = tiles // sms"),
        ("cycles += needed * (2 if staged else 1)", "cycles += needed"),
        ("op.launch.sectors * _SECTOR_BYTES / _LSU_BYTES)", "op.launch.sectors / _LSU_BYTES)"),
    ),
    *planted(
        "visualize/models",
        "occupancy.py",
        "tests/models/test_occupancy.py",
        ("-(-registers * _LANES // _REGISTER_UNIT) * _REGISTER_UNIT", "registers * _LANES"),
        ("-(-(shared_bytes + system) // _SHARED_UNIT)", "-(-shared_bytes // _SHARED_UNIT)"),
    ),
    *planted(
        "visualize/models",
        "banks.py",
        "tests/models/test_banks.py",
        ("int(np.bincount(words % _BANKS).max())", "-(-len(words) // _BANKS)"),
        ("ideal += 1 ", "ideal = 1 "),
    ),
    *planted(
        "visualize/models",
        "dispatch.py",
        "tests/models/test_dispatch.py",
        ("pace = np.full(schedule.sms, 1 - ahead)", "pace = np.full(schedule.sms, 1 + ahead)"),
        ("free = np.cumsum(took, axis=0) - took", "free = np.cumsum(took, axis=0)"),
    ),
    *planted(
        "visualize/models",
        "execution.py",
        "tests/models/test_course.py",
        ("heapq.heappop(places) if places else len(ends)", "len(ends)"),
        ("while ends and ends[0][0] <= start:", "while ends and ends[0][0] < start:"),
        ("np.sort(begun_ns)[firsts]", "begun_ns[firsts]"),
        ("reached = np.maximum.accumulate(end)", "reached = end"),
    ),
    *planted(
        "visualize/models",
        "steps.py",
        "tests/models/test_steps.py",
        ("return row_blocks + column_blocks, row_bytes + column_bytes", "return row_blocks, row_bytes + column_bytes"),
        ("np.minimum(size, total - np.arange(extent) * size)", "np.full(extent, size)"),
    ),
    *planted(
        "visualize/models",
        "traffic.py",
        "tests/models/test_textbook.py",
        ("np.where(active, lanes.address, -1)", "lanes.address.copy()"),
        ("-(-wanted // sector_bytes)", "wanted // sector_bytes"),
        ("(whole * runs, -(-rest // block), 1)", "(whole * runs, rest // block, 1)"),
        ("keys = np.stack([starts * pitch_bytes % line_bytes,", "keys = np.stack([starts * 0,"),
        ("if i not in (access.rows.index, access.columns.index)", "if i != access.rows.index"),
    ),
    *planted(
        "visualize/models",
        "textbook.py",
        "tests/models/test_textbook.py",
        ("row, column = element % rows, element // rows", "row, column = element // columns, element % columns"),
    ),
    *planted(
        "visualize/models",
        "request_lines.py",
        "tests/models/test_request_lines.py",
        ("request, lane = request[::-1], lane[::-1]", "pass"),
        ("np.arange(1, rows + 1) - touched[:, None]", "np.arange(rows)"),
        ("line = np.where(line < existing, line, -1)", "pass"),
    ),
    *planted(
        "visualize/models",
        "side_by_side.py",
        "tests/models/test_side_by_side.py",
        ("return tuple(sorted(boxes))", "return (number,)"),
        ("(op.access.op, op.access.tensor) == (mine.op, mine.tensor)", "op.number == number"),
        ("return op.launch.sectors - op.launch.ideal_sectors", "return op.launch.sectors"),
    ),
    *planted(
        "visualize/models",
        "coalescing.py",
        "tests/models/test_coalescing.py",
        ("counting.bypassing if operation.bypasses_l1 else counting.traffic", "counting.traffic"),
        ("lanes.owner if operation.issued_by_owners else True", "True"),
        ("request = np.arange(len(one.register)) // length", "request = np.arange(len(one.register))"),
    ),
    *planted(
        "visualize/models",
        "traffic.py",
        "tests/models/test_coalescing.py",
        ("before_turn = np.minimum(shape[0] - row, span) if shape[0] >= span else row", "before_turn = row * 0"),
    ),
    *planted(
        "visualize/models",
        "boxes.py",
        "tests/models/test_boxes.py",
        ("return replace(inside, requests=0, sectors=", "return replace(inside, sectors="),
        ("    if loads:\n", "    if True:\n"),
        ("(-(-past_bytes // SECTOR_BYTES)).sum()", "-(-past_bytes.sum() // SECTOR_BYTES)"),
        ("min(operation.swizzle_bytes or _WIDEST_BYTES,", "max(operation.swizzle_bytes,"),
    ),
    *planted(
        "visualize/models",
        "lane_vectors.py",
        "tests/models/test_coalescing.py",
        ("[None, :] & ((warp &", "[None, :] | ((warp &"),
    ),
    *planted(
        "visualize/models",
        "scores.py",
        "tests/models/test_scores.py",
        ("abs(self.error) > ALLOWED_ERROR if", "self.error > ALLOWED_ERROR if"),
        ("return self.predicted == self.counted", "return self.predicted >= self.counted"),
        ("any_group_size(self.experiment) if", "self.experiment if"),
        ("key=lambda one: -abs(one.error)", "key=lambda one: -one.error"),
    ),
    *planted(
        "visualize/models",
        "agreement.py",
        "tests/panels/test_verdicts.py",
        ("if same_lines and touched == count.sectors:", "if same_lines:"),
        ("tensors[op.access.tensor].is_input == reads", "tensors[op.access.tensor].is_input != reads"),
        ("if same_lines and count.sectors < touched and all(", "if same_lines and all("),
        ("return counted == compiled", "return len(counted) == len(compiled)"),
        ("if alone else None", "if not alone else None"),
    ),
)

COMPILED = (
    *planted(
        "kernels/compiled",
        "global_memory.py",
        "tests/oracle/test_truth.py",
        ("* int(vector[1] if vector else 1) // 8", "// 8"),
        ("(linear.reg_bases, linear.lane_bases, linear.warp_bases)", "(linear.reg_bases, linear.warp_bases, ())"),
    ),
    *planted(
        "kernels/compiled",
        "listing.py",
        "tests/oracle/test_compiled.py -k innermost",
        ("current = (place,) if fresh else (*current, place)", "current = (place,)"),
    ),
    *planted(
        "kernels/compiled",
        "compiler.py",
        "tests/panels/test_whatif.py -k unknown_divisibility",
        ("else arguments[name] | 1", "else arguments[name]"),
    ),
    *planted(
        "kernels/compiled",
        "rejection.py",
        "tests/kernels/test_rejection.py",
        ("_registers(int(match[2]), int(match[1]), launch)", "_registers(int(match[1]), int(match[2]), launch)"),
        ('r"(?<!PTXAS )\\b(?:error', 'r"\\b(?:error'),
        ("for number in (1, 2):", "for number in (1,):"),
        ("os.dup2(before, number)", "pass"),
    ),
    *planted(
        "kernels",
        "source.py",
        "tests/kernels/test_rejection.py",
        ('if "site-packages" in whole.parts:', "if False:"),
        ("if (_ROOT / tail).is_file()", "if True"),
    ),
)

RUNNER = (
    *planted(
        "kernels/runner",
        "check.py",
        "tests/kernels/test_check.py",
        ("worst = (value, first + row, column,", "worst = (value, row, column,"),
    ),
    *planted(
        "kernels",
        "deviation.py",
        "tests/kernels/test_check.py",
        ("(1.05 + 2 / math.sqrt(elements))", "(10.5 + 2 / math.sqrt(elements))"),
        ("beyond / (2 * limit)", "beyond / (20 * limit)"),
        ("nonfinite = ~torch.isfinite(got) & (got != right)", "nonfinite = torch.isinf(got) & (got != right)"),
    ),
    *planted(
        "kernels/runner",
        "measurements/timeline_measurement.py",
        "tests/kernels/test_timeline.py -k write_once",
        ("(writes != _POISON + 1)", "(writes == _POISON)"),
    ),
    *planted(
        "kernels/runner",
        "ncu.py",
        "tests/kernels/test_counters.py",
        ('float((text or "").replace(",", ""))', 'float((text or "0").split(",")[0])'),
        ('if size != "byte" and (', "if not size and ("),
    ),
    *planted(
        "kernels/runner",
        "job.py",
        "tests/kernels/test_session.py",
        ("self._jobs.append(job)", "self._jobs.insert(0, job)"),
    ),
    *planted(
        "kernels/runner",
        "under_way.py",
        "tests/kernels/test_session.py -k share_it",
        ("work = self._work.get(key)", "work = None"),
    ),
    *planted(
        "kernels/runner",
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
        ("course.start_ns / 1000, course.end_ns / 1000", "course.start_ns / 1e6, course.end_ns / 1e6"),
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
        ("wasted = [cost.wasted_bytes", "wasted = [cost.wanted_bytes"),
    ),
)

PLANTED = (*MODELS, *COMPILED, *TEXTS, *TIMES, *SWEEPS, *STORE, *RUNNER, *PAGE, *REQUESTS, *FIGURES, *SCRIPTS)
