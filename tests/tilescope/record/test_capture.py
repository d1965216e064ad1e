"""A script's launches are captured without a GPU, with everything that the counts need."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.tables import read_table
from tilescope.captures.reader import Capture, UnreadableCapture
from tilescope.captures.server import RECORDER as CAPTURE
from tilescope.declare.gpus import GPUS

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


@pytest.fixture(scope="module")
def environment(compiled_before):
    return {**os.environ, "TRITON_CACHE_DIR": str(compiled_before), "TRITON_INTERPRET": "0"}


@contextmanager
def serve(environment, folder):
    """Start a process in a folder that captures scripts without importing torch and Triton each time.

    Yield a function: arguments of a capture → (why nothing was captured, the script's output).
    """
    output = folder / "output"
    with Path(os.devnull).open() as stdin, output.open("a") as file, subprocess.Popen(
        [sys.executable, CAPTURE, "--serve", str(stdin.fileno())], pass_fds=[stdin.fileno()], env=environment,
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, cwd=folder,
    ) as process:  # fmt: skip

        def capture(command):
            os.truncate(output, 0)
            print(json.dumps(command), file=process.stdin, flush=True)
            return process.stdout.readline().strip(), output.read_text()

        yield capture
        process.stdin.close()


@pytest.fixture(scope="module")
def server(environment, tmp_path_factory):
    with serve(environment, tmp_path_factory.mktemp("server")) as capture:
        yield capture


@pytest.fixture
def run(server, tmp_path):
    """Return a function that captures a script, and returns why nothing was captured, and the script's output."""

    def run(text, flags=(), case="", script="script.py"):
        (tmp_path / "script.py").write_text(SCRIPT + text)
        return server(["--out", str(tmp_path / "out"), *flags, f"{tmp_path / script}{case}"])

    return run


@pytest.fixture
def capture(run, tmp_path):
    """Return a function that captures a script, and returns its capture, launches, and the first's arguments."""

    def capture(text, *flags, case=""):
        assert run(text, flags, case)[0] == ""
        captured = Capture(tmp_path / "out")
        launches = captured.content.launches
        return captured, launches, {a.name: a for a in launches[0].arguments}

    return capture


def place(text):
    """Return the file and the line of a script that ends with "# here"."""
    lines = (SCRIPT + text).splitlines()
    return "script.py", next(
        number for number, line in enumerate(lines, start=1) if line.endswith("# here")
    )


def test_a_launch_has_its_grid_caller_arguments_and_config(capture):
    text = "copy[(4,)](x, x.clone(), 1000, BLOCK=256, num_warps=2)  # here"
    _, (launch,), arguments = capture(text)
    assert (launch.grid, launch.ran) == ((4, 1, 1), False)
    assert (Path(launch.caller.file).name, launch.caller.line) == place(text)
    assert launch.config == {"BLOCK": 256, "num_warps": 2, "num_stages": 3}
    assert (list(arguments), arguments["n"].value) == (["x", "out", "n"], 1000)


def test_the_recorders_default_gpu_is_the_tables_h200(capture):
    captured, _, _ = capture("launch(x)", "--gpu-json", '{"name": "H200"}')
    row = json.loads(json.dumps(asdict(GPUS["H200"])))
    assert row | captured.content.gpu == row


def test_a_view_keeps_its_offset_strides_and_storage(capture):
    captured, (launch,), _ = capture("launch(x[3::2])")
    tensor = launch.arguments[0].tensor
    assert (tensor.offset_bytes, tensor.shape, tensor.strides) == (12, (2047,), (2,))
    assert captured.content.storages[tensor.storage].bytes == 4 * 4096


@pytest.mark.parametrize(
    ("flags", "number", "block"), [((), 1, 128), (("--config", "copy=2"), 2, 512)]
)
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
    assert captured.read_array(launches[1].arguments[0].tensor.array).tolist() == list(
        range(1, 4097)
    )


def test_operations_on_a_result_that_was_not_computed_are_unknown(capture):
    _, launches, _ = capture(
        "out = launch(x)\nlaunch((out * 2).flip(0))\nlaunch(x + 1)\nlaunch(x.add_(out))"
    )
    assert [launch.arguments[0].tensor.is_known for launch in launches] == [
        True,
        False,
        True,
        False,
    ]


def test_set_changes_a_parameter_of_a_case(capture):
    captured, (launch,), arguments = capture("", "--set", "offset=2", case=":case")
    assert captured.content.cases == {"case": {"n": 1000, "offset": 0}}
    assert (launch.case, arguments["x"].tensor.offset_bytes) == ("case", 8)


REFUSED = """
--set size=2 | :case | --set size=2: case has no parameter 'size'. It has n, offset.
--set n=2 | | --set changes the parameters of one case: name it, as in script.py:case.
--set n=2.5 | :case | --set n=2.5: n must be a value of type int, such as 1000.
| :other | script.py has no case 'other'. Its cases: case.
"""


@pytest.mark.parametrize(("flags", "case", "message"), read_table(REFUSED))
def test_an_invalid_parameter_or_case_is_one_sentence(run, flags, case, message):
    # The script stops, and has launched something
    assert run("launch(x).sum().item()", flags.split(), case)[0] == message


NO_TEXT = """
class NoText(Exception):
    def __str__(self):
        raise ValueError
"""
# Interrupts all processes as a terminal does, sends other signals to the recorder only, and waits for its own.
WAIT = """
signal.signal(signal.SIGINT, signal.default_int_handler)
def wait(*signals):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    for number in signals:
        os.kill(os.getppid(), number)
        if number == signal.SIGINT:
            os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.pause()
wait"""
# How a script ends, and the kind, the message and the status of the stop. `show` passes interrupts on, unless the
# terminal has interrupted all processes, and kills superseded scripts.
ENDS = """
raise ValueError('no more') | exception | script.py raised ValueError: no more | 0
os.kill(os.getpid(), signal.SIGKILL) | exception | script.py was killed by SIGKILL; launches before that: 1 | 0
os._exit(3) | exit | script.py exited with status 3; launches before that: 1 | 3
sys.exit(4) | exit | script.py exited with status 4 | 4
sys.exit(True) | exit | script.py exited with status 1 | 1
{WAIT}(signal.SIGUSR1) | exception | script.py raised KeyboardInterrupt | 0
{WAIT}(signal.SIGINT, signal.SIGUSR1) | exception | script.py raised KeyboardInterrupt | 0
{WAIT}(signal.SIGUSR2) | exception | script.py was killed by SIGKILL; launches before that: 1 | 0
{NO_TEXT}raise NoText | exception | script.py raised NoText: <NoText str() failed> | 0
{NO_TEXT}sys.exit(NoText()) | exit | script.py exited with status 1: <NoText str() failed> | 1
bytearray(1 << 62) | exception | script.py raised MemoryError | 0
"""


@pytest.mark.parametrize(("end", "kind", "message", "status"), read_table(ENDS))
def test_however_a_script_ends_its_launches_are_captured(capture, end, kind, message, status):
    end = end.format(WAIT=WAIT, NO_TEXT=NO_TEXT)
    captured, (_,), _ = capture(f"import os, signal\nlaunch(x)\n{end}")
    stop = captured.content.stopped
    assert (stop.kind, stop.message, stop.status) == (kind, message, status)


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit()"])
def test_an_exit_with_status_0_is_no_stop(capture, end):
    captured, (_,), _ = capture(f"import os\nlaunch(x)\n{end}")
    assert captured.content.stopped is None


def test_a_status_after_a_read_that_was_caught_is_put_down_to_the_read(capture):
    """A test runner reports the read as a failed test, and runs the next one."""
    text = """out = launch(x)
try:
    out.sum().item()  # here
except BaseException:
    launch(out)
sys.exit(1)"""
    captured, launches, _ = capture(text)
    stop = captured.content.stopped
    assert (len(launches), stop.kind, stop.line) == (2, "host_read", place(text)[1])


def test_a_traceback_begins_at_the_script(run, tmp_path):
    text = """@triton.jit
def inner(x):
    return x + tl.arange(0, 100)
@triton.jit
def bad(x):
    tl.store(x, inner(x))
torch.zeros(3, device="cuda").sum()
bad[(1,)](x)  # here"""
    _, output = run(text)
    _, line = place(text)
    traceback = output.rpartition("Traceback (most recent call last):\n")[2]
    assert traceback.startswith(f'  File "{tmp_path / "script.py"}", line {line}, in <module>')
    assert str(CAPTURE) not in output


def test_a_tensor_that_depends_on_a_launch_names_it_when_it_is_printed_or_compared(run, tmp_path):
    text = """y = launch(launch(x))
print(y[:2], f"{y.max()}", f"{(y - x).float().mean():.3f}", str(y), x[:2])
assert torch.allclose(y, x + 2), "never evaluated"  # here"""
    _, output = run(text)
    unknown = "<unknown: launch 1 (copy) did not run>"
    assert output.startswith(f"{' '.join([unknown] * 4)} tensor([0, 1], dtype=torch.int32)\n")
    stop = Capture(tmp_path / "out").content.stopped
    assert (stop.kind, stop.line) == ("host_read", place(text)[1])
    assert (
        "reads a tensor (with allclose) that depends on launch 1 (copy), which did not run."
        in stop.message
    )


def test_a_store_through_a_table_of_pointers_makes_their_tensors_unknown(capture):
    text = """@triton.jit
def scatter(table, BLOCK: tl.constexpr):
    out = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.int32))
    tl.store(out + tl.arange(0, BLOCK), 1)
outs = [torch.zeros(128, dtype=torch.int32, device="cuda") for _ in range(4)]
scatter[(4,)](torch.tensor([out.data_ptr() for out in outs], device="cuda"), BLOCK=128)
assert x.sum().item() == 4096 * 4095 // 2
assert outs[3].sum() == 128  # here"""
    captured, _, _ = capture(text)
    stop = captured.content.stopped
    assert (stop.kind, stop.line) == ("host_read", place(text)[1])


def test_memory_of_a_tensor_that_was_freed_is_another_storage(capture):
    """Over time, a script may allocate more memory than there is."""
    text = "for n in (1 << 28, 1 << 27):\n    launch(torch.zeros(n, dtype=torch.int32, device='cuda')[:256])"
    captured, launches, _ = capture(text)
    tensors = [launch.arguments[0].tensor for launch in launches]
    assert [captured.content.storages[tensor.storage].bytes for tensor in tensors] == [
        1 << 30,
        1 << 29,
    ]
    assert [tensor.is_known for tensor in tensors] == [True, True]


INDUCTOR = '''
from torch._inductor.async_compile import AsyncCompile
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
async_compile = AsyncCompile()
triton_poi_fused_mul_0 = async_compile.triton("triton_poi_fused_mul_0", """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
triton_helpers.set_driver_to_gpu()
@triton_heuristics.pointwise(
    size_hints={"x": 4096}, filename=__file__,
    triton_meta={
        "signature": {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"},
        "device": DeviceProperties(type="cuda", index=0, multi_processor_count=132, cc=90), "constants": {},
        "configs": [{(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}],
    },
    inductor_meta={"grid_type": "Grid1D", "kernel_name": "triton_poi_fused_mul_0", "mutated_arg_names": []},
)
@triton.jit
def triton_poi_fused_mul_0(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out_ptr0 + xindex, tl.load(in_ptr0 + xindex, xindex < xnumel) * 2.0, xindex < xnumel)
""", device_str="cuda")
async_compile.wait(globals())
torch.cuda.reset_peak_memory_stats()
with torch.cuda._DeviceGuard(0):
    torch.cuda.set_device(0)
    out = empty_strided_cuda((4000,), (1,), torch.float32)
    triton_poi_fused_mul_0.run(x.float(), out, 4000, stream=get_raw_stream(0))
'''


def test_an_output_file_of_inductor_is_captured(capture):
    captured, (launch,), arguments = capture(INDUCTOR)
    assert captured.content.stopped is None
    assert captured.content.kernels[0].name == "triton_poi_fused_mul_0"
    block = launch.config["XBLOCK"]
    assert (launch.grid, arguments["xnumel"].value) == ((-(-4000 // block), 1, 1), 4000)


def test_a_case_may_launch_its_kernel_itself(capture):
    _, (launch,), arguments = capture(
        "def case_it(n=4):\n    launch(x[:n])", "--set", "n=512", case=":case_it"
    )
    assert (launch.case, launch.settings, arguments["n"].value) == ("case_it", {"n": 512}, 512)


PROGRAMS = {
    "folder/script.py": "import sys, helper",
    "folder/helper.py": "",
    "package/__init__.py": "import sys\nprint(sys.argv, flush=True)",
    "package/__main__.py": "from .module import *",
    "package/module.py": "import sys\nfrom . import other",
    "package/other.py": "",
}
PRINT = """
if __name__ == "__main__":
    print(sys.path, sys.argv, __package__, flush=True)
"""


def test_paths_arguments_and_relative_imports_are_those_of_plain_python(environment, tmp_path):
    for name, text in PROGRAMS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + PRINT)
    environment = {**environment, "PYTHONPATH": str(tmp_path / "first")}
    with serve(environment, tmp_path) as capture:
        for target in (["folder/script.py"], ["-m", "package.module"], ["-m", "package"]):
            own = ["-m", "-q", "--", "--out"]
            plain = [sys.executable, *target, *own]
            expected = subprocess.check_output(plain, cwd=tmp_path, env=environment, text=True)
            assert str(tmp_path) in expected
            assert capture(["--out", "out", *target, "--", *own]) == ("", expected)
        for name in ("package.missing", "sys", ".package"):
            refusal, _ = capture(["--out", "out", "-m", name])
            assert refusal == f"There is no module {name} that `python -m` can run."


def test_a_notebook_runs_what_ipython_would_notes_what_it_skips_and_has_lines_by_cell(
    server, tmp_path
):
    cells = [
        SCRIPT,
        "!pip install a \\\n  b\nfiles = !ls\nassert files is None\nlaunch?\n?x.shape",
        "%time out = launch(x)\n%timeit -n 10 -r3 launch(out)\ntimes = %timeit -o launch( \\\n  out)",
        "get_ipython().run_line_magic('matplotlib', 'inline')",
        "let y = 1;",
        "%%bash\nls",
        "%%time\n!ls\nif x.numel():\n    %matplotlib inline\ncopy[(4,)](x, x, 1000, BLOCK=256)",
        "import asyncio\nasync def wait():\n    launch(x)\nawait wait()\ndisplay('end')",
    ]
    notebook = {
        "cells": [
            *({"cell_type": "code", "source": text.splitlines(keepends=True)} for text in cells),
            {"cell_type": "markdown", "source": "# Text\nlaunch(x)"},
            {"cell_type": "code"},
            {"source": "no type"},
        ]
    }
    path = tmp_path / "own.ipynb"
    path.write_text(json.dumps(notebook))
    assert server(["--out", str(tmp_path / "out"), str(path)]) == ("", "end\n")
    captured = Capture(tmp_path / "out")
    content = captured.content
    assert content.stopped is None
    places = [(Path(each.caller.file).name, each.caller.line) for each in content.launches]
    assert places == [*[("own.ipynb[1]", 14)] * 3, ("own.ipynb[7]", 5), ("own.ipynb[1]", 14)]
    (kernel, *_) = content.kernels
    assert (Path(kernel.file).name, kernel.line) == ("own.ipynb[1]", 4)
    assert "own.ipynb[1]" in captured.read_code(0, "sass")
    skipped = "!pip install a b", "files = !ls", "launch?", "?x.shape", "%%bash", "%%time", "!ls"
    assert {*content.not_captured} == {
        *(f"An IPython magic was skipped: {each}" for each in (*skipped, "%matplotlib inline")),
        "A cell that is not Python was skipped: invalid syntax (own.ipynb[5], line 1)",
        "Calls of get_ipython's methods did nothing.",
    }


_SQUARE = """@triton.jit
def square(a, b, c, depth, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for first in range(0, depth, SIZE):
        left = tl.load(a + i[:, None] * depth + first + i[None, :])
        total = tl.dot(left, tl.load(b + (first + i)[:, None] * SIZE + i[None, :]), total)
    tl.store(c + i[:, None] * SIZE + i[None, :], total)
half = x.half()
"""


def test_a_config_that_does_not_fit_raises_tritons_own_error(capture):
    text = f"""from triton.runtime.errors import OutOfResources
{_SQUARE}
for stages in (8, 2):
    try:
        square[(1,)](half, half, x.float(), 4096, SIZE=128, num_stages=stages)
    except OutOfResources as error:
        assert (error.required > error.limit == 232448, error.name) == (True, "shared memory")"""
    captured, (launch,), _ = capture(text)
    assert (captured.content.stopped, launch.config["num_stages"]) == (None, 2)


def test_a_script_that_ends_for_lack_of_shared_memory_keeps_that_launch(capture):
    text = f"""{_SQUARE}
square[(1,)](half, half, x.float(), 4096, SIZE=128, num_stages=2)
try:
    square[(1,)](half, half, x.float(), 4096, SIZE=128, num_stages=8)
except Exception as error:
    raise RuntimeError("the model does not run") from error"""
    captured, launches, _ = capture(text)
    content = captured.content
    assert [launch.config["num_stages"] for launch in launches] == [2, 8]
    assert content.kernels[launches[1].kernel].shared_bytes > 232448
    assert content.stopped.message == "script.py raised RuntimeError: the model does not run"


def test_spilled_bytes_exclude_arrays_in_local_memory(capture):
    """The table of `sin` takes 32 bytes of the stack. ptxas reports no spill stores."""
    text = """@triton.jit
def wave(angle, height, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(height + i, tl.sin(tl.load(angle + i)))
wave[(1,)](x.float(), x.float(), BLOCK=256)
kernel = wave.warmup(x.float(), x.float(), BLOCK=256, grid=(1,))
assert kernel.n_spills == 0"""
    captured, _, _ = capture(text)
    assert (captured.content.stopped, captured.content.kernels[0].spilled_bytes) == (None, 0)


def test_spilled_bytes_are_those_that_the_compiler_reports(run, tmp_path):
    text = """@triton.jit
def normalize(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.store(out + i, values / tl.sum(values))
triton.knobs.compilation.always_compile = True
triton.knobs.nvidia.dump_ptxas_log = True
x = x.float()
normalize[(1,)](x, x.clone(), BLOCK=4096, num_warps=1, maxnreg=64)"""
    _, output = run(text)
    reported = [int(count) for count in re.findall(r"(\d+) bytes spill stores", output)]
    (kernel,) = Capture(tmp_path / "out").content.kernels
    assert [kernel.spilled_bytes] == reported != [0]


def test_the_stand_in_has_the_properties_of_the_gpu_that_is_named(run):
    text = """p = torch.cuda.get_device_properties(0)
print(p.name, p.multi_processor_count, p.total_memory >> 30, p.L2_cache_size >> 20, torch.cuda.get_arch_list())
print(torch.cuda.get_device_capability(), p.max_threads_per_multi_processor, triton.testing.get_dram_gbps())"""
    _, output = run(text, ("--gpu-json", json.dumps(asdict(GPUS["L4"]))))
    assert output == "NVIDIA L4 58 24 48 ['sm_89']\n(8, 9) 1536 300.0\n"


def test_a_host_descriptor_is_an_argument_with_its_shape_and_strides(capture):
    text = """from triton.tools.tensor_descriptor import TensorDescriptor
@triton.jit
def load(x, out):
    tl.store(out + tl.arange(0, 32)[None, :], tl.sum(x.load([16, 32]), 0)[None, :])
load[(1,)](TensorDescriptor.from_tensor(x.view(32, 128), [16, 32]), x.clone())"""
    _, _, arguments = capture(text)
    descriptor = arguments["x"].descriptor
    assert (descriptor.shape, descriptor.strides, descriptor.block_shape) == (
        (32, 128),
        (128, 1),
        (16, 32),
    )
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
    assert [name for name, array in arrays.items() if array is not None] == [
        "table",
        "places",
        "bound",
    ]
    assert captured.read_array(arrays["table"]).tolist() == [0, 128, 256, 384]
    assert captured.read_array(arrays["places"]).tolist() == list(range(64))


def test_values_that_are_too_large_are_refused_with_the_limit(capture):
    text = """index = torch.zeros(1 << 24, dtype=torch.int32, device="cuda")
gather[(16,)](index, x, x.clone(), BLOCK=256)"""
    captured, _, arguments = capture(text)
    with pytest.raises(
        UnreadableCapture, match=r"values of index, 64 MiB\. A capture keeps at most 60 MiB"
    ):
        captured.read_array(arguments["index"].tensor.array)


def test_capturing_prints_only_what_the_script_prints_and_a_refusal_exits_with_2(
    environment, tmp_path
):
    """From Triton 3.8 on, a process that has read a layout prints what Triton leaks when Python exits."""
    (tmp_path / "script.py").write_text(f"{SCRIPT}launch(x)\nprint(sys.argv[0])")
    for case, status, error in (("", 0, ""), (":other", 2, "script.py has no case 'other'")):
        done = subprocess.run(
            [sys.executable, CAPTURE, "--out", "out", f"script.py{case}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (status, "script.py\n"), done.stderr
        assert done.stderr.startswith(error)
        assert bool(done.stderr) == bool(error)


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


def test_flags_or_files_that_select_nothing_are_refused_in_a_sentence(run, tmp_path):
    partial = '{"name": "L4", "compute_capability": [8, 9]}'
    assert run("launch(x)", ("--gpu-json", partial))[0] == ""
    message = run("launch(x)", ("--config", "copy=1"))[0]
    assert "no autotuned kernel copy was launched" in message
    for name, text, sentences in (
        ("not.py", "three words here", ("not.py is not Python", "(not.py, line 1)")),
        *(
            ("note.ipynb", text, ("note.ipynb is not a notebook: it has no cells with a source.",))
            for text in ("{}", "3", '{"cells": 3}', '{"cells": [3]}', '{"cells": [{"source": 3}]}')
        ),
        ("deep.ipynb", "[" * 100_000, ("deep.ipynb is not a notebook: maximum recursion",)),
        ("text.ipynb", "three words here", ("text.ipynb is not a notebook: Expecting value",)),
    ):
        (tmp_path / name).write_text(text)
        message = run("", script=name)[0]
        assert all(sentence in message for sentence in sentences), message
    (tmp_path / "module.py").write_text("from .other import kernel")
    run("", script="module.py")
    stop = Capture(tmp_path / "out").content.stopped
    assert stop.message.endswith("-m PACKAGE.MODULE")


GRAPHS = [
    "torch.cuda.make_graphed_callables(launch, (x,))(x)",
    "graph = torch.cuda.CUDAGraph()\ngraph.capture_begin()\nlaunch(x)\ngraph.capture_end()\ngraph.replay()",
    """from torch.cuda.graphs import CUDAGraph, graph
with graph(CUDAGraph(), pool=torch.cuda.graph_pool_handle(), stream=torch.cuda.Stream()):
    launch(x)
torch.cuda.synchronize()""",
]


COMPILED = [
    "@torch.compile(fullgraph=True, dynamic=False)\ndef call(x):\n    return torch.compile(launch)(x)",
    "model = type('Model', (torch.nn.Module,), {'forward': lambda self, x: launch(x)})()\n"
    "call = torch.compile(model, mode='max-autotune')",
    "call = type('Model', (torch.nn.Module,), {'forward': lambda self, x: launch(x)})()\ncall.compile()",
]


TIMED = {
    "do_bench": "triton.testing.do_bench(lambda: launch(x))",
    "timeit": "import timeit\ntimeit.timeit(lambda: launch(x), number=1)",
    "CUDA events": "start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\nlaunch(x)\n"
    "start.record()\nend.record()\nstart.elapsed_time(end)",
}


INTERPRETED = """import os
os.environ["TRITON_INTERPRET"] = "1"
triton.jit(copy.fn)[(16,)](x, x.clone(), 4096, BLOCK=256)"""
EMPTY = "launch(x)\ncopy[(4, 0)](x, x, 4, BLOCK=256)  # here"
NOTES = [
    ("TRITON_INTERPRET=1 was ignored.", INTERPRETED),
    (f"script.py:{place(EMPTY)[1]} launches copy with an empty grid, [4, 0, 1], which", EMPTY),
    *(
        (
            f"script.py:{place(f'{text}  # here')[1]} measures time with {name}: during a capture",
            text,
        )
        for name, text in TIMED.items()
    ),
    *(
        (
            "The code in a CUDA graph ran once, without a graph. Replaying the graph launched nothing.",
            text,
        )
        for text in GRAPHS
    ),
    *(
        ("Functions passed to torch.compile ran uncompiled.", f"{text}\ncall(x)")
        for text in COMPILED
    ),
]


@pytest.mark.parametrize(("note", "text"), NOTES)
def test_what_differs_from_a_run_on_a_gpu_is_noted(capture, note, text):
    captured, (launch,), _ = capture(text)
    shown, *_ = captured.content.not_captured
    assert shown.startswith(note)
    assert launch.grid[0] == 16
    assert captured.content.stopped is None


CHILDREN = [
    "import multiprocessing\nwith multiprocessing.Pool(1) as pool:\n    pool.map(child, [0])",
    "import torch.multiprocessing as mp\nmp.spawn(child, nprocs=1)",
    "if not (number := os.fork()):\n    child(0)\n    os._exit(0)\nos.waitpid(number, 0)",
    "if 'CHILD' in os.environ:\n    child(0)\n    sys.exit()\nimport subprocess\n"
    "subprocess.run([sys.executable, __file__], env=os.environ | {'CHILD': '1'}, check=True)",
]


@pytest.mark.parametrize("text", CHILDREN)
def test_launches_of_child_processes_follow_those_of_the_script(capture, text):
    child = "def child(number):\n    launch(torch.zeros(256, device=f'cuda:{number}'))"
    captured, launches, _ = capture(f"import os\n{child}\n{text}\nlaunch(x)\nlaunch(x[:512])")
    assert [launch.grid[0] for launch in launches] == [16, 2, 1]
    assert (captured.content.not_captured, captured.content.stopped) == ((), None)


def test_the_tests_of_pytests_workers_are_recorded_by_worker(server, tmp_path, monkeypatch):
    (tmp_path / "kernels_of_tests.py").write_text(SCRIPT)
    (tmp_path / "test_copy.py").write_text("""import pytest, torch
from kernels_of_tests import launch
@pytest.mark.parametrize("blocks", range(1, 9))
def test_a_launch(blocks):
    y = launch(torch.zeros(256 * blocks, device="cuda"))
    assert blocks != 5 or y.sum().item() == 0  # line 6
""")
    out = tmp_path / "out"
    command = "--out", str(out), "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", str(tmp_path)
    assert server(command)[0] == ""
    content = Capture(out).content
    assert sorted(launch.grid[0] for launch in content.launches) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(content.kernels) == 1
    assert (content.stopped.kind, content.stopped.line) == ("host_read", 6)


def test_launches_of_concurrent_threads_are_all_recorded_in_the_order_in_which_they_begin(capture):
    text = """from concurrent.futures import ThreadPoolExecutor
import threading
def work(number):
    own = torch.zeros(256, device="cuda")
    for turn in range(12):
        copy[(1,)](own, torch.empty_like(own), 12 * number + turn + 2, BLOCK=256)
    return own
class Twice(torch.autograd.Function):
    forward = staticmethod(lambda context, x: x + 0)
    @staticmethod
    def backward(context, gradient):
        copy[(1,)](gradient, gradient, 50, BLOCK=256)
        return gradient
def backward():
    Twice.apply(torch.ones(256, device="cuda", requires_grad=True)).sum().backward()
def fail():
    backward()
    raise ValueError("in a thread")
with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))
threading.Thread(target=fail).start()
stop = threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()"""
    captured, launches, _ = capture(text)
    sizes = [
        next(argument.value for argument in launch.arguments if argument.name == "n")
        for launch in launches
    ]
    assert sorted(sizes) == list(range(2, 51))
    for number in range(4):
        own = [size for size in sizes if (size - 2) // 12 == number]
        assert own == sorted(own)
    assert captured.content.stopped is None


def test_launches_of_exit_handlers_are_recorded(capture):
    _, launches, _ = capture("import atexit\natexit.register(launch, x[:512])\nlaunch(x)")
    assert [launch.grid[0] for launch in launches] == [16, 2]


def test_a_thread_that_reads_a_result_says_so_and_the_script_goes_on(capture):
    text = """import threading
thread = threading.Thread(target=lambda: launch(x)[0].item())
thread.start()
thread.join()
launch(x)"""
    captured, launches, _ = capture(text)
    (note,) = captured.content.not_captured
    assert (len(launches), captured.content.stopped) == (2, None)
    assert "reads a tensor (with item) that depends on launch 0 (copy), which did not run." in note


READS = [
    "y[y > 3]",
    "x[y > 3]",
    "torch.where(y > 3)",
    "y.view(64, 64).to_sparse_csr()",
    "torch.bincount(y)",
    "y.cpu().numpy()",
    "print('%d' % y[0])",
    "torch.testing.assert_close(y, x)",
]


@pytest.mark.parametrize("read", READS)
def test_what_needs_a_value_that_was_not_computed_stops_the_script(capture, read):
    text = f"import numpy\ny = launch(x)\n{read}  # here\nlaunch(x)"
    captured, (_,), _ = capture(text)
    stop = captured.content.stopped
    assert (stop.kind, stop.line) == ("host_read", place(text)[1])


def test_values_that_were_not_computed_can_be_moved_logged_and_masked_without_a_read(run, tmp_path):
    text = """import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
y = launch(x)
logging.warning("%s", y.cpu().float().mean())
print([y], y.shape, y[x > 4].shape)
y[y > 3] = 0
launch(y)"""
    _, output = run(text)
    unknown = "<unknown: launch 0 (copy) did not run>"
    assert output == f"{unknown}\n[{unknown}] torch.Size([4096]) torch.Size([4091])\n"
    assert len(Capture(tmp_path / "out").content.launches) == 2


def test_a_device_object_is_that_of_the_gpu(run):
    text = """device = torch.device("cuda:0")
print(device, device.type, device == x.device, torch.zeros(1, device=torch.device("cuda")).device)
with torch.device("cuda"):
    print(torch.ones(2).device, torch.device("cpu"), torch.rand(2, device=0).to(0).device)
torch.set_default_device("cuda:0")
generator = torch.Generator(device).manual_seed(3)
torch.cuda.manual_seed_all(1)
print(torch.get_default_device(), generator.device, torch.randint(0, 9, (2,), generator=generator).shape)
with torch.cuda.nvtx.range("a"):
    torch.cuda.empty_cache()
print(torch.cuda.memory_allocated(), torch.cuda.is_initialized())"""
    assert run(text)[1].splitlines() == [
        "cuda:0 cuda True cuda:0", "cuda:0 cpu cuda:0", "cuda:0 cuda:0 torch.Size([2])", "0 True"
    ]  # fmt: skip


def test_sparse_tensors_are_known_by_their_parts(capture):
    text = """y = launch(x)
dense = torch.ones(64, 64, device="cuda", dtype=torch.int32)
for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((16, 16))):
    assert sparse.layout != torch.strided
    launch(sparse.values() if sparse.layout != torch.sparse_coo else sparse.coalesce().values())
columns = torch.arange(4096, device="cuda")
launch(torch.sparse_csr_tensor(torch.tensor([0, 4096]), columns, y, (1, 4096)).values())"""
    captured, launches, _ = capture(text)
    assert captured.content.stopped is None
    assert [launch.arguments[0].tensor.is_known for launch in launches] == [True] * 5 + [False]


FAILING = [
    (
        "configs = [triton.Config({'BLOCK': block}) for block in (128, 512)]\n"
        "triton.autotune(configs, key=['n'])(copy)[(16,)](x, x.clone(), 4096, BLOCK=128)  # here",
        "ValueError: Conflicting meta-parameters: BLOCK. Make sure that you don't",
    ),
    (
        "@triton.jit\ndef bad(x):\n    tl.store(x, tl.summ(0))  # here\nbad[(1,)](x)",
        "CompilationError: AttributeError",
    ),
    (
        "@triton.jit\ndef inner(x):\n    return tl.sum(x, axis=3)  # here\n"
        "@triton.jit\ndef bad(x):\n    tl.store(x, inner(x))\nbad[(1,)](x)",
        "CompilationError: invalid axis 3",
    ),
    ("copy[(4, 65536)](x, x, 4, BLOCK=256)  # here", "at most [2147483647, 65535, 65535]"),
    ("copy[(4, -1, -1)](x, x, 4, BLOCK=256)  # here", "Triton Error [CUDA]: invalid argument"),
    ("copy[(4 / 2,)](x, x, 4, BLOCK=256)  # here", "TypeError: 'float' object cannot be inter"),
    ("copy[(4,)](x, x, 4, BLOCK=256, kpack=2)  # here", "unrecognised'. This is an option for AMD"),
    ("torch.empty(4, device='xpu')  # here", 'for NVIDIA GPUs, so use device="cuda"'),
]


@pytest.mark.parametrize(("text", "message"), FAILING)
def test_what_fails_on_the_gpu_names_its_line_and_its_reason(capture, text, message):
    captured, (_,), _ = capture(f"launch(x)\n{text}")
    stop = captured.content.stopped
    assert (Path(stop.file).name, stop.line) == place(
        f"launch(x)\n{text.partition('# here')[0]}# here"
    )
    assert message in stop.message


KERNELS_FOR_CUDA = """def run(x, n):
    copy[(1,)](x, torch.empty(x.shape, dtype=x.dtype, device="cuda"), n, BLOCK=256)
    return x + 1
class Function(torch.autograd.Function):
    forward = staticmethod(lambda context, x: run(x, 4))
    backward = staticmethod(lambda context, gradient: run(gradient, 5))
x = torch.zeros(256, device="cuda")
aten = torch.library.Library("aten", "IMPL")
aten.impl("silu", lambda x: run(x, 2), "CUDA")
torch.nn.functional.silu(x)
aten.impl("gelu", lambda x, approximate="none": run(torch.nn.functional.gelu(x), 3), "CUDA")
torch.nn.functional.gelu(x)
aten.impl("tanh", Function.apply, "AutogradCUDA")
torch.tanh(x.clone().requires_grad_()).sum().backward()
with torch.library._scoped_library("aten", "IMPL") as scope:
    scope.impl("exp", lambda x: run(x, 6), "CUDA")
    torch.exp(x)
torch.exp(x)
own = torch.library.Library("own", "DEF")
own.define("plus(Tensor x) -> Tensor")
own.impl("plus", lambda x: run(x, 7), "CUDA")
own.impl("plus", lambda x: x + 1, "CPU")
torch.ops.own.plus(x)"""


def test_kernels_that_are_registered_for_cuda_run_instead_of_the_cpus(capture):
    captured, launches, _ = capture(KERNELS_FOR_CUDA)
    sizes = [
        argument.value
        for launch in launches
        for argument in launch.arguments
        if not argument.tensor
    ]
    assert (sizes, captured.content.stopped) == ([2, 3, 4, 5, 6, 7], None)


def test_fake_tensors_and_the_drivers_tool_show_the_gpu(run):
    text = """import subprocess
from torch._subclasses import FakeTensorMode
with FakeTensorMode() as mode:
    fake = torch.empty(4, device="cuda")
    print(fake, mode.from_tensor(x).device, torch.nn.Linear(4, 4, device="cuda")(fake).device)
print(torch.empty(2, device="meta").device)
query = "--query-gpu=name,compute_cap,memory.total --format=csv,noheader,nounits"
print(subprocess.check_output(f"nvidia-smi {query}", shell=True, text=True), flush=True)
subprocess.run(["nvidia-smi", "-L"], check=True)"""
    assert run(text)[1].splitlines() == [
        "FakeTensor(..., device='cuda:0', size=(4,)) cuda:0 cuda:0", "meta", "NVIDIA H200, 9.0, 144384", "",
        "GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000000)",
    ]  # fmt: skip


def test_a_tensor_that_the_machines_memory_cannot_hold_is_captured(capture):
    text = """large = torch.empty(100 << 30, device="cuda")
launch(large[256:4352])
launch((large * 2).zero_()[:4096])
assert large.data_ptr() % 512 == 0
large.sum().item()  # here"""
    captured, launches, _ = capture(text)
    tensors = [launch.arguments[0].tensor for launch in launches]
    sizes = [captured.content.storages[tensor.storage].bytes for tensor in tensors]
    assert (sizes, tensors[0].offset_bytes) == ([400 << 30] * 2, 1024)
    assert captured.content.stopped.line == place(text)[1]


@pytest.mark.parametrize(
    "name", ["a:b.py", "two words.py", "two\nlines.py", os.fsdecode(b"na\xffme.py")]
)
def test_a_script_may_have_any_name(server, tmp_path, name):
    (tmp_path / name).write_text(f"{SCRIPT}launch(x)")
    for case in ("", ":case"):
        assert server(["--out", str(tmp_path / "out"), f"{tmp_path / name}{case}"])[0] == ""
        (launch,) = Capture(tmp_path / "out").content.launches
        assert launch.case == (case[1:] or None)


CASES = [
    "return copy, (4,)",
    "return copy, (4,), [x, x, n]",
    "return copy, (4,), dict(x=x, out=x, n=n, BLOCK=256), x",
    "return copy, (4,), dict(x=x, out=x, n=n, BLOCK=256), dict(other=x)",
    "return None",
    "yield launch(x)",
]


@pytest.mark.parametrize("body", CASES)
def test_a_case_that_gives_no_launch_ends_with_one_sentence(run, body):
    message, _ = run(f"def case_wrong(n=4):\n    {body}", case=":case_wrong")
    assert message.startswith(
        "case_wrong must launch a kernel, or return (kernel, grid, arguments)"
    )


def test_an_exit_with_a_text_prints_it_and_open_files_are_written(run, tmp_path):
    text = "log = open('log', 'w')\nlog.write('kept')\nlaunch(x)\nsys.exit('no data')"
    assert run(f"import os\nos.chdir({str(tmp_path)!r})\n{text}") == ("", "no data\n")
    assert (tmp_path / "log").read_text() == "kept"
    stop = Capture(tmp_path / "out").content.stopped
    assert stop.message == "script.py exited with status 1: no data"
