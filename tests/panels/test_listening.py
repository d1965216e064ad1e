"""Command-line flags and environment variables: a bad host, port or login ends the app with a sentence."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys

import pytest

from tests.kernels.trees import ROOT
from visualize import startup


@pytest.mark.parametrize("text", ["0", "65536", "-1", "", "x", "7860.0", "²", "9" * 5000])
def test_a_port_is_a_number_from_1_to_65535(text):
    port = startup.whole_number(1, 65_535)
    assert [port("1"), port("65535")] == [1, 65_535]
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a whole number from 1 to 65535") as refusal:
        port(text)
    assert len(str(refusal.value)) < 200


def test_a_login_is_a_name_and_a_password(monkeypatch):
    monkeypatch.delenv("TILESCOPE_AUTH", raising=False)
    assert startup.login() is None
    monkeypatch.setenv("TILESCOPE_AUTH", "me:se:cret")
    assert startup.login() == ("me", "se:cret")
    for wrong in ("me", ":secret", "me:"):
        monkeypatch.setenv("TILESCOPE_AUTH", wrong)
        with pytest.raises(ValueError, match="must be a name and a password with a colon between them") as refusal:
            startup.login()
        assert "secret" not in str(refusal.value)


def test_the_pages_own_addresses_bypass_the_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    startup.bypass_proxy("0.0.0.0")
    assert os.environ["NO_PROXY"] == "example.org,localhost,127.0.0.1,::1,0.0.0.0"
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"], "it overrides the other"


def test_only_a_free_port_has_no_obstacle():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.listen()
        assert startup.obstacle("127.0.0.1", port) == f"Port {port} of 127.0.0.1 is in use; choose another with --port."
    assert startup.obstacle("127.0.0.1", port) == ""


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("a" * 300, "must be an address of this machine"),
        ("192.0.2.1", "Nothing can listen on 192.0.2.1, port 7860: "),
    ],
)
def test_a_host_that_is_not_this_machine_is_an_obstacle(host, sentence):
    assert sentence in startup.obstacle(host, 7860)


@pytest.mark.parametrize(
    ("flags", "variables", "sentence"),
    [
        ([], {"GRADIO_SERVER_PORT": "many"}, "from 1 to 65535 (got 'many')"),
        (["--host", "not a host"], {}, "(got 'not a host')."),
    ],
)
def test_the_app_ends_with_the_sentence_and_no_traceback(flags, variables, sentence):
    command, environment = [sys.executable, "app.py", *flags], {**os.environ, **variables}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
