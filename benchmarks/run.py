"""How soon a run answers on a GPU: a 4096³ float16 matmul through the API, with new configs and with compiled ones.

python -m benchmarks.run URL (of a running page on a GPU, its workers warm)
"""

from __future__ import annotations

import sys
import time

from gradio_client import Client

CONFIG = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8}
GROUP_SIZES = (8, 8, 5, 5, 7, 7, 11, 11)


def main(url: str) -> None:
    client = Client(url, verbose=False)
    client.predict({"kernel": "transpose.tiled"}, api_name="/run")  # the workers have started
    for place, size in enumerate(GROUP_SIZES):
        experiment = {
            "kernel": "matmul.grouped",
            "problem": {"M": 4096, "N": 4096, "K": 4096},
            "config": {**CONFIG, "GROUP_SIZE": size},
        }
        start = time.perf_counter()
        reply = client.predict(experiment, api_name="/run")
        seconds = time.perf_counter() - start
        if "failure" in reply:
            raise SystemExit(reply["failure"]["message"])
        stages = ", ".join(f"{stage} {value:.3f}" for stage, value in reply["stages"].items())
        timing = reply["timing"]
        print(
            f"{'new' if place % 2 == 0 else 'compiled'} config: {seconds:.2f} s ({stages}); "
            f"{timing['median_ms']:.4f} ms, {timing['tflops']:.0f} TFLOP/s, {reply['baseline']['ratio']:.3f} × "
            f"{reply['baseline']['name']}, {100 * reply['peak']['share']:.0f} % of {reply['peak']['rate']:.0f}"
        )


if __name__ == "__main__":
    main(sys.argv[1])
