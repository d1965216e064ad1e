"""The sweeps of a session: one at a time, watched, bounded; and what /sweep takes and replies."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.results import Strategy
from tests.panels.sweeps_made_up import MANY, Session, finished, space_of
from visualize.panels import running_sweeps, sweep_endpoint
from visualize.panels.endpoint import Api
from visualize.panels.running_sweeps import RunningSweeps


def test_one_sweep_runs_at_a_time_and_the_other_is_refused_in_a_sentence(started):
    sweeps, session = RunningSweeps(), Session()
    started.go.clear()
    running = sweeps.start(session, space_of(), Strategy("grid"))
    assert sweeps.start(session, space_of(), Strategy("grid")) is running
    for other in ((space_of(MANY), Strategy("grid")), (space_of(), Strategy("random"))):
        with pytest.raises(
            ConfigError, match=r"A sweep of 8 configs of matmul\.grouped runs on this machine; one runs"
        ):
            sweeps.start(session, *other)
    for end in session.ends:  # the session is closed
        end()
    assert finished(sweeps, space_of()).ended == "cancelled"


def test_a_sweep_that_nobody_watches_ends_and_its_rows_are_kept(started, monkeypatch):
    monkeypatch.setattr(running_sweeps, "UNWATCHED_S", 0.05)
    sweeps = RunningSweeps()
    started.go.clear()
    with sweeps.watched():
        sweeps.start(Session(), space_of(), Strategy("grid"))
        threading.Event().wait(0.2)
        assert sweeps.running(space_of(), GPUS["H200"]) is not None
    assert finished(sweeps, space_of()).ended == "cancelled"


def test_rows_that_are_kept_are_bounded_and_the_oldest_sweep_goes_first(started, monkeypatch):
    monkeypatch.setattr(running_sweeps, "MOST_ROWS", 20)
    sweeps, spaces = RunningSweeps(), [space_of(M=size) for size in (512, 640, 768)]
    for space in spaces:
        sweeps.start(Session(), space, Strategy("grid"))
        finished(sweeps, space)
    assert [sweeps.found(space, GPUS["H200"]) is not None for space in spaces] == [False, True, True]


def asked(vary=None, strategy="grid", seed=0, budget=0, experiment=None):
    """The reply of /sweep, on made-up devices."""
    payload = experiment or {"kernel": "matmul.grouped", "gpu": "H200"}
    return asyncio.run(
        sweep_endpoint.answer(Api(Session()), RunningSweeps(), payload, vary, strategy, seed, budget)
    )  # fmt: skip


def test_the_endpoint_replies_with_every_config_the_best_first(started):
    found = asked({"BLOCK_M": [32, 64], "num_warps": [4, 8]})
    assert [sorted(row["config"]) for row in found["rows"]] == [["BLOCK_M", "num_warps"]] * 4
    times = [row["relative"] for row in found["rows"]]
    assert len(times) == 4
    assert found["best"]["config"]["BLOCK_M"] == found["rows"][0]["config"]["BLOCK_M"] == 64
    assert f"num_warps={found['best']['config']['num_warps']}" in found["triton_config"]
    assert (found["ended"], found["vary"]) == ("complete", {"BLOCK_M": [32, 64], "num_warps": [4, 8]})
    assert found["experiment"]["gpu"] == found["gpu"] == "H200"
    json.dumps(found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"vary": {"BLOCK_M": [16, 32, 64, 128], "GROUP_SIZE": list(range(1, 52))}},
            "204 configs are asked for; /sweep",
        ),
        ({"vary": {"BLOCK_M": 64}}, "BLOCK_M is varied over 64; give a list of values."),
        ({"vary": [1]}, "vary must be a JSON object of lists"),
        ({"vary": {"nonsense": [1]}}, "can't vary 'nonsense'"),
        ({"strategy": "best"}, "strategy is 'best'; allowed are guided, grid and random."),
        ({"budget": -1}, "budget is -1; allowed are whole numbers from 0 to 4096."),
        ({"experiment": {"kernel": "x"}}, "kernel is 'x'"),
    ],
)
def test_what_the_endpoint_can_not_take_is_a_failure_in_a_sentence(started, given, said):
    failure = asked(**given)["failure"]
    assert said in failure["message"]
    assert started.devices == [], "nothing was started"
