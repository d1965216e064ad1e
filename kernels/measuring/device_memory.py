"""Whether tensors fit in the device's memory: asked before they are allocated. Torch; in the worker."""

from __future__ import annotations

_GIB = 2**30


class DoesNotFit(Exception):
    """What is to be allocated is larger than what is free."""


def refuse_what_does_not_fit(needed_bytes: int, what: str) -> None:
    """Ask whether so many bytes are free on the current GPU.

    Args:
        what: takes them, in words.

    Raises:
        DoesNotFit: with both figures.
    """
    import torch

    free, total = torch.cuda.mem_get_info()
    # Memory that torch has reserved and does not use.
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if needed_bytes > free:
        raise DoesNotFit(
            f"{what} take {needed_bytes / _GIB:.1f} GiB; the GPU has {total / _GIB:.0f} GiB, {free / _GIB:.1f} of them "
            "free. Make the shape smaller."
        )
