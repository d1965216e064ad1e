"""The Tune view beside its search: the pictures and the text of a sweep, and the endpoint /history."""

import datetime
import json
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import parse_qsl

import plotly.graph_objects as go
import pytest

from tests.experiments import experiment_of
from tests.messages import opened
from tests.results_made_up import H200, INTERPRETER, START, run
from tests.stores import execute, put_sweep
from tests.tilescope.search.fakes import GPU, FakeBuilder, FakeDevice, grid, predicting, swept
from tests.visualize.panels.sweeps_made_up import space_of
from tilescope.declare.knobs import ConfigError, read_fields
from tilescope.measure.session import MEASUREMENTS
from tilescope.results import Failure, SweepRow
from tilescope.results.store import Store
from visualize.views.tune import text
from visualize.views.tune.figures import heatmap_figure
from visualize.views.tune.view import STORE_OFF, HistoryOptions, history, plan_sweep, swept_space

ONE = experiment_of(M=2048, N=2048)
H100 = replace(H200, name="NVIDIA H100")
DAY = datetime.timedelta(days=1)


def put_runs(store, medians, device=H200, of=ONE, gpu="H200"):
    """Store runs with these medians, a day apart."""
    for place, median_ms in enumerate(medians):
        assert store.put(MEASUREMENTS["run"], gpu, run(of, median_ms, device), START + place * DAY)


def ask(store, experiment=None, **arguments):
    """Return the reply of /history."""
    api = SimpleNamespace(session=SimpleNamespace(store=store))
    return history(api, experiment, options=read_fields(HistoryOptions, arguments, "/history"))


def test_the_replies_are_the_approved_ones(store, approve, monkeypatch):
    monkeypatch.setattr("tilescope.results.store.TRITON", "3.7.1")
    put_runs(store, [0.2, 0.216])
    put_runs(store, [0.9], of=experiment_of())
    put_two_configs(store)
    put_two_configs(store, M=128)
    large = {"kernel": "transpose.tiled", "problem": {"M": 2048, "N": 2048}}
    replies = {
        "results of an experiment": ask(store, large, limit=1),
        "all results, and sweeps": ask(store, limit=2),
        "sweeps of a problem": ask(store, {"kernel": "matmul.grouped", "problem": {"M": 128}}),
    }
    approve("history", replies)


def test_a_store_that_is_off_or_unusable_is_one_sentence(tmp_path):
    assert ask(Store(None))["problem"] == STORE_OFF
    with closing(Store(tmp_path)) as folder:
        assert ask(folder)["problem"].startswith(f"New results are not stored in {tmp_path.name}: ")


def test_the_address_of_a_result_opens_its_experiment(store):
    of = experiment_of("matmul.grouped M=96 seed=3")
    own = replace(of, gpu="this")
    put_runs(store, [0.2], H100, of=of, gpu="H100")
    put_runs(store, [0.2], of=own, device=replace(H200, name="RTX 3090"), gpu="RTX 3090")
    put_runs(store, [None], INTERPRETER, of=of)
    results = ask(store)["history"]
    for result, gpu in zip(results, ("", "", "H100"), strict=True):
        state = opened(dict(parse_qsl(result["address"])))
        assert state.experiment == replace(of, gpu=gpu)
        assert state.view.tab == "result"


def test_a_list_can_be_limited_to_a_device(store):
    put_runs(store, [0.1])
    put_runs(store, [0.2], H100, gpu="H100")
    assert [one["gpu"] for one in ask(store, device="NVIDIA H100")["history"]] == ["H100"]
    assert ask(store, device="'; DROP TABLE result; --")["history"] == []
    assert len(ask(store)["history"]) == 2


def test_a_reply_is_a_part_of_the_list_and_next_leads_to_the_rest(store):
    for place in range(7):
        put_runs(store, [0.1 + place], of=experiment_of(M=1 + place))
    parts = [ask(store, limit=3)]
    while parts[-1]["next"]:
        parts.append(ask(store, limit=3, before=parts[-1]["next"]))
    assert [(part["total"], part["limit"], len(part["history"])) for part in parts] == [
        (7, 3, 3),
        (7, 3, 3),
        (7, 3, 1),
    ]
    medians = [result["median_ms"] for part in parts for result in part["history"]]
    assert medians == pytest.approx([0.1 + place for place in reversed(range(7))])
    assert json.loads(json.dumps(parts)) == parts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel", "sort"),
        ("limit", 501),
        ("before", "9" * 200),
        ("experiment", ["kernel"]),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(store, field, value):
    with pytest.raises(ConfigError, match=rf"^(\w+ )*{field} ") as error:
        ask(store, **{field: value})
    assert error.value.field in (field, "")
    assert len(str(error.value)) < 400


# Stored sweeps.


def put_two_configs(store, **flat):
    """Store a sweep of two configs, of which one is timed."""
    space = space_of("BLOCK_M=32,64", **flat)
    row = SweepRow(space.experiments[0], "timed", median_ms=0.25)
    put_sweep(store, f"sweep {len(store.sweeps(99))}", space, {0: row})
    return space


def test_the_address_of_a_sweep_opens_it(store):
    space = put_two_configs(store)
    (sweep,) = ask(store)["sweeps"]
    state = opened(dict(parse_qsl(sweep["address"])))
    assert state.view.tab == "sweep"
    assert swept_space(state).identity == space.identity
    assert ask(store, kernel="transpose.tiled")["sweeps"] == []


def test_a_result_of_a_removed_kernel_is_listed_without_an_address_and_its_sweeps_are_not(store):
    put_runs(store, [0.2])
    put_two_configs(store)
    execute(
        store.path,
        """UPDATE result SET kernel = 'old.one', experiment = '{"kernel":"old.one"}'""",
        "UPDATE sweep SET details = replace(details, 'matmul.grouped', 'matmul.gone')",
    )
    reply = ask(store)
    (result,) = reply["history"]
    assert result["kernel"] == "old.one"
    assert result["experiment"] is None
    assert result["address"] is None
    assert reply["sweeps"] == []


VARY = {"BLOCK_M": [16, 32, 64], "BLOCK_N": [32, 64], "num_warps": [2, 4]}


@pytest.fixture(scope="module")
def timed():
    """A sweep in which configs of BLOCK_M 16 are wrong, and some others cannot be compiled."""
    refused = Failure("compile", "out_of_resources", "Too much shared memory.")
    builder = FakeBuilder(
        failures=lambda e: refused if (e.config.BLOCK_M, e.config.num_warps) == (64, 2) else None
    )
    device = FakeDevice(wrong=lambda e: e.config.BLOCK_M == 16)
    return swept(device, predicting(error=0.2), within=grid(VARY), builder=builder)


def predict_only(sweep, ms_of=lambda ms: ms):
    """Return the same sweep on a machine that cannot time configs, with other predicted times."""
    untimed = dict.fromkeys(("median_ms", "low_ms", "high_ms", "relative", "turn"))
    rows = []
    for row in sweep.rows:
        predicted = row.predicted and replace(row.predicted, ms=ms_of(row.predicted.ms))
        status = {"status": "predicted"} if row.status == "timed" else {}
        rows.append(replace(row, predicted=predicted, **untimed, **status))
    return replace(sweep, rows=tuple(rows), final=None)


PLAN = plan_sweep(space_of("BLOCK_M=64,256 BLOCK_N=64,256 num_warps=4,8"), GPU)


def test_the_figures_are_the_approved_ones(timed, approve):
    figures = {
        "heatmap": heatmap_figure(timed),
        "one row": heatmap_figure(swept(within=grid({"num_warps": [2, 4]}))),
        "one value": heatmap_figure(predict_only(timed, lambda _: 0.5)),
        "expected order": heatmap_figure(PLAN),
    }
    approve("tune_figures", {name: go.Figure(figures[name]) for name in figures})


@pytest.fixture(scope="module")
def sweep():
    return swept(FakeDevice(), within=grid({"BLOCK_M": [16, 32], "num_warps": [4, 8]}))


def predict_times(sweep, *times):
    """Return the same sweep with these predicted times alone."""
    remaining = iter(times)
    return predict_only(sweep, lambda _: next(remaining))


def describe(sweep, *rows):
    """Return a sweep's texts: headline, two labels, the table with more rows, and the lines to copy."""
    first, last = sweep.rows[2], (*sweep.rows, *rows)[-1]
    return "<p>".join(
        (
            text.sweep_headline(sweep),
            text.point_label(first, sweep),
            text.point_label(last, sweep),
            text.ranking_table(replace(sweep, rows=(*sweep.rows, *rows)), lambda _: ""),
            text.config_lines(sweep),
        )
    )


def test_the_texts_are_the_approved_ones(sweep, approve):
    message = "error:\n<a href='//x'>here</a>\n" + "x " * 500
    refused = replace(sweep.rows[0], status="set aside", median_ms=None, reason=message)
    ranks = tuple(replace(row, predicted=None) for row in predict_only(sweep).rows)
    texts = {
        "before a sweep": "<p>".join(
            (
                text.plan_headline(PLAN, 90.0, has_times=False),
                text.point_label(PLAN.rows[0], PLAN),
                text.ranking_table(PLAN, lambda _: ""),
            )
        ),
        "measured": describe(sweep),
        "µs": describe(predict_times(sweep, 0.009996, 0.012, 1.5, 0.2), refused),
        "ms": describe(predict_times(sweep, 0.2, 0.3, 0.4, 0.5), refused),
        "without predicted times": describe(replace(predict_only(sweep), rows=ranks)),
    }
    for name, second_ms in (("a tie within five percent", 0.209), ("no tie", 0.211)):
        texts[name] = text.sweep_headline(predict_times(sweep, 0.2, second_ms, 0.22, 0.3))
    approve("tune", texts)
