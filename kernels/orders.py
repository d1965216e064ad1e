"""Which program computes which tile, and where a tile begins: jitted, called by kernels AND by models.

A formula stands here once. Kernels call these functions inside Triton; models call the same functions on
NumPy arrays (`kernels.jit.on_arrays`). Two published formulas for "grouped" order differ on one grid in
nine, so a second copy would sooner or later be a wrong one.
"""

from kernels.jit import tl, triton


def axis_0_fastest(pids, grid_x):
    """Tile (pid_m, pid_n) on a 2-D grid with pid_m on axis 0: the hardware starts programs x first.

    Not jitted: a kernel reads both indices from `tl.program_id`.
    """
    return pids % grid_x, pids // grid_x


@triton.jit
def row_major(pid, num_pid_n):
    """Tile (pid_m, pid_n) of program `pid` when programs fill C row by row."""
    return pid // num_pid_n, pid % num_pid_n


@triton.jit
def group_of(pid, num_pid_n, GROUP_SIZE):
    """Group of program `pid`: GROUP_SIZE rows of tiles, all columns."""
    return pid // (GROUP_SIZE * num_pid_n)


@triton.jit
def grouped(pid, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS=False):
    """Tile (pid_m, pid_n) when programs go down GROUP_SIZE rows before they step one column.

    The last group may have fewer rows; then it steps by those. WHOLE_GROUPS promises that none has fewer, so that the
    divisor is the constant GROUP_SIZE.
    """
    first_row = group_of(pid, num_pid_n, GROUP_SIZE) * GROUP_SIZE
    rows = GROUP_SIZE if WHOLE_GROUPS else min(num_pid_m - first_row, GROUP_SIZE)
    within = pid % (GROUP_SIZE * num_pid_n)
    return first_row + within % rows, within // rows


@triton.jit
def slice_of_k(pid_k, steps, SPLIT_K):
    """First step along K of slice `pid_k`, and the one after its last, when `steps` are split into SPLIT_K slices.

    All slices are equally long but the last ones, which may be shorter or empty.
    """
    length = tl.cdiv(steps, SPLIT_K)
    return min(pid_k * length, steps), min((pid_k + 1) * length, steps)


@triton.jit
def tile_start(index, BLOCK):
    """First element of tile `index` along an axis in pieces of BLOCK elements."""
    return index * BLOCK


@triton.jit
def tile_offsets(index, BLOCK: tl.constexpr):
    """All BLOCK elements of tile `index` along an axis, those past the end included."""
    return tile_start(index, BLOCK) + tl.arange(0, BLOCK)
