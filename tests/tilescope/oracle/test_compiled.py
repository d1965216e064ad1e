"""Kernels compiled without a GPU: for every target, each memory operation is found in TTGIR, PTX and SASS."""

import itertools
import math
import re
from dataclasses import replace

import pytest

from tests.covering import pairs_of
from tests.experiments import experiment_of, fields
from tests.tables import read_table
from tilescope.captures import listings
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knobs
from tilescope.declare.spec import DTYPE_BYTES, DTYPE_CAPABILITY, Launch
from tilescope.evaluate import matching
from tilescope.evaluate.declared import count_accesses
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.record.compiled import keep_source_lines
from tilescope.sass.instructions import Instruction

pytestmark = pytest.mark.xdist_group("compiled")

TEXTS = ("ttgir", "ptx", "sass")
SMALL = "BLOCK_M=64 BLOCK_N=64 BLOCK_K=32"
SPLIT_K = "matmul.split_k_atomic"


def test_inlined_code_belongs_to_the_innermost_line_and_paths_are_hidden(compile_kernel):
    compiled = compile_kernel(experiment_of(f"matmul.grouped gpu=H200 {SMALL}"))
    for kind in TEXTS:
        text = getattr(compiled, kind)
        innermost = {
            location[0][0] for _, location in listings.locate_lines(text, kind) if location
        }
        assert {"grouped.py", "tile.py"} <= innermost, kind
        assert '"kernels/matmul/grouped.py"' in text, kind
        assert '"standard.py"' in text, kind
        assert not re.search(r'"/|site-packages', text), kind


def test_the_calls_of_inlined_ptx_are_read_from_a_comment_or_from_earlier_markers():
    before_3_8 = ["\t.loc\t2 5 12  // orders.py:5:12 @[ tile.py:7:3 @[ grouped.py:9:1 ] ]"]
    since_3_8 = [
        "\t.loc\t1 9 1                            // grouped.py:9:1",
        "\t.loc\t3 7 3, function_name $L__info_string0, inlined_at 1 9 1 // tile.py:7:3",
        "\t.loc\t2 5 12, function_name $L__info_string0, inlined_at 3 7 3 // orders.py:5:12",
    ]
    for markers in (before_3_8, since_3_8):
        *_, (_, location) = listings.locate_lines("\n".join([*markers, "\tret;"]), "ptx")
        assert location == (("orders.py", 5, 12), ("tile.py", 7, 3), ("grouped.py", 9, 1))


def test_all_lines_of_inline_assembly_belong_to_the_line_of_their_operation():
    marker = "\t.loc\t1 {} 3  // copy.py:{}:3\n"
    begin = f"{marker.format(12, 12)}\t// begin inline asm\n"
    end = "\tld.global.b32 %r1, [ %rd1 + 0 ];\n\t// end inline asm\n" + marker.format(20, 20)
    shifted = f"{begin}{marker.format(12, 12)}\tmov.u32 %r1, 0x0;\n{marker.format(13, 13)}{end}"
    stages = {"ptx": lambda source, metadata: shifted}
    keep_source_lines(None, stages)
    assert stages["ptx"]("", {}) == f"{begin}\tmov.u32 %r1, 0x0;\n{end}"


def access_kinds(kernel):
    """How a kernel accesses memory: all that the reader of the compiler's texts knows about it."""
    launch = Launch(kernel.family.problem(), kernel.config(), GPUS["H200"])
    return tuple(
        (access.op, access.tensor, type(access), access.over) for access in kernel.accesses(launch)
    )


# By default, each GPU is paired with each type, and each kernel and each kind of access with some GPU.
READ_FOR = [
    (kernel.id, gpu, dtype, access_kinds(kernel))
    for kernel, gpu in itertools.product(
        discover().values(), ("A100-40GB", "H200", "B200", "RTX5090")
    )
    for dtype in kernel.problem_knobs()["dtype"].choices
    if GPUS[gpu].compute_capability >= DTYPE_CAPABILITY.get(dtype, (0, 0))
]


@pytest.mark.parametrize(
    ("kernel_id", "gpu", "dtype"),
    [
        pytest.param(*case.values[:3], marks=case.marks)
        for case in pairs_of(READ_FOR, together=((0, 0), (1, 2), (3, 3)))
    ],
)
def test_what_became_of_every_access_is_read_for_any_gpu(
    compile_kernel, kernels, kernel_id, gpu, dtype
):
    """Aligned and not, in every type: a layout that covers the block, a width, the opcodes."""
    size = 512 if DTYPE_BYTES[dtype] == 4 else 500
    tile = [knob for knob in fields(SMALL).items() if knob[0] in knobs(kernels[kernel_id].config)]
    chosen = experiment_of(f"{kernel_id} gpu={gpu} M={size} N={size} dtype={dtype}", **dict(tile))
    compiled = compile_kernel(chosen)
    assert not compiled.unreadable
    assert compiled.gpu == gpu
    major, minor = GPUS[gpu].compute_capability
    assert f".target sm_{major}{minor}" in compiled.ptx
    kernel, launch = launch_of(chosen, GPUS[gpu])
    for access, made in zip(kernel.accesses(launch), compiled.operations, strict=True):
        assert made.opcodes, (access, made)
        file, line = access.source
        assert made.source == (file.rsplit("/", 1)[-1], line)
        assert (made.op == "descriptor") == (access.op == "descriptor")
        if made.layout:
            assert math.prod(made.layout.shape) == access.elements
            assert made.element_bytes == DTYPE_BYTES[dtype]
            assert made.width_bytes % made.element_bytes == 0


SWIZZLES = """
persistent | float8_e4m3fn | 32 | [32, 32, 32]
persistent | float16 | 32 | [64, 64, 64]
persistent | float32 | 64 | [128, 128, 128]
fused_add_relu | float8_e4m3fn | 32 | [32, 32, 0, 0, 0, 0]
"""


@pytest.mark.parametrize(("name", "dtype", "tile", "expected"), read_table(SWIZZLES))
def test_a_descriptors_block_is_swizzled_as_wide_as_its_rows_allow(
    compile_kernel, name, dtype, tile, expected
):
    """0 for rows of 16 bytes, which no swizzle is narrow enough for; the widest, 128, for longer ones, in two boxes."""
    text = f"matmul.{name} gpu=H200 dtype={dtype} BLOCK_M={tile} BLOCK_N={tile} BLOCK_K={tile}"
    compiled = compile_kernel(experiment_of(f"{text} num_warps=4"))
    assert [made.swizzle_bytes for made in compiled.operations] == expected


def test_a_tensor_copy_on_another_line_goes_to_the_descriptor_that_lacks_it():
    """As ptxas says for persistent matmul, TT, 48 × 80 × 96 bfloat16, in tiles of 32 × 32 × 16: a line of orders.py."""
    descriptors = [
        MemoryInstruction("descriptor", ("tile.py", line), None, 0, 0, "", 1) for line in (57, 61)
    ]
    code = [
        Instruction("", "UTMALDG.2D", (), ((file, line, 0),))
        for file, line in (("orders.py", 57), ("tile.py", 61))
    ]
    assert matching.match_instructions(code, descriptors) == [0, 1]


# Below compute capability 9.0, Triton adds bfloat16 by a branch with a compare-and-swap loop, not by inline assembly.
@pytest.mark.parametrize(
    "text",
    [
        f"{SPLIT_K} gpu=L4 M=2048 N=1 K=1000 dtype=bfloat16 BLOCK_M=128 BLOCK_N=32 BLOCK_K=64 num_warps=2",
        f"{SPLIT_K} gpu=T4 M=1 N=1 K=1 dtype=bfloat16 layout=TT BLOCK_M=64 BLOCK_N=32 BLOCK_K=32 num_warps=2",
        "matmul.split_k_race gpu=B200 M=1 N=1 K=1 BLOCK_M=64 BLOCK_N=32 BLOCK_K=64",
    ],
)
def test_an_instruction_whose_mask_the_compiler_proves_false_costs_nothing(compile_kernel, text):
    experiment = experiment_of(text)
    kernel, launch = launch_of(experiment, GPUS[experiment.gpu])
    compiled = compile_kernel(experiment)
    assert compiled.unreadable == ""
    ops = count_accesses(kernel, launch, compiled.operations)
    assert all(op.launch.requests > 0 for op in ops)
    if kernel.id == SPLIT_K:
        load, atomic = ops[-2:]
        assert atomic.compiled.instructions < 2 ** sum(map(any, atomic.compiled.layout.register))
        assert load.access.op == "load"
        assert not load.launch.is_lower_bound
        assert atomic.access.op == "atomic"
        assert atomic.launch.is_lower_bound
        elements = launch.problem.M * launch.problem.N * launch.config.SPLIT_K
        assert atomic.launch.bytes_wanted == 2 * elements, "each slice adds each element"


def test_the_instructions_of_a_compare_and_swap_loop_are_found_on_ada(compile_kernel):
    """If the atomic's addresses came from a function of another file, ptxas would name that file for this launch."""
    tile = "BLOCK_M=128 BLOCK_N=16 BLOCK_K=64 num_warps=2 SPLIT_K=16 num_stages=1"
    text = f"{SPLIT_K} gpu=L40S M=1092 N=1092 K=1023 dtype=bfloat16 layout=TT {tile}"
    *loads, atomic = compile_kernel(experiment_of(text)).operations
    assert all(load.opcodes for load in loads)
    load, swap = atomic.opcodes
    assert load in ("LDG.E", "LDG.E.STRONG.GPU"), "the second since Triton 3.8"
    assert swap == "ATOMG.E.CAS.STRONG.GPU"


# N = 1 leaves instructions out, but not those of a group of registers with an element inside.
ONE_COLUMN = f"{SPLIT_K} gpu=L4 M=2048 N=1 K=1000 dtype=bfloat16 BLOCK_M=128 BLOCK_N=32 BLOCK_K=64 num_warps=2"


@pytest.mark.parametrize(
    ("text", "kind", "old", "new", "why"),
    [
        (f"matmul.persistent {SMALL}", "ttgir", " = #ttg.nvmma", "  = #ttg.nvmma", "shared memory is unknown"),
        ("transpose.tiled num_warps=8", "ptx", "ld.global.v4.b32", "ld.global.v2.b32", "several widths"),
        ("transpose.tiled num_warps=8", "ptx", "ld.global.v4.b32", "elsewhere", r"occurs \d+ times in the PTX"),
        (ONE_COLUMN, "ptx", "atom.relaxed.gpu.global.cas.b32", "elsewhere", "occurs 1 times in the PTX; expected 64"),
    ],
)  # fmt: skip
def test_texts_that_contradict_one_another_are_unreadable(
    compile_kernel, text, kind, old, new, why
):
    experiment = experiment_of(f"gpu=H200 {text}")
    compiled = compile_kernel(experiment)
    kernel, launch = launch_of(experiment, GPUS[experiment.gpu])
    accesses = kernel.accesses(launch)
    tensors = kernel.tensors(launch)
    shapes = [tensors[access.tensor].stored for access in accesses]
    texts = {kind: getattr(compiled, kind) for kind in TEXTS}
    assert matching.read_operations(accesses, shapes, **texts) == compiled.operations
    moved = replace(accesses[0], source=(accesses[0].source[0], 1))
    with pytest.raises(listings.UnsupportedOperation, match="became 0 operations"):
        matching.read_operations((moved, *accesses[1:]), shapes, **texts)
    assert old in texts[kind]
    with pytest.raises(listings.UnsupportedOperation, match=why):
        matching.read_operations(
            accesses, shapes, **{**texts, kind: texts[kind].replace(old, new, 1)}
        )
