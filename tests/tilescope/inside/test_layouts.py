"""Layouts as Triton's bindings convert them, and layout conversions as the PTX contains them."""

import json
import re
import subprocess
import sys

import pytest

from tilescope.captures.listings import UnsupportedOperation, locate_lines
from tilescope.captures.reader import Capture
from tilescope.inside.inspect import inspect_code
from tilescope.inside.layouts import Encodings, tensor_types
from tilescope.ttgir.parser import parse_ttgir

# One worker compiles the kernels once
pytestmark = pytest.mark.xdist_group("conversions")

SCRIPT = """
import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, K, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    m, k = tl.arange(0, BLOCK), tl.arange(0, 32)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for i in range(0, K, 32):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * 64 + m[None, :])
        total = tl.dot(x, y, total, input_precision=PRECISION)
    tl.store(c + m[:, None] * 64 + m[None, :], total)


@triton.jit
def two_products(a, b, c):
    m = tl.arange(0, 64)
    place = m[:, None] * 64 + m[None, :]
    first = tl.dot(tl.load(a + place), tl.load(b + place))
    second = tl.dot(first.to(tl.float16), tl.load(b + place))
    tl.store(c + place, second)


@triton.jit
def biased(a, b, bias, c):
    m, n = tl.arange(0, 64), tl.arange(0, 128)
    total = tl.dot(tl.load(a + m[:, None] * 64 + m[None, :]), tl.load(b + m[:, None] * 128 + n[None, :]))
    total += tl.load(bias + n)[None, :]
    tl.store(c + m[:, None] * 128 + n[None, :], total.to(tl.float16))


@triton.jit
def batch(a, b, c):
    n, m = tl.arange(0, 4), tl.arange(0, 16)
    place = n[:, None, None] * 256 + m[None, :, None] * 16 + m[None, None, :]
    tl.store(c + place, tl.dot(tl.load(a + place), tl.load(b + place)))


@triton.jit
def transpose(x, c):
    m = tl.arange(0, 64)
    block = tl.load(x + m[:, None] * 64 + m[None, :])
    tl.store(c + m[:, None] * 64 + m[None, :], tl.trans(block))


@triton.jit
def rotate(x, c):
    i, j = tl.arange(0, 64), tl.arange(0, 2)
    low, high = tl.split(tl.load(x + i[:, None] * 2 + j[None, :]))
    tl.store(c + i[:, None] * 2 + j[None, :], tl.join(high, low))


@triton.jit
def row_sums(x, c):
    m = tl.arange(0, 64)
    tl.store(c + m, tl.sum(tl.load(x + m[:, None] * 64 + m[None, :]), 1))


@triton.jit
def pick(x, rows, c):
    m = tl.arange(0, 64)
    place = m[:, None] * 64 + m[None, :]
    tl.store(c + place, tl.gather(tl.load(x + place), tl.load(rows + place), 0))


@triton.jit
def sort_rows(x, c):
    m, n = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    tl.store(c + n * 64 + m, tl.sort(tl.load(x + m * 64 + n)))


@triton.jit
def sort(x, c):
    i = tl.arange(0, 256)
    tl.store(c + i, tl.sort(tl.load(x + i)))


a, b = torch.zeros(64, 256, dtype=torch.float16), torch.zeros(256, 64, dtype=torch.float16)
x, c, rows = torch.zeros(64, 64), torch.zeros(64, 64), torch.zeros(64, 64, dtype=torch.int32)
for warps, block in (1, 16), (4, 64), (8, 16):
    product[1,](a, b, c, 256, PRECISION="tf32", BLOCK=block, num_warps=warps)
product[1,](a.float(), b.float(), c, 256, PRECISION="tf32", BLOCK=64)
product[1,](a.float(), b.float(), c, 256, PRECISION="ieee", BLOCK=64)
two_products[1,](a, b, c)
biased[1,](a, b, a, b)
batch[1,](a, b, c)
row_sums[1,](x, c)
sort[1,](x, c)
"""
# Further launches, on the H200 alone: they multiply nothing.
MORE = """
transpose[1,](x, c)
rotate[1,](x, c)
pick[1,](x, rows, c)
sort_rows[1,](x, c)
"""

BINDINGS = """
import json, re, sys
from pathlib import Path
from triton._C.libtriton import gluon_ir, ir, nvidia

layouts = {}
for path in sys.argv[1:]:
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    module = ir.parse_mlir_module(path, context)
    builder = gluon_ir.GluonOpBuilder(context)

    def visit(op):
        for number in range(op.get_num_results()):
            value = op.get_result(number)
            text = str(value.get_type())
            block = re.match(r"tensor<((?:\\\\d+x)+).*#", text)
            if block and text not in layouts:
                shape = [int(size) for size in block[1][:-1].split("x")]
                encoding = builder.get_gluon_layout_from_tensor(value)._to_ir(builder)
                layout = builder.to_linear_layout(encoding, shape)
                layouts[text] = [layout.reg_bases, layout.lane_bases, layout.warp_bases]

    module.walk(visit)
print(json.dumps(layouts))
""".replace("\\\\", "\\")


@pytest.fixture(scope="module", params=("H200", "A100-80GB", "B200"))
def capture(request, capture_script):
    """Return the capture of the script for a GPU."""
    text = SCRIPT + MORE if request.param == "H200" else SCRIPT
    return Capture(capture_script(text, request.param))


def read(capture, launch):
    """Return what the code of a launch's kernel says."""
    _, codes = capture.build(launch.kernel)
    return inspect_code(codes["ttgir"], codes["ptx"], codes["sass"], launch.config["num_stages"])


def test_layouts_equal_those_of_tritons_bindings(capture, tmp_path):
    paths = []
    for number in range(len(capture.content.kernels)):
        paths.append(tmp_path / f"{number}.ttgir")
        paths[-1].write_text(capture.read_code(number, "ttgir"))
    command = [sys.executable, "-c", BINDINGS, *paths]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    layouts = json.loads(printed)
    for text, expected in layouts.items():
        (block,) = tensor_types(text)
        layout = Encodings("").convert(block.encoding, block.shape)
        sides = (layout.register, layout.lane, layout.warp)
        assert [list(map(list, bases)) for bases in sides] == expected, text
    kinds = {text.partition("<")[2].partition("#ttg.")[2].partition("<")[0] for text in layouts}
    assert kinds == {"blocked", "slice", "nvidia_mma", "dot_op", "linear"}


def test_layouts_are_those_of_the_recorded_pointers(capture):
    for number, kernel in enumerate(capture.content.kernels):
        launch = next(launch for launch in capture.content.launches if launch.kernel == number)
        layouts = read(capture, launch).layouts
        blocks = {each.layout for each in layouts if each.operand == "block"}
        assert blocks == set(filter(None, kernel.layouts))


def test_conversions_use_shared_memory_where_the_ptx_stores_to_it(capture):
    used = set()
    for launch in capture.content.launches:
        _, codes = capture.build(launch.kernel)
        stores = {
            location
            for line, location in locate_lines(codes["ptx"], "ptx")
            if re.search(r"\bst\.shared|stmatrix", line)
        }
        ops = [op for op in parse_ttgir(codes["ttgir"]).walk() if op.name == "ttg.convert_layout"]
        for op, conversion in zip(ops, read(capture, launch).conversions, strict=True):
            assert (conversion.shared_bytes > 0) == (op.location in stores)
            used.add(conversion.shared_bytes > 0)
    assert used == {False, True}


def forced(capture, name):
    """Return the bytes through shared memory, the maker and the user of each conversion of a kernel's first launch."""
    kernels = capture.content.kernels
    launch = next(each for each in capture.content.launches if kernels[each.kernel].name == name)
    start = SCRIPT[: SCRIPT.index(f"def {name}(")].count("\n") + 1
    conversions = read(capture, launch).conversions
    return [
        (
            each.shared_bytes,
            *(
                re.sub(r"\d+$", lambda line: str(int(line[0]) - start), text)
                for text in (each.maker, each.user)
            ),
        )
        for each in conversions
    ]


@pytest.mark.parametrize("capture", ["H200"], indirect=True)
def test_conversions_name_the_operations_that_force_them(capture):
    """Lines count from the kernel's first."""
    assert forced(capture, "transpose") == [(16384, "the load on line 2", "the store on line 3")]
    assert forced(capture, "rotate") == [
        (512, "the load on line 2", "the split on line 2"),
        (512, "the join on line 3", "the store on line 3"),
    ]
    (conversion,) = forced(capture, "sort_rows")
    assert conversion[1:] == ("the sort on line 2", "the store on line 2")
    assert forced(capture, "row_sums") == [(256, "the reduction on line 2", "the store on line 2")]
    assert forced(capture, "pick") == [
        (16384, "the load on line 3", "the gather on line 3"),
        (16384, "the load on line 3", "the gather on line 3"),
        (16384, "the gather on line 3", "the store on line 3"),
    ]


def test_a_conversion_between_multiplications_names_both(capture):
    """On a B200, the second multiplication reads its operand from shared memory instead."""
    first, second = "the multiplication on line 3", "the multiplication on line 4"
    expected = [] if capture.content.gpu["name"] == "B200" else [(0, first, second)]
    assert forced(capture, "two_products")[:-1] == expected


def test_a_vector_is_converted_for_the_multiplication_to_which_it_is_added(capture):
    """On a B200, the vector initializes the accumulator in tensor memory."""
    *_, vector, result = forced(capture, "biased")
    assert vector[2] in (
        "the multiplication on line 2",
        "the write to tensor memory on line 2",
    )
    assert result[0] == 16384


def test_an_unknown_layout_is_an_error():
    with pytest.raises(UnsupportedOperation, match="amd_mfma"):
        Encodings("").convert("#ttg.amd_mfma<{}>", (32, 32))
