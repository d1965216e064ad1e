"""The table of TTGIR operations, `TRAITS`. To support another operation, add a row."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """The properties of an operation. A field is empty where it does not apply.

    Attributes:
        kind: its noun, such as "reduction", if it needs a certain layout. An access to global memory is a "load", an
            "async copy" (a load straight to shared memory), a "store", an "atomic", a "descriptor" (a copy by the
            tensor memory accelerator, TMA), or a "tensor map" (a program makes a descriptor). Its first operand is the
            pointer or the descriptor.
        event: its kind in the pipeline of a loop.
        counter: of an access to global memory, Nsight Compute's name: "ld", "st", "atom", "tma_ld" or "tma_st".
        mask: index of the mask among the operands; None without one.
        purpose: of the buffers in shared memory that it accesses.
        blocks: names of the blocks in its type, in order.
        uncounted: what kernels call it, if the evaluator does not count it.
    """

    kind: str = ""
    event: str = ""
    counter: str = ""
    mask: int | None = None
    purpose: str = ""
    blocks: tuple[str, ...] = ()
    uncounted: str = ""


# The purposes of buffers. If operations with several purposes access a buffer, the first purpose decides.
PURPOSES = (
    "barrier", "pipelined operand", "descriptor copy", "store through shared memory", "matrix operand",
)  # fmt: skip
_BARRIER, _PIPELINED, _FROM_DESCRIPTOR, _TO_DESCRIPTOR, _MATRIX = PURPOSES

_BLOCK = ("block",)
_VALUE = ("value",)
_DOT = Traits("multiplication", "multiplication", purpose=_MATRIX, blocks=("a", "b", "c"))

TRAITS = {
    "tt.load": Traits("load", "load", "ld", 1, blocks=_BLOCK),
    "tt.store": Traits("store", "store", "st", 2, blocks=_BLOCK),
    "tt.atomic_rmw": Traits("atomic", "store", "atom", 2, blocks=_BLOCK),
    "tt.atomic_cas": Traits("atomic", "", "atom", blocks=_BLOCK),
    "tt.dot": _DOT,
    "tt.dot_scaled": _DOT,
    "tt.reduce": Traits("reduction"),
    "tt.scan": Traits("scan"),
    "tt.gather": Traits("gather"),
    "tt.histogram": Traits("histogram"),
    "tt.join": Traits("join"),
    "tt.split": Traits("split"),
    "ttg.async_copy_global_to_local": Traits("async copy", "copy", "ld", 2, _PIPELINED, _BLOCK),
    "ttg.async_commit_group": Traits(event="commit"),
    "ttg.async_wait": Traits(event="wait"),
    "ttg.convert_layout": Traits("layout conversion", blocks=("source", "destination")),
    "ttg.local_load": Traits("read of shared memory", "read", blocks=("result",)),
    "ttg.local_alloc": Traits("write to shared memory", blocks=_VALUE),
    "ttg.local_store": Traits("write to shared memory", blocks=_VALUE),
    "ttng.async_tma_copy_global_to_local": Traits(
        "descriptor", "TMA copy", "tma_ld", -1, _FROM_DESCRIPTOR
    ),
    "ttng.async_tma_gather": Traits(
        "descriptor", "TMA copy", "tma_ld", None, _FROM_DESCRIPTOR, (), "A descriptor's gather"
    ),
    "ttng.async_tma_copy_local_to_global": Traits(
        "descriptor", "store", "tma_st", None, _TO_DESCRIPTOR
    ),
    "ttng.async_tma_scatter": Traits(
        "descriptor", "", "tma_st", None, _TO_DESCRIPTOR, (), "A descriptor's scatter"
    ),
    "ttng.async_tma_reduce": Traits(
        "descriptor", "", "tma_st", None, _TO_DESCRIPTOR, (), "A descriptor's atomic"
    ),
    "ttng.tensormap_create": Traits("tensor map", counter="atom"),
    "ttng.init_barrier": Traits(purpose=_BARRIER),
    "ttng.wait_barrier": Traits(event="wait"),
    "ttng.warp_group_dot": _DOT,
    "ttng.warp_group_dot_wait": Traits(event="multiplication wait", purpose=_MATRIX),
    "ttng.tc_gen5_mma": Traits(event="multiplication", purpose=_MATRIX),
    "ttng.tc_gen5_mma_scaled": Traits(purpose=_MATRIX),
    "ttng.tmem_load": Traits("read of tensor memory"),
    "ttng.tmem_store": Traits("write to tensor memory"),
}
MEMORY_OPS = {name: traits for name, traits in TRAITS.items() if traits.counter}
# Operations with a pointer per element.
POINTER_OPS = {name for name, traits in MEMORY_OPS.items() if traits.blocks}

LOOPS = ("scf.for", "scf.while")
# Operations whose result can have any layout.
FREE = ("tt.splat", "tt.make_range", "arith.constant")
# The starts of names of operations whose results have the elements of the first operands, or point to the same tensors
# or buffers.
COPIES = (
    "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.bitcast", "tt.fp_to_fp",
    "tt.load", "ttg.convert_layout", "ttg.memdesc", "ttng.reinterpret_tensor", "ttng.warp_group_dot_wait", "arith.ext",
    "arith.trunc",
)  # fmt: skip
# The starts of names of operations that refer to a buffer, but do not access it.
MENTIONS = ("ttg.memdesc", "ttg.local_dealloc", "ttg.warp_yield", "scf.", "cf.")
