"""The constants of the GPUs of the table."""

import pytest

from kernels.gpus import GPUS
from kernels.timing.constants import H200
from kernels.timing.gpus import find_constants


@pytest.mark.parametrize("name", GPUS)
def test_only_constants_of_gpus_whose_launches_were_timed_are_not_assumed(name):
    constants, assumed = find_constants(GPUS[name])
    assert bool(assumed) == (name not in ("H100", "H200"))
    assert (constants is H200) == (name == "H200")
