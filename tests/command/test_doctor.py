"""`app.py --doctor`: each thing that can be wrong is named, with what to do; and on this machine all is tried out."""

from __future__ import annotations

import socket

import pytest

from kernels.gpus import GPUS
from kernels.results.store import Store
from visualize.command import doctor
from visualize.command.doctor import FAILS, LIMITED, WORKS


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(("version", "state"), [((3, 10), FAILS), ((3, 11), WORKS), ((3, 13), WORKS), ((3, 14), FAILS)])
def test_a_python_that_it_was_not_tested_with_fails(version, state):
    assert doctor.python_version(version).state == state


def test_what_is_not_installed_is_named():
    found = doctor.packages({"gradio": "6.31.0", "torch": "2.13.0", "plotly": "7.1.0", "pandas": None}.get)
    assert (found.state, found.remedy) == (FAILS, "pip install -r requirements.txt.")
    assert "pandas missing" in found.found
    without_triton = {"gradio": "6", "torch": "2", "plotly": "7", "pandas": "3"}.get
    assert doctor.packages(without_triton).state == WORKS, "other systems have no Triton"


def test_a_gpu_is_named_and_its_absence_is_no_failure():
    assert doctor.device(GPUS["H200"]).found == "H200, 132 SMs"
    assert doctor.device(None).state == LIMITED


def test_a_port_that_is_taken_fails():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = doctor.address("127.0.0.1", taken.getsockname()[1])
    assert found.state == FAILS
    assert "is in use; choose another" in found.found


def test_a_cache_that_can_not_be_written_fails_and_a_full_disk_is_said(tmp_path):
    assert doctor.cache(tmp_path / "new").state == WORKS
    file = tmp_path / "file"
    file.write_text("")
    assert doctor.cache(file / "below").state == FAILS
    assert doctor.cache(tmp_path, enough_bytes=1 << 62).state == LIMITED


def test_a_database_that_is_off_or_can_not_be_used_loses_results(tmp_path):
    kept = Store(tmp_path / "tilescope.db")
    assert doctor.database(kept).state == WORKS
    kept.close()
    assert doctor.database(Store(None)).state == LIMITED
    (tmp_path / "directory").mkdir()
    broken = Store(tmp_path / "directory")
    found = doctor.database(broken)
    broken.close()
    assert found.state == LIMITED
    assert "not stored" in found.found


def test_a_browser_is_wanted_by_the_tests_alone():
    assert doctor.browser({"google-chrome": "/usr/bin/google-chrome"}.get).found == "/usr/bin/google-chrome"
    assert doctor.browser(lambda _: None).state == LIMITED


def test_this_machine_compiles_runs_and_checks_a_kernel(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path))
    assert doctor.main(doctor.findings("127.0.0.1", free_port(), None)) == 0
    said = capsys.readouterr().out
    assert "works    compiler     transpose.tiled: " in said
    assert "works    run          transpose.tiled equals torch (interpreter)" in said
    assert f"works    database     {tmp_path / 'tilescope.db'}" in said


def test_what_fails_is_the_exit_status(capsys):
    failing = doctor.Finding("cache", FAILS, "disk full", "Make room.")
    assert doctor.main(iter([failing, doctor.Finding("GPU", LIMITED, "none")])) == 1
    assert capsys.readouterr().out.splitlines() == [
        "fails    cache        disk full",
        "                      Make room.",
        "limited  GPU          none",
    ]
