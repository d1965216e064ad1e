"""The doctor."""

import socket
from contextlib import closing

from tilescope.cli.command import run_command
from tilescope.cli.doctor import (
    Problem,
    check_cache,
    check_database,
    check_packages,
    check_python,
    find_problems,
    print_problems,
)
from tilescope.results.store import Store


def test_the_doctor_needs_tested_versions_a_writable_cache_and_stores_results_if_it_can(tmp_path):
    def failures(problems):
        return [problem.is_failure for problem in problems]

    versions = {(3, 10): [True], (3, 11): [], (3, 13): [], (3, 14): [True]}
    assert {version: failures(check_python(version)) for version in versions} == versions
    installed = {
        "gradio": "6",
        "torch": "2",
        "triton": "3.9.0",
        "segno": "1",
        **dict.fromkeys(("pandas", "plotly"), "3"),
    }
    assert list(check_packages(installed)) == []
    (problem,) = check_packages({"gradio": "6"})
    assert not problem.is_failure
    assert problem.remedy == 'pip install "tilescope[torch,page]"'
    assert problem.detail == "torch, triton, pandas, plotly, segno missing."
    assert failures(check_packages(installed | {"triton": "3.5.1"})) == [True]
    (tmp_path / "file").write_text("")
    caches = ((tmp_path / "new", 0), (tmp_path, 1 << 62), (tmp_path / "file" / "below", 0))
    assert [failures(check_cache(path, free)) for path, free in caches] == [[], [False], [True]]
    for path, details in ((tmp_path / "a.db", []), (None, ["off"]), (tmp_path, ["not stored"])):
        with closing(Store(path)) as store:
            problems = list(check_database(store))
        for problem, detail in zip(problems, details, strict=True):
            assert detail in problem.detail
            assert not problem.is_failure


def test_the_doctor_names_what_is_missing_and_ends_with_1_if_a_check_fails(
    tmp_path, tilescope_cache, monkeypatch, capsys
):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tilescope_cache))
    monkeypatch.setenv("TILESCOPE_DB", str(tmp_path / "results.db"))
    assert run_command(print_problems, []) == 0
    assert capsys.readouterr().out == "Everything works.\n"
    failing = [Problem("Python", "3.10", "Use another.", is_failure=True)]
    assert run_command(print_problems, failing) == 1
    assert "fails  Python: 3.10\n         Use another." in capsys.readouterr().out
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        gpu, address = find_problems("127.0.0.1", port, None)
    assert address.detail.startswith(f"Port {port} of 127.0.0.1 is in use")
    assert gpu.detail.startswith("none. Triton's interpreter checks results")
