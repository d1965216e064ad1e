"""Kernels for AMD GPUs: what their assembly says by source line, what fits on a CU, and what reports leave out."""

import re

import pytest

from tests.tables import read_table
from tilescope.captures.reader import Capture
from tilescope.cli.command import run_command
from tilescope.cli.tune import tune
from tilescope.declare.gpus import ALL_GPUS, GPUS, find_gpu, occupancy
from tilescope.inside.amd import inspect_assembly
from tilescope.reports import text
from tilescope.reports.launch import Launches
from visualize.views.launches import TABS, LaunchView, draw_launch

SCRIPT = """
import torch, triton
import triton.language as tl


@triton.jit
def product(a, b, c, K, SIDE: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    inner = tl.arange(0, BK)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        y = tl.load(b + (k + inner)[:, None] * SIDE + tl.arange(0, SIDE)[None, :])
        total += tl.dot(x, y)
    total = tl.exp(total)
    mean = tl.sum(total, 1)
    tl.store(c + rows[:, None] * SIDE + tl.arange(0, SIDE)[None, :], total / mean[:, None])


def launch(**options):
    a = torch.randn(1024, 256, device="cuda", dtype=torch.float16)
    b = torch.randn(256, 64, device="cuda", dtype=torch.float16)
    c = torch.empty(1024, 64, device="cuda")
    product[(16,)](a, b, c, 256, 64, 32, num_stages=2, **options)
    return a, c


assert torch.version.hip
assert triton.runtime.driver.active.get_current_target().warp_size == 64
launch(num_warps=4)
a, c = launch(num_warps=1, waves_per_eu=8)
a.sum().item()
c.sum().item()
"""

ASSEMBLY = """
	.loc	1 5 0 prologue_end              ; k.py:5:0
	s_load_dwordx2 s[2:3], s[0:1], 0x0
	s_waitcnt lgkmcnt(0)
	.loc	2 293 36 is_stmt 1              ; standard.py:293:36 @[ k.py:14:20 ]
	v_add_f32_dpp v1, v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf
	ds_bpermute_b32 v1, v2, v3
	.loc	1 0 20                          ; k.py:0:20
	v_accvgpr_write_b32 a1, v1              ;  Reload Reuse
	scratch_store_dwordx4 off, v[2:5], off offset:16 ; 16-byte Folded Spill
	.loc	1 0 0 is_stmt 0                 ; :0:0
	v_mov_b32_e32 v1, 0
	.loc	1 7 12                          ; k.py:7:12
	scratch_load_dwordx4 v[2:5], off, off offset:16 ; 16-byte Folded Reload
	scratch_load_dword v2, v3, off
	v_mfma_f32_32x32x16_f16 v[0:15], v[16:19], v[20:23], v[0:15]
	buffer_load_dwordx4 v1, s[0:3], 0 offen lds
	buffer_load_dwordx4 v[1:4], v1, s[0:3], 0 offen
	v_exp_f32_e32 v1, v2
	v_cvt_pk_f16_f32 v1, v2, v3
	v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]
	ds_read_b64_tr_b16 v[0:1], v2
	ds_write_b128 v2, v[0:3]
	ds_add_u32 v1, v2
	global_atomic_add_f32 v1, v0, s[0:1]
	global_store_dword v1, v0, s[0:1]
	s_barrier
	s_cbranch_scc1 .LBB0_2
	.section	.rodata
"""


@pytest.fixture(scope="module")
def capture(capture_script):
    return Capture(capture_script(SCRIPT, "MI350X"))


@pytest.fixture(scope="module")
def launches(capture):
    return Launches(capture)


def test_instructions_have_the_kinds_of_other_gpus_and_the_lines_of_their_calls():
    inside = inspect_assembly(ASSEMBLY)
    kinds = {(row.line, row.callers, row.kind): row.compiled for row in inside.instructions_by_line}
    unknown = {
        (0, (), "AGPR moves"): 1,
        (0, (), "local stores"): 1,
        (0, (), "integer arithmetic"): 1,
    }
    one_each = (
        "v_mfma_f32_32x32x16_f16", "async copies", "global loads", "special functions", "type conversions",
        "float arithmetic", "shared loads", "shared stores", "shared atomics", "global atomics", "global stores",
        "barriers", "control and others",
    )  # fmt: skip
    assert kinds == {
        (5, (), "scalar loads"): 1,
        (5, (), "control and others"): 1,
        (293, (("k.py", 14),), "shuffles"): 2,
        **unknown,
        (7, (), "local loads"): 2,
        **{(7, (), kind): 1 for kind in one_each},
    }
    spills = [
        (each.line, each.stores, each.reloads, each.stored_bytes) for each in inside.spills_by_line
    ]
    assert spills == [(0, 1, 0, 16), (7, 0, 1, 0)], "an array in scratch memory is no spill"


def test_registers_spills_and_occupancy_agree_with_llvm(capture, launches):
    small, large = launches.report().launches
    assert 0 == small.spilled_bytes < large.spilled_bytes
    for number, launch in enumerate((small, large)):
        assembly = capture.read_code(capture.content.launches[number].kernel, "amdgcn")
        found = dict(re.findall(r"^; (TotalNumVgprs|Occupancy): (\d+)$", assembly, re.MULTILINE))
        spilled = int(re.findall(r"vgpr_spill_count: (\d+)", assembly)[0])
        assert launch.registers == int(found["TotalNumVgprs"])
        assert launch.spilled_bytes == sum(each.stored_bytes for each in launch.spills_by_line)
        assert bool(spilled) == bool(launch.spilled_bytes)
        waves = occupancy(ALL_GPUS["MI350X"], 1, launch.registers, 0).programs_per_sm // 4
        assert waves == int(found["Occupancy"])
        instructions = re.findall(r"^\t[a-z]+_\w+", assembly, re.MULTILINE)
        assert sum(row.compiled for row in launch.instructions_by_line) == len(instructions)
        assert launch.shared_map.buffers
    assert any(row.kind.startswith("v_mfma") for row in small.instructions_by_line)


LDS = """
MI300X | 0x8000 | 2
MI300X | 0x8001 | 1
MI350X | 40960 | 4
MI350X | 32768 | 4
"""


@pytest.mark.parametrize(("gpu", "shared_bytes", "programs"), read_table(LDS))
def test_the_lds_limits_the_programs_of_a_cu_in_units(gpu, shared_bytes, programs):
    assert occupancy(ALL_GPUS[gpu], 4, 32, shared_bytes).programs_per_sm == programs


def test_a_report_says_once_what_is_not_modelled(launches):
    report = launches.report()
    assert "reads a tensor (with item) that depends on launch 1" in report.stopped
    for printed in (text.table(report), text.brief(report), text.markdown(report)):
        assert printed.count("not modelled for AMD") == 1
        assert printed.count("triton-") == 1
        assert "sectors" not in printed
    assert "mostly" in text.table(report)
    fields = report.to_json()["launches"][0]
    assert fields["predicted_us"] is None
    assert fields["totals"]["ld_sectors"] is None
    assert "not modelled" in fields["not_predicted"]


@pytest.mark.parametrize("tab", TABS)
def test_every_view_of_an_amd_launch_says_something(launches, tab):
    drawn = draw_launch(launches, LaunchView(tab=tab, launch=1), {"kernel": "script", "tab": tab})
    words = " ".join(map(str, drawn.values()))
    assert "Internal error" not in words
    expected = {"compiler": "AMDGCN", "registers": "Each thread spills"}
    assert expected.get(tab, "not modelled for AMD") in words


def test_what_needs_a_model_is_refused(run_show, tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert "only NVIDIA GPUs" in run_show(2, script, "--gpu", "MI300X", "--count", "--text").err
    assert run_command(tune, ["transpose", "--gpu", "MI300X"]) == 2
    assert "only `tilescope show` compiles for MI300X" in capfd.readouterr().err
    assert find_gpu("AMD Instinct MI300X") == "MI300X" not in GPUS
