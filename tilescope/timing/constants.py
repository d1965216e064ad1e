"""GPU properties of the timing model that the table in `tilescope.declare.gpus` lacks."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Constants:
    """Measured properties of a GPU. Cycles are cycles of an SM.

    Attributes:
        launch_us: time between two events around an empty kernel.
        start_ns: time that the GPU needs to start one program.
        start_cycles: from the end of a program to the first instruction of the next in its slot.
        clock_ghz: without matrix instructions.
        matrix_clock_ghz: with matrix instructions.
        matrix_clock_activity, matrix_clock_drop_ghz: the clock falls when tensor cores and ports to the L2 draw power.
            If the sum of the fractions of time in which they are busy exceeds the first value, the clock falls by
            the second one times the excess.
        dram_share: fraction of the datasheet's bandwidth that reads achieve.
        turnaround: additional time per byte, relative to a read, if as many bytes are read as written.
        kept_bytes: written bytes that remain in the L2 when the launch ends.
        l2_tbps: rate at which the L2 serves all SMs.
        shared_requests: fraction of requests that the crossbar merges if programs run in lockstep (one per SM).
        port_bytes: bytes per cycle that an SM receives from the L2.
        l2_cycles, dram_cycles: latencies of loads.
        drift: how far SMs drift apart if DRAM is not busy: 0 if all load at the same time, 1 if at random times.
        queue_cycles: service time of a queued load.
        barrier_cycles: from the last warp's arrival until all warps continue.
        atomics_per_cycle: elements that atomics update per cycle in an L2 slice.
        matrix_issue_cycles: additional cycles per instruction issued while the tensor core uses the register file.
    """

    launch_us: float
    start_ns: float
    start_cycles: float
    clock_ghz: float
    matrix_clock_ghz: float
    matrix_clock_activity: float
    matrix_clock_drop_ghz: float
    dram_share: float
    turnaround: float
    kept_bytes: float
    l2_tbps: float
    shared_requests: float
    port_bytes: float
    l2_cycles: float
    dram_cycles: float
    drift: float
    queue_cycles: float
    barrier_cycles: float
    atomics_per_cycle: float
    matrix_issue_cycles: float


H100 = Constants(
    launch_us=3.8,
    start_ns=0.6,
    start_cycles=290,
    clock_ghz=1.98,
    matrix_clock_ghz=1.82,
    matrix_clock_activity=0.72,
    matrix_clock_drop_ghz=0.30,
    dram_share=0.94,
    turnaround=0.28,
    kept_bytes=20e6,
    l2_tbps=7.7,
    shared_requests=0.45,
    port_bytes=60,
    l2_cycles=330,
    dram_cycles=650,
    drift=0.3,
    queue_cycles=330,
    barrier_cycles=55,
    atomics_per_cycle=2.1,
    matrix_issue_cycles=2.3,
)

# The SMs and their constants are the H100's. Microbenchmarks gave the others: an empty kernel between two events, and
# the slope of the time to read 0.5 and 1 GiB (DRAM) and 4 MB 64 times (L2). The same fraction of the L2 keeps written
# bytes.
H200 = replace(H100, launch_us=3.4, dram_share=0.92, kept_bytes=24e6, l2_tbps=9.1)
