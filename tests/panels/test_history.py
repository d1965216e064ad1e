"""The History tab: its claim, the points, the tables, its filters, and what it says where nothing is stored."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import sqlite3
import urllib.parse
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernels.experiment import from_json
from kernels.knobs import ConfigError
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results import SweepRow
from kernels.results.store import ResultFilter, Store
from tests.figure_values import decode
from tests.kernels.results_made_up import H200, INTERPRETER, NEWER, START, experiment, noisy, run
from tests.kernels.stores import put_sweep
from tests.panels.sweeps_made_up import space_of
from visualize.views.endpoint import Api, reply_safely
from visualize.views.plot import NONE
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.views.tune.history import STORE_OFF, HistoryPanel, past_runs, runs_of
from visualize.views.tune.view import swept_space

ONE = experiment(M=2048, N=2048)
FLAT = {"kernel": "transpose.tiled", "M": 2048, "N": 2048, "tab": "history", "gpu": "H200"}
H100 = replace(H200, name="NVIDIA H100")
DAY = datetime.timedelta(days=1)


@pytest.fixture
def panel():
    return HistoryPanel()


def filled(store, medians, device=H200, of=ONE, gpu="H200", since=START, kind="run"):
    """Runs of those medians, a day apart."""
    for place, median_ms in enumerate(medians):
        assert store.put(MEASUREMENTS[kind], gpu, run(of, median_ms, device), since + place * DAY)


def known(store, **flat):
    return Snapshot(SETTINGS.state({**FLAT, **flat}, None), store=store)


def text_of(markup):
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def drawn(panel, store, **flat):
    """Return the view's slots."""
    return panel.draw(known(store, **flat))


def claimed(panel, store, **flat):
    return text_of(drawn(panel, store, **flat)["history-claim"])


def asked(store, experiment=None, **arguments):
    """The reply of /history."""
    (endpoint,) = HistoryPanel().endpoints(SimpleNamespace(session=SimpleNamespace(store=store)))
    return endpoint.function(experiment, **arguments)


def test_a_change_leads_with_its_ratio_and_names_the_date_and_the_versions(panel, store):
    filled(store, noisy(0.2, 6))
    filled(store, noisy(0.216, 4), NEWER, since=START + 10 * DAY)
    said = claimed(panel, store)
    assert said.startswith("1.08 × slower since 2026-11-11 on NVIDIA H200 recorded")
    assert (
        "It coincides with torch 2.11.0 → 2.13.0 and triton 3.6.0 → 3.7.1. 6 runs took 0.200 ms, then 4 took 0.216 ms."
        in said
    )
    picture = decode(drawn(panel, store)["history-plot"])
    assert "1.08 × slower<br>torch 2.11.0 → 2.13.0" in picture["layout"]["annotations"][0]["text"]
    assert "transpose.tiled" in picture["about"]
    assert "recorded" in picture["about"]


def test_noise_is_no_change_and_the_latest_time_leads(panel, store):
    filled(store, noisy(0.2, 1))
    assert "It is the only run so far." in claimed(panel, store)
    filled(store, noisy(0.2, 8))
    said = claimed(panel, store)
    assert re.match(r"0\.(199|200|201) ms in the latest of 9 runs on NVIDIA H200 recorded No change since 2026", said)
    assert "at least 3 %" in said, "the rule is told"


def test_devices_are_told_apart_and_the_page_s_gpu_comes_first(panel, store):
    filled(store, noisy(0.2, 3))
    filled(store, noisy(0.3, 4), H100, gpu="H100")
    assert "3 runs on NVIDIA H200" in claimed(panel, store)
    assert "On NVIDIA H100: 4 runs, the latest 0.300 ms; no change." in claimed(panel, store).replace("301", "300")
    assert "4 runs on NVIDIA H100" in claimed(panel, store, gpu="H100")
    here, there = past_runs(store.latest(runs_of(ONE), 99), "H200")
    assert list(here.places) == [0, 1, 2]
    assert list(there.places) == [3, 4, 5, 6]


def test_another_experiment_s_runs_are_not_among_these(panel, store):
    filled(store, noisy(0.2, 3))
    filled(store, noisy(0.9, 3), of=experiment(M=2048, N=1024))
    filled(store, noisy(0.9, 3), of=replace(ONE, run=replace(ONE.run, l2="cold")))
    assert "3 runs" in claimed(panel, store)
    assert "3 runs on NVIDIA H200" in claimed(panel, store, l2="cold")
    assert re.match(r"0\.9\d\d ms|0\.89\d ms", claimed(panel, store, l2="cold"))


def test_checks_without_a_time_are_counted_and_listed_in_the_picture_s_place(panel, store):
    filled(store, [None, None], INTERPRETER)
    shown = drawn(panel, store)
    assert text_of(shown["history-claim"]).startswith("2 of 2 checks passed interpreter")
    assert shown["history-plot"] == NONE
    assert text_of(shown["history-instead"]).count("passed") == 2
    assert "Triton's interpreter" in text_of(shown["history-instead"]).replace("&#39;", "'")


def test_where_nothing_is_stored_it_says_how_to_get_something(panel, store):
    shown = drawn(panel, store)
    assert "Press Run" in shown["history-claim"]
    assert shown["history-plot"] == NONE
    assert "No result is stored yet." in shown["history-instead"]
    filled(store, [0.2], of=experiment(M=16))
    assert "16 × 1024" in drawn(panel, store)["history-instead"], "the latest of all stand there"


def test_a_store_that_is_off_says_so(panel):
    off = drawn(panel, Store(None))
    assert "TILESCOPE_DB is off" in off["history-claim"]
    assert off["history-plot"] == NONE
    assert asked(Store(None))["problem"] == STORE_OFF


def test_a_file_that_cannot_be_used_is_one_sentence_on_the_tab(panel, tmp_path):
    broken = Store(tmp_path)  # a folder
    said = claimed(panel, broken)
    assert said.startswith(f"New results are not stored in {tmp_path.name}: ")
    assert "No runs of this Experiment are stored" in said
    assert asked(broken)["problem"].startswith("New results are not stored")
    broken.close()


def test_each_run_is_a_row_with_its_numbers_and_versions(panel, store):
    filled(store, [0.2])
    filled(store, [0.05], NEWER, since=START + DAY)
    rows = drawn(panel, store)["history-runs"].split("<tr>")[2:]
    new, old = map(text_of, rows)
    assert new == "2026-11-02 09:00 NVIDIA H200 50.0 µs 49.8 µs to 50.2 µs 1.20 × passed 2.13.0 3.7.1"
    assert old.startswith("2026-11-01 09:00 NVIDIA H200 0.200 ms")


def links(markup, word):
    """Address queries of the links with that text."""
    found = re.findall(rf'<a href="\?([^"]*)"[^>]*>{re.escape(word)}(?: <span>[\d,]+</span>)?</a>', str(markup))
    return [dict(urllib.parse.parse_qsl(one.replace("&amp;", "&"))) for one in found]


def test_a_row_of_the_latest_opens_what_was_measured(panel, store):
    of = from_json({"kernel": "matmul.grouped", "problem": {"M": 96}, "run": {"seed": 3}})
    filled(store, [0.2], H100, of=of, gpu="H100")
    filled(store, [0.2], of=replace(of, gpu="this"), device=replace(H200, name="RTX 3090"), gpu="RTX 3090")
    filled(store, [None], INTERPRETER, of=of)
    interpreted, unnamed, named = links(drawn(panel, store)["history-latest"], "matmul.grouped")[-3:]
    for link, gpu in ((interpreted, ""), (unnamed, ""), (named, "H100")):
        state = SETTINGS.state(link, None)
        assert state.experiment == replace(of, gpu=gpu)
        assert state.view.tab == "result"


def test_the_latest_are_filtered_by_links_that_keep_the_experiment(panel, store):
    filled(store, [0.2, 0.2])
    filled(store, [0.2], of=experiment("matmul.grouped"))
    filled(store, [0.2], kind="check")
    latest = drawn(panel, store)["history-latest"]
    (grouped,) = [one for one in links(latest, "matmul.grouped") if one["tab"] == "history"]
    assert grouped["M"] == "2048"
    only = drawn(panel, store, history_kernel=grouped["history_kernel"])["history-latest"]
    assert only.count("<tr>") == 1 + 1
    (checks,) = links(latest, "Checks")
    assert drawn(panel, store, history_kind=checks["history_kind"])["history-latest"].count("<tr>") == 1 + 1


def test_each_list_is_saved_as_csv(panel, store):
    filled(store, [0.2])
    session = SimpleNamespace(store=store)
    for button, header in (("runs", "ended,device,median_ms (ms)"), ("history", "kernel,kind"), ("sweeps", "kernel,s")):
        (answer,) = panel.actions()[f"{button}-csv"].question(session, known(store).state, "page")
        assert json.loads(answer["history-file"])["text"].startswith(f"\ufeff{header}")


def test_a_result_of_a_kernel_that_is_no_longer_there_is_listed_without_a_link(panel, store):
    filled(store, [0.2])
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("""UPDATE result SET kernel = 'old.one', experiment = '{"kernel":"old.one"}'""")
    latest = drawn(panel, store)["history-latest"]
    assert "of another version of this kernel" in latest
    assert '<td class="kernel">old.one</td>' in latest
    assert asked(store)["history"][0]["experiment"] is None


def test_what_the_store_holds_reaches_the_page_escaped(panel, store):
    hostile = "<script>alert(1)</script>"
    filled(store, noisy(0.2, 3), replace(H200, name=hostile, triton=hostile))
    for component, value in drawn(panel, store).items():
        assert hostile not in str(value), component
    shown = decode(drawn(panel, store)["history-plot"])
    assert "<script" not in str(shown)


def test_a_reply_is_a_part_and_next_leads_to_the_rest(store):
    for place in range(7):
        filled(store, [0.1 + place], of=experiment(M=1 + place))
    first = asked(store, limit=3)
    assert (first["total"], first["limit"], len(first["history"])) == (7, 3, 3)
    second = asked(store, limit=3, before=first["next"])
    third = asked(store, limit=3, before=second["next"])
    assert [one["median_ms"] for part in (first, second, third) for one in part["history"]] == [
        pytest.approx(0.1 + place) for place in reversed(range(7))
    ]
    assert third["next"] is None
    one = third["history"][0]
    assert one["experiment"] == {"kernel": "transpose.tiled", "problem": {"M": 1}, "gpu": "H200"}
    assert one["ended"] == "2026-11-01T09:00:00+00:00"
    assert (one["kind"], one["passed"], one["ratio_low"], one["triton"]) == ("run", True, 1.19, "3.6.0")
    assert SETTINGS.state(dict(urllib.parse.parse_qsl(one["address"])), None).view.tab == "result"
    assert json.loads(json.dumps(first)) == first


def test_a_reply_to_an_experiment_has_its_results_alone_and_its_changes(store):
    filled(store, noisy(0.2, 5))
    filled(store, noisy(0.22, 4), NEWER, since=START + 9 * DAY)
    filled(store, [0.9], of=experiment())
    said = asked(store, {"kernel": "transpose.tiled", "problem": {"M": 2048, "N": 2048}})
    assert said["total"] == 9
    (change,) = said["changes"]
    assert (change["device"], change["before"], change["after"]) == ("NVIDIA H200", 5, 4)
    assert change["since"] == "2026-11-10T09:00:00+00:00"
    assert change["low"] < change["ratio"] == pytest.approx(1.1, rel=0.01)
    assert change["versions"] == ["torch 2.11.0 → 2.13.0", "triton 3.6.0 → 3.7.1"]
    assert asked(store)["changes"] == []


def test_a_reply_is_narrowed_by_kernel_kind_and_device(store):
    filled(store, [0.2])
    filled(store, [0.3], H100, gpu="H100")
    filled(store, [0.4], kind="check")
    assert asked(store, device="NVIDIA H100")["total"] == 1
    assert asked(store, kind="check")["history"][0]["median_ms"] == 0.4
    assert asked(store, kernel="matmul.grouped")["history"] == []
    assert asked(store, kernel="transpose.tiled", kind="run", device="NVIDIA H200")["total"] == 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"kernel": "sort"}, "kernel"),
        ({"kind": "dance"}, "kind"),
        ({"device": "'; DROP TABLE measured; --"}, "device"),
        ({"device": "x" * 10_000}, "device"),
        ({"device": ["NVIDIA H200"]}, "device"),
        ({"limit": 0}, "limit"),
        ({"limit": 501}, "limit"),
        ({"limit": "all"}, "limit"),
        ({"before": -1}, "before"),
        ({"before": 2**64}, "before"),
        ({"before": "9" * 200}, "before"),
    ],
)
def test_what_there_is_none_of_is_refused_by_its_own_name(store, given, field):
    filled(store, [0.2])
    with pytest.raises(ConfigError) as error:
        asked(store, **given)
    assert error.value.field == field
    assert str(error.value).startswith(field)
    assert len(str(error.value)) < 400
    assert store.count(ResultFilter()) == 1


@pytest.mark.parametrize("bad", [7, "run", ["kernel"], {"kernel": "sort"}, {"kernel": "transpose.tiled", "x": 1}])
def test_a_bad_experiment_is_refused(store, bad):
    with pytest.raises(ConfigError):
        asked(store, bad)


def test_the_endpoint_answers_from_the_session_s_store(tmp_path):
    session = Session(None, tmp_path, Store(tmp_path / "tilescope.db"))
    filled(session.store, [0.2])
    (endpoint,) = HistoryPanel().endpoints(Api(session))
    assert endpoint.function()["total"] == 1
    refused = asyncio.run(reply_safely(endpoint.function)(kernel="sort"))
    assert refused["failure"]["kind"] == "not_a_choice"
    session.close()


# Stored sweeps.


def swept(store, ended="complete", when=START, **flat):
    """A sweep of two configs, of which one is timed."""
    within = space_of("BLOCK_M=32,64", **flat)
    row = SweepRow(within.experiments[0], "timed", median_ms=0.25)
    put_sweep(store, f"sweep {len(store.sweeps(99))}", within, {0: row}, ended, when)
    return within


def test_sweeps_are_listed_and_the_last_of_a_space_has_a_link(panel, store):
    swept(store, "running")
    within = swept(store, when=START + DAY)
    swept(store, "cancelled", M=128)
    listed = drawn(panel, store)["history-sweeps"]
    said = text_of(listed.split("<tbody>")[1])
    assert said.count("1 of 2 0.250 ms") == 3
    assert re.findall("cancelled|complete|cut off", said) == ["cancelled", "complete", "cut off"]
    assert "512 × 512 × 512" in said
    _, link = links(listed.split("<tbody>")[1], "matmul.grouped")  # the page shows the last sweep of a space
    there = SETTINGS.state(link, None)
    assert there.view.tab == "sweep"
    assert swept_space(there).identity == within.identity
    assert "No sweep is stored" in text_of(drawn(panel, Store(store.path.with_name("other.db")))["history-sweeps"])


def test_the_endpoint_lists_sweeps_of_a_kernel_or_of_a_problem(store):
    swept(store)
    swept(store, M=128)
    both = asked(store)["sweeps"]
    assert [one["experiment"].get("problem") for one in both] == [{"M": 128}, None]
    first = both[1]
    assert (first["vary"], first["done"], first["total"], first["best_ms"]) == ({"BLOCK_M": [32, 64]}, 1, 2, 0.25)
    assert (first["gpu"], first["ended"], first["began"]) == ("H200", "complete", START.isoformat())
    assert len(asked(store, kernel="transpose.tiled")["sweeps"]) == 0
    assert len(asked(store, experiment={"kernel": "matmul.grouped", "problem": {"M": 128}})["sweeps"]) == 1
    assert len(asked(store, limit=1)["sweeps"]) == 1


def test_a_sweep_of_a_kernel_that_is_gone_is_listed_without_a_link(panel, store):
    swept(store)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE sweep SET details = replace(details, 'matmul.grouped', 'matmul.gone')")
    listed = drawn(panel, store)["history-sweeps"]
    assert "of another version of this kernel" in listed
    assert "href" not in listed.split("<tbody>")[1]
    assert asked(store)["sweeps"] == []
