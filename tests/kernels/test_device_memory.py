"""What does not fit in the device's memory is refused before it is allocated: on a device that is made up."""

from __future__ import annotations

import pytest
import torch

from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring import check as checks
from kernels.measuring import prepared
from kernels.measuring.check import InsufficientMemory, require_memory
from kernels.measuring.worker import as_failure

GIB = 2**30
LARGE = {"kernel": "matmul.grouped", "problem": {"M": 16384, "N": 16384, "K": 16384}}


@pytest.fixture
def device(monkeypatch):
    """So many GiB free of 16, so many reserved by torch, and so many of these in use."""

    def has(free, reserved=0.0, allocated=0.0):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * GIB), 16 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(reserved * GIB))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: int(allocated * GIB))

    return has


def test_what_torch_holds_and_does_not_use_is_free(device):
    device(free=1, reserved=3, allocated=1)
    require_memory(3 * GIB, "They")
    with pytest.raises(InsufficientMemory, match=r"^They take 3\.5 GiB; the GPU has 16 GiB, 3\.0 of them free\. "):
        require_memory(7 * GIB // 2, "They")


def test_tensors_are_refused_before_they_are_made(device, monkeypatch):
    """Two of half a gibibyte, and the second's values in float32 before they are float16: 2."""
    monkeypatch.setattr(prepared, "interprets", lambda: False)
    device(free=1.9)
    experiment = from_json(LARGE, discover())
    failure = as_failure("launch")(prepared.prepare)(experiment, GPUS["T4"])
    assert (failure.stage, failure.kind) == ("launch", "out_of_memory")
    assert failure.message.startswith("These tensors take 2.0 GiB; the GPU has 16 GiB, 1.9 of them free.")


class OnTheGpu(torch.Tensor):
    is_cuda = True


def test_the_check_is_refused_before_its_operands_are_widened(device):
    device(free=0.0)
    output = torch.zeros(4, 4, dtype=torch.float16).as_subclass(OnTheGpu)
    family = discover()["matmul.grouped"].family
    inputs = {name: torch.zeros(4, 4, dtype=torch.float16) for name in ("a", "b")}
    with pytest.raises(InsufficientMemory, match=r"^The operands of the check, in a wider type, take 0\.0 GiB"):
        checks.check(output, inputs, family, checks.Allowance(0, 0, 0, 0, "float32"))
