"""The GPU table, and which row describes a device of a given name."""

import pytest

from tilescope.declare.gpus import (
    GPUS,
    find_gpu,
    occupancy,
    table_name,
    this_gpu,
    visible_gpus,
)

DEVICES = """
Tesla T4 = T4
NVIDIA A10G = A10G
NVIDIA L4 = L4
NVIDIA L40S = L40S
NVIDIA GeForce RTX 4090 = RTX4090
NVIDIA GeForce RTX 5090 = RTX5090
NVIDIA RTX PRO 6000 Blackwell Server Edition = RTXPRO6000
NVIDIA RTX PRO 6000 Blackwell Workstation Edition = RTXPRO6000
NVIDIA A100-SXM4-40GB = A100-40GB
NVIDIA A100-PCIE-40GB = A100-40GB
NVIDIA A100-SXM4-80GB = A100-80GB
NVIDIA A100 80GB PCIe = A100-80GB
NVIDIA H100 80GB HBM3 = H100
NVIDIA H200 = H200
NVIDIA H200 MIG 3g.71gb = H200
NVIDIA B200 = B200
NVIDIA GB200 = GB200
NVIDIA B300 SXM6 AC = B300
NVIDIA GB300 = GB300
NVIDIA GB10 = GB10
"""
OTHERS = """
NVIDIA GH200 480GB
NVIDIA H20
NVIDIA L40
NVIDIA A10
NVIDIA T400 4GB
NVIDIA GeForce RTX 4090 D
NVIDIA GeForce RTX 4090 Laptop GPU
NVIDIA GeForce RTX 5090 D
NVIDIA GeForce RTX 5090 Laptop GPU
NVIDIA RTX 6000 Ada Generation
"""
SPELLINGS = """
rtx-4090 = RTX4090
5090 = RTX5090
a100 80 = A100-80GB
A100_40gb = A100-40GB
h100 SXM5 = H100
RTX PRO6000 Blackwell = RTXPRO6000
l40s = L40S
"""


def pairs(table):
    return [line.split(" = ") for line in table.strip().splitlines()]


@pytest.mark.parametrize(("text", "name"), pairs(SPELLINGS))
def test_a_gpu_is_found_as_people_write_it(text, name):
    assert find_gpu(text) == name


@pytest.mark.parametrize("text", ["", "L40", "GH200", "H800", "RTX 4090 Laptop", "hopper"])
def test_another_gpu_is_not_taken_for_a_row(text):
    with pytest.raises(ValueError, match="choose from T4, A10G"):
        find_gpu(text)


@pytest.mark.parametrize(
    ("device", "name"), [*pairs(DEVICES), *((other, None) for other in OTHERS.splitlines())]
)
def test_a_device_gets_the_row_of_its_own_model_only(device, name):
    assert table_name(device) == name


@pytest.mark.parametrize("row", GPUS.values(), ids=GPUS.keys())
def test_the_figures_of_a_row_are_plausible_in_their_units(row):
    assert GPUS[row.name] is row
    assert row.name in dict(pairs(DEVICES)).values()
    assert "NVIDIA" in row.source
    assert 48 * 1024 <= row.shared_bytes_per_program <= row.shared_bytes_per_sm
    assert row.max_programs_per_sm <= row.max_warps_per_sm in (32, 48, 64)
    assert 16 <= row.sms <= 256
    assert 2**20 <= row.l2_bytes <= 2**28, "bytes"
    assert 100 <= row.dram_gbps <= 10_000, "GB/s"
    for other in GPUS.values():
        if other.compute_capability == row.compute_capability:
            assert occupancy(other, 4, 64, 10_000) == occupancy(row, 4, 64, 10_000)
            assert other.shared_bytes_per_program == row.shared_bytes_per_program
    rates = row.matrix_tflops
    assert all(10 <= rate <= 5000 for rate in rates.values()), "TFLOP/s"
    if row.compute_capability < (8, 0):
        assert set(rates) == {"float16"}
    else:
        assert (
            rates["bfloat16"] == rates["float16"] == pytest.approx(2 * rates["float32"], rel=0.02)
        )


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_devices_are_not_found(monkeypatch, request, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    request.addfinalizer(visible_gpus.cache_clear)
    visible_gpus.cache_clear()
    assert this_gpu() is None


@pytest.mark.gpu
def test_this_gpu_agrees_with_its_row(gpu):
    here = gpu.gpu
    assert here.source.startswith("read from this device")
    if (row := GPUS.get(here.name)) is None:
        return
    whole = () if "MIG" in here.source else ("sms", "l2_bytes")
    limits = (
        "shared_bytes_per_sm",
        "shared_bytes_per_program",
        "registers_per_sm",
        "max_warps_per_sm",
    )
    for field in (*whole, *limits, "max_programs_per_sm", "compute_capability", "matrix_tflops"):
        assert getattr(here, field) == getattr(row, field), field
    if whole:
        assert here.dram_gbps == pytest.approx(row.dram_gbps, rel=0.05)
