"""The tile that each program computes, and the first element of a tile: jitted functions for kernels and models.

Each formula exists once. Kernels call these functions inside Triton; models call them on NumPy arrays
(`tilescope.declare.jit.on_arrays`). Two published formulas for "grouped" order differ on one grid in nine, so a second
copy of a formula could disagree unnoticed.
"""

from tilescope.declare.jit import tl, triton


@triton.jit
def row_major(pid, num_pid_n):
    """Return tile (pid_m, pid_n) of program `pid` if programs fill C row by row."""
    return pid // num_pid_n, pid % num_pid_n


@triton.jit
def group_of(pid, num_pid_n, GROUP_SIZE):
    """Return the group of program `pid`. A group is GROUP_SIZE rows of tiles, with all columns."""
    return pid // (GROUP_SIZE * num_pid_n)


@triton.jit
def grouped(pid, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS=False):
    """Return tile (pid_m, pid_n) if programs go down GROUP_SIZE rows before they move to the next column.

    The last group may have fewer rows. WHOLE_GROUPS promises that every group is full, so the divisor is the constant
    GROUP_SIZE.
    """
    first_row = group_of(pid, num_pid_n, GROUP_SIZE) * GROUP_SIZE
    rows = GROUP_SIZE if WHOLE_GROUPS else min(num_pid_m - first_row, GROUP_SIZE)
    within = pid % (GROUP_SIZE * num_pid_n)
    return first_row + within % rows, within // rows


@triton.jit
def slice_of_k(pid_k, steps, SPLIT_K):
    """Return the first step of slice `pid_k` and the step after its last, if `steps` are split into SPLIT_K slices.

    All slices have the same length, except that the last slices may be shorter or empty.
    """
    length = tl.cdiv(steps, SPLIT_K)
    return min(pid_k * length, steps), min((pid_k + 1) * length, steps)


@triton.jit
def tile_start(index, BLOCK):
    """Return the first element of tile `index` along an axis with BLOCK elements per tile."""
    return index * BLOCK


@triton.jit
def tile_offsets(index, BLOCK: tl.constexpr):
    """Return all BLOCK elements of tile `index` along an axis, including those past the end."""
    return tile_start(index, BLOCK) + tl.arange(0, BLOCK)
