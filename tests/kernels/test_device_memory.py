"""Tensors that exceed the device's free memory are refused before they are allocated: on a fake device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.check import InsufficientMemory, check, require_memory
from kernels.measuring.run import prepare
from kernels.measuring.worker import to_failure
from kernels.spec import Allowance

GIB = 2**30


@pytest.fixture
def device(monkeypatch):
    """GiB free of 16, reserved by torch, and of those in use → a device that has them."""

    def install(free, reserved=0, allocated=0):
        values = {"mem_get_info": (int(free * GIB), 16 * GIB), "memory_reserved": reserved * GIB}
        values["memory_allocated"] = allocated * GIB
        fake = SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})
        monkeypatch.setattr(torch, "cuda", fake)

    return install


def test_memory_that_torch_reserved_and_does_not_use_is_free(device):
    device(free=1, reserved=3, allocated=1)
    require_memory(3 * GIB, "They")
    with pytest.raises(InsufficientMemory, match=r"^They take 3\.5 GiB; the GPU has 16 GiB, 3\.0 of them free\. "):
        require_memory(7 * GIB // 2, "They")


def test_operands_count_with_the_float32_values_that_they_are_converted_from(device, monkeypatch):
    """Two operands of half a gibibyte, and the second's values in float32 before they become float16: 2 GiB."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    device(free=1.9)
    experiment = from_json({"kernel": "matmul.grouped", "problem": dict.fromkeys("MNK", 16384)})
    with pytest.raises(InsufficientMemory) as error:
        prepare(experiment, GPUS["T4"])
    failure = to_failure("launch", error.value)
    assert (failure.stage, failure.kind) == ("launch", "out_of_memory")
    assert failure.message.startswith("These tensors take 2.0 GiB; the GPU has 16 GiB, 1.9 of them free.")


class OnTheGpu(torch.Tensor):
    is_cuda = True


def test_the_check_is_refused_before_its_operands_are_widened(device):
    device(free=0)
    output = torch.zeros(4, 4, dtype=torch.float16).as_subclass(OnTheGpu)
    inputs = {name: torch.zeros(4, 4, dtype=torch.float16) for name in "ab"}
    with pytest.raises(InsufficientMemory, match=r"^The operands of the check, in a wider type, take 0\.0 GiB"):
        check(output, inputs, discover()["matmul.grouped"].family, Allowance(0, 0, 0, 0, "float32"))
