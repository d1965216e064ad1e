"""A stored sweep with times of a made-up device, so that the page shows every picture without a GPU."""

from dataclasses import replace

from tests.tilescope.search.fakes import FakeBuilder, FakeDevice, grid, predicting, swept
from tilescope.results import Failure
from tilescope.results.store import Store

VARY = {
    "BLOCK_M": [32, 64, 128, 256],
    "BLOCK_N": [32, 64, 128, 256],
    "BLOCK_K": [32, 64],
    "num_warps": [2, 4, 8],
    "num_stages": [2, 3, 4],
}
# The page's address that shows the sweep.
QUERY = "?kernel=matmul.grouped&M=4096&N=4096&K=4096&gpu=H200&tab=sweep&sweep_vary=" + "+".join(
    f"{name}%3D{','.join(map(str, values))}" for name, values in VARY.items()
)


def fill(path):
    """Sweep, and write the result to the store of that path. Some configs do not fit, and some results are wrong."""
    within = grid(VARY, M=4096, N=4096, K=4096)
    store = Store(path)
    refused = Failure(
        "compile",
        "out_of_resources",
        "This config needs 245,760 bytes of shared memory per program.",
    )
    predict = predicting(error=0.15)
    swept(
        FakeDevice(
            noise=0.02, wrong=lambda each: each.config.BLOCK_K == 64 and each.config.BLOCK_M == 32
        ),
        predict,
        within=replace(within, base=replace(within.base, gpu="H200")),
        builder=FakeBuilder(
            predict,
            lambda each: refused if each.config.BLOCK_M * each.config.num_stages > 768 else None,
        ),
        store=store,
        budget=36,
    )
    store.close()
