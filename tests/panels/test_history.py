"""The History panel and /history: changes, devices, lists of results and sweeps, and an empty or unusable store."""

from __future__ import annotations

import datetime
import html
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
from kernels.measuring.session import MEASUREMENTS
from kernels.results import SweepRow
from kernels.results.store import ResultFilter, Store
from tests.figure_values import decode
from tests.kernels.results_made_up import H200, INTERPRETER, NEWER, START, experiment, noisy, run
from tests.kernels.stores import put_sweep
from tests.panels.sweeps_made_up import space_of
from visualize.views.slots import NONE
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.views.tune.history import STORE_OFF, HistoryPanel, past_runs, runs_of
from visualize.views.tune.view import swept_space

ONE = experiment(M=2048, N=2048)
FLAT = {"kernel": "transpose.tiled", "M": 2048, "N": 2048, "tab": "history", "gpu": "H200"}
H100 = replace(H200, name="NVIDIA H100")
DAY = datetime.timedelta(days=1)


def put_runs(store, medians, device=H200, of=ONE, gpu="H200", since=START, kind="run"):
    """Store runs with these medians, a day apart."""
    for place, median_ms in enumerate(medians):
        assert store.put(MEASUREMENTS[kind], gpu, run(of, median_ms, device), since + place * DAY)


def text_of(markup):
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", markup).split()))


def draw(store, **flat):
    """Return the panel's slots."""
    return HistoryPanel().draw(Snapshot(SETTINGS.state({**FLAT, **flat}, None), store=store))


def headline(store, **flat):
    return text_of(draw(store, **flat)["history-claim"])


def ask(store, experiment=None, **arguments):
    """Return the reply of /history."""
    (endpoint,) = HistoryPanel().endpoints(SimpleNamespace(session=SimpleNamespace(store=store)))
    return endpoint.function(experiment, **arguments)


def links(markup, text):
    """Return the addresses, as fields, of the links with this text."""
    queries = re.findall(rf'<a href="\?([^"]*)"[^>]*>{re.escape(text)}(?: <span>[\d,]+</span>)?</a>', str(markup))
    return [dict(urllib.parse.parse_qsl(query.replace("&amp;", "&"))) for query in queries]


def test_a_change_leads_with_its_ratio_and_names_the_date_and_the_versions(store):
    put_runs(store, noisy(0.2, 6))
    put_runs(store, noisy(0.216, 4), NEWER, since=START + 10 * DAY)
    put_runs(store, [0.9], of=experiment())
    upgrades = ["torch 2.11.0 → 2.13.0", "triton 3.6.0 → 3.7.1"]
    text = headline(store)
    assert text.startswith("1.08 × slower since 2026-11-11 on NVIDIA H200 recorded")
    assert f"It coincides with {' and '.join(upgrades)}. 6 runs took 0.200 ms, then 4 took 0.216 ms." in text
    figure = decode(draw(store)["history-plot"])
    assert f"1.08 × slower<br>{upgrades[0]}" in figure["layout"]["annotations"][0]["text"]
    assert "transpose.tiled" in figure["about"]
    assert "recorded" in figure["about"]

    reply = ask(store, {"kernel": "transpose.tiled", "problem": {"M": 2048, "N": 2048}})
    assert reply["total"] == 10
    (change,) = reply["changes"]
    assert (change["device"], change["before"], change["after"]) == ("NVIDIA H200", 6, 4)
    assert (change["since"], change["versions"]) == ("2026-11-11T09:00:00+00:00", upgrades)
    assert change["low"] < change["ratio"] == pytest.approx(1.08, rel=0.01)
    assert ask(store)["changes"] == []


def test_noise_is_no_change_and_the_latest_time_leads(store):
    put_runs(store, noisy(0.2, 1))
    assert "It is the only run so far." in headline(store)
    put_runs(store, noisy(0.2, 8))
    latest = r"0\.(199|200|201) ms in the latest of 9 runs on NVIDIA H200 recorded No change since 2026"
    assert re.match(latest, headline(store))
    assert "at least 3 %" in headline(store)


def test_devices_are_separate_and_the_pages_gpu_comes_first(store):
    put_runs(store, noisy(0.2, 3))
    put_runs(store, noisy(0.3, 4), H100, gpu="H100")
    assert "3 runs on NVIDIA H200" in headline(store)
    assert re.search(r"On NVIDIA H100: 4 runs, the latest 0\.30\d ms; no change\.", headline(store))
    assert "4 runs on NVIDIA H100" in headline(store, gpu="H100")
    series = past_runs(store.latest(runs_of(ONE), 99), "H200")
    assert [list(runs.places) for runs in series] == [[0, 1, 2], [3, 4, 5, 6]]


def test_runs_of_another_experiment_are_not_listed(store):
    put_runs(store, noisy(0.2, 3))
    put_runs(store, noisy(0.9, 3), of=experiment(M=2048, N=1024))
    put_runs(store, noisy(0.9, 3), of=replace(ONE, run=replace(ONE.run, l2="cold")))
    assert re.match(r"0\.(199|20\d) ms in the latest of 3 runs", headline(store))
    assert re.match(r"0\.(9\d\d|89\d) ms in the latest of 3 runs on NVIDIA H200", headline(store, l2="cold"))


def test_checks_without_a_time_are_counted_and_listed_in_place_of_the_picture(store):
    put_runs(store, [None, None], INTERPRETER)
    slots = draw(store)
    assert text_of(slots["history-claim"]).startswith("2 of 2 checks passed interpreter")
    assert slots["history-plot"] == NONE
    assert text_of(slots["history-instead"]).count("Triton's interpreter on the CPU passed") == 2


def test_an_empty_store_says_how_to_get_a_result_and_otherwise_the_latest_results_are_listed(store):
    slots = draw(store)
    assert "Press Run" in slots["history-claim"]
    assert slots["history-plot"] == NONE
    assert "No result is stored yet." in slots["history-instead"]
    assert "No sweep is stored" in slots["history-sweeps"]
    put_runs(store, [0.2], of=experiment(M=16))
    assert "16 × 1024" in draw(store)["history-instead"]


def test_a_store_that_is_off_or_unusable_is_one_sentence(tmp_path):
    slots = draw(Store(None))
    assert "TILESCOPE_DB is off" in slots["history-claim"]
    assert slots["history-plot"] == NONE
    assert ask(Store(None))["problem"] == STORE_OFF
    with closing(Store(tmp_path)) as folder:
        problem = f"New results are not stored in {tmp_path.name}: "
        assert headline(folder).startswith(problem)
        assert "No runs of this Experiment are stored" in headline(folder)
        assert ask(folder)["problem"].startswith(problem)


def test_each_run_is_a_row_with_its_numbers_and_versions(store):
    put_runs(store, [0.2])
    put_runs(store, [0.05], NEWER, since=START + DAY)
    newer, older = map(text_of, draw(store)["history-runs"].split("<tr>")[2:])
    assert newer == "2026-11-02 09:00 NVIDIA H200 50.0 µs 49.8 µs to 50.2 µs 1.20 × passed 2.13.0 3.7.1"
    assert older.startswith("2026-11-01 09:00 NVIDIA H200 0.200 ms")


def test_a_row_of_the_latest_results_opens_its_experiment(store):
    of = from_json({"kernel": "matmul.grouped", "problem": {"M": 96}, "run": {"seed": 3}})
    put_runs(store, [0.2], H100, of=of, gpu="H100")
    put_runs(store, [0.2], of=replace(of, gpu="this"), device=replace(H200, name="RTX 3090"), gpu="RTX 3090")
    put_runs(store, [None], INTERPRETER, of=of)
    targets = links(draw(store)["history-latest"], "matmul.grouped")[-3:]
    for link, gpu in zip(targets, ("", "", "H100"), strict=True):
        state = SETTINGS.state(link, None)
        assert (state.experiment, state.view.tab) == (replace(of, gpu=gpu), "result")


def test_the_latest_results_are_filtered_by_links_that_keep_the_experiment(store):
    put_runs(store, [0.2, 0.2])
    put_runs(store, [0.2], of=experiment("matmul.grouped"))
    put_runs(store, [0.2], kind="check")
    latest = draw(store)["history-latest"]
    (grouped,) = [link for link in links(latest, "matmul.grouped") if link["tab"] == "history"]
    (checks,) = links(latest, "Checks")
    assert grouped["M"] == "2048"
    for option in ({"history_kernel": grouped["history_kernel"]}, {"history_kind": checks["history_kind"]}):
        assert draw(store, **option)["history-latest"].count("<tr>") == 1 + 1


@pytest.mark.parametrize(
    ("name", "header"), [("runs", "ended,device,median_ms (ms)"), ("history", "kernel,kind"), ("sweeps", "kernel,s")]
)
def test_each_list_is_saved_as_csv(store, name, header):
    put_runs(store, [0.2])
    action = HistoryPanel().actions()[f"{name}-csv"]
    (slots,) = action.question(SimpleNamespace(store=store), SETTINGS.state(FLAT, None), "page")
    assert json.loads(slots["saved-file"])["text"].startswith(f"\ufeff{header}")


def test_text_from_the_store_reaches_the_page_escaped(store):
    hostile = "<script>alert(1)</script>"
    put_runs(store, noisy(0.2, 3), replace(H200, name=hostile, triton=hostile))
    slots = draw(store)
    assert not [name for name, value in slots.items() if hostile in value]
    assert "<script" not in str(decode(slots["history-plot"]))


def test_a_reply_is_a_part_of_the_list_and_next_leads_to_the_rest(store):
    for place in range(7):
        put_runs(store, [0.1 + place], of=experiment(M=1 + place))
    parts = [ask(store, limit=3)]
    while parts[-1]["next"]:
        parts.append(ask(store, limit=3, before=parts[-1]["next"]))
    assert [(part["total"], part["limit"], len(part["history"])) for part in parts] == [(7, 3, 3), (7, 3, 3), (7, 3, 1)]
    medians = [result["median_ms"] for part in parts for result in part["history"]]
    assert medians == pytest.approx([0.1 + place for place in reversed(range(7))])
    result = parts[-1]["history"][0]
    assert result["experiment"] == {"kernel": "transpose.tiled", "problem": {"M": 1}, "gpu": "H200"}
    assert result["ended"] == "2026-11-01T09:00:00+00:00"
    assert (result["kind"], result["passed"], result["ratio_low"], result["triton"]) == ("run", True, 1.19, "3.6.0")
    assert SETTINGS.state(dict(urllib.parse.parse_qsl(result["address"])), None).view.tab == "result"
    assert json.loads(json.dumps(parts)) == parts


def test_a_reply_is_narrowed_by_kernel_kind_and_device(store):
    put_runs(store, [0.2])
    put_runs(store, [0.3], H100, gpu="H100")
    put_runs(store, [0.4], kind="check")
    assert ask(store, device="NVIDIA H100")["total"] == 1
    assert ask(store, kind="check")["history"][0]["median_ms"] == 0.4
    assert ask(store, kernel="matmul.grouped")["history"] == []
    assert ask(store, kernel="transpose.tiled", kind="run", device="NVIDIA H200")["total"] == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel", "sort"),
        ("kind", "dance"),
        ("device", "'; DROP TABLE measured; --"),
        ("device", "x" * 10_000),
        ("device", ["NVIDIA H200"]),
        ("limit", 0),
        ("limit", 501),
        ("limit", "all"),
        ("before", -1),
        ("before", 2**64),
        ("before", "9" * 200),
        ("experiment", ["kernel"]),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(store, field, value):
    put_runs(store, [0.2])
    with pytest.raises(ConfigError, match=rf"^(\w+ )*{field} ") as error:
        ask(store, **{field: value})
    assert error.value.field in (field, "")
    assert len(str(error.value)) < 400
    assert store.count(ResultFilter()) == 1


# Stored sweeps.


def put_two_configs(store, ended="complete", when=START, **flat):
    """Store a sweep of two configs, of which one is timed."""
    space = space_of("BLOCK_M=32,64", **flat)
    row = SweepRow(space.experiments[0], "timed", median_ms=0.25)
    put_sweep(store, f"sweep {len(store.sweeps(99))}", space, {0: row}, ended, when)
    return space


def test_sweeps_are_listed_and_the_last_of_a_space_has_a_link(store):
    put_two_configs(store, "running")
    space = put_two_configs(store, when=START + DAY)
    put_two_configs(store, "cancelled", M=128)
    body = draw(store)["history-sweeps"].split("<tbody>")[1]
    assert text_of(body).count("1 of 2 0.250 ms") == 3
    assert re.findall("cancelled|complete|cut off", text_of(body)) == ["cancelled", "complete", "cut off"]
    assert "512 × 512 × 512" in text_of(body)
    _, link = links(body, "matmul.grouped")
    state = SETTINGS.state(link, None)
    assert (state.view.tab, swept_space(state).identity) == ("sweep", space.identity)


def test_the_endpoint_lists_sweeps_of_a_kernel_or_of_a_problem(store):
    put_two_configs(store)
    put_two_configs(store, M=128)
    newer, older = ask(store)["sweeps"]
    assert (newer["experiment"]["problem"], older["experiment"].get("problem")) == ({"M": 128}, None)
    assert (older["vary"], older["done"], older["total"], older["best_ms"]) == ({"BLOCK_M": [32, 64]}, 1, 2, 0.25)
    assert (older["gpu"], older["ended"], older["began"]) == ("H200", "complete", START.isoformat())
    assert ask(store, kernel="transpose.tiled")["sweeps"] == []
    assert ask(store, {"kernel": "matmul.grouped", "problem": {"M": 128}})["sweeps"] == [newer]
    assert ask(store, limit=1)["sweeps"] == [newer]


def test_results_and_sweeps_of_a_removed_kernel_are_listed_without_a_link(store):
    put_runs(store, [0.2])
    put_two_configs(store)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("""UPDATE result SET kernel = 'old.one', experiment = '{"kernel":"old.one"}'""")
        connection.execute("UPDATE sweep SET details = replace(details, 'matmul.grouped', 'matmul.gone')")
    slots, reply = draw(store), ask(store)
    for name in ("history-latest", "history-sweeps"):
        body = slots[name].split("<tbody>")[1]
        assert "of another version of this kernel" in body
        assert "href" not in body
    assert '<td class="kernel">old.one</td>' in slots["history-latest"]
    assert (reply["history"][0]["experiment"], reply["sweeps"]) == (None, [])
