"""docs/api.md can't rot: its examples run on a live app, and its tables list what replies hold."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gradio_client import Client

from tests.page.conftest import App

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:7860"

# Fields that differ between two equal calls.
VOLATILE = ("seconds", "stages")


class Section(NamedTuple):
    endpoint: str
    curl: str
    python: str
    fields: set[str]


def block(text: str, language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return found


def sections() -> list[Section]:
    _, *parts = re.split(r"^## `(/\w+)`$", DOCUMENT.split("\n## MCP\n")[0], flags=re.MULTILINE)
    fields = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
    return [
        Section(name, block(text, "bash"), block(text, "python"), set(fields.findall(text)))
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def by_curl(app: App, script: str) -> dict[str, Any]:
    if not shutil.which("curl"):
        pytest.fail("curl was not found: install it, as docs/api.md shows it.")
    command = ["bash", "-euo", "pipefail", "-c", script.replace(ADDRESS, app.url.rstrip("/"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    (data,) = re.findall(r"^event: complete\ndata: (.*)$", done.stdout, re.MULTILINE)
    (reply,) = json.loads(data)
    return reply


def steady(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in VOLATILE}


def test_every_public_endpoint_has_a_section(app: App) -> None:
    with urllib.request.urlopen(f"{app.url}gradio_api/info") as answer:
        public = list(json.load(answer)["named_endpoints"])
    assert sorted(section.endpoint for section in sections()) == sorted(public)


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.endpoint)
def test_each_example_has_the_documented_reply(app: App, client: Client, section: Section) -> None:
    names: dict[str, Any] = {"client": client}
    first, *claims = ast.parse(section.python).body
    exec(compile(ast.Module([first], []), section.endpoint, "exec"), names)
    assert claims
    for claim in claims:
        says = section.python.splitlines()[claim.end_lineno - 1].rsplit("  # ", 1)[1]
        assert ast.literal_eval(says) == eval(ast.unparse(claim), names)
    reply = names["reply"]
    assert set(reply) == section.fields
    assert steady(by_curl(app, section.curl)) == steady(reply)


def test_the_introductions_experiment_and_failure_are_real_replies(client: Client) -> None:
    introduction = DOCUMENT.split("\n## `/")[0]
    assert f'Client("{ADDRESS}")' in block(introduction, "python")
    experiment, failure = re.findall(r"^```json\n(.*?)^```", introduction, re.DOTALL | re.MULTILINE)
    full = json.loads(experiment)
    assert client.predict(full, api_name="/reuse")["experiment"] == full
    full["config"]["GROUP_SIZE"] = 0
    assert client.predict(full, api_name="/reuse") == json.loads(failure)
