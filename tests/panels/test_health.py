"""/healthz and the log: what an app reports to its operators."""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import Future
from types import SimpleNamespace

from kernels.experiment import from_json
from kernels.measuring.session import Session
from kernels.results import Failure
from visualize.startup import JsonLines
from visualize.web.serve import Health

SMALL = {"kernel": "transpose.tiled", "problem": {"M": 64, "N": 64}}


class ScriptedSession:
    """A session whose run worker responds when a test completes the ping."""

    gpu, backend, jobs = None, "interpreter", ()
    compilers = ("a", "b", "c")
    store = SimpleNamespace(problem="")

    def __init__(self):
        self.pings = []

    def ping_runner(self):
        self.pings.append(Future())
        return self.pings[-1]


def replies(health, count=1):
    """Return the status code and the body of each of `count` concurrent requests."""

    async def collect():
        return await asyncio.gather(*(health.reply(None) for _ in range(count)))

    return [(reply.status_code, json.loads(reply.body)) for reply in asyncio.run(collect())]


def test_concurrent_requests_wait_for_one_ping_of_a_starting_worker():
    session = ScriptedSession()
    health = Health(session, patience_s=0.02)
    for count in (5, 1):
        for code, body in replies(health, count):
            assert (code, body["status"], body["run_worker"], body["compiles"]) == (200, "starting", "starting", 3)
    (ping,) = session.pings
    ping.set_result(Failure("worker", "worker_died", "It died."))
    assert replies(health)[0][1]["run_worker"] == "starting"
    assert len(session.pings) == 2


def test_an_idle_worker_that_stops_responding_is_stuck_and_a_busy_one_is_not():
    session = ScriptedSession()
    health = Health(session, patience_s=0.02)
    assert replies(health)[0][1]["run_worker"] == "starting"
    session.pings[0].set_result(4711)
    session.ping_runner = lambda: session.pings[0]
    assert replies(health)[0][1]["run_worker"] == "ready"
    session.ping_runner = Future
    ((code, body),) = replies(health)
    assert (code, body["status"], body["run_worker"]) == (503, "stuck", "silent")
    session.jobs = ("a run",)
    assert replies(health) == [(200, {**body, "status": "ok", "run_worker": "busy", "jobs": 1})]


def test_an_idle_session_is_ready_with_nothing_queued(tmp_path):
    session = Session(None, tmp_path)
    try:
        session.warm_up()
        session.ping_runner().result(60)
        ((code, body),) = replies(Health(session))
    finally:
        session.close()
    assert (code, body.pop("uptime_s") < 60) == (200, True)
    assert body == {
        **{"status": "ok", "gpu": None, "backend": "interpreter", "run_worker": "ready"},
        **{"jobs": 0, "most_jobs": 32, "compiles": 0, "store": ""},
    }


def test_each_ended_job_is_one_log_line_of_json(tmp_path, caplog):
    session = Session(None, tmp_path)
    session.runner.close()
    with caplog.at_level(logging.INFO, "tilescope"):
        job = session.submit(from_json(SMALL))
        failed = job.result(20)
    session.close()
    (record,) = [record for record in caplog.records if record.name == "tilescope.session"]
    line = json.loads(JsonLines().format(record))
    assert line["run"] == job.id
    assert (line["measurement"], line["outcome"], line["failed_in"]) == ("run", "cancelled", failed.stage)
    assert line["experiment"]["problem"]["M"] == 64
    assert (line["level"], line["logger"]) == ("info", "tilescope.session")


def test_a_traceback_is_a_field_of_its_log_line():
    try:
        raise ValueError("on\ntwo lines")
    except ValueError as error:
        exc_info = (type(error), error, error.__traceback__)
    text = JsonLines().format(logging.makeLogRecord({"name": "tilescope", "msg": "A defect.", "exc_info": exc_info}))
    assert "\n" not in text
    assert "on\ntwo lines" in json.loads(text)["traceback"]
