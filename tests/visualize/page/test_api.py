"""The API as a client sees it: every endpoint, every kind of bad argument, and each example of docs/api.md."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import orjson
import pytest
from gradio_client import Client

from tests.trees import is_alive
from tests.visualize.page.conftest import FIRST, served
from tests.waiting import PATIENCE_S, until
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from visualize.views.panel import encode


def test_gradios_own_schema_shows_every_field_with_its_choices_and_default(app):
    named = httpx.get(f"{app.url}gradio_api/info").json()["named_endpoints"]
    for name in ("/run", "/schedule", "/reuse", "/coalescing", "/compile", "/counters"):
        experiment = named[name]["parameters"][0]
        fields = experiment["type"]["properties"]
        assert fields["kernel"]["enum"] == list(discover())
        assert fields["problem"]["properties"]["M"]["maximum"] == 16384
        assert "GROUP_SIZE: int (Rows of tiles" in experiment["python_type"]["type"]
        assert experiment["example_input"]["kernel"] == "matmul.grouped"
        assert not experiment["parameter_has_default"]
    _, model, textbook = named["/coalescing"]["parameters"]
    assert model["type"]["enum"] == ["compiled", "textbook"]
    assert model["parameter_default"] == "compiled"
    assert textbook["type"]["properties"]["warp_size"]["default"] == 32
    documented = {section.endpoint for section in sections()}
    assert documented == {name for name in named if not name.startswith("/mcp_")}, (
        "docs/api.md documents them all"
    )


def test_schedule_lists_all_tiles_of_the_first_8192_programs(client):
    reply = client.predict(
        {"kernel": "transpose.row_strip", "problem": {"M": 3, "N": 1025}}, api_name="/schedule"
    )
    assert reply["tiles"] == [[[0, 0, 0], [0, 1, 0], [0, 2, 0]], [[1, 0, 0], [1, 1, 0], [1, 2, 0]]]
    assert reply["loads"] is None
    reply = client.predict({"kernel": "matmul.grid_2d", **MANY_PROGRAMS}, api_name="/schedule")
    assert reply["programs"] == 1 << 20
    assert len(reply["tiles"]) == 8192
    assert len(reply["loads"]) == 1024


def test_a_kernel_without_a_config_gets_one_that_launches_and_the_reply_says_so(client):
    fused = {"kernel": "matmul.fused_add_relu", "gpu": "RTXPRO6000"}
    reply = client.predict(fused, api_name="/compile")
    assert reply["shared_bytes"] <= GPUS["RTXPRO6000"].shared_bytes_per_program
    assert reply["experiment"]["config"]["BLOCK_M"] == 64
    assert reply["config_note"].startswith("The default config takes 112 KiB of shared memory")
    assert "config_note" not in client.predict({**fused, "gpu": "H200"}, api_name="/schedule")
    explicit = client.predict(
        {**fused, "config": discover()[fused["kernel"]].config().__dict__}, api_name="/compile"
    )
    assert explicit["failure"]["kind"] == "out_of_resources", "a chosen config is kept"


MANY_PROGRAMS = {
    "problem": {"M": 16384, "N": 16384, "K": 16},
    "config": {"BLOCK_M": 16, "BLOCK_N": 16},
}
GROUPED = {"kernel": "matmul.grouped"}


# All endpoints share the wrapper that refuses bad arguments, so each kind is sent to only one endpoint.
@pytest.mark.parametrize(
    ("endpoint", "arguments", "kind"),
    [
        ("/coalescing", [GROUPED, "guessed"], "not_a_choice"),
        ("/schedule", [None], "not_an_object"),
        ("/run", [{**GROUPED, "problem": {"M": 17}, "gpu": "T4"}], "not_recorded"),
        ("/compile", [{**GROUPED, "problem": {"M": {"a": 1}}}], "not_a_number"),
    ],
)
def test_an_endpoint_refuses_what_it_cannot_compute_with_a_sentence(
    client, endpoint, arguments, kind
):
    failure = client.predict(*arguments, api_name=endpoint)["failure"]
    assert failure["stage"] == "config"
    assert failure["kind"] == kind
    assert failure["message"].endswith(".")


# Endpoints that refuse some kernels, or that answer only for launches that were recorded.
REFUSALS = {
    ("/layouts", "transpose"): "not_a_choice",
    **{
        (name, family): "not_recorded"
        for name in ("/timeline", "/trace")
        for family in ("matmul", "transpose")
    },
}


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(name, marks=() if name in FIRST else pytest.mark.all_combinations)
        for name in discover()
    ],
)
def test_every_endpoint_takes_its_default_arguments(app, client, kernel):
    """Except /run and /sweep, which take long and have their own tests."""
    named = httpx.get(f"{app.url}gradio_api/info").json()["named_endpoints"]
    takes_kernel = [
        name
        for name, endpoint in named.items()
        if [argument["parameter_name"] for argument in endpoint["parameters"]][:1] == ["experiment"]
    ]
    assert {"/sweep", "/script", "/trace", "/run", "/schedule", "/history"} <= set(takes_kernel)
    for name in takes_kernel:
        if name in ("/run", "/sweep") or name.startswith("/mcp_"):
            continue
        reply = client.predict({"kernel": kernel}, api_name=name)
        kind = reply.get("failure", {}).get("kind")
        assert kind == REFUSALS.get((name, kernel.split(".")[0])), (name, reply)


@pytest.mark.parametrize("how", ["cancelled", "disconnected"])
def test_a_sweep_whose_client_leaves_frees_its_slot_within_5_s(app, client, how):
    small = {"kernel": "transpose.tiled", "problem": {"M": 64, "N": 64}}, {"num_warps": [4]}
    large = {"kernel": "matmul.grouped", "problem": {"M": 256, "N": 256, "K": 256}}

    def is_busy():
        return client.predict(*small, api_name="/sweep").get("failure", {}).get("kind") == "busy"

    assert not is_busy()  # its rows are stored now, so that the next calls return immediately
    workers = set(app.workers())
    if how == "cancelled":
        leave = Client(app.url, verbose=False).submit(large, api_name="/sweep").cancel
    else:
        leave = open_call(app, "sweep", large)
    until(lambda: set(app.workers()) - workers)
    assert is_busy()
    leave()
    until(lambda: not is_busy(), 60)  # all configs would take minutes


def open_call(app, endpoint, *arguments):
    """Call an endpoint and read its replies. Return a function that disconnects."""
    events = httpx.get(f"{app.url}config").json()["dependencies"]
    event = next(event["id"] for event in events if event["api_name"] == endpoint)
    session = f"leaves {endpoint}"
    call = {"fn_index": event, "session_hash": session, "data": arguments}
    httpx.post(f"{app.url}gradio_api/queue/join", json=call).raise_for_status()
    reader = httpx.Client()
    request = reader.build_request(
        "GET", f"{app.url}gradio_api/queue/data", params={"session_hash": session}
    )
    reader.send(request, stream=True)
    return reader.close


def test_not_a_number_becomes_null_with_a_count_beside_it():
    values = {
        "a": math.nan,
        "b": [1, math.inf, np.float32(2)],
        "c": {"d": np.inf},
        "e": np.int64(3),
    }
    inner = {"d": None, "not_finite": 1}
    assert orjson.loads(encode(values)) == {
        "a": None,
        "b": [1, None, 2.0],
        "c": inner,
        "e": 3,
        "not_finite": 2,
    }


def test_the_guard_stands_in_front_of_gradio_and_of_the_health_check(app):
    call = f"{app.url}gradio_api/call/schedule"
    assert httpx.post(call, content=b"[" * 100_000).status_code == 413
    assert httpx.get(f"{app.url}healthz", headers={"host": "evil.example"}).status_code == 400
    reply = httpx.get(f"{app.url}healthz", timeout=PATIENCE_S)
    assert reply.status_code == 200
    assert reply.json()["status"] in ("ok", "starting")


def cpu_seconds(process):
    """Return the CPU time that a process has used."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_sigterm_ends_the_app_without_waiting_for_compiles(tmp_path, tilescope_cache):
    """Four compiles take a minute each, a schedule waits for one of them, and one worker is stopped.

    While the app shuts down, it ignores further signals: an interrupted thread may hold a lock that the shutdown needs.
    """
    with served(tmp_path, cache=tilescope_cache) as app:
        client = Client(app.url, verbose=False)
        # A minute each, on a T4
        tile = {
            "BLOCK_M": 256,
            "BLOCK_N": 128,
            "BLOCK_K": 64,
            "num_warps": 4,
        }
        for stages in (1, 2, 3, 4):
            slow = {
                "kernel": "matmul.grouped",
                "config": {**tile, "num_stages": stages},
                "gpu": "T4",
            }
            client.submit(slow, api_name="/compile" if stages > 1 else "/schedule")
        # One more worker is reserved for quick compiles
        workers = until(lambda: len(app.workers()) >= 2 and app.workers())
        until(lambda: sum(map(cpu_seconds, workers)) > 1)  # they compile
        os.kill(workers[0], signal.SIGSTOP)
        used_s = [cpu_seconds(workers[1])]
        app.process.terminate()
        status = Path(f"/proc/{app.process.pid}/status")
        until(
            lambda: (
                int(re.findall(r"SigIgn:\s*(\w+)", status.read_text())[0], 16)
                >> (signal.SIGTERM - 1)
                & 1
            )
        )

        def has_ended():
            with suppress(OSError):
                used_s.append(cpu_seconds(workers[1]))
            return app.process.poll() is not None

        until(has_ended)
        assert app.process.returncode == 0
        assert used_s[-1] - used_s[0] < 15, "a compile uses a minute of CPU time"
        until(lambda: not any(map(is_alive, workers)))


DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text()
ADDRESS = "http://127.0.0.1:7860"


class Section(NamedTuple):
    endpoint: str
    curl: str
    python: str
    fields: set[str]


def block(text, language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return found


def sections():
    _, *parts = re.split(r"^## `(/\w+)`$", DOCUMENT.split("\n## MCP\n")[0], flags=re.MULTILINE)
    fields = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
    return [
        Section(name, block(text, "bash"), block(text, "python"), set(fields.findall(text)))
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def by_curl(app, script):
    if not shutil.which("curl"):
        pytest.fail("curl was not found: install it, as docs/api.md shows it.")
    introduction, *_ = DOCUMENT.split("\n## `/")
    script = f"{block(introduction, 'bash')}{script}".replace(ADDRESS, app.url.rstrip("/"))
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    (data,) = re.findall(r"^event: complete\ndata: (.*)$", done.stdout, re.MULTILINE)
    (reply,) = json.loads(data)
    return reply


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.endpoint)
def test_each_example_has_the_documented_reply(app, client, section):
    names = {"client": client}
    first, *claims = ast.parse(section.python).body

    def is_final():
        """Whether the reply no longer waits for the compiler."""
        exec(compile(ast.Module([first], []), section.endpoint, "exec"), names)
        return "Call again" not in str(names["reply"])

    until(is_final)
    assert claims
    for claim in claims:
        says = section.python.splitlines()[claim.end_lineno - 1].rsplit("  # ", 1)[1]
        assert ast.literal_eval(says) == eval(ast.unparse(claim), names)
    reply = names["reply"]
    assert set(reply) == section.fields
    for volatile in ("seconds", "stages"):  # they differ between two equal calls
        reply.pop(volatile, None)
    assert by_curl(app, section.curl).items() >= reply.items()


def test_the_readmes_example_prints_what_it_says(app, capsys):
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    example = block(readme, "python")
    exec(example.replace(ADDRESS, app.url.rstrip("/")), {})
    printed = [
        line
        for line in capsys.readouterr().out.splitlines()
        if not line.startswith("Loaded as API")
    ]
    assert printed == re.findall(r"# (\w+)$", example, re.MULTILINE)
