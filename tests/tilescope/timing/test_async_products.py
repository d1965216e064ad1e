"""Kernels for a B200: the time of products with tensor memory, and that memory's limit. Compiled, not measured."""

import pytest

from tilescope.captures.reader import Capture
from tilescope.declare.gpus import GPUS, occupancy
from tilescope.reports.launch import make_report
from tilescope.reports.text import table

SIZE = 1024
SCRIPT = f"""
import torch, triton, triton.language as tl

@triton.jit
def multiply(a, b, c, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    first = tl.zeros((BM, BN), tl.float32)
    second = tl.zeros((BM, BN), tl.float32)
    third = tl.zeros((BM, BN), tl.float32)
    for step in range(0, K, BK):
        k = step + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :])
        first = tl.dot(x, tl.load(b + k[:, None] * N + n[None, :]), first)
        if PARTS > 1:
            second = tl.dot(x, tl.load(b + k[:, None] * N + n[None, :] + BN), second)
            third = tl.dot(x, tl.load(b + k[:, None] * N + n[None, :] + 2 * BN), third)
    tl.store(c + m[:, None] * N + n[None, :], (first * second + third if PARTS > 1 else first).to(tl.float16))

x = torch.empty({SIZE}, {SIZE}, device="cuda", dtype=torch.float16)
multiply[(8, 4)](x, x, torch.empty_like(x), {SIZE}, {SIZE}, BM=128, BN=256, BK=64, PARTS=1, num_warps=8)
multiply[(8, 1)](x, x, torch.empty_like(x), {SIZE}, {SIZE}, BM=128, BN=256, BK=32, PARTS=3, num_warps=8, num_stages=2)
"""
LINE = (
    SCRIPT.splitlines().index(
        "        first = tl.dot(x, tl.load(b + k[:, None] * N + n[None, :]), first)"
    )
    + 1
)


@pytest.fixture(scope="module")
def report(capture_script, capture_server):
    return make_report(Capture(capture_script(SCRIPT, "B200")), capture_server.compile)


def test_a_product_takes_the_time_of_the_datasheets_rate(report):
    launch = report.launches[0]
    tera = GPUS["B200"].matrix_tflops["float16"]
    assert launch.by_resource_us["tensor"] == pytest.approx(2 * SIZE**3 / tera / 1e6, rel=0.02)
    assert launch.instructions_executed
    assert launch.predicted_us > launch.by_resource_us["tensor"]
    assert "B200: no measurements on this GPU" in launch.assumed


def test_tensor_memory_is_listed_by_line_and_limits_the_programs_per_sm(report):
    launch = report.launches[0]
    (buffer,) = launch.tensor_memory
    assert (buffer.file, buffer.line, buffer.columns) == ("script.py", LINE, 256)
    steps = [launch.shared_map.steps[number].op for number in (buffer.first, buffer.last)]
    assert steps == ["ttng.tmem_store", "ttng.tmem_load"]
    columns = {256: 2, 257: 1, 0: None}
    for number, programs in columns.items():
        limits = occupancy(GPUS["B200"], 4, 16, 0, number).limits
        assert limits.get("tensor memory") == programs


def test_a_launch_that_needs_too_much_tensor_memory_is_a_fault_with_its_lines(report):
    failed = report.launches[1]
    (fault,) = (finding for finding in failed.findings if finding.is_fault)
    need = "needs 768 columns of tensor memory, and the limit is 512."
    assert need in fault.text
    assert f"script.py:{LINE} needs 256" in fault.text
    assert [each.first_column for each in failed.tensor_memory] == [0, 256, 512]
    assert (failed.programs_per_sm, failed.limited_by) == (0, ("tensor memory",))
    reason = "The compiler emits no code for a launch that needs too much tensor memory."
    assert failed.not_predicted == reason
    assert table(report).count(reason) == 1
    assert report.failed
