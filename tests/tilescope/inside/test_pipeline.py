"""The pipelines of loops: which loads run ahead, when copies arrive, and why a load is not pipelined."""

import functools

import pytest

from tilescope.captures.reader import Capture
from tilescope.inside.pipeline import read_pipelines, unroll
from tilescope.ttgir.parser import parse_ttgir

# One worker compiles the kernels once
pytestmark = pytest.mark.xdist_group("pipelines")

SCRIPT = """
import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, K, STAGES: tl.constexpr = None):
    m, k = tl.arange(0, 64), tl.arange(0, 32)
    total = tl.zeros((64, 64), tl.float32)
    for i in tl.range(0, K, 32, num_stages=STAGES):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
        total += tl.dot(x, y)
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def gathered(a, b, c, rows, K):
    m, k = tl.arange(0, 64), tl.arange(0, 32)
    total = tl.zeros((64, 64), tl.float32)
    for i in range(0, K, 32):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        row = tl.load(rows + i + k)
        y = tl.load(b + row[:, None] * 64 + m[None, :])
        total += tl.dot(x, y)
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def scaled(a, b, c, scale, K):
    m, k = tl.arange(0, 64), tl.arange(0, 32)
    total = tl.zeros((64, 64), tl.float32)
    for i in range(0, K, 32):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
        s = tl.load(scale + i // 32)
        total += tl.dot(x, y) * s
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def biased(a, b, c, bias, K, STAGES: tl.constexpr = None):
    m, k = tl.arange(0, 64), tl.arange(0, 32)
    total = tl.zeros((64, 64), tl.float32)
    for i in tl.range(0, K, 32, num_stages=STAGES):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
        z = tl.load(bias + m[:, None] * 64 + m[None, :] + i)
        total += tl.dot(x, y, z)
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def sums(x, c, K, STAGES: tl.constexpr = None):
    i = tl.arange(0, 256)
    total = tl.zeros((256,), tl.float32)
    for start in tl.range(0, K, 256, num_stages=STAGES):
        z = tl.load(x + start + i)
        total += z
    tl.store(c + i, total)


@triton.jit
def conditional(a, b, c, K):
    m, k = tl.arange(0, 64), tl.arange(0, 32)
    total = tl.zeros((64, 64), tl.float32)
    y = tl.zeros((32, 64), tl.float16)
    for i in range(0, K, 32):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        if i % 64 == 0:
            y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
        total += tl.dot(x, y)
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def repeated(a, b, c, K):
    m, k = tl.arange(0, 64), tl.arange(0, 32)
    total = tl.zeros((64, 64), tl.float32)
    i = 0
    while i < K:
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
        total += tl.dot(x, y)
        i += 32
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def delayed(a, b, c, K):
    m, k = tl.arange(0, 64), tl.arange(0, 32)
    total = tl.zeros((64, 64), tl.float32)
    x = tl.zeros((64, 32), tl.float16)
    later = tl.zeros((64, 32), tl.float16)
    for i in range(0, K, 32):
        y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
        total += tl.dot(x, y)
        x = later
        later = tl.load(a + m[:, None] * K + (i + k)[None, :])
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def nested(a, b, c, K):
    m, k = tl.arange(0, 64), tl.arange(0, 32)
    for j in range(0, K):
        x = tl.load(a + m[:, None] * K + k[None, :] + j * 32)
        total = tl.zeros((64, 64), tl.float32)
        for i in range(0, K, 32):
            y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
            total += tl.dot(x, y)
        tl.store(c + m[:, None] * 64 + m[None, :] + j, total)


@triton.jit
def turned(a, b, c, K):
    m, k = tl.arange(0, 64), tl.arange(0, 64)
    total = tl.zeros((64, 64), tl.float32)
    for i in range(0, K, 64):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
        total += tl.dot(x, y)
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def described(a, b, c, K):
    total = tl.zeros((64, 64), tl.float32)
    rows = tl.make_tensor_descriptor(a, [64, K], [K, 1], [64, 32])
    columns = tl.make_tensor_descriptor(b, [K, 64], [64, 1], [32, 64])
    for i in range(0, K, 32):
        x = tl.load_tensor_descriptor(rows, [0, i])
        y = columns.load([i, 0])
        total += tl.dot(x, y)
    m = tl.arange(0, 64)
    tl.store(c + m[:, None] * 64 + m[None, :], total)


a, b = torch.zeros(64, 256, dtype=torch.float16), torch.zeros(256, 64, dtype=torch.float16)
c, rows = torch.zeros(64, 64), torch.zeros(256, dtype=torch.int32)
triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8))
product[1,](a, b, c, 256, num_stages=3)
described[1,](a, b, c, 256, num_stages=3)
"""
# Further launches, on the H200 alone
MORE = """
for stages in (1, 2, 4):
    product[1,](a, b, c, 256, num_stages=stages)
product[1,](a, b, c, 256, STAGES=1)
product[1,](a, b, c, 256, STAGES=4, num_stages=1)
product[1,](a, b, c, 255)
gathered[1,](a, b, c, rows, 256, num_stages=2)
gathered[1,](a, b, c, rows, 256, num_stages=3)
scaled[1,](a, b, c, c, 256)
biased[1,](a, b, c, c, 256)
biased[1,](a, b, c, c, 256, STAGES=3)
sums[1,](c, c, 1024)
sums[1,](c, c, 1024, STAGES=3)
conditional[1,](a, b, c, 256)
repeated[1,](a, b, c, 256)
delayed[1,](a, b, c, 256)
nested[1,](a, b, c, 256)
turned[1,](a.to(torch.float8_e5m2), b.to(torch.float8_e5m2), c, 256)
described[1,](a, b, c, 256, num_stages=1)
"""


@pytest.fixture(scope="module")
def read(capture_script):
    """Return a function that returns the pipelines of a kernel's launch, by its number among the kernel's, on a GPU."""

    @functools.cache
    def open_capture(gpu):
        return Capture(capture_script(SCRIPT + MORE if gpu == "H200" else SCRIPT, gpu))

    def read_launch(name, number=0, gpu="H200", is_gluon=False):
        capture = open_capture(gpu)
        kernels = capture.content.kernels
        launches = (each for each in capture.content.launches if kernels[each.kernel].name == name)
        launch = [*launches][number]
        ttgir, ptx = (capture.read_code(launch.kernel, stage) for stage in ("ttgir", "ptx"))
        stages = None if is_gluon else launch.config["num_stages"]
        return read_pipelines(parse_ttgir(ttgir), ttgir, ptx, stages)

    return read_launch


def source_line(text, name="product"):
    """Return the number of the first line with a text in a kernel of the script."""
    start = SCRIPT.index(f"def {name}(")
    return SCRIPT[: SCRIPT.index(text, start)].count("\n") + 1


def describe(pipeline):
    """Return how far ahead each load is, its slots, and why it is not pipelined, by the text of its line."""
    lines = SCRIPT.splitlines()
    return {
        lines[load.line - 1].strip().split(" = ")[0]: (load.ahead, load.slots, load.why)
        for load in pipeline.loads
    }


# A kernel, the number of its launch, a GPU, num_stages of the loop, and by load the steps ahead and the slots.
AHEAD = """
product | 2 | H200 | 2 | x 1 2, y 1 2
product | 0 | H200 | 3 | x 2 3, y 2 3
product | 3 | H200 | 4 | x 3 4, y 3 4
product | 5 | H200 | 4 | x 3 4, y 3 4
product | 0 | A100-80GB | 3 | x 2 2, y 2 2
gathered | 1 | H200 | 3 | x 1 2, row 1 1, y 1 2
biased | 1 | H200 | 3 | x 2 3, y 2 3, z 2 2
sums | 1 | H200 | 3 | z 2 2
"""


@pytest.mark.parametrize("row", AHEAD.strip().splitlines())
def test_loads_run_ahead_as_num_stages_of_the_kernel_or_the_loop_says(read, row):
    """An asynchronous multiplication (sm_90) still reads the block of the previous step."""
    kernel, number, gpu, stages, loads = row.split(" | ")
    (pipeline,) = read(kernel, int(number), gpu)
    assert pipeline.line == source_line(" in ", kernel)
    assert pipeline.num_stages == int(stages)
    assert not any(load.why for load in pipeline.loads)
    shown = describe(pipeline).items()
    assert ", ".join(f"{name} {ahead} {slots}" for name, (ahead, slots, _) in shown) == loads


def test_no_loop_is_pipelined_on_gpus_without_asynchronous_copies(read):
    why = "Triton pipelines no loop for GPUs before compute capability 8.0."
    (pipeline,) = read("product", 0, "T4")
    assert describe(pipeline) == {"x": (0, 0, why), "y": (0, 0, why)}


def test_an_inner_loops_prologue_does_not_belong_to_the_outer_loop(read):
    outer, inner = read("nested")
    assert [event.kind for event in outer.events] == ["load", "store"]
    assert [event.step for event in inner.events if event.kind == "copy"] == [0, 1, 2]


@pytest.mark.parametrize("gpu", ["H200", "A100-80GB", "B200"])
@pytest.mark.parametrize("steps", [1, 2, 8])
@pytest.mark.parametrize("kernel", ["product", "described"])
def test_every_copy_arrives_before_its_step_is_multiplied(read, kernel, steps, gpu):
    (pipeline,) = read(kernel, 0, gpu)
    arrived, multiplied, most = set(), [], 0
    for moment in unroll(pipeline, steps):
        arrived.update(moment.arrived)
        most = max(most, moment.in_flight)
        if moment.event.kind == "multiplication":
            assert arrived == {(load, step) for load in (0, 1) for step in range(moment.step + 1)}
            multiplied.append(moment.step)
    assert multiplied == list(range(steps))
    assert moment.in_flight == 0
    assert most == 2 * min(2, steps)


def test_copies_use_the_slots_of_their_buffer_round_robin(read):
    moments = [moment for moment in unroll(read("product")[0], 5) if moment.slot is not None]
    assert [(moment.at, moment.step, moment.slot) for moment in moments[::2]] == [
        (-1, 0, 0), (-1, 1, 1), (0, 2, 2), (1, 3, 0), (2, 4, 1),
    ]  # fmt: skip


NO_STAGES = "With num_stages = 1, line {} waits for its load in every step."
NO_DOT = (
    "No tl.dot in the loop uses the block loaded on line {}. "
    "To pipeline such loads, pass num_stages to tl.range."
)
REASONS = [
    ("product", 1, "x", NO_STAGES),
    ("product", 4, "x", NO_STAGES),
    ("described", 1, "x", NO_STAGES),
    ("scaled", 0, "s", "Line {} loads a scalar. Triton pipelines only loads of blocks."),
    ("biased", 0, "z", NO_DOT),
    ("sums", 0, "z", NO_DOT),
    ("conditional", 0, "y", "Line {} is inside an if, where Triton does not pipeline loads."),
    ("repeated", 0, "x", "Line {} is in a while loop, which Triton does not pipeline."),
    (
        "product",
        6,
        "x",
        "Each lane loads only 2 B at a time on line {}. An asynchronous copy needs at least 4 B.",
    ),
    (
        "turned",
        0,
        "y",
        "The multiplication needs the block loaded on line {} transposed, which takes a copy per element. "
        "An asynchronous copy needs at least 4 B.",
    ),
    (
        "delayed",
        0,
        "y",
        "The loop uses a value from two steps earlier, so Triton does not pipeline line {}.",
    ),
    (
        "nested",
        0,
        "x",
        "Line {} is in an outer loop. Triton pipelines only the innermost loop.",
    ),
]


@pytest.mark.parametrize(("kernel", "number", "load", "reason"), REASONS)
def test_a_load_that_is_not_pipelined_has_a_reason(read, kernel, number, load, reason):
    ahead, _, why = describe(read(kernel, number)[0])[load]
    assert ahead == 0
    assert why == reason.format(source_line(f"{load} = tl.load", kernel))


def test_loaded_addresses_need_an_additional_stage(read):
    row, y = (source_line(f"{name} = tl.load(", "gathered") for name in ("row", "y"))
    why = (
        f"Line {row} loads addresses for line {y}, which already uses num_stages = 2. "
        "Set num_stages = 3 to pipeline both."
    )
    assert describe(read("gathered", 0)[0]) == {
        "x": (1, 2, ""),
        "row": (0, 0, why),
        "y": (1, 2, ""),
    }


def test_a_kernel_without_triton_ir_gets_no_reasons(read):
    assert describe(read("sums", 0, is_gluon=True)[0]) == {"z": (0, 0, "")}
