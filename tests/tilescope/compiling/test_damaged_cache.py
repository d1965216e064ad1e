"""A compile worker replaces what it can't read in Triton's cache."""

from tests.experiments import experiment_of
from tilescope.compiling.compiler import compile_experiment
from tilescope.declare.gpus import GPUS
from tilescope.measure.pool import Call, Pool
from tilescope.results import Compiled


def test_a_directory_in_place_of_a_cached_file_is_replaced(tmp_path):
    experiment = experiment_of("transpose.tiled M=256 N=256")
    pool = Pool("compile", str(tmp_path))
    try:
        call = Call("compile", compile_experiment, (experiment, GPUS["H200"]))
        first = pool.submit(call).result()
        assert isinstance(first, Compiled), first
        for suffix in (".cubin", ".json"):
            (file,) = tmp_path.rglob(f"transpose*{suffix}")
            file.unlink()
            file.mkdir()
            second = pool.submit(call).result()
            assert isinstance(second, Compiled), second
            assert first.registers == second.registers
            assert first.ptx == second.ptx
    finally:
        pool.close()
