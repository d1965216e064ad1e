"""What a launch finds in memory: the values of its inputs, and an output that nothing was written to yet. Torch."""

from __future__ import annotations

from typing import Any


def values(distribution: str, shape: tuple[int, int], generator: Any, device: str) -> Any:
    """float32 values: normal (0, 1), uniform in [-1, 1), integers from -4 to 4, or zeros."""
    import torch

    empty = torch.empty(shape, dtype=torch.float32, device=device)
    if distribution == "normal":
        return empty.normal_(generator=generator)
    if distribution == "uniform":
        return empty.uniform_(-1, 1, generator=generator)
    if distribution == "integers":
        return empty.random_(-4, 5, generator=generator)
    return empty.zero_()
