"""Estimate what a config costs before it is compiled: its compile, its registers and shared memory, and its time.

The model of `tilescope.timing` predicts the times, by which configs are ordered, from the steps that a warp is expected
to execute: loads in a pipeline of `num_stages`, products, and stores. Registers, instructions and shared memory follow
from the tile, and DRAM reads each input once. Omitted: bank conflicts except those of transposed operands, loads that
are too narrow for asynchronous copies, spills, and the order of programs.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilescope.declare.discovery import discover
from tilescope.declare.gpus import occupancy
from tilescope.declare.spec import (
    TYPE_BYTES,
    Access,
    AnyAccess,
    FlatAccess,
    Kernel,
    Launch,
    format_duration,
)
from tilescope.evaluate.sectors import LANES, LEAST_COPY_BYTES, LINE_BYTES, SECTOR_BYTES
from tilescope.results import Failure
from tilescope.sass.instructions import Instruction
from tilescope.timing.constants import RESULTS, find_constants
from tilescope.timing.model import QUARTERS, Execution, Traffic, time_launch
from tilescope.timing.steps import PIPES, WARP_PRODUCT_RATE, Step

MOST_REGISTERS = 255

# Seconds after which a compile is killed.
COMPILE_DEADLINE_S = 60.0

# Longest compile that may use the worker reserved for short jobs.
QUICK_COMPILE_S = 5.0

# Factor by which the estimate may be wrong, because machines differ and the model is incomplete.
_UNCERTAINTY = 2.0

# Largest part of a product's tile that changes its layout at once.
_LARGEST_PART_BYTES = 64 * 1024

# Compile time of a matrix-unit kernel whose accumulator fits in registers.
_BASE_S = 3.0

# Registers per thread besides the accumulator, and instructions per step of K besides copies and products, plus the
# same per copy: fitted to 36 compiled float16 products (Triton 3.6.0, compute capability 9.0).
_REGISTERS = 20
_COPY_REGISTERS = 3.3
_INSTRUCTIONS = 61
_COPY_INSTRUCTIONS = 10.5
# A copy by the tensor memory accelerator needs the registers of about this many others.
_TMA_COPIES = 6
# Cycles per instruction while others wait for the register file.
_ISSUE_CYCLES = 1.75
# Bytes that a lane copies with one instruction.
_COPY_BYTES = 16
# Operands that are transposed on the way to shared memory, as compiled by Triton 3.7.1: sectors that copies of 4 bytes
# move, relative to those of the block; elements of a row per wavefront of a store, by their bytes, and the most
# wavefronts; instructions per store.
_NARROW_SECTORS = 4.0
_CONFLICTING = {1: 16, 4: 8}
_MOST_CONFLICTS = 16
_STORE_INSTRUCTIONS = 2
_SHARED_BYTES_PER_CYCLE = 128
_SHARED_CYCLES = 30
_ARITHMETIC_CYCLES = 5.5
_GROUP_PRODUCT_CYCLES = 64
_WARP_PRODUCT_CYCLES = 20
# Four warps multiply 64 rows together on compute capability 9.0, and read both operands from shared memory.
_GROUP_WARPS = 4
_GROUP_ROWS = 64
# Simulated steps of each warp: about eight steps of K.
_STEPS_PER_WARP = 60


def explain_spill(kernel: Kernel, launch: Launch) -> str:
    """Explain that the config's accumulator does not fit in registers, or return "" if it fits.

    Such a config is not worth compiling: it can take minutes, and the kernel then spills to local memory.
    """
    registers = accumulator_registers(kernel, launch)
    if registers <= MOST_REGISTERS:
        return ""
    rows, columns = kernel.output_tile(launch) or (0, 0)
    return (
        f"The accumulator of a {rows} × {columns} tile takes {registers} registers per thread with num_warps "
        f"{launch.config.num_warps}; a thread has {MOST_REGISTERS}, so it would spill. "
        "Make the tile smaller or num_warps larger."
    )


def refuse_compile(kernel: Kernel, launch: Launch) -> Failure | None:
    """Return a Failure if the kernel would spill and its compile would exceed the deadline."""
    seconds = compile_seconds(kernel, launch)
    spill = explain_spill(kernel, launch)
    if not spill or seconds <= _UNCERTAINTY * COMPILE_DEADLINE_S:
        return None
    duration = f"Compiling it for {launch.gpu.name} would take about {format_duration(seconds)}"
    reason = f"{spill} {duration}; the limit is {COMPILE_DEADLINE_S:.0f} s."
    return Failure("compile", "too_slow_to_compile", reason)


def accumulator_registers(kernel: Kernel, launch: Launch) -> int:
    """Return the number of float32 accumulators per thread; 0 for a kernel without matrix products."""
    tile = kernel.output_tile(launch)
    if tile is None or not kernel.family.work(launch.problem):
        return 0
    return -(-math.prod(tile) // (LANES * launch.config.num_warps))


def compile_seconds(kernel: Kernel, launch: Launch) -> float:
    """Estimate the compile time on one core, in seconds.

    The formulas are fitted to a dozen compiles with Triton 3.7.1 on an x86 server core. With matrix units, a compile
    takes a few seconds while the accumulators fit in registers. Beyond that, doubling the accumulators takes ten times
    as long. Without matrix units, each product is a separate instruction.
    """
    sums = accumulator_registers(kernel, launch)
    if not sums:
        most = max(access.elements for access in kernel.accesses(launch))
        return 1.0 + 14.0 * (most // (LANES * launch.config.num_warps)) / 2048
    if uses_matrix_units(kernel, launch):
        return _BASE_S * max(1.0, sums / (MOST_REGISTERS + 1)) ** 3.3
    rows, _ = kernel.output_tile(launch) or (1, 1)
    depth = next((access.elements // rows for access in panel_loads(kernel, launch)), 1)
    return 1.0 + 3.1 * (sums / 128) ** 1.45 * (depth / 16) ** 0.9


def uses_matrix_units(kernel: Kernel, launch: Launch) -> bool:
    """Return whether Triton multiplies on matrix units: from compute capability 8.0 on, except for IEEE float32."""
    return (
        launch.gpu.compute_capability >= (8, 0) and kernel.family.matrix_passes(launch.problem) > 0
    )


def panel_loads(kernel: Kernel, launch: Launch) -> list[Access]:
    """Return the loads of the A and B panels in the loop over K, A first."""
    accesses = kernel.accesses(launch) if kernel.family.panels else ()
    return [access for access in accesses if isinstance(access, Access) and "k" in access.over]


def estimate_shared_bytes(kernel: Kernel, launch: Launch) -> int:
    """Estimate the shared memory of one program in bytes, usually from above.

    The panels of A and B have a buffer per stage on compute capability 9.0 and 10.0, whose matrix units read shared
    memory, one fewer elsewhere, and one before 8.0. With TMA, each tensor after the loop needs a tile; without it, one
    tile may change its layout there. Of 740 recorded compiles (Triton 3.7.1, H100 and H200), six need 1 % to 20 % more.
    """
    panels = panel_loads(kernel, launch)
    accesses = kernel.accesses(launch)
    capability = launch.gpu.compute_capability
    buffers = max(1, launch.config.num_stages - (capability not in ((9, 0), (10, 0))))
    if capability < (8, 0):  # without asynchronous copies, loads are not pipelined
        buffers = 1
    uses_tma = any(access.op == "descriptor" for access in accesses)
    blocks = [access for access in accesses if isinstance(access, Access) and access not in panels]
    tiles = {access.tensor: access.elements for access in blocks if uses_tma}
    pipelined = buffers * sum(access.elements for access in panels) + sum(tiles.values())
    size = launch.element_bytes
    largest = size * max(access.elements for access in accesses)
    # A tile of a product changes its layout in parts.
    return max(size * pipelined, min(largest, _LARGEST_PART_BYTES) if panels else largest)


def estimate_time(kernel: Kernel, launch: Launch) -> float | None:
    """Estimate the time of one launch; None if no program fits on an SM, or if the GPU's matrix rate is unknown.

    Half of the estimates of recorded matrix products are within 12 % of the measured times, but they omit spills and
    bank conflicts, which only compiled code shows. Therefore, they only order configs.
    """
    config = launch.config
    if hasattr(config, "GROUP_SIZE"):  # it has no effect here
        launch = replace(launch, config=replace(config, GROUP_SIZE=1))
    return _estimate(kernel.id, launch)


# Configs of a sweep differ in GROUP_SIZE, and a page estimates all of them again at each change.
@functools.lru_cache(maxsize=4096)
def _estimate(kernel_id: str, launch: Launch) -> float | None:
    kernel = discover()[kernel_id]
    is_known = not uses_matrix_units(kernel, launch) or launch.gpu.matrix_rate(launch.problem.dtype)
    described = expect_execution(kernel, launch) if is_known else None
    if described is None:
        return None
    constants, _ = find_constants(launch.gpu)
    warps = max(1, described.resident * described.warps // QUARTERS)
    total_us, _ = time_launch(described, constants, warps * _STEPS_PER_WARP)
    return total_us / 1e3 + kernel.reduction_ms(launch) + kernel.copies_ms(launch)


def expect_execution(kernel: Kernel, launch: Launch) -> Execution | None:
    """Return what a launch is expected to execute and to move; None if no program fits on an SM."""
    gpu = launch.gpu
    problem = launch.problem
    warps = launch.config.num_warps
    extents = kernel.extents(launch)
    shared = estimate_shared_bytes(kernel, launch)
    resident = occupancy(gpu, warps, _estimate_registers(kernel, launch), shared).programs_per_sm
    if shared > gpu.shared_bytes_per_program or not resident:
        return None
    # A program that computes tile after tile is modelled as a program per tile, or per slice of a tile.
    slices = extents.get("slice", 1)
    split = extents.get("partial", 0)
    whole = extents["m"] * extents["n"] * (1 if split else slices) - split // slices
    listing = _Listing(kernel, launch, whole + split)
    listing.add(listing.programs, "alu", 2, _ARITHMETIC_CYCLES)
    panels = panel_loads(kernel, launch)
    if panels:
        _add_products(listing, panels)
    for access in kernel.accesses(launch):
        if access not in panels:
            listing.add_access(access)
    programs = kernel.programs(launch)
    tiles = whole + split / slices
    busiest = (-(-whole // programs) + (1 / slices if split else 0)) * -(-programs // gpu.sms)
    sizes = {True: 0, False: 0}
    for spec in kernel.family.tensors(problem).values():
        sizes[spec.is_input] += spec.stored_bytes(problem)
    constants, _ = find_constants(gpu)
    written = max(0.0, sizes[False] - constants.kept_bytes)
    moved = listing.moved
    lines = {kind: size / LINE_BYTES for kind, size in moved.items()}
    return Execution(
        listing.instructions,
        listing.steps,
        listing.executed,
        Traffic(lines, moved, sizes[True], written, sizes[True], written),
        whole + split,
        warps,
        min(resident, -(-programs // gpu.sms)),
        busiest * gpu.sms / tiles,
    )


def _estimate_registers(kernel: Kernel, launch: Launch) -> int:
    panels = panel_loads(kernel, launch)
    copies = float(_TMA_COPIES)
    if panels and panels[0].op == "load":
        copied = sum(access.elements for access in panels) * launch.element_bytes
        copies = copied / (LANES * launch.config.num_warps * _COPY_BYTES)
    others = _REGISTERS + int(_COPY_REGISTERS * copies)
    return min(MOST_REGISTERS, accumulator_registers(kernel, launch) + others)


class _Listing:
    """The steps of a warp in order, and their executions by all warps."""

    def __init__(self, kernel: Kernel, launch: Launch, programs: int) -> None:
        self.kernel = kernel
        self.launch = launch
        self.warps = launch.config.num_warps
        self.extents = kernel.extents(launch)
        self.tensors = kernel.tensors(launch)
        self.programs = programs
        self.instructions: list[Instruction] = []
        self.steps: list[Step] = []
        self.executed: list[float] = []
        self.moved: dict[str, float] = {}
        self.loaded = [0]  # numbers of registers; 0 is the accumulator

    def add(
        self,
        times: float,
        pipe: str,
        busy: float = 0,
        latency: float = 0,
        effect: str = "",
        reads: tuple[int, ...] = (),
        writes: tuple[int, ...] = (),
        **fields: Any,
    ) -> None:
        """Add a step that each warp of a program executes `times` times in the launch."""
        step = Step(effect, PIPES.index(pipe), busy, latency, reads, writes, **fields)
        self.steps.append(step)
        self.executed.append(times * self.warps)
        self.instructions.append(Instruction("", "NOP", (), ()))

    def add_operands(self, times: float, wavefronts: float) -> int:
        """Add a load of operands from shared memory, and return its register."""
        register = len(self.steps)
        self.add(times, "lsu", 0, _SHARED_CYCLES, wavefronts=wavefronts, writes=(register,))
        return register

    def add_wait(self, times: float, effect: str, pending: int = 0) -> None:
        self.add(times, "control", effect=effect, pending=pending)

    def count(self, access: AnyAccess) -> int:
        """Return how often an access is executed."""
        return math.prod(self.extents[index] for index in access.over)

    def move(self, kind: str, access: AnyAccess, repeats: float = 1.0) -> float:
        """Record the bytes that an access moves. Return its bytes per execution and warp.

        Args:
            repeats: how often it moves each sector.
        """
        problem = self.launch.problem
        spec = self.tensors[access.tensor]
        element_bytes = TYPE_BYTES[spec.dtype_in(problem)]
        # Blocks extend past the edges.
        blocks = math.prod(self.extents[axis.index] for axis in access.axes)
        inside = min(access.elements * element_bytes, spec.stored_bytes(problem) / blocks)
        is_column = isinstance(access, FlatAccess) and access.transposed
        run_bytes = element_bytes * (1 if is_column else access.axes[-1].block)
        sectors = max(repeats, SECTOR_BYTES / run_bytes)
        self.moved[kind] = self.moved.get(kind, 0.0) + self.count(access) * inside * sectors
        return access.elements * element_bytes / self.warps

    def add_access(self, access: AnyAccess) -> None:
        """Add an access outside the loop over K. What it stores changes its layout through shared memory."""
        times = self.count(access)
        is_load = access.tensor != self.kernel.family.output(self.launch.problem)
        kind = access.op
        if kind == "descriptor":
            kind = "descriptor load" if is_load else "descriptor store"
        size = self.move(kind, access)
        more: dict[str, Any] = {"traffic": kind, "nominal_bytes": math.ceil(size)}
        if kind == "load":
            self.loaded.append(len(self.steps))
            self.add(times, "lsu", writes=(self.loaded[-1],), **more)
            return
        if kind == "descriptor load":
            self._add_descriptor(times, kind, 0.0)
            self.add_wait(times, "wait for barrier")
            return
        wavefronts = size / _SHARED_BYTES_PER_CYCLE
        self.add(times, "lsu", 0, 1, reads=tuple(self.loaded), wavefronts=wavefronts)
        self.add_wait(times, "barrier")
        if kind == "descriptor store":
            self._add_descriptor(times, kind, wavefronts)
            return
        register = self.add_operands(times, wavefronts)
        self.add(times, "lsu", reads=(register,), **more)

    def _add_descriptor(self, times: float, kind: str, wavefronts: float) -> None:
        """Add a copy that one warp issues for its program. All warps execute it, each for a part of the block."""
        self.add(times, "control", traffic=kind, wavefronts=wavefronts)

    def add_copy(
        self, times: float, kind: str, size: float, wavefronts: float, reads: tuple[int, ...]
    ) -> None:
        """Add a copy of `size` bytes per warp to shared memory."""
        if kind == "descriptor load":
            self._add_descriptor(times, kind, wavefronts)
            return
        nominal_bytes = math.ceil(size)
        self.add(
            times,
            "lsu",
            reads=reads,
            wavefronts=wavefronts,
            traffic=kind,
            nominal_bytes=nominal_bytes,
        )
        self.add_wait(times, "commit")


def _add_products(listing: _Listing, panels: Sequence[AnyAccess]) -> None:
    """Add the loop over K: wait for the oldest copies, multiply, and copy the blocks of a later step."""
    launch = listing.launch
    stages = launch.config.num_stages
    times = listing.count(panels[0])
    steps = times / listing.programs
    kind = "descriptor load" if panels[0].op == "descriptor" else "async copy"
    is_pipelined = launch.gpu.compute_capability >= (8, 0) and stages > 1
    plans = [_plan_copy(listing, kind, access) for access in panels]
    size, copies, wavefronts = map(sum, zip(*plans, strict=True))
    ahead = min(stages - 1, steps) if is_pipelined else 0
    for _ in range(math.floor(ahead)):
        listing.add_copy(listing.programs, kind, size, wavefronts, ())
    first = len(listing.steps)
    address = first + 1
    instructions = float(_INSTRUCTIONS)
    if kind != "descriptor load":
        instructions += _COPY_INSTRUCTIONS * copies
    cycles = _ISSUE_CYCLES * instructions
    listing.add(times, "alu", cycles, cycles, writes=(address,))
    if not is_pipelined:
        listing.add_copy(times, kind, size, wavefronts, (address,))
    wait = "wait for barrier" if kind == "descriptor load" else "wait for copies"
    listing.add_wait(times, wait, stages - 2 if is_pipelined else 0)
    for access in panels:
        if _is_across_k(launch, access):
            _add_transposition(listing, times, kind, access)
    listing.add_wait(times, "barrier")
    _add_product(listing, times, panels, is_pipelined)
    if is_pipelined:
        # In reality, the last steps copy nothing. Here, the same bytes are spread over all steps.
        listing.add_copy(times, kind, size, wavefronts, (address,))
    listing.instructions[-1] = Instruction("", "BRA", (), (), first)
    listing.add_wait(listing.programs, "wait for products")


def _is_across_k(launch: Launch, access: AnyAccess) -> bool:
    """Return whether memory holds an operand along its other axis, but matrix units read it along K.

    On compute capability 9.0, they transpose only numbers of 16 bits.
    """
    is_hopper = launch.gpu.compute_capability == (9, 0)
    return is_hopper and launch.element_bytes != 2 and access.axes[-1].index != "k"


def _find_conflicts(launch: Launch, access: AnyAccess) -> float:
    """Return the wavefronts of a store of an element per lane. Lanes side by side store to the same bank."""
    return max(
        1.0, min(_MOST_CONFLICTS, access.axes[-1].block / _CONFLICTING[launch.element_bytes])
    )


def _plan_copy(listing: _Listing, kind: str, access: AnyAccess) -> tuple[float, float, float]:
    """Return the bytes that a warp copies of an operand's block, the instructions and the wavefronts."""
    launch = listing.launch
    if kind == "descriptor load" or not _is_across_k(launch, access):
        size = listing.move(kind, access)
        return size, size / LANES / _COPY_BYTES, size / _SHARED_BYTES_PER_CYCLE
    if launch.element_bytes < LEAST_COPY_BYTES:
        return 0.0, 0.0, 0.0
    copies = listing.move(kind, access, _NARROW_SECTORS) / LANES / launch.element_bytes
    return copies * LANES * launch.element_bytes, copies, copies * _find_conflicts(launch, access)


def _add_transposition(listing: _Listing, times: float, kind: str, access: AnyAccess) -> None:
    """Add the way of an operand's block through registers, unless copies have transposed it."""
    launch = listing.launch
    loaded = len(listing.steps)
    if kind == "descriptor load":
        size = access.elements * launch.element_bytes / listing.warps
        wavefronts = size / _SHARED_BYTES_PER_CYCLE
        listing.add(times, "lsu", 0, _SHARED_CYCLES, wavefronts=wavefronts, writes=(loaded,))
    elif launch.element_bytes < LEAST_COPY_BYTES:
        size = listing.move("load", access)
        nominal_bytes = math.ceil(size)
        listing.add(times, "lsu", writes=(loaded,), traffic="load", nominal_bytes=nominal_bytes)
    else:
        return
    stores = size / launch.element_bytes / LANES
    cycles = _ISSUE_CYCLES * _STORE_INSTRUCTIONS * stores
    listing.add(times, "alu", cycles, cycles, reads=(loaded,), writes=(loaded,))
    wavefronts = stores * _find_conflicts(launch, access)
    listing.add(times, "lsu", 0, 1, reads=(loaded,), wavefronts=wavefronts)


def _add_product(
    listing: _Listing, times: float, panels: Sequence[AnyAccess], is_pipelined: bool
) -> None:
    """Add the products of one step of K."""
    kernel = listing.kernel
    launch = listing.launch
    gpu = launch.gpu
    warps = launch.config.num_warps
    rows, columns = kernel.output_tile(launch) or (1, 1)
    depth = panels[0].elements // rows
    # Of 2 warps, each is alone in its quarter of the SM.
    products = rows * columns * depth / warps
    operands = depth * launch.element_bytes / _SHARED_BYTES_PER_CYCLE / warps
    if not uses_matrix_units(kernel, launch):
        single, _ = RESULTS[gpu.compute_capability]
        # A thread multiplies about 8 × 8 elements that it has loaded.
        operand = listing.add_operands(times, products / LANES / 8)
        cycles = products / (single / QUARTERS)
        listing.add(times, "fma", cycles, _ARITHMETIC_CYCLES, reads=(operand, 0), writes=(0,))
        return
    cycles = products * kernel.family.matrix_passes(launch.problem) / _matrix_rate(launch)
    is_hopper = gpu.compute_capability == (9, 0)
    if is_hopper and warps % _GROUP_WARPS == 0 and rows >= _GROUP_ROWS:
        # Each block of 64 rows reads all columns of B. With fewer blocks than groups, groups divide the columns.
        blocks = rows // _GROUP_ROWS
        groups = max(1, warps // _GROUP_WARPS // blocks)
        wavefronts = operands * (blocks * columns + rows * groups)
        more: dict[str, Any] = {"wavefronts": wavefronts, "pending": 1}
        listing.add(times, "tensor", cycles, _GROUP_PRODUCT_CYCLES, "group product", **more)
        listing.add_wait(times, "wait for products", int(is_pipelined))
        return
    across = 2 ** (int(math.log2(warps)) // 2)
    operand = listing.add_operands(times, operands * (rows * across + columns * (warps // across)))
    cycles /= WARP_PRODUCT_RATE if is_hopper else 1.0
    latency = cycles + _WARP_PRODUCT_CYCLES
    listing.add(times, "tensor", cycles, latency, "product", reads=(operand, 0), writes=(0,))


def _matrix_rate(launch: Launch) -> float:
    """Return the products per cycle of the matrix unit in a quarter of an SM."""
    gpu = launch.gpu
    return gpu.matrix_rate(launch.problem.dtype) * 1e6 / 2 / gpu.sms / gpu.clock_mhz / QUARTERS
