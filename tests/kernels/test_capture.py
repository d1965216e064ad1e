"""A script's launches are captured without a GPU, with everything that the counts need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernels.compiling
from kernels.compiling.capture_file import Capture, UnreadableCapture

SCRIPT = """
import sys, torch, triton
import triton.language as tl
@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
@triton.jit
def gather(index, x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + tl.load(index + i)))
def launch(x):
    out = torch.empty_like(x)
    copy[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256, num_warps=2)
    return out
def case(n=1000, offset=0):
    return copy, (4,), dict(x=x[offset:], out=torch.empty_like(x), n=n, BLOCK=256), {}
x = torch.arange(4096, device="cuda", dtype=torch.int32)
"""


@pytest.fixture
def run(tmp_path, compiled_before):
    """Return a function that captures a script and returns the finished process."""

    def run(text, flags=(), case="", script="script.py"):
        (tmp_path / "script.py").write_text(SCRIPT + text)
        environment = {**os.environ, "TRITON_CACHE_DIR": str(compiled_before), "TRITON_INTERPRET": "0"}
        capture = Path(kernels.compiling.__file__).with_name("capture.py")
        command = [sys.executable, capture, "--out", "script.tilescope", *flags, f"{script}{case}"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture
def capture(run, tmp_path):
    """Return a function that captures a script, and returns its capture, launches, and the first's arguments."""

    def capture(text, *flags, case=""):
        finished = run(text, flags, case)
        assert finished.returncode == 0, finished.stderr
        captured = Capture(tmp_path / "script.tilescope")
        return captured, captured.content.launches, {a.name: a for a in captured.content.launches[0].arguments}

    return capture


def place(text):
    """Return the file and the line of a script that ends with "# here"."""
    lines = (SCRIPT + text).splitlines()
    return "script.py", next(number for number, line in enumerate(lines, start=1) if line.endswith("# here"))


def test_a_launch_has_its_grid_caller_arguments_and_config(capture):
    text = "copy[(4,)](x, x.clone(), 1000, BLOCK=256, num_warps=2)  # here"
    _, (launch,), arguments = capture(text)
    assert (launch.grid, launch.ran) == ((4, 1, 1), False)
    assert (Path(launch.caller.file).name, launch.caller.line) == place(text)
    assert launch.config == {"BLOCK": 256, "num_warps": 2, "num_stages": 3}
    assert (list(arguments), arguments["n"].value) == (["x", "out", "n"], 1000)


def test_a_view_keeps_its_offset_strides_and_storage(capture):
    captured, (launch,), _ = capture("launch(x[3::2])")
    tensor = launch.arguments[0].tensor
    assert (tensor.offset_bytes, tensor.shape, tensor.strides) == (12, (2047,), (2,))
    assert captured.content.storages[tensor.storage].bytes == 4 * 4096


@pytest.mark.parametrize(("flags", "number", "block"), [((), 1, 128), (("--config", "copy=2"), 2, 512)])
def test_an_autotuner_launches_its_first_config_or_the_pinned_one(capture, flags, number, block):
    text = """configs = [triton.Config({"BLOCK": block}, num_warps=1) for block in (128, 512)]
triton.autotune(configs, key=["n"])(copy)[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, x.clone(), 4096)"""
    _, (launch,), _ = capture(text, *flags)
    assert (launch.tuned.number, launch.tuned.of, launch.config["BLOCK"]) == (number, 2, block)
    assert launch.grid == (4096 // block, 1, 1)


def test_recording_stops_where_the_script_reads_a_result(capture):
    text = "out = launch(x)\ntry:\n    out.sum().item()  # here\nexcept Exception:\n    launch(out)"
    captured, (_,), _ = capture(text)
    stop = captured.content.stopped
    assert (stop.kind, Path(stop.file).name, stop.line) == ("host_read", *place(text))
    assert stop.message.startswith("{}:{} reads ".format(*place(text)))


def test_values_continue_past_a_read_with_the_results(capture):
    text = "out = launch(x)\nassert out[0].item() == 1\ngather[(16,)](out, x, x.clone(), BLOCK=256)"
    captured, launches, _ = capture(text, "--values")
    assert [launch.ran for launch in launches] == ["interpreter", "interpreter"]
    assert captured.read_array(launches[1].arguments[0].tensor.array).tolist() == list(range(1, 4097))


def test_operations_on_a_result_that_was_not_computed_are_unknown(capture):
    _, launches, _ = capture("out = launch(x)\nlaunch((out * 2).flip(0))\nlaunch(x + 1)\nlaunch(x.add_(out))")
    assert [launch.arguments[0].tensor.is_known for launch in launches] == [True, False, True, False]


def test_set_changes_a_parameter_of_a_case(capture):
    captured, (launch,), arguments = capture("", "--set", "offset=2", case=":case")
    assert captured.content.cases == {"case": {"n": 1000, "offset": 0}}
    assert (launch.case, arguments["x"].tensor.offset_bytes) == ("case", 8)


REFUSED = [
    (("--set", "size=2"), ":case", "--set size=2: case has no parameter 'size'. It has n, offset."),
    (("--set", "n=2.5"), ":case", "--set n=2.5: n must be a value of type int, such as 1000."),
    ((), ":other", "script.py has no case 'other'. Its cases are case."),
]


@pytest.mark.parametrize(("flags", "case", "message"), REFUSED)
def test_an_invalid_parameter_or_case_exits_with_one_sentence(run, flags, case, message):
    finished = run("", flags, case)
    assert (finished.returncode, finished.stderr.strip()) == (2, message)


def test_a_script_that_raises_keeps_the_launches_before(capture):
    text = "launch(x)\nraise ValueError('no more')  # here"
    captured, (_,), _ = capture(text)
    stop = captured.content.stopped
    assert (stop.line, stop.message) == (place(text)[1], "script.py raised ValueError: no more")


def test_a_host_descriptor_is_an_argument_with_its_shape_and_strides(capture):
    text = """from triton.tools.tensor_descriptor import TensorDescriptor
@triton.jit
def load(x, out):
    tl.store(out + tl.arange(0, 32)[None, :], tl.sum(x.load([16, 32]), 0)[None, :])
load[(1,)](TensorDescriptor.from_tensor(x.view(32, 128), [16, 32]), x.clone())"""
    _, _, arguments = capture(text)
    descriptor = arguments["x"].descriptor
    assert (descriptor.shape, descriptor.strides, descriptor.block_shape) == ((32, 128), (128, 1), (16, 32))
    assert [argument.value for argument in arguments.values()] == [None, 32, 128, 128, 1, None]


def test_values_are_kept_only_where_addresses_depend_on_them(capture):
    """An index may be stored as a float, and the loop that adds tiles moves a pointer that is loaded from a table."""
    text = """
@triton.jit
def route(table, places, bound, values, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    source = values + tl.load(table + tl.program_id(0))
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(tl.load(bound)):
        total += tl.load(source + i)
        source += BLOCK
    tl.store(out + tl.load(places + i).to(tl.int32), total)
table = torch.arange(0, 512, 128, device="cuda")
places = torch.arange(64, device="cuda", dtype=torch.float16)
values = torch.zeros(4096, device="cuda")
bound = torch.full((1,), 4, dtype=torch.int32, device="cuda")
route[(4,)](table, places, bound, values, values.clone(), BLOCK=64)"""
    captured, _, arguments = capture(text)
    arrays = {name: a.tensor.array for name, a in arguments.items() if a.tensor}
    assert [name for name, array in arrays.items() if array is not None] == ["table", "places", "bound"]
    assert captured.read_array(arrays["table"]).tolist() == [0, 128, 256, 384]
    assert captured.read_array(arrays["places"]).tolist() == list(range(64))


def test_values_that_are_too_large_are_refused_with_the_limit(capture):
    text = """index = torch.zeros(1 << 24, dtype=torch.int32, device="cuda")
gather[(16,)](index, x, x.clone(), BLOCK=256)"""
    captured, _, arguments = capture(text)
    with pytest.raises(UnreadableCapture, match=r"values of index, 64 MiB\. A capture keeps at most 60 MiB"):
        captured.read_array(arguments["index"].tensor.array)


def test_a_script_does_not_see_the_folder_of_capture_py(capture):
    captured, _, _ = capture("assert not any(path.endswith('compiling') for path in sys.path)\nlaunch(x)")
    assert captured.content.stopped is None


def test_a_benchmark_records_one_launch_and_a_kept_kernel_is_recorded_too(capture):
    """Tutorials call `do_bench`, and derive a grid from the registers of a kernel that they have only compiled."""
    text = """
print(triton.testing.do_bench(lambda: launch(x), quantiles=[0.5, 0.2]))
kernel = copy.warmup(x, x.clone(), 4096, BLOCK=512, num_warps=4, grid=(1,))
kernel._init_handles()
kernel[(8 if kernel.n_regs >= 16 else 1, 1, 1)](x, x.clone(), 4096, 512)
"""
    _, (benchmarked, kept), _ = capture(text)
    assert (benchmarked.grid, kept.grid) == ((16, 1, 1), (8, 1, 1))
    assert kept.config == {"BLOCK": 512, "num_warps": 4, "num_stages": 3}


def test_flags_that_select_nothing_end_with_one_sentence(run, tmp_path):
    for flags, sentence in (
        (("--config", "copy=1"), "no autotuned kernel copy was launched"),
        (("--gpu-json", '{"name": "L4", "compute_capability": [8, 9]}'), ""),
    ):
        finished = run("launch(x)", flags)
        assert (finished.returncode, sentence in finished.stderr) == (2 if sentence else 0, True)
    (tmp_path / "not.py").write_text("three words here")
    finished = run("", case="", script="not.py")
    assert (finished.returncode, "not.py is not Python" in finished.stderr) == (2, True)
