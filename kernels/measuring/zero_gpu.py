"""A Space on ZeroGPU: what its GPU is, and how one is lent. The package `spaces` is there the hub's own."""

from __future__ import annotations

from kernels.gpus import Gpu, gpu_or_slice
from kernels.measuring.leased import Lend, serve


def its_gpu() -> Gpu:
    """What the hub lends, as it says without lending it: a GPU, or a slice of one."""
    from spaces.config import Config

    capability = Config.zerogpu_cuda_capability_major, Config.zerogpu_cuda_capability_minor
    return gpu_or_slice(Config.zerogpu_cuda_device_name, Config.zerogpu_cuda_multi_processor_count, capability)


def lend() -> Lend:
    """`serve`, on a GPU that the hub lends. Call it once, before the page is served: the hub looks for it."""
    import spaces

    lent: Lend = spaces.GPU(serve, duration=lambda path, cache_directory, seconds: seconds)
    return lent
