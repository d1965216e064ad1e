"""The table of opcodes, and the parser of nvdisasm's listings.

The table holds everything that depends on an opcode's name. A new opcode needs a row, and new semantics also an entry
in `decoding._DECODERS`. Pipes are those of compute capability 9.0. Sources: CUDA C++
Programming Guide 13.0, "Arithmetic Instructions"; the latencies of loads: Luo et al., "Benchmarking and Dissecting the
Nvidia Hopper GPU Architecture via Microbenchmarking" (2024).
"""

import functools
import re
from dataclasses import dataclass

from tilescope.captures.listings import Location, locate_lines, read_rows

_LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)([^;]*);")
# A label in the kernel, or a function that it calls.
_NAME = r"(\.L_\w+|\$[\w$]+)"
_LABEL = re.compile(f"{_NAME}:")
_TARGET = re.compile(rf"`\({_NAME}\)")
# Widths of accesses: bits, such as "U16" or "128"; a vector, such as "F32x4"; or matrices, such as "M88.4".
_BITS = re.compile(r"\.(?:[US](8|16)|(64|128|256))\b")
_VECTOR = re.compile(r"x(\d)\b")
_MATRICES = re.compile(r"\.MT?88\.(\d)")
# [R1+0x8]
_STACK = re.compile(r"\[R1(?:\+(-?0x[0-9a-f]+))?\]")
# For some GPUs, nvdisasm adds the barriers and the stalls of an instruction, such as "&req={0} ?trans5".
_CONTROL = re.compile(r"(^|\s)[&?]\w.*")


@dataclass(frozen=True)
class Opcode:
    """The properties of an opcode without suffixes.

    Attributes:
        pipe: that executes it; "" if its rate is unknown.
        semantics: how it is executed: see `decoding.decode` and `execution`; "" if its results are unknown.
        result: "none" if its first operand is never a result, "predicate" if a predicate result is not followed by a
            second one, "carry" if carries may follow a numeric result, "vote" if all operands but the last are results.
        widths: the rule that gives the registers of its operands: see `registers`; "" if its suffixes give the bits.
        bits: of the elements that it multiplies.
        gmem: its access to global memory: "load", "store", "async copy", "atomic", "descriptor load" or
            "descriptor store"; "" without one.
        smem: its access to shared memory: "load", "store", "copy" or "atomic".
        lmem: its access to local memory: "load" or "store".
        counter: the part of Nsight Compute's counter of its wavefronts that names it; "" if it is not counted alone.
        jump: "branch", "exit", "kill", "call", "return", "indexed" (by the words of constant bank 2) or "absolute".
        lanes: how it combines the values of a warp's lanes: "shuffle", "elect", "vote" or "match".
        effect: what it waits for, expects or changes besides registers, if `when` holds for its suffixes.
        when: the suffix that the effect needs; after "!", the suffix that it must not have.
        latency: cycles until its result can be read; 0 if the pipe determines them.
        wavefronts: on the SM's data path to shared memory; 0 if the width of the access determines them.
    """

    pipe: str = ""
    semantics: str = ""
    result: str = ""
    widths: str = ""
    bits: int = 0
    gmem: str = ""
    smem: str = ""
    lmem: str = ""
    counter: str = ""
    jump: str = ""
    lanes: str = ""
    effect: str = ""
    when: str = ""
    latency: int = 0
    wavefronts: int = 0

    @functools.cached_property
    def loads(self) -> bool:
        """Whether it loads registers from memory. Words of local memory are treated as registers."""
        is_read = (
            not {"load", "atomic"}.isdisjoint((self.gmem, self.smem)) and self.result != "none"
        )
        return is_read or self.semantics == "constant"

    @functools.cached_property
    def operation(self) -> str:
        """The kind of the operations on global memory that it may implement; "" if it implements none."""
        return "descriptor" if self.gmem.startswith("descriptor") else self.gmem

    @functools.cached_property
    def stores(self) -> bool:
        return not {"store", "copy"}.isdisjoint((self.gmem, self.smem))


# Each row: opcode, pipe ("-" if unknown), other attributes.
OPCODES = read_rows(
    """
MOV           alu        semantics=move
ISETP         alu        semantics=compare
IADD          alu        semantics=add
IADD3         alu        semantics=add result=carry
VIADD         alu        semantics=add
LEA           alu        semantics=effective-address result=carry
SHF           alu        semantics=shift widths=single
SGXT          alu        semantics=extend
LOP3          alu        semantics=logic
PLOP3         alu        semantics=predicate-logic
SEL           alu        semantics=select
FSEL          alu        semantics=select
PRMT          alu        semantics=permute
VIMNMX        alu        semantics=extreme-of-sum
IMNMX         alu        semantics=extreme-of-sum
VIADDMNMX     alu        semantics=extreme-of-sum
IABS          alu        semantics=absolute
P2R           alu        semantics=pack-predicates
R2P           alu        semantics=unpack-predicates result=predicate
I2FP          alu        semantics=to-float
VOTE          alu        lanes=vote result=vote
VOTEU         alu        lanes=vote result=vote
BMSK          alu
F2FP          alu
FMNMX         alu
FMNMX3        alu
FSET          alu
FSETP         alu
HMNMX2        alu
HSET2         alu
HSETP2        alu
LOP           alu
PSETP         alu
VHMNMX        alu

IMAD          fma-heavy  semantics=multiply result=carry widths=wide-product
IDP           fma-heavy

HFMA2         fma        semantics=halves
FADD          fma        semantics=float-addition
FFMA          fma        semantics=float-addition
FMUL          fma
FSWZADD       fma
FADD2         fma        widths=pair
FFMA2         fma        widths=pair
FMUL2         fma        widths=pair
FHADD         fma
HADD2         fma
HMUL2         fma

POPC          xu         semantics=count-bits
FLO           xu         semantics=leading-one
I2F           xu         semantics=to-float widths=conversion
F2I           xu         semantics=to-integer widths=conversion
F2F           xu         widths=conversion
MUFU          xu         semantics=reciprocal
FCHK          xu         result=predicate
BREV          xu
FRND          xu
I2I           xu
REDUX         xu
CREDUX        xu

DADD          fp64       widths=pair
DFMA          fp64       widths=pair
DMUL          fp64       widths=pair
DSETP         fp64       widths=pair
DMNMX         -          widths=pair

DMMA          tensor     widths=product bits=64
HMMA          tensor     widths=product bits=16
IMMA          tensor     widths=product bits=8
QMMA          tensor     widths=product bits=8
OMMA          -          widths=product bits=4
BGMMA         -          widths=group-product
HGMMA         tensor     widths=group-product
IGMMA         tensor     widths=group-product
QGMMA         tensor     widths=group-product
UTCHMMA       tensor     effect=async-product
UTCIMMA       tensor     effect=async-product
UTCQMMA       tensor     effect=async-product
UTCOMMA       tensor     effect=async-product
UTCBAR        control    effect=commit-products latency=64
UTCCP         control
LDTM          lsu        widths=tensor-memory
STTM          lsu        widths=tensor-memory

LDS           lsu        smem=load semantics=shared-memory latency=30 counter=ld
LDSM          lsu        smem=load semantics=shared-memory latency=30 counter=ldsm widths=matrices
STS           lsu        smem=store semantics=shared-memory latency=1 counter=st
STSM          lsu        smem=store latency=1 widths=matrices
ATOMS         lsu        smem=atomic semantics=shared-memory latency=60 wavefronts=7
LDGSTS        lsu        smem=copy gmem=async-copy counter=ldgsts
LDG           lsu        gmem=load semantics=global-load
LD            lsu        gmem=load semantics=global-load
STG           lsu        gmem=store
ST            lsu        gmem=store
ATOM          lsu        gmem=atomic
ATOMG         lsu        gmem=atomic
RED           lsu        gmem=atomic result=none
REDG          lsu        gmem=atomic result=none
LDL           lsu        lmem=load latency=36
STL           lsu        lmem=store latency=1
SHFL          lsu        lanes=shuffle wavefronts=1
UTMALDG       control    gmem=descriptor-load
UTMASTG       control    gmem=descriptor-store
UTMACMDFLUSH  control

LDC           control    semantics=constant
LDCU          control    semantics=constant
ULDC          control    semantics=constant
R2UR          control    semantics=move
S2R           control    semantics=special
S2UR          control    semantics=special
CS2R          control    semantics=clear widths=clear
ELECT         control    lanes=elect
MATCH         -          lanes=match
LEPC          control    widths=pair
USETMAXREG    uniform    semantics=success
UTCATOMSWS    control    semantics=success
UVIRTCOUNT    control
UCGABAR_WAIT  uniform    result=predicate

BRA           control    jump=branch
BRA.DIV       control    effect=expect-convergence
BRA.CONV      control    jump=branch effect=expect-convergence
EXIT          control    jump=exit
CALL          control    jump=call widths=pair
RET           control    jump=return widths=pair
BRX           control    jump=indexed widths=pair
BRXU          -          jump=indexed
JMP           -          jump=absolute
KILL          -          jump=kill
BSSY          control    effect=begin-convergence
BSYNC         control    effect=end-convergence
WARPSYNC      control    effect=converge when=ALL result=none
BREAK         control    result=none
BAR           control    effect=barrier when=!ARV result=none
SYNCS         control    effect=wait-for-barrier when=TRYWAIT semantics=success result=predicate
LDGDEPBAR     control    effect=commit
DEPBAR        control    effect=wait-for-copies when=LE
WARPGROUP     control    effect=wait-for-products when=DEPBAR
MEMBAR        control    effect=fence when=!CTA
NANOSLEEP     control    result=none
BPT           control
CCTL          control
CGAERRBAR     control
ERRBAR        control
FENCE         control
NOP           control
YIELD         control
""",
    Opcode,
)
# Cycles of a tensor core at the full rate, by the first parts of the opcode; 4 for others.
PRODUCT_CYCLES = {
    "HMMA.1688.F32.TF32": 4,
    "HMMA.1688": 2,
    "HMMA.1684": 2,
    "IMMA.16816": 2,
    "DMMA": 16,
}
_UNIFORM = re.compile(r"U(?!TC|BLK|VIRT)")

# The kinds of instructions that their names decide; the first match counts.
_KINDS = {
    "barriers": re.compile(r"U?BAR$"),
    "mbarrier operations": re.compile(r"SYNCS|UTCBAR"),
    "shuffles": re.compile(r"SHFL"),
    "tensor memory accesses": re.compile(r"LDTM|STTM|UTCCP"),
    "special functions": re.compile(r"MUFU|FCHK"),
    "type conversions": re.compile(r"[FI]2|FRND"),
    "float arithmetic": re.compile(r"[FHD](?!LO)|VHMNMX"),
}
_ARITHMETIC = ("alu", "fma", "fma heavy", "fp64", "uniform", "xu")


@functools.lru_cache(maxsize=1024)
def find_opcode(name: str) -> Opcode:
    """Return the row of an opcode. The uniform variant of an instruction has its semantics, such as UIADD3."""
    if name in OPCODES:
        return OPCODES[name]
    base = OPCODES.get(name.removeprefix("U"), Opcode())
    pipe = "uniform" if _UNIFORM.match(name) else ""
    return Opcode(pipe, base.semantics, base.result)


@dataclass(frozen=True)
class Instruction:
    """An instruction of a listing.

    Attributes:
        predicate: the register that must be true, such as "P0" or "!UP1"; "" if it is always executed.
        opcode: with its suffixes, such as "LDS.128".
        operands: as written, without `.reuse`.
        location: its source places, innermost first; () if unknown.
        target: index of the instruction that it names, as a branch does; None without a label.
        kept: indices of the operands with `.reuse`, which a later instruction can read without the register file.
    """

    predicate: str
    opcode: str
    operands: tuple[str, ...]
    location: Location
    target: int | None = None
    kept: frozenset[int] = frozenset()

    @functools.cached_property
    def name(self) -> str:
        """The opcode without its suffixes."""
        return self.opcode.partition(".")[0]

    @functools.cached_property
    def kind(self) -> str:
        """The kind of work, such as "shuffles" or "shared loads". Matrix instructions are named by their opcodes."""
        traits = self.traits
        if self.name.endswith("MMA"):
            return self.name
        for space, access in (
            ("shared", traits.smem),
            ("global", traits.gmem),
            ("local", traits.lmem),
        ):
            if access and access != "copy":
                return f"{access if ' ' in access else f'{space} {access}'}s".replace("ys", "ies")
        kinds = (kind for kind, names in _KINDS.items() if names.match(self.name))
        kind = next(kinds, "integer arithmetic")
        is_arithmetic = traits.pipe in _ARITHMETIC or not kind.endswith("arithmetic")
        return kind if is_arithmetic else "control and others"

    @functools.cached_property
    def traits(self) -> Opcode:
        return OPCODES.get(self.opcode) or find_opcode(self.name)

    @functools.cached_property
    def effect(self) -> str:
        """Return the event or state, besides registers, that the instruction waits for or changes; "" if none."""
        traits = self.traits
        when = traits.when
        if not when:
            return traits.effect
        is_met = (when.removeprefix("!") in self.opcode) != when.startswith("!")
        return traits.effect if is_met else ""

    @functools.cached_property
    def lane_bytes(self) -> int:
        """The bytes that an access moves per lane."""
        if vector := _VECTOR.search(self.opcode):
            return int(vector[1]) * (2 if "F16" in self.opcode else 4)
        if matrices := _MATRICES.search(self.opcode):
            return 4 * int(matrices[1])
        bits = _BITS.search(self.opcode)
        return int(bits[1] or bits[2]) // 8 if bits else 4

    @property
    def lane_registers(self) -> int:
        """The registers per lane that an access moves, each of up to four bytes."""
        return -(-self.lane_bytes // 4)

    @property
    def stack_offset(self) -> int | None:
        """The offset of an access to the stack; None for other accesses, as to an array that a register indexes."""
        match = _STACK.search(" ".join(self.operands)) if self.traits.lmem else None
        return int(match[1] or "0", 0) if match else None

    @property
    def source(self) -> tuple[str, int]:
        """The innermost file and line; ("", 0) if they are unknown."""
        return self.location[0][:2] if self.location else ("", 0)


def read_table(sass: str) -> list[int]:
    """Return the words of constant bank 2, which holds the targets of indirect branches."""
    tables = re.findall(r"^\.nv\.constant2\..*\n((?:0x.*\n)+)", sass, re.MULTILINE)
    return [int(word, 0) for word in " ".join(tables).split()]


@functools.lru_cache(maxsize=8)
def parse_sass(sass: str) -> tuple[Instruction, ...]:
    """Return the instructions of a listing, in order."""
    labels = dict[str, int]()
    parts = list[tuple[str, str, str, Location]]()
    for line, location in locate_lines(sass, "sass"):
        if label := _LABEL.match(line):
            labels[label[1]] = len(parts)
        elif match := _LINE.match(line):
            parts.append((match[2] or "", match[3], match[4], location))
    instructions = []
    for predicate, opcode, text, location in parts:
        text = _CONTROL.sub("", text).strip()
        label = _TARGET.search(text)
        written = [part.strip() for part in text.split(",")]
        kept = frozenset(number for number, part in enumerate(written) if ".reuse" in part)
        operands = tuple(part.replace(".reuse", "") for part in written)
        target = labels.get(label[1]) if label else None
        instructions.append(
            Instruction(predicate, opcode, operands if text else (), location, target, kept)
        )
    return tuple(instructions)
