"""The API as a client sees it: every endpoint, and every kind of bad argument."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gradio_client import Client

from kernels import discover
from kernels.gpus import GPUS
from tests.kernels.trees import is_alive
from tests.page.conftest import App, served
from tests.waiting import until
from visualize.views.panel import to_json

ENDPOINTS = ("/schedule", "/coalescing", "/run", "/layouts", "/timeline", "/compile", "/sweep")


def test_kernels_lists_knobs_problem_gpus_and_device(client: Client) -> None:
    reply = client.predict(api_name="/kernels")
    assert [kernel["id"] for kernel in reply["kernels"]] == list(discover())
    grouped = next(kernel for kernel in reply["kernels"] if kernel["id"] == "matmul.grouped")
    assert {"name": "GROUP_SIZE", "default": 4, "range": [1, 1024]}.items() <= grouped["knobs"][3].items()
    assert [field["name"] for field in grouped["problem"]] == ["M", "N", "K", "dtype", "layout", "precision"]
    assert reply["gpus"] == list(GPUS)
    assert reply["gpu_table"]["H200"]["sms"] == 132
    assert reply["device"] is None


def test_gradios_own_schema_shows_every_field_with_its_choices_and_default(app: App) -> None:
    with urllib.request.urlopen(f"{app.url}gradio_api/info") as answer:
        named = json.load(answer)["named_endpoints"]
    for name in (f"/{endpoint}" for endpoint in ("run", "schedule", "reuse", "coalescing", "compile", "counters")):
        experiment = named[name]["parameters"][0]
        fields = experiment["type"]["properties"]
        assert fields["kernel"]["enum"] == list(discover())
        assert fields["config"]["properties"]["num_warps"]["default"] == 4
        assert fields["problem"]["properties"]["M"]["maximum"] == 16384
        assert "GROUP_SIZE: int (Rows of tiles" in experiment["python_type"]["type"]
        assert "Default: 8 (matmul.fused_add_relu, matmul.persistent); 4" in experiment["python_type"]["type"]
        assert experiment["example_input"]["kernel"] in discover()
        assert not experiment["parameter_has_default"]
    _, model, textbook = named["/coalescing"]["parameters"]
    assert (model["type"]["enum"], model["parameter_default"]) == (["compiled", "textbook"], "compiled")
    assert textbook["type"]["properties"]["warp_size"]["default"] == 32


def test_schedule_lists_all_tiles_of_the_first_8192_programs(client: Client) -> None:
    reply = client.predict({"kernel": "transpose.row_strip", "problem": {"M": 3, "N": 1025}}, api_name="/schedule")
    assert reply["tiles"] == [[[0, 0, 0], [0, 1, 0], [0, 2, 0]], [[1, 0, 0], [1, 1, 0], [1, 2, 0]]]
    assert reply["loads"] is None
    reply = client.predict({"kernel": "matmul.grid_2d", **MANY_PROGRAMS}, api_name="/schedule")
    assert (reply["programs"], len(reply["tiles"]), len(reply["loads"])) == (1 << 20, 8192, 1024)


def test_run_checks_under_the_interpreter_without_a_time(client: Client) -> None:
    reply = client.predict({"kernel": "matmul.grid_2d", "problem": {"M": 100, "N": 60, "K": 33}}, api_name="/run")
    assert (reply["backend"], reply["timing"], reply["baseline"], reply["gpu"]) == ("interpreter", None, None, "H200")
    check = reply["check"]
    assert check["passed"]
    assert 0 < check["relative_rms"] <= check["tolerance"] < 1e-3
    assert (check["mismatched"], check["nonfinite"], len(check["worst_index"])) == (0, 0, 2)
    assert (reply["l2"], reply["distribution"]) == ("warm", "normal")
    on_this = {"kernel": "matmul.split_k_race", "problem": {"M": 64, "N": 64, "K": 256}, "gpu": "this"}
    reply = client.predict(on_this, api_name="/run")
    assert (reply["backend"], reply["check"]["passed"]) == ("interpreter", True)
    assert "It passed, but it is still a race: 8 programs" in reply["note"]


def test_compile_returns_facts_and_texts_for_the_requested_gpu(client: Client) -> None:
    experiment = {"kernel": "transpose.tiled", "problem": {"M": 256, "N": 256}, "gpu": "A100-80GB"}
    reply = client.predict(experiment, api_name="/compile")
    assert (reply["gpu"], reply["shared_bytes"], reply["spilled_bytes"]) == ("A100-80GB", 32768, 0)
    assert 0 < reply["registers"] <= 255
    assert reply["occupancy"] == reply["programs_per_sm"] * 4 / 64
    assert set(reply["limited_by"]) <= set(reply["limits"])
    assert "ttg.target" in reply["ttgir"]
    assert ".target sm_80" in reply["ptx"]
    assert "LDG" in reply["sass"]
    assert reply["triton"]


def test_layouts_have_their_recorded_runs_without_a_gpu(client: Client) -> None:
    problem = {"M": 4096, "N": 4096, "K": 4096, "dtype": "float32"}
    config = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 32, "GROUP_SIZE": 8, "num_warps": 8}
    reply = client.predict({"kernel": "matmul.grouped", "problem": problem, "config": config}, api_name="/layouts")
    runs = {row["layout"]: row["run"] for row in reply["rows"]}
    assert reply["gpu"] == "H200"
    assert [name for name, run in runs.items() if run is None] == ["TN", "TT"]
    assert (runs["NN"]["backend"], runs["NT"]["experiment"]["problem"]["layout"]) == ("recorded", "NT")
    assert runs["NT"]["timing"]["median_ms"] < runs["NN"]["timing"]["median_ms"]


MANY_PROGRAMS = {"problem": {"M": 16384, "N": 16384, "K": 16}, "config": {"BLOCK_M": 16, "BLOCK_N": 16}}
TOO_LARGE = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "num_stages": 4, "num_warps": 8}


@pytest.mark.parametrize(
    ("endpoint", "kernel", "fields", "arguments", "stage", "kind"),
    [
        ("/coalescing", "matmul.grouped", {"config": TOO_LARGE}, [], "compile", "out_of_resources"),
        ("/coalescing", "matmul.grouped", {"gpu": "this"}, [], "config", "no_gpu"),
        ("/coalescing", "matmul.grouped", {}, ["guessed"], "config", "not_a_choice"),
        ("/coalescing", "matmul.grouped", {}, [3], "config", "not_a_choice"),
        ("/coalescing", "matmul.grouped", {}, ["textbook", {"warp_size": 33}], "config", "not_a_choice"),
        ("/coalescing", "matmul.grouped", {}, ["textbook", [1]], "config", "not_an_object"),
        ("/schedule", "transpose.tiled", {"gpu": "this"}, [], "config", "no_gpu"),
        ("/counters", "matmul.grouped", {"problem": {"M": 513}}, [], "config", "not_recorded"),
        ("/timeline", "matmul.grouped", {"problem": {"M": 513}}, [], "config", "not_recorded"),
        ("/timeline", "matmul.grid_2d", MANY_PROGRAMS, [], "config", "too_many_programs"),
        ("/run", "matmul.grouped", {"problem": {"M": 17}, "gpu": "T4"}, [], "config", "not_recorded"),
        ("/layouts", "transpose.flat", {}, [], "config", "not_a_choice"),
    ],
)
def test_an_endpoint_refuses_what_it_cannot_compute(
    client: Client, endpoint: str, kernel: str, fields: dict[str, Any], arguments: list[Any], stage: str, kind: str
) -> None:
    failure = client.predict({"kernel": kernel, **fields}, *arguments, api_name=endpoint)["failure"]
    assert (failure["stage"], failure["kind"]) == (stage, kind)


# A request's experiment, and the kind of the failure.
BAD = [
    (None, "not_an_object"),
    ("matmul", "not_an_object"),
    (7, "not_an_object"),
    ([1, 2], "not_an_object"),
    ({}, "unknown_kernel"),
    ({"kernel": "matmul.nothing"}, "unknown_kernel"),
    ({"kernel": ["matmul.grouped"]}, "unknown_kernel"),
    ({"kernel": "matmul.grouped", "problem": {"M": 0}}, "out_of_range"),
    ({"kernel": "matmul.grouped", "problem": {"M": "many"}}, "not_a_number"),
    ({"kernel": "matmul.grouped", "problem": {"M": None}}, "not_a_number"),
    ({"kernel": "matmul.grouped", "problem": {"M": 12.5}}, "not_a_number"),
    ({"kernel": "matmul.grouped", "problem": {"M": True}}, "not_a_number"),
    ({"kernel": "matmul.grouped", "problem": {"M": {"a": 1}}}, "not_a_number"),
    ({"kernel": "matmul.grouped", "problem": [64]}, "not_an_object"),
    ({"kernel": "matmul.grouped", "config": {"BLOCK_M": 65}}, "not_a_choice"),
    ({"kernel": "matmul.grouped", "config": {"BLOCK_X": 64}}, "unknown_field"),
    ({"kernel": "matmul.grouped", "colour": 1}, "unknown_field"),
    ({"kernel": "matmul.grouped", "gpu": "H300"}, "unknown_gpu"),
    ({"kernel": "matmul.grouped", "gpu": {"name": "H200"}}, "unknown_gpu"),
    ({"kernel": "matmul.grouped", "run": {"timer": "sundial"}}, "not_a_choice"),
]


# One wrapper refuses for all endpoints, so each experiment is sent to one of them.
@pytest.mark.parametrize(
    ("experiment", "kind", "endpoint"), [(*bad, name) for bad, name in zip(BAD, itertools.cycle(ENDPOINTS))]
)
def test_a_bad_experiment_is_a_failure_with_a_sentence(
    client: Client, experiment: Any, kind: str, endpoint: str
) -> None:
    failure = client.predict(experiment, api_name=endpoint)["failure"]
    assert (failure["stage"], failure["kind"]) == ("config", kind)
    assert failure["message"].endswith(".")
    assert "Traceback" not in failure["message"]


def test_not_a_number_becomes_null_with_a_count_beside_it() -> None:
    reply = to_json({"a": math.nan, "b": [1, math.inf, np.float32(2)], "c": {"d": np.inf}, "e": np.int64(3)})
    assert reply == {"a": None, "b": [1, None, 2.0], "c": {"d": None, "not_finite": 1}, "e": 3, "not_finite": 2}


def test_the_guard_stands_in_front_of_gradio_and_of_the_health_check(app: App) -> None:
    call, upload = f"{app.url}gradio_api/call/schedule", f"{app.url}gradio_api/upload"
    assert httpx.post(call, content=b"[" * 100_000).status_code == 413
    assert httpx.post(upload, files={"files": b"anything"}).status_code == 404
    assert httpx.get(app.url, headers={"origin": "http://evil.example"}).status_code == 403
    assert httpx.get(app.url, headers={"origin": app.url.rstrip("/")}).status_code == 200
    assert httpx.get(f"{app.url}healthz", headers={"host": "evil.example"}).status_code == 400
    reply = httpx.get(f"{app.url}healthz", timeout=20)
    assert (reply.status_code, reply.json()["status"] in ("ok", "starting")) == (200, True)


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has used."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_sigterm_ends_the_app_without_waiting_for_compiles(tmp_path: Path, tilescope_cache: Path) -> None:
    """Four compiles take a minute each, and a schedule waits for one of them, too.

    While the app ends, it ignores further signals: an interrupted thread may hold a lock that the end waits for.
    """
    with served(tmp_path, cache=tilescope_cache) as app:
        client = Client(app.url, verbose=False)
        tile = {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4}  # a minute each, on a T4
        for stages in (1, 2, 3, 4):
            slow = {"kernel": "matmul.grouped", "config": {**tile, "num_stages": stages}, "gpu": "T4"}
            client.submit(slow, api_name="/compile" if stages > 1 else "/schedule")
        workers = until(lambda: len(app.workers()) >= 2 and app.workers())  # one more is kept for quick compiles
        until(lambda: sum(map(cpu_seconds, workers)) > 1)  # they compile
        began = time.monotonic()
        app.process.terminate()
        status = Path(f"/proc/{app.process.pid}/status")
        until(lambda: int(re.findall(r"SigIgn:\s*(\w+)", status.read_text())[0], 16) >> (signal.SIGTERM - 1) & 1)
        assert app.process.wait(60) == 0
        assert time.monotonic() - began < 15, "a compile takes a minute"
        until(lambda: not any(map(is_alive, workers)))
