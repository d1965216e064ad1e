"""The GitHub Action's steps run in a shell, with this checkout instead of an installed wheel."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from scripts.annotate import annotate
from tests.trees import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
INSTALL, BASE, CHANGE, COMPARE = STEPS
SCRIPT = """
import torch, triton
import triton.language as tl

@triton.jit
def copy(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i * STEP))

x = torch.zeros(8192, device="cuda")
copy[(2,)](x, torch.empty(1024, device="cuda"), BLOCK=512)
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory, compiled_before):
    """Return a function that runs a step of the action in a repository whose last commit makes a kernel worse."""
    folder = tmp_path_factory.mktemp("action")
    tools = folder / "tools"
    tools.mkdir()
    for name, text in {
        "pip": "exit 9",
        "python": f'{sys.executable} "$@"',
        "tilescope": f'{sys.executable} {ROOT}/app.py "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    environment = {
        **os.environ,
        **{
            f"GIT_{who}_{what}": "x@y.z"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(folder),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_ACTION_PATH": str(ROOT),
        "TRITON_CACHE_DIR": str(compiled_before),
    }
    repository = folder / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    (repository / "speed").mkdir()
    (repository / "bench.py").write_text("import speed.bench\n")
    for step in (1, 2):
        (repository / "speed" / "bench.py").write_text(SCRIPT.replace("STEP", str(step)))
        for command in ("add .", f"commit -qm {step}"):
            subprocess.run(["git", *command.split()], cwd=repository, env=environment, check=True)

    def run(step, **inputs):
        declared = {name: each.get("default", "") for name, each in ACTION["inputs"].items()}
        values = {**declared, "command": "bench.py", "base": "HEAD~1", **inputs}
        own = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: values[match[1]], text)
            for name, text in step["env"].items()
        }
        (folder / "step.sh").write_text(step["run"])
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(folder / "step.sh")]
        done = subprocess.run(
            shell, cwd=repository, env={**environment, **own}, capture_output=True, text=True
        )
        return done, folder / "summary.md"

    return run


def test_a_change_that_makes_a_load_worse_fails_the_job_and_is_in_its_summary(runner):
    assert runner(INSTALL, package="tilescope")[0].returncode == 9
    for step in (BASE, CHANGE):
        done, summary = runner(step, prepare="test -f bench.py")
        assert done.returncode == 0, done.stderr
        assert worktrees(runner) == 1
    done, _ = runner(COMPARE, fail="false")
    assert done.returncode == 0, done.stderr
    first, *others = [line for line in done.stdout.splitlines() if line.startswith("::")]
    place = "::warning file=speed/bench.py,line=8::"
    assert first == f"{place}bench.py:8 in copy, load x: sectors rose from 128 to 1,024."
    assert any(line.startswith(f"{place}The requests touch") for line in others)
    lines = summary.read_text().splitlines()
    assert lines[0] == "## Tilescope: `bench.py`"
    # A lane's four elements are no longer adjacent.
    assert "| bench.py:8 in copy, load x | sectors | 128 | 1,024 | +700.0% |" in lines
    assert runner(COMPARE)[0].returncode == 1


def worktrees(runner):
    done, _ = runner({"run": "git worktree list", "env": {}})
    return len(done.stdout.splitlines())


@pytest.mark.parametrize("prepare", ["false", "kill $$", "exit 3"])
def test_the_bases_checkout_is_removed_whatever_fails(runner, prepare):
    done, summary = runner(BASE, prepare=prepare)
    assert done.returncode != 0
    assert worktrees(runner) == 1
    assert list(summary.parent.glob("base.*")) == []


def test_names_in_a_report_end_no_workflow_command():
    text = "100 %\n::error::x"
    finding = {"file": "a,b:c.py", "line": 3, "text": text, "change": "", "needs": "If y."}
    launch = {"source": "a,b:c.py", "source_path": "/x/a,b:c.py", "findings": [finding] * 2}
    commands = annotate({"launches": [launch, launch]}, ["k/a,b:c.py", "d.py"])
    assert list(commands) == [
        "::warning file=k/a%2Cb%3Ac.py,line=3::100 %25%0A::error::x If y.",
    ]


def test_a_new_script_is_no_regression_and_its_report_is_in_the_summary(runner):
    prepare = "git rev-parse -q --verify HEAD~1 > /dev/null && cp bench.py new.py || true"
    for step in (BASE, CHANGE, COMPARE):
        done, summary = runner(step, command="new.py", prepare=prepare)
        assert done.returncode == 0, done.stderr
    text = summary.read_text().partition("## Tilescope: `new.py`")[2]
    assert "H200: 1 launch**" in text


@pytest.mark.parametrize("commit", ["", "0" * 40])
def test_without_a_base_nothing_is_captured(runner, commit):
    done, _ = runner(BASE, base=commit, prepare="exit 1")
    assert (done.returncode, worktrees(runner)) == (0, 1)
    assert "There is no base" in done.stdout


def test_every_step_names_its_shell_and_takes_inputs_from_its_environment():
    """An input within a script would run as code."""
    for step in STEPS:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
