"""The constants of the GPUs of the table."""

import pytest

from tilescope.declare.gpus import GPUS
from tilescope.timing.constants import H200, find_constants, find_rated_gpu


@pytest.mark.parametrize("name", GPUS)
def test_only_the_constants_of_the_gpu_to_which_they_were_fitted_are_not_assumed(name):
    constants, assumed = find_constants(GPUS[name])
    assert bool(assumed) == (name != "H100")
    assert (constants == H200) == (name == "H200")


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_a_gpu_is_found_by_its_name_in_the_table_and_by_the_name_that_its_driver_reports(gpu):
    for name in (gpu.name, gpu.device_name):
        known = find_rated_gpu(name, gpu.sms, gpu.compute_capability)
        assert (known.name, known.dram_gbps) == (gpu.name, gpu.dram_gbps)
