"""Starting the app: flags and variables that end it with a sentence, a quick import of Gradio, /healthz and the log."""

import argparse
import asyncio
import gc
import importlib
import json
import logging
import os
import socket
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tests.experiments import experiment_of
from tests.trees import ROOT, python
from tests.waiting import PATIENCE_S
from tilescope.cli.command import CommandFailed, obstacle, whole_number
from tilescope.measure.session import Session
from tilescope.results import Failure
from visualize.commands import quick_import, read_login
from visualize.web.serve import Health, JsonLines, bypass_proxy


@pytest.mark.parametrize("text", ["0", "65536", "", "7860.0", "²", "9" * 5000])
def test_a_port_is_a_number_from_1_to_65535(text):
    port = whole_number(1, 65_535)
    assert port("1") == 1
    assert port("65535") == 65_535
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"must be a whole number from 1 to 65535"
    ) as refusal:
        port(text)
    assert len(str(refusal.value)) < 200


def test_a_login_is_a_name_and_a_password(monkeypatch):
    monkeypatch.delenv("TILESCOPE_AUTH", raising=False)
    assert read_login() is None
    monkeypatch.setenv("TILESCOPE_AUTH", "me:se:cret")
    assert read_login() == ("me", "se:cret")
    for wrong in ("me", ":secret", "me:"):
        monkeypatch.setenv("TILESCOPE_AUTH", wrong)
        with pytest.raises(
            CommandFailed, match="must be a name and a password with a colon between them"
        ) as refusal:
            read_login()
        assert "secret" not in str(refusal.value)


def test_the_pages_own_addresses_bypass_the_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    bypass_proxy("0.0.0.0")
    assert os.environ["NO_PROXY"] == "example.org,localhost,127.0.0.1,::1,0.0.0.0"
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"], "it overrides the other"


def test_only_a_free_port_of_this_machine_has_no_obstacle():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.listen()
        assert (
            obstacle("127.0.0.1", port)
            == f"Port {port} of 127.0.0.1 is in use; choose another with --port."
        )
    assert obstacle("127.0.0.1", port) == ""
    assert "must be an address of this machine" in obstacle("a" * 300, 7860)
    assert "Cannot listen on 192.0.2.1, port 7860: " in obstacle("192.0.2.1", 7860)


@pytest.mark.parametrize(
    ("flags", "port", "sentence"),
    [
        ([], "many", "from 1 to 65535 (got 'many')"),
        (["--host", "not a host"], "", "(got 'not a host')."),
    ],
)
def test_the_app_ends_with_the_sentence_and_no_traceback(monkeypatch, flags, port, sentence):
    if port:
        monkeypatch.setenv("GRADIO_SERVER_PORT", port)
    ended = python(ROOT, "app.py", *flags)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_component_gets_no_stub(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    component = "import gradio as gr\n\n\nclass Component(gr.HTML):\n    pass\n"
    (tmp_path / "component_without_stub.py").write_text(component)
    with quick_import():
        importlib.import_module("component_without_stub")
    assert not list(tmp_path.glob("*.pyi"))


def test_the_collector_never_examines_imported_objects_and_runs_again_afterwards():
    with quick_import():
        assert not gc.isenabled()
        imported = [[0]]
    assert gc.isenabled()
    later = [[0]]
    examined = {id(item) for item in gc.get_objects()}
    assert id(later) in examined
    assert id(imported) not in examined


class ScriptedPool(list):
    """A pool's calls."""

    has_ready_worker = False


class ScriptedSession:
    """A session whose run worker responds when a test completes the ping."""

    gpu = None
    backend = "interpreter"
    jobs = ()
    compilers = ("a", "b", "c")
    store = SimpleNamespace(problem="")

    def __init__(self):
        self.pings = []
        self.runner = ScriptedPool(["ping"])

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
    health = Health(session, timeout_s=0.02)
    for count in (5, 1):
        for code, body in replies(health, count):
            assert code == 200
            assert body["status"] == "starting"
            assert body["run_worker"] == "starting"
            assert body["compiles"] == 3
    (ping,) = session.pings
    ping.set_result(Failure("worker", "worker_died", "It died."))
    assert replies(health)[0][1]["run_worker"] == "starting"
    assert len(session.pings) == 2


def test_an_idle_worker_that_stops_responding_is_stuck_and_a_busy_one_is_not():
    session = ScriptedSession()
    health = Health(session, timeout_s=0.02)
    assert replies(health)[0][1]["run_worker"] == "starting"
    session.runner.has_ready_worker = True
    session.pings[0].set_result(4711)
    session.ping_runner = lambda: session.pings[0]
    assert replies(health)[0][1]["run_worker"] == "ready"
    session.ping_runner = Future
    ((code, body),) = replies(health)
    assert code == 503
    assert body["status"] == "stuck"
    assert body["run_worker"] == "silent"
    session.jobs = ("a run",)
    assert replies(health) == [(200, {**body, "status": "ok", "run_worker": "busy", "jobs": 1})]
    session.jobs = ()
    session.runner.append("a trial of a sweep")
    assert replies(health) == [(200, {**body, "status": "ok", "run_worker": "busy"})]


def test_an_idle_session_is_ready_with_nothing_queued_and_each_ended_job_is_one_log_line_of_json(
    tmp_path, caplog
):
    session = Session(None, tmp_path)
    session.warm_up()
    session.ping_runner().result(PATIENCE_S)
    ((code, body),) = replies(Health(session))
    assert code == 200
    assert body.pop("uptime_s") < 60
    jobs = {"jobs": 0, "most_jobs": 32, "compiles": 0}
    device = {"gpu": None, "backend": "interpreter", "store": ""}
    assert body == {"status": "ok", "run_worker": "ready", **jobs, **device}
    session.runner.close()
    with caplog.at_level(logging.INFO, "tilescope"):
        job = session.submit(experiment_of("transpose.tiled M=64 N=64"))
        failed = job.result(PATIENCE_S)
    session.close()
    (record,) = [record for record in caplog.records if record.name == "tilescope.session"]
    line = json.loads(JsonLines().format(record))
    expected = {
        "run": job.id,
        "measurement": "run",
        "outcome": "cancelled",
        "failed_in": failed.stage,
    }
    assert (expected | {"level": "info", "logger": "tilescope.session"}).items() <= line.items()
    assert line["experiment"]["problem"]["M"] == 64


def test_a_traceback_is_a_field_of_its_log_line():
    try:
        raise ValueError("on\ntwo lines")
    except ValueError as error:
        exc_info = (type(error), error, error.__traceback__)
    text = JsonLines().format(
        logging.makeLogRecord({"name": "tilescope", "msg": "A defect.", "exc_info": exc_info})
    )
    assert "\n" not in text
    assert "on\ntwo lines" in json.loads(text)["traceback"]


SESSION = """
from visualize.commands import quick_import
with quick_import():
    import gradio as gr
    from gradio.server_messages import ProcessCompletedMessage
    from gradio.state_holder import SessionState
    from visualize.web.serve import skip_copies_and_searches

with gr.Blocks() as blocks:
    textbox = gr.Textbox()
skip_copies_and_searches()
sessions = [SessionState(blocks), SessionState(blocks)]
sessions[0]._update_value_in_config(textbox._id, "x" * 1_000_000)
assert all(session[textbox._id] is textbox and not session.config_values for session in sessions)
output = {"data": [1], "duration": 0.5}
message = ProcessCompletedMessage(output=output, success=True).model_dump()
assert message["output"]["data"] is output["data"] and message["msg"] == "process_completed" and message["success"]
"""


def test_gradio_copies_no_components_and_keeps_no_values_of_a_client():
    """Run in another process, because the changes to Gradio persist."""
    ended = python(ROOT, "-c", SESSION)
    assert ended.returncode == 0
    assert ended.stderr == ""
