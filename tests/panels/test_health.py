"""/healthz and the log: what an app says of itself to those who look after it."""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import Future
from dataclasses import asdict
from types import SimpleNamespace

from kernels.experiment import from_json
from kernels.measuring.session import Session
from kernels.results import Failure
from visualize.startup import JsonLines
from visualize.web.health import HealthRoute

SMALL = {"kernel": "transpose.tiled", "problem": {"M": 64, "N": 64}}


class Asked:
    """A session whose run worker answers when it is told to."""

    gpu, backend, jobs = None, "interpreter", ()
    compilers = ("a", "b", "c")
    store = SimpleNamespace(problem="")

    def __init__(self):
        self.questions = []

    def ping_runner(self):
        self.questions.append(Future())
        return self.questions[-1]


def answers(route, count=1):
    """(status code, what is said) of so many requests at once."""

    async def collected():
        return await asyncio.gather(*(route.answer(None) for _ in range(count)))

    return [(one.status_code, json.loads(one.body)) for one in asyncio.run(collected())]


def test_a_worker_that_starts_is_waited_for_and_asked_once():
    asked = Asked()
    route = HealthRoute(asked, patience_s=0.02)
    assert [(code, said["run_worker"]) for code, said in answers(route, 5)] == [(200, "starting")] * 5
    answers(route)
    assert len(asked.questions) == 1
    asked.questions[0].set_result(4711)
    ((code, said),) = answers(route)
    assert (code, said["status"], said["run_worker"], said["compiles"]) == (200, "starting", "starting", 3)
    asked.questions[1].set_result(4711)


def test_an_idle_worker_that_answers_no_more_is_stuck():
    asked = Asked()
    route = HealthRoute(asked, patience_s=0.02)
    asked.ping_runner = lambda: _done(4711)
    assert answers(route)[0][1]["run_worker"] == "ready"
    asked.ping_runner = Future
    ((code, said),) = answers(route)
    assert (code, said["status"], said["run_worker"]) == (503, "stuck", "silent")
    asked.jobs = ("a run",)
    assert answers(route)[0] == (200, {**said, "status": "ok", "run_worker": "busy", "jobs": 1})


def test_a_worker_that_died_is_not_ready():
    asked, died = Asked(), Future()
    route = HealthRoute(asked)
    died.set_result(Failure("worker", "worker_died", "It died."))
    asked.ping_runner = lambda: died
    assert answers(route)[0][1]["run_worker"] == "starting"


def _done(value):
    done = Future()
    done.set_result(value)
    return done


def test_a_session_says_how_it_is(tmp_path):
    session = Session(None, tmp_path)
    try:
        session.warm_up()
        session.ping_runner().result(60)
        said = asyncio.run(HealthRoute(session).health())
    finally:
        session.close()
    assert asdict(said) | {"uptime_s": 0} == {
        "status": "ok",
        "uptime_s": 0,
        "gpu": None,
        "backend": "interpreter",
        "run_worker": "ready",
        "jobs": 0,
        "most_jobs": 32,
        "compiles": 0,
        "store": "",
    }


def test_a_job_that_has_ended_is_one_line_of_json(tmp_path, caplog):
    session = Session(None, tmp_path)
    session.runner.close()
    with caplog.at_level(logging.INFO, "tilescope"):
        job = session.submit(from_json(SMALL))
        failed = job.result(20)
    session.close()
    (record,) = [one for one in caplog.records if one.name == "tilescope.session"]
    line = json.loads(JsonLines().format(record))
    assert line["run"] == job.id
    assert (line["measurement"], line["outcome"], line["failed_in"]) == ("run", "cancelled", failed.stage)
    assert line["experiment"]["problem"]["M"] == 64
    assert (line["level"], line["logger"]) == ("info", "tilescope.session")


def test_a_traceback_is_a_field_of_its_line():
    try:
        raise ValueError("on\ntwo lines")
    except ValueError as error:
        told = (type(error), error, error.__traceback__)
    record = logging.makeLogRecord({"name": "tilescope", "msg": "A defect.", "exc_info": told})
    text = JsonLines().format(record)
    assert "\n" not in text
    assert "on\ntwo lines" in json.loads(text)["traceback"]
