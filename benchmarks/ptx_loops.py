"""The loops that `benchmarks.microbenchmarks` times: bodies in PTX, and the opcodes of SASS that each must contain."""

from __future__ import annotations

from benchmarks.timed_loops import WARPS, Loop
from tilescope.evaluate.sectors import LANES, LINE_BYTES

# Loads, stores and copies per iteration of the loops below.
LOADS = 8
L2_ACCESSES = 8
COPIES = 8
CHAIN_LOADS = 8
# Distances between the accesses of an iteration.
LOAD_SPACING = 33 * LINE_BYTES
L2_SPACING = 16384
# The distance that an iteration of a timed load advances.
ADVANCE_BYTES = 512
# Instructions of one class per iteration. The slope between them excludes the loop's own instructions.
SHORT_LOOP = 20
LONG_LOOP = 60
# Instructions of loops that may exceed the instruction cache.
CODE_SIZES = (1024, 2048, 2304, 4096, 12288)
_CHAINS = 8
_PREDICATES = 6
# The globaltimer's ticks of 65 and 4 µs at which SMs start to load together.
_START_BIT = 16
_TICK_BIT = 12
_STACK_BYTES = 2048
_VECTORS = {4: "b32", 8: "v2.b32", 16: "v4.b32"}
_SUFFIXES = {4: "", 8: ".64", 16: ".128"}

_ADVANCE = "add.s64 a, a, s;"
_CONSUME = "xor.b32 sink, sink, v{};"
# A branch on a loaded value separates the load from the clock that is read next.
_AWAIT = """setp.ne.b32 q1, {value}, 0;
@q1 bra DONE;"""
_EPILOGUE = """DONE:
mov.u64 start, 0;
mov.u64 end, t5;
mov.b32 sink, v9;"""
_CLEAR = """mov.u64 t5, 0;
mov.u64 t4, 0;
mov.b32 v9, 0;"""


def _registers(first: int, width: int) -> str:
    names = ", ".join(f"v{first + word}" for word in range(width // 4))
    return f"{{{names}}}" if width > 4 else names


def hit_loads(width: int) -> Loop:
    """Load `width` bytes per lane from LOADS places that the L1 holds."""
    words = width // 4
    loads = [
        f"ld.global.{_VECTORS[width]} {_registers(number * words, width)}, "
        f"[a+{number * LOAD_SPACING}];"
        for number in range(LOADS)
    ]
    uses = [_CONSUME.format(number) for number in range(LOADS * words)]
    return Loop("\n".join([*loads, *uses, _ADVANCE]), ((f"LDG.E{_SUFFIXES[width]}", LOADS),))


def l2_loads() -> Loop:
    """Load a word per lane from L2_ACCESSES places, past the L1."""
    loads = [
        f"ld.global.cg.b32 v{number}, [a+{number * L2_SPACING}];" for number in range(L2_ACCESSES)
    ]
    uses = [_CONSUME.format(number) for number in range(L2_ACCESSES)]
    return Loop("\n".join([*loads, *uses, _ADVANCE]), (("LDG.E.STRONG.GPU", L2_ACCESSES),))


def stores() -> Loop:
    """Store a word per lane to L2_ACCESSES places."""
    lines = [f"st.global.b32 [a+{number * L2_SPACING}], n;" for number in range(L2_ACCESSES)]
    return Loop("\n".join([*lines, _ADVANCE]), (("STG.E", L2_ACCESSES),))


def chain(is_l2: bool, warps: int) -> Loop:
    """Load the address of the next load CHAIN_LOADS times, past the L1 or not."""
    modifier, suffix = (".cg", ".STRONG.GPU") if is_l2 else ("", "")
    finish = "cvt.u32.u64 sink, a;"
    opcodes = ((f"LDG.E.64{suffix}", CHAIN_LOADS),)
    body = f"ld.global{modifier}.b64 t0, [a];\nld.global{modifier}.b64 a, [t0];\n"
    return Loop(body * (CHAIN_LOADS // 2), opcodes, finish=finish, warps=warps)


def repeated_load() -> Loop:
    """Load a word, and another word of the sector at least `s` cycles later.

    `end - start` is the latency of the second load, and `sink` the cycles between both, of all iterations. The latency
    includes the comparison and the branch that await the load: 20 cycles according to the stall counts in the SASS.
    """
    body = f"""mov.u64 t0, %clock64;
ld.global.b32 v0, [a];
WAIT:
mov.u64 t1, %clock64;
sub.s64 t2, t1, t0;
setp.lt.s64 q0, t2, s;
@q0 bra WAIT;
mov.u64 t1, %clock64;
ld.global.b32 v1, [a+4];
{_AWAIT.format(value="v1")}
mov.u64 t3, %clock64;
sub.s64 t3, t3, t1;
add.s64 t5, t5, t3;
cvt.u32.u64 v2, t2;
add.u32 v9, v9, v2;
{_AWAIT.format(value="v0")}
add.s64 a, a, {ADVANCE_BYTES};"""
    return Loop(body, (("LDG.E", 2), ("CS2R", 4)), _CLEAR, _EPILOGUE, warps=1)


def simultaneous_load() -> Loop:
    """Load a word when the GPU's timer ticks, together with all programs. `end - start` sums the latencies.

    Each includes 34 cycles of other instructions, according to the stall counts in the SASS.
    """
    body = f"""WAIT:
mov.u64 t0, %globaltimer;
shr.u64 t0, t0, {_TICK_BIT};
setp.eq.u64 q0, t0, t4;
@q0 bra WAIT;
mov.u64 t4, t0;
mov.u64 t1, %clock64;
ld.global.cg.b32 v1, [a];
{_AWAIT.format(value="v1")}
mov.u64 t3, %clock64;
sub.s64 t3, t3, t1;
add.s64 t5, t5, t3;
add.s64 a, a, {ADVANCE_BYTES};"""
    setup = f"""{_CLEAR}
mov.u64 t6, %globaltimer;
shr.u64 t6, t6, {_START_BIT};
FIRST:
mov.u64 t4, %globaltimer;
shr.u64 t7, t4, {_START_BIT};
setp.eq.u64 q0, t6, t7;
@q0 bra FIRST;
shr.u64 t4, t4, {_TICK_BIT};"""
    return Loop(body, (("LDG.E.STRONG.GPU", 1), ("CS2R", 3)), setup, _EPILOGUE, warps=1)


# Instructions of each class in PTX, with the opcode that they compile to. Chain i has the registers vi and fi.
CLASSES = {
    "FFMA": "fma.rn.f32 f{i}, f{i}, f8, f9;",
    "IMAD": "mad.lo.s32 v{i}, v{i}, v8, v9;",
    "ISETP": "setp.lt.and.s32 q{predicate}, v{i}, v8, q{predicate};",
    "SEL": "selp.b32 v{i}, v{next}, v8, q{predicate};",
    "LEA": "shr.u32 v16, v{i}, 29;\nadd.s32 v{i}, v16, v{next};",
}
_SETUP = "\n".join(
    f"""add.s32 v{number}, $5, {number};
cvt.rn.f32.s32 f{number}, v{number};
setp.gt.s32 q{number % _PREDICATES}, v{number}, {number};"""
    for number in range(10)
)
_FINISH = "\n".join(
    f"""xor.b32 sink, sink, v{number};
mov.b32 v10, f{number};
xor.b32 sink, sink, v10;
@q{number % _PREDICATES} add.s32 sink, sink, 1;"""
    for number in range(_CHAINS)
)


def arithmetic(classes: tuple[str, ...], count: int) -> Loop:
    """Run `count` instructions, of each class in turn, in eight independent chains."""
    lines = []
    for number in range(count):
        name = classes[number % len(classes)]
        place = number // len(classes) % _CHAINS
        after = (place + 1) % _CHAINS
        predicate = number // len(classes) % _PREDICATES
        lines.append(CLASSES[name].format(i=place, next=after, predicate=predicate))
    # The loop itself has one comparison.
    opcodes = tuple(
        (name, -(-(count - place) // len(classes)) + (name == "ISETP"))
        for place, name in enumerate(classes)
    )
    return Loop("\n".join(lines), opcodes, _SETUP, _FINISH)


def copies(width: int, cache: str) -> Loop:
    """Copy `width` bytes per lane to shared memory COPIES times, and wait for the copies of the iteration before."""
    row = WARPS * LANES * width
    lines = [
        f"cp.async.{cache}.shared.global [v0+{number * row}], [a+{number * row}], {width};"
        for number in range(COPIES)
    ]
    setup = f"""mov.u32 v1, %tid.x;
mov.u32 v0, space;
mad.lo.u32 v0, v1, {width}, v0;"""
    body = "\n".join([*lines, "cp.async.commit_group;", "cp.async.wait_group 1;", _ADVANCE])
    space = f".shared .align 16 .b8 space[{COPIES * row}];\n"
    return Loop(body, (("LDGSTS", COPIES),), space + setup, "cp.async.wait_all;")


def local_accesses() -> Loop:
    """Store and load 16 bytes of an array in local memory of which `s` + 16 bytes are in use."""
    body = """and.b64 t1, t0, s;
add.s64 t2, t4, t1;
st.local.v4.b32 [t2], {n, n, n, n};
add.s64 t0, t0, 16;
and.b64 t1, t0, s;
add.s64 t2, t4, t1;
ld.local.v4.b32 {v0, v1, v2, v3}, [t2];
xor.b32 sink, sink, v0;
xor.b32 sink, sink, v1;
xor.b32 sink, sink, v2;
xor.b32 sink, sink, v3;"""
    setup = f""".local .align 16 .b8 space[{_STACK_BYTES}];
mov.u64 t4, space;
mov.u64 t0, 0;"""
    return Loop(body, (("STL.128", 1), ("LDL.128", 1)), setup)


def all_loops() -> dict[str, Loop]:
    """Return every loop by its name."""
    loops = {f"hit loads of {width} bytes": hit_loads(width) for width in _VECTORS}
    loops |= {"L2 loads": l2_loads(), "stores": stores()}
    loops |= {
        f"chain of {warps} warps, {'L2' if is_l2 else 'L1'}": chain(is_l2, warps)
        for is_l2, warps in ((False, 1), (True, 1), (False, 4))
    }
    loops |= {"repeated load": repeated_load(), "simultaneous load": simultaneous_load()}
    for classes in ARITHMETIC:
        for count in (SHORT_LOOP, LONG_LOOP):
            loops[f"{count} {' '.join(classes)}"] = arithmetic(classes, count)
    loops |= {f"{count} instructions": arithmetic(("FFMA",), count) for count in CODE_SIZES}
    for width, cache in COPY_KINDS:
        loops[f"copies of {width} bytes, {cache}"] = copies(width, cache)
    loops["local accesses"] = local_accesses()
    return loops


ARITHMETIC = (*((name,) for name in CLASSES), tuple(CLASSES), ("ISETP", "SEL"), ("FFMA", "ISETP"))
COPY_KINDS = ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg"))
